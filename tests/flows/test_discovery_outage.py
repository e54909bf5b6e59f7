"""PostgreSQL goes down: pages, API and the list are 503, and a real Prometheus keeps the targets it has, until the inventory is back with a new one."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from fleet.telemetry.senders import digest_token
from script.servers import APP_ROLE, OWNER_ROLE, Postgres, Prometheus, Server, free_port, port_answers, wait_until

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "mhs_of-this-test"
CONFIG = """
scrape_configs:
  - job_name: dcgm
    scrape_interval: 1s
    scrape_timeout: 1s
    http_sd_configs:
      - url: http://127.0.0.1:{port}/api/v1/sd/dcgm
        refresh_interval: 1s
        authorization: {{credentials: "{token}"}}
"""
AWAY = {"/": "text/html", "/sites": "text/html", "/live/frames": "text/html", "/accounts/login/": "text/html", "/api/v1/sites": "application/problem+json"}
SEED = """
INSERT INTO fleet_area (slug, name) VALUES ('a', 'A');
INSERT INTO fleet_region (area_id, slug, name, kind) SELECT id, 'r', 'R', 'edge' FROM fleet_area;
INSERT INTO fleet_site (region_id, code, name, kind, time_zone, power_feed) SELECT id, 'S-1', 'S', 'cell', 'UTC', '' FROM fleet_region;
INSERT INTO fleet_sender (name, token_hash, may_write, may_discover, created_at, honor_labels) VALUES ('p', '{token}', true, true, now(), false);
INSERT INTO fleet_sender_regions (sender_id, region_id) SELECT s.id, r.id FROM fleet_sender s, fleet_region r;
"""
NODE = """
INSERT INTO fleet_node (site_id, host_name, role, driver_version, cuda_version, kubelet_version, agent_version, boot_id, topology, exporter_address,
    triton_address, vllm_address, node_exporter_address)
SELECT id, %s, 'du', '', '', '', '', '', '{}', %s, '', '', '' FROM fleet_site
"""


class Web(Server):
    name = "web"

    def __init__(self, folder: Path, database_url: str) -> None:
        super().__init__(folder)
        self.port = free_port()
        self.environment = os.environ | {"MASTHEAD_DATABASE_URL": database_url}

    def begin(self) -> None:
        command = [sys.executable, "-m", "uvicorn", "console.asgi:application", "--port", str(self.port), "--log-level", "warning"]
        self.spawn(command, environment=self.environment, cwd=ROOT)

    def is_ready(self) -> bool:
        return port_answers(self.port)


@pytest.fixture
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    folder = Path("/tmp") / f"masthead-discovery-{os.getpid()}"
    server = Postgres(folder / "postgres", durable=False)
    server.start()
    yield server
    server.stop()
    subprocess.run(["rm", "-rf", str(folder)], check=True)


def until(ready: Callable[[], bool], what: str, log: Path) -> None:
    wait_until(ready, timeout_seconds=60, what=what, log=log)


def read(url: str, token: str = "") -> tuple[int, Any]:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})  # noqa: S310 - 127.0.0.1
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - 127.0.0.1
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, None


@pytest.mark.processes
def test_prometheus_keeps_its_targets_while_postgresql_is_down(postgres: Postgres, tmp_path: Path) -> None:
    owner = os.environ | {"MASTHEAD_DATABASE_URL": postgres.url(role=OWNER_ROLE)}
    subprocess.run([sys.executable, "manage.py", "setup_database", "-v0"], cwd=ROOT, env=owner, check=True, stdout=subprocess.DEVNULL)
    with psycopg.connect(postgres.url(role=APP_ROLE), autocommit=True) as database:
        database.execute(SEED.format(token=digest_token(TOKEN)))
        for number in range(3):
            database.execute(NODE, [f"du-{number}", f"127.0.0.1:{9 + number}"])
    (tmp_path / "web").mkdir()
    web = Web(tmp_path / "web", postgres.url())
    config = tmp_path / "prometheus.yml"
    config.write_text(CONFIG.format(port=web.port, token=TOKEN))
    prometheus = Prometheus(tmp_path / "prometheus", config)
    url = f"http://127.0.0.1:{web.port}/api/v1/sd/dcgm"

    def targets() -> int:
        status, answer = read(f"{prometheus.url}/api/v1/targets?state=active")
        return len(answer["data"]["activeTargets"]) if status == 200 else -1  # not ready yet

    def failures() -> float:
        with urllib.request.urlopen(f"{prometheus.url}/metrics", timeout=10) as answer:  # noqa: S310 - 127.0.0.1
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("prometheus_sd_http_failures_total"))

    try:
        web.start()
        assert read(url, TOKEN)[0] == 200
        prometheus.start()
        until(lambda: targets() == 3, "three targets", prometheus.log)
        postgres.stop()
        assert read(url, TOKEN)[0] == 503
        for path, kind in AWAY.items():
            answer = httpx.get(f"http://127.0.0.1:{web.port}{path}", cookies={"sessionid": "x" * 32}, headers={"Authorization": "Bearer mh_any"})
            assert (answer.status_code, answer.headers["Content-Type"].split(";")[0], "Retry-After" in answer.headers) == (503, kind, True), path
        before = failures()
        until(lambda: failures() >= before + 2, "two failed refreshes", prometheus.log)
        assert targets() == 3
        postgres.start()
        with psycopg.connect(postgres.url(role=APP_ROLE), autocommit=True) as database:
            database.execute(NODE, ["du-3", "127.0.0.1:12"])
        until(lambda: targets() == 4, "four targets", prometheus.log)
        deadline = time.monotonic() + 10
        while read(url, TOKEN)[0] != 200 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(read(url, TOKEN)[1]) == 4
    finally:
        prometheus.stop()
        web.stop()
