"""A real Prometheus scrapes exporters and writes to the door: values, workloads that change, targets that vanish."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import uvicorn
from prometheus_client import CollectorRegistry

from fleet.remote_write import Receiver
from fleet.telemetry.fields import Refusal
from fleet.telemetry.ingest import Ingest
from fleet.telemetry.resolver import SenderScope
from fleet.telemetry.senders import SenderDirectory
from script.servers import Prometheus, free_port
from tests.fleet.samples import FIXTURES, fleet_of, from_exposition, gpu_value, slice_value, uuids_of

TEXT = (FIXTURES / "dcgm-exporter-h100-mig-k8s.prom").read_text()


class Exporter:
    """Serves a text; `text` None answers 500."""

    def __init__(self) -> None:
        self.text: str | None = TEXT
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = (exporter.text or "").encode()
                self.send_response(200 if exporter.text is not None else 500)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class OneSender(SenderDirectory):
    def find(self, token: str, *, now: datetime) -> tuple[SenderScope, bool] | None:
        return (SenderScope(1, "real", None, honor_labels=True), True) if token == "secret" else None


@contextmanager
def serving(receiver: Receiver, port: int) -> Iterator[None]:
    server = uvicorn.Server(uvicorn.Config(receiver, host="127.0.0.1", port=port, lifespan="off", access_log=False, log_config=None, ws="none"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


def until(holds: Callable[[], bool], seconds: float = 40.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    found = Exporter()
    yield found
    found.close()


@pytest.fixture
def ingest(exporter: Exporter, tmp_path: Path) -> Iterator[Ingest]:
    found = fleet_of(uuids_of(from_exposition(TEXT)), site="S1", host="gpu-ams-07")
    port = free_port()
    config = tmp_path / "prometheus.yml"
    config.write_text(
        f"""
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: dcgm
    static_configs: [{{targets: ["127.0.0.1:{exporter.server.server_port}"], labels: {{site: S1, node: gpu-ams-07, region: north}}}}]
remote_write:
  - url: http://127.0.0.1:{port}/api/v1/write
    authorization: {{credentials: secret}}
    queue_config: {{batch_send_deadline: 1s}}
"""
    )
    with ThreadPoolExecutor(1) as executor:
        receiver = Receiver(found, OneSender(), executor=executor, lock=threading.Lock(), registry=CollectorRegistry())
        with serving(receiver, port):
            prometheus = Prometheus(tmp_path / "prometheus", config, retention="1h")
            prometheus.start()
            yield found
            prometheus.stop()
    assert set(receiver.answers) == {204}


@pytest.mark.processes
def test_values_workloads_and_silence_of_a_real_prometheus(exporter: Exporter, ingest: Ingest) -> None:
    sliced, whole = uuids_of(from_exposition(TEXT))
    until(lambda: gpu_value(ingest, whole, "power_watts") == 641.107)
    until(lambda: len(ingest.table) > 60)
    ingest.state.derive()
    assert gpu_value(ingest, sliced, "utilization_ratio") == pytest.approx(0.432857, abs=1e-6)
    assert slice_value(ingest, sliced, 2, "engine_active_ratio") == 0.73
    assert ingest.state.node_up[0] == 1
    assert not ingest.quality.totals[Refusal.OUT_OF_RANGE]
    workloads = {
        (seen.gpu_uuid, seen.gpu_instance_id): (seen.pod, seen.site_code, seen.node_host) for seen in ingest.sightings.take(now=time.time() + 5, limit=100)
    }
    # The target has no pod of its own, so the exporter's label stays as it is: such a sender is one whose labels are the workload's.
    assert workloads[whole, None] == ("llm-70b-0", "S1", "gpu-ams-07")
    assert workloads[sliced, 10] == ("", "S1", "gpu-ams-07")

    exporter.text = TEXT.replace("llm-70b-0", "llm-70b-1").replace("641.107000", "650.000000")
    until(lambda: gpu_value(ingest, whole, "power_watts") == 650)
    until(lambda: any(seen.pod == "llm-70b-1" for seen in ingest.sightings.take(now=time.time() + 5, limit=100)))

    exporter.text = "\n".join(line for line in TEXT.splitlines() if 'GPU_I_ID="10"' not in line) + "\n"
    until(lambda: not ingest.state.slice_live[ingest.state.slice_row_of[ingest.state.gpu_row_of[sliced], 10]])
    assert slice_value(ingest, sliced, 9, "engine_active_ratio") is not None

    exporter.text = None
    until(lambda: ingest.state.node_up[0] == 0)
    until(lambda: gpu_value(ingest, whole, "power_watts") is None)
    assert np.isnan(ingest.state.slice_values).all()
