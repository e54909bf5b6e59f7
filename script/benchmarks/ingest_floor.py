"""The floor of ingest: the same requests received, inflated and decoded to key, time and value, and nothing else done with them.

python -m script.benchmarks.ingest_floor --port N
"""

import argparse
from typing import Any

import uvicorn

from fleet.telemetry.remote_write_decoder import decode, inflate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    known: dict[int, int] = {}

    async def receive_only(scope: Any, receive: Any, send: Any) -> None:
        parts = []
        while True:
            message = await receive()
            parts.append(message.get("body", b""))
            if not message.get("more_body"):
                break
        if scope["method"] == "POST":
            batch = decode(inflate(b"".join(parts), limit=64 << 20), known)
            for series in batch.fresh:
                known.setdefault(series.digest, len(known))
        await send({"type": "http.response.start", "status": 204 if scope["method"] == "POST" else 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    uvicorn.run(receive_only, host="127.0.0.1", port=port, lifespan="off", access_log=False, log_level="warning", ws="none")


if __name__ == "__main__":
    main()
