"""Many viewers of the live socket in one process: each opens `/live/` with a session, subscribes to everything and reads on.

Prints one JSON line a second: sockets open, messages, gaps in sequences (looked for in every twentieth viewer), sockets closed by the server.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import resource
import time
from pathlib import Path

from fleet import frames

CHECKED = 20


class Viewer(asyncio.Protocol):
    """The client half of a WebSocket as far as this needs it: handshake, reading frames, answering pings."""

    def __init__(self, host: str, session: str, crowd: Crowd, number: int) -> None:
        self.host, self.session, self.crowd = host, session, crowd
        self.checks = number % CHECKED == 0
        self.buffer = bytearray()
        self.opened = False
        self.seqs: dict[int, int] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [
            "GET /live/ HTTP/1.1",
            f"Host: {self.host}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key}",
            "Sec-WebSocket-Version: 13",
            f"Origin: http://{self.host}",
            f"Cookie: sessionid={self.session}",
        ]
        transport.write(("\r\n".join(lines) + "\r\n\r\n").encode())

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if not self.opened:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            if not self.buffer.startswith(b"HTTP/1.1 101"):
                self.transport.close()
                return
            del self.buffer[: end + 4]
            self.opened = True
            self.crowd.open += 1
            self._send(1, b'{"op":"subscribe","areas":"all"}')
        while (size := self._next()) is not None:
            opcode, start, end = size
            if opcode == 2:
                self.crowd.messages += 1
                self.crowd.bytes += end - start
                if self.checks:
                    self._check(bytes(self.buffer[start:end]))
            elif opcode == 8:
                code = str(int.from_bytes(self.buffer[start : start + 2], "big"))
                self.crowd.codes[code] = self.crowd.codes.get(code, 0) + 1
            elif opcode == 9:
                self._send(10, bytes(self.buffer[start:end]))
            del self.buffer[:end]

    def connection_lost(self, exc: Exception | None) -> None:
        if self.opened:
            self.crowd.open -= 1
        self.crowd.closed += 1

    def _next(self) -> tuple[int, int, int] | None:
        """Opcode, begin and end of the payload of a whole frame at the head of the buffer."""
        have = len(self.buffer)
        if have < 2:
            return None
        length, start = self.buffer[1] & 127, 2
        if length == 126:
            if have < 4:
                return None
            length, start = int.from_bytes(self.buffer[2:4], "big"), 4
        elif length == 127:
            if have < 10:
                return None
            length, start = int.from_bytes(self.buffer[2:10], "big"), 10
        return (self.buffer[0] & 15, start, start + length) if have >= start + length else None

    def _send(self, opcode: int, payload: bytes) -> None:
        mask = os.urandom(4)
        masked = bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))
        self.transport.write(bytes([0x80 | opcode, 0x80 | len(payload)]) + mask + masked)

    def _check(self, payload: bytes) -> None:
        for frame in frames.decode_all(payload):
            known = self.seqs.get(frame.area_id)
            if frame.kind == frames.DELTA and frame.seq != (known or 0) + 1:
                self.crowd.gaps += 1
            self.seqs[frame.area_id] = frame.seq


class Crowd:
    def __init__(self) -> None:
        self.open = self.messages = self.bytes = self.gaps = self.closed = 0
        self.codes: dict[str, int] = {}


async def run(port: int, sessions: list[str], seconds: float) -> None:
    crowd = Crowd()
    loop = asyncio.get_running_loop()
    end = time.monotonic() + seconds

    async def connect() -> None:
        for number, session in enumerate(sessions):
            await loop.create_connection(lambda s=session, n=number: Viewer(f"127.0.0.1:{port}", s, crowd, n), "127.0.0.1", port)  # type: ignore[misc]
            await asyncio.sleep(0.01)

    connecting = asyncio.create_task(connect())
    while time.monotonic() < end:
        await asyncio.sleep(1)
        print(json.dumps(crowd.__dict__), flush=True)
    connecting.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--sessions", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=300)
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16_384), hard))
    asyncio.run(run(options.port, json.loads(options.sessions.read_text()), options.seconds))


if __name__ == "__main__":
    main()
