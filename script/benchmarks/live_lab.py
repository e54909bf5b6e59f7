"""A console on private servers with a made-up fleet, for what measures or draws the live pages. Everything on loopback, in a temporary folder.

`python -m script.benchmarks.live_lab --sites 30000` serves it until Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

from script.servers import OWNER_ROLE, Postgres, Redis, free_port
from script.stack.layout import CHECKOUT
from script.stack.program import Program, answers

PER_REGION = 50


class LiveLab:
    """PostgreSQL, Redis, one web process, and the seeded fleet. `sessions` are cookies of signed-in viewers."""

    def __init__(self, *, sites: int, regions_per_area: int = 60, sessions: int = 1, port: int | None = None) -> None:
        self.sites, self.regions_per_area, self.wanted = sites, regions_per_area, sessions
        self.folder = Path(tempfile.mkdtemp(prefix="masthead-live-", dir="/tmp"))
        self.folder.chmod(0o755)
        self.postgres = Postgres(self.folder / "postgres", durable=False)
        self.redis = Redis(self.folder / "redis")
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.sessions: list[str] = []
        self.web: Program | None = None

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {
            "DJANGO_SETTINGS_MODULE": "console.settings",
            "MASTHEAD_SECRET_KEY": "lab-" + "x" * 60,
            "MASTHEAD_DATABASE_URL": self.postgres.url(),
            "MASTHEAD_REDIS_URL": self.redis.url,
            "MASTHEAD_INSECURE_HTTP": "true",
            "MASTHEAD_ORIGINS": self.url,
            "MASTHEAD_ALLOWED_HOSTS": "127.0.0.1",
            "MASTHEAD_PROMETHEUS_URL": "http://127.0.0.1:9",
        }

    def __enter__(self) -> LiveLab:
        self.postgres.start()
        self.redis.start()
        owner = self.environment | {"MASTHEAD_DATABASE_URL": self.postgres.url(role=OWNER_ROLE)}
        subprocess.run([sys.executable, "manage.py", "setup_database", "-v0"], cwd=CHECKOUT, env=owner, check=True, stdout=subprocess.DEVNULL)
        seed = [sys.executable, "-m", "script.benchmarks.live_seed", str(self.sites), str(self.regions_per_area), str(self.wanted)]
        done = subprocess.run(seed, cwd=CHECKOUT, env=self.environment, check=True, capture_output=True, text=True)
        self.sessions = json.loads(done.stdout)
        command = [sys.executable, "-m", "uvicorn", "console.asgi:application", "--host=127.0.0.1", f"--port={self.port}", "--no-access-log"]
        command += ["--ws=websockets-sansio", "--ws-per-message-deflate=false", "--log-level=warning"]
        self.web = Program("web", self.folder, command, self.environment, ready=answers(f"{self.url}/healthz"))
        self.web.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self.web is not None:
            self.web.stop()
        self.redis.stop()
        self.postgres.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def generator(self, *, changes: int, log: Path, seconds: float = 600, scene: bool = False) -> subprocess.Popen[bytes]:
        """A process that publishes frames as the telemetry process does; its log has one line a tick."""
        command = [sys.executable, "-m", "script.benchmarks.live_generator", f"--changes={changes}", f"--log={log}", f"--seconds={seconds}"]
        command += ["--scene"] if scene else []
        return subprocess.Popen(command, cwd=CHECKOUT, env=self.environment, stdin=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=30_000)
    parser.add_argument("--regions-per-area", type=int, default=60)
    parser.add_argument("--changes", type=int, default=200)
    parser.add_argument("--port", type=int)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--scene", action="store_true", help="begin with a cut ring, a maintenance and a heat wave")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leave nothing running
    with LiveLab(sites=options.sites, regions_per_area=options.regions_per_area, port=options.port) as lab:
        generator = lab.generator(changes=options.changes, log=lab.folder / "ticks.jsonl", seconds=options.seconds, scene=options.scene)
        print(json.dumps({"url": lab.url, "session": lab.sessions[0], "generator": generator.pid, "folder": str(lab.folder)}), flush=True)
        try:
            time.sleep(options.seconds)
        except KeyboardInterrupt:
            pass
        finally:
            generator.terminate()
            generator.wait()


if __name__ == "__main__":
    main()
