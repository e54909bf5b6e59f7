"""What `script/bench control` runs on: PostgreSQL, Redis, two gateways, the console's process and the load agents' processes, all on loopback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import psutil

from script.servers import OWNER_ROLE, Postgres, Redis, free_port, port_answers
from script.stack.layout import CHECKOUT
from script.stack.program import Program, listens

GATEWAYS = 2


def cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


class Partner:
    """A child process that answers each JSON line with one."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self._log: IO[bytes] = log.open("wb")
        self.process = subprocess.Popen(
            command, cwd=CHECKOUT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, start_new_session=True
        )
        self.hear()

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return self.hear()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process of the benchmark ended: {Path(self._log.name).read_text(errors='replace')[-2000:]}")
        found: dict[str, Any] = json.loads(line)
        return found

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()


class ControlLab:
    """`agents` load agents, half of them on each gateway, in `processes` processes."""

    def __init__(self, *, agents: int, heartbeat_seconds: int, processes: int = 2) -> None:
        self.agents, self.heartbeat_seconds, self.processes = agents, heartbeat_seconds, max(processes, GATEWAYS)
        self.folder = Path(tempfile.mkdtemp(prefix="masthead-control-", dir="/tmp"))
        self.folder.chmod(0o755)
        self.postgres, self.redis = Postgres(self.folder / "postgres"), Redis(self.folder / "redis")
        self.key_file = self.folder / "signing.pem"
        self.gateways: list[Program] = []
        self.loads: list[Partner] = []
        self.console: Partner | None = None
        self._ports = [free_port() for _ in range(GATEWAYS)]

    @property
    def environment(self) -> dict[str, str]:
        """Of the gateways: without the signing key."""
        return os.environ | {
            "DJANGO_SETTINGS_MODULE": "console.settings",
            "MASTHEAD_SECRET_KEY": "lab-" + "x" * 60,
            "MASTHEAD_DATABASE_URL": self.postgres.url(),
            "MASTHEAD_REDIS_URL": self.redis.url,
            "MASTHEAD_INSECURE_HTTP": "true",
            "MASTHEAD_ALLOWED_HOSTS": "127.0.0.1",
            "MASTHEAD_PROMETHEUS_URL": "http://127.0.0.1:9",
            "MASTHEAD_HEARTBEAT_SECONDS": str(self.heartbeat_seconds),
            "MASTHEAD_SIGNING_KEY_FILE": "",
        }

    def __enter__(self) -> ControlLab:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()

    def _start(self) -> None:
        self.postgres.start()
        self.redis.start()
        owner = self.environment | {"MASTHEAD_DATABASE_URL": self.postgres.url(role=OWNER_ROLE)}
        for arguments in (["setup_database", "-v0"], ["create_signing_key", str(self.key_file)]):
            subprocess.run([sys.executable, "manage.py", *arguments], cwd=CHECKOUT, env=owner, check=True, stdout=subprocess.DEVNULL)
        signing = self.environment | {"MASTHEAD_SIGNING_KEY_FILE": str(self.key_file)}
        self.console = Partner([sys.executable, "-m", "script.benchmarks.control_console"], signing, self.folder / "console.log")
        self.gateways = [self._gateway(number, port) for number, port in enumerate(self._ports)]
        for gateway in self.gateways:
            gateway.start()

    def _gateway(self, number: int, port: int) -> Program:
        command = [sys.executable, "-m", "uvicorn", "fleet.gateway:application", "--host=127.0.0.1", f"--port={port}", "--ws=websockets-sansio"]
        command += ["--ws-per-message-deflate=false", "--ws-max-size=1048576", "--ws-ping-interval=0", "--no-access-log", "--log-level=warning"]
        return Program(f"gateway-{number}", self.folder, command, self.environment, ready=listens(port))

    def dial(self, console_key: str, *, per_second: float) -> None:
        """Start the load processes; their agents dial at this pace, all together."""
        shares = [self.agents * n // self.processes for n in range(self.processes + 1)]
        for number in range(self.processes):
            url = f"ws://127.0.0.1:{self._ports[number % GATEWAYS]}/agent"
            command = [sys.executable, "-m", "script.benchmarks.control_agents", f"--url={url}", f"--console-key={console_key}"]
            command += [f"--first={shares[number]}", f"--count={shares[number + 1] - shares[number]}", f"--dial-per-second={per_second / self.processes}"]
            self.loads.append(Partner(command, dict(os.environ), self.folder / f"agents-{number}.log"))

    def ask_console(self, do: str, **fields: Any) -> dict[str, Any]:
        assert self.console is not None
        return self.console.ask({"do": do, **fields})

    def tally(self) -> dict[str, int]:
        """What all load agents did and hold, added up."""
        answers = [load.ask({"do": "tally"}) for load in self.loads]
        return {name: sum(answer[name] for answer in answers) for name in answers[0]}

    def await_connected(self, *, within_seconds: float) -> float | None:
        """Seconds until every load agent was welcomed; None when that did not come."""
        began = time.monotonic()
        while time.monotonic() - began < within_seconds:
            if self.tally()["connected"] == self.agents:
                return time.monotonic() - began
            time.sleep(0.25)
        return None

    def gateway_rss_bytes(self) -> int:
        return sum(psutil.Process(gateway.process.pid).memory_info().rss for gateway in self.gateways if gateway.process)

    def gateway_cpu_seconds(self) -> float:
        return sum(cpu_seconds(gateway.process.pid) for gateway in self.gateways if gateway.process)

    def load_cpu_seconds(self) -> float:
        return sum(cpu_seconds(load.process.pid) for load in self.loads)

    def restart_gateways(self) -> None:
        """Kill both in the same moment and start them again."""
        for gateway in self.gateways:
            if gateway.process:
                gateway.process.kill()
        for gateway, port in zip(self.gateways, self._ports, strict=True):
            if gateway.process:
                gateway.process.wait()
            while port_answers(port):
                time.sleep(0.05)
            gateway.begin()
        for gateway in self.gateways:
            gateway.wait_ready()

    def _stop(self) -> None:
        for load in self.loads:
            load.process.terminate()
        for load in self.loads:
            load.stop()
        if self.console is not None:
            self.console.stop()
        for gateway in self.gateways:
            gateway.stop()
        self.redis.stop()
        self.postgres.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
