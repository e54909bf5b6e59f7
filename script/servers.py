"""Start and stop the servers that Masthead needs on one machine: PostgreSQL, Redis, Prometheus.

Only private data folders, loopback and free ports; never another server's data. Used by `script/demo` and by the tests.
Standard library only.
"""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

OWNER_ROLE = "masthead_owner"
APP_ROLE = "masthead_app"


class ServerError(Exception):
    """A server is missing or did not start; the text names the package or the log's last lines."""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def find_binary(name: str, package: str) -> str:
    """Full path of a server binary: PATH, then Debian's PostgreSQL folders (newest first)."""
    found = shutil.which(name)
    candidates = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"), key=lambda path: int(path.split("/")[4]), reverse=True)
    path = candidates[0] if candidates else found
    if path is None:
        raise ServerError(f"{name} is not installed. On Debian: apt-get install --no-install-recommends {package}")
    return path


def wait_until(ready: Callable[[], bool], *, timeout_seconds: float, what: str, log: Path | None = None) -> None:
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        if ready():
            return
        time.sleep(0.05)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:]) if log and log.exists() else ""
    raise ServerError(f"{what} did not come up within {timeout_seconds:.0f} s.\n{tail}")


def port_answers(port: int) -> bool:
    with socket.socket() as sock:
        sock.settimeout(0.5)
        return sock.connect_ex(("127.0.0.1", port)) == 0


class Server:
    """A child process with a log file. `stop` is idempotent."""

    name = "server"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / f"{self.name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def spawn(self, command: list[str], *, user: str | None = None, cwd: Path | None = None) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=cwd or self.folder,
                user=user,
                group=user and pwd.getpwnam(user).pw_gid,
                extra_groups=[] if user else None,
                start_new_session=True,
            )

    def stop(self, *, sig: int = signal.SIGTERM, timeout_seconds: float = 20) -> None:
        process, self.process = self.process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(sig)
        try:
            process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Postgres(Server):
    """A private PostgreSQL cluster. As root it runs as the `postgres` system user, since PostgreSQL refuses root."""

    name = "postgres"

    def __init__(self, folder: Path, *, port: int | None = None, durable: bool = True) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder)
        self.port = port or free_port()
        self.durable = durable
        self.user = self._system_user() if os.geteuid() == 0 else None
        self.data = folder / "data"

    @staticmethod
    def _system_user() -> str:
        for name in ("postgres", "nobody"):
            try:
                pwd.getpwnam(name)
            except KeyError:
                continue
            return name
        raise ServerError("PostgreSQL refuses to run as root and no system user 'postgres' exists. On Debian: apt-get install postgresql-common")

    def url(self, *, role: str = APP_ROLE, database: str = "masthead") -> str:
        return f"postgresql://{role}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        if self.user:
            shutil.chown(self.folder, self.user, pwd.getpwnam(self.user).pw_gid)
        fresh = not (self.data / "PG_VERSION").exists()
        if fresh:
            if self.data.exists():
                shutil.rmtree(self.data)
            self._run(
                [
                    find_binary("initdb", "postgresql-15"),
                    "-D",
                    str(self.data),
                    "-U",
                    "masthead_admin",
                    "-A",
                    "trust",
                    "-E",
                    "UTF8",
                    "--locale=C.UTF-8",
                    "--no-sync",
                ]
            )
        if (self.data / "postmaster.pid").exists():
            self._remove_stale_pid()
        options = [
            "-p",
            str(self.port),
            "-k",
            str(self.folder),
            "-c",
            "listen_addresses=127.0.0.1",
            "-c",
            "max_connections=200",
            "-c",
            "shared_buffers=256MB",
            "-c",
            "jit=off",
        ]
        if not self.durable:
            options += ["-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off"]
        self.log.touch()
        self.spawn([find_binary("postgres", "postgresql-15"), "-D", str(self.data), *options], user=self.user)
        wait_until(self._accepts, timeout_seconds=60, what="PostgreSQL", log=self.log)
        if fresh:
            self.psql(f"CREATE ROLE {OWNER_ROLE} LOGIN CREATEDB NOSUPERUSER; CREATE ROLE {APP_ROLE} LOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE;")
            self.psql(f"CREATE DATABASE masthead OWNER {OWNER_ROLE};")

    def stop(self, *, sig: int = signal.SIGINT, timeout_seconds: float = 20) -> None:
        super().stop(sig=sig, timeout_seconds=timeout_seconds)

    def psql(self, statements: str, *, database: str = "postgres") -> None:
        command = [
            find_binary("psql", "postgresql-client-15"),
            "-v",
            "ON_ERROR_STOP=1",
            "-q",
            "-h",
            "127.0.0.1",
            "-p",
            str(self.port),
            "-U",
            "masthead_admin",
            "-d",
            database,
            "-c",
            statements,
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise ServerError(f"psql: {done.stderr.strip()}")

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(
            command,
            user=self.user,
            group=self.user and pwd.getpwnam(self.user).pw_gid,
            extra_groups=[] if self.user else None,
            capture_output=True,
            text=True,
            cwd=self.folder,
        )
        if done.returncode:
            raise ServerError(f"{Path(command[0]).name}: {done.stderr.strip()}")

    def _accepts(self) -> bool:
        command = [find_binary("pg_isready", "postgresql-client-15"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return self.process is not None and self.process.poll() is None and subprocess.run(command).returncode == 0

    def _remove_stale_pid(self) -> None:
        pid_file = self.data / "postmaster.pid"
        pid = int(pid_file.read_text().split()[0])
        command = Path(f"/proc/{pid}/cmdline")
        if command.exists() and str(self.data).encode() in command.read_bytes():
            raise ServerError(f"PostgreSQL already runs on {self.data} (process {pid}). Stop that first.")
        pid_file.unlink()


class Redis(Server):
    """A private Redis without persistence: nothing in it matters."""

    name = "redis"

    def __init__(self, folder: Path, *, port: int | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder)
        self.port = port or free_port()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        self.spawn(
            [
                find_binary("redis-server", "redis-server"),
                "--port",
                str(self.port),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
                "--maxclients",
                "20000",
                "--maxmemory",
                "512mb",
                "--maxmemory-policy",
                "noeviction",
            ]
        )
        wait_until(lambda: port_answers(self.port), timeout_seconds=20, what="Redis", log=self.log)


class Prometheus(Server):
    """A private Prometheus on a configuration file that its caller wrote."""

    name = "prometheus"

    def __init__(self, folder: Path, config: Path, *, port: int | None = None, retention: str = "30d") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder)
        self.config = config
        self.port = port or free_port()
        self.retention = retention

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.spawn(
            [
                find_binary("prometheus", "prometheus"),
                f"--config.file={self.config}",
                f"--storage.tsdb.path={self.folder / 'data'}",
                f"--storage.tsdb.retention.time={self.retention}",
                f"--web.listen-address=127.0.0.1:{self.port}",
                "--web.enable-lifecycle",
            ]
        )
        wait_until(lambda: port_answers(self.port), timeout_seconds=30, what="Prometheus", log=self.log)
