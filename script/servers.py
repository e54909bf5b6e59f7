"""Start and stop the servers that Masthead needs on one machine: PostgreSQL, Redis, Prometheus.

Only private data folders, loopback and free ports; never another server's data. Used by `script/demo` and by the tests.
Standard library only.
"""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path

ADMIN_ROLE = "masthead_admin"
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


def reachable_by(path: Path, user: str) -> bool:
    """Whether `user` may enter every folder that leads to `path`."""
    account = pwd.getpwnam(user)
    for folder in path.resolve().parents:
        info = folder.stat()
        bit = stat.S_IXUSR if info.st_uid == account.pw_uid else stat.S_IXGRP if info.st_gid == account.pw_gid else stat.S_IXOTH
        if not info.st_mode & bit:
            return False
    return True


def end_group(pid: int) -> None:
    """Kill what a dead leader of a process group left behind."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


class Server(ABC):
    """A child process with a log file. `stop` is idempotent."""

    name = "server"
    timeout_seconds: float = 60

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / f"{self.name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.begin()
        self.wait_ready()

    @abstractmethod
    def begin(self) -> None:
        """Start the process."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether it answers now."""

    def wait_ready(self) -> None:
        """Return once it answers; `ServerError` with its last lines when it ends first or takes too long."""
        deadline = time.monotonic() + self.timeout_seconds
        while not self.is_ready():
            process = self.process
            if process is None or process.poll() is not None:
                code = process.returncode if process else "?"
                raise ServerError(f"{self.name} ended with status {code} before it answered.\n{self.last_lines}")
            if time.monotonic() > deadline:
                raise ServerError(f"{self.name} did not answer within {self.timeout_seconds:.0f} s.\n{self.last_lines}")
            time.sleep(0.05)

    def spawn(self, command: list[str], *, environment: Mapping[str, str] | None = None, cwd: Path | None = None) -> None:
        """Run it in a session of its own. Where the system can, it ends with the thread that started it, also when that was killed."""
        if command[0] != "setpriv" and shutil.which("setpriv"):
            command = ["setpriv", "--pdeathsig=TERM", "--", *command]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=cwd or self.folder, env=environment, start_new_session=True
            )

    @property
    def last_lines(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:]) if self.log.exists() else ""

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
        end_group(process.pid)


class Postgres(Server):
    """A private PostgreSQL cluster. As root it runs as the `postgres` system user, since PostgreSQL refuses root.

    `passwords` (of the three roles) asks every connection for one; without them anybody on this machine may connect, which is for tests.
    """

    name = "postgres"

    def __init__(self, folder: Path, *, port: int | None = None, durable: bool = True, passwords: Mapping[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder)
        self.port = port or free_port()
        self.durable = durable
        self.passwords = dict(passwords or {})
        self.user = self._system_user() if os.geteuid() == 0 else None
        self.data = folder / "data"
        self._ready_mark = folder / "ready"

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
        login = f"{role}:{self.passwords[role]}" if self.passwords else role
        return f"postgresql://{login}@127.0.0.1:{self.port}/{database}"

    def begin(self) -> None:
        if self.user:
            shutil.chown(self.folder, self.user, pwd.getpwnam(self.user).pw_gid)
        if not (self.data / "PG_VERSION").exists() or not self._ready_mark.exists():
            self._initialise()
        if (self.data / "postmaster.pid").exists():
            self._remove_stale_pid()
        options = {"listen_addresses": "127.0.0.1", "max_connections": "200", "shared_buffers": "256MB", "jit": "off"}
        if not self.durable:
            options |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        flags = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        self.log.touch()
        self.spawn(self._as_system_user([find_binary("postgres", "postgresql-15"), "-D", str(self.data), "-p", str(self.port), "-k", "", *flags]))

    def wait_ready(self) -> None:
        super().wait_ready()
        if not self._ready_mark.exists():
            self.psql(
                f"CREATE ROLE {OWNER_ROLE} LOGIN CREATEDB NOSUPERUSER{self._password_clause(OWNER_ROLE)};"
                f"CREATE ROLE {APP_ROLE} LOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE{self._password_clause(APP_ROLE)};"
            )
            self.psql(f"CREATE DATABASE masthead OWNER {OWNER_ROLE};")
            self._ready_mark.touch()

    def stop(self, *, sig: int = signal.SIGINT, timeout_seconds: float = 20) -> None:
        super().stop(sig=sig, timeout_seconds=timeout_seconds)

    def psql(self, statements: str, *, database: str = "postgres") -> None:
        """Run statements as the cluster's administrator. `ServerError` with psql's words when one fails."""
        target = ["-h", "127.0.0.1", "-p", str(self.port), "-U", ADMIN_ROLE, "-d", database]
        command = [find_binary("psql", "postgresql-client-15"), "-X", "-q", "-v", "ON_ERROR_STOP=1", *target]
        environment = os.environ | ({"PGPASSWORD": self.passwords[ADMIN_ROLE]} if self.passwords else {})
        done = subprocess.run(command, input=statements, capture_output=True, text=True, env=environment)
        if done.returncode:
            raise ServerError(f"psql: {done.stderr.strip()}")

    def _initialise(self) -> None:
        """Make the cluster; one that was left half made is made again."""
        if self.data.exists():
            shutil.rmtree(self.data)
        with tempfile.NamedTemporaryFile("w", dir=self.folder) as password_file:
            password_file.write(self.passwords.get(ADMIN_ROLE, ""))
            password_file.flush()
            if self.user:
                shutil.chown(password_file.name, self.user)
            access = ["-A", "scram-sha-256", "--pwfile", password_file.name] if self.passwords else ["-A", "trust"]
            command = [find_binary("initdb", "postgresql-15"), "-D", str(self.data), "-U", ADMIN_ROLE, *access, "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]
            done = subprocess.run(self._as_system_user(command), capture_output=True, text=True, cwd=self.folder)
        if done.returncode:
            raise ServerError(f"initdb: {done.stderr.strip()}")

    def _password_clause(self, role: str) -> str:
        return f" PASSWORD '{self.passwords[role]}'" if self.passwords else ""

    def _as_system_user(self, command: list[str]) -> list[str]:
        if not self.user:
            return command
        account = pwd.getpwnam(self.user)
        drop = ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups", "--pdeathsig=INT"]
        if not (reachable_by(Path(command[0]), self.user) and reachable_by(self.data, self.user)):
            # A folder above is closed to it (on some images even / is): it may then pass and read everywhere, so only where nothing else works.
            drop += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search", "--securebits=+no_setuid_fixup"]
        return [*drop, *command]

    def is_ready(self) -> bool:
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

    def __init__(self, folder: Path, *, port: int | None = None, password: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder)
        self.port = port or free_port()
        self.password = password

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0" if self.password else f"redis://127.0.0.1:{self.port}/0"

    def begin(self) -> None:
        config = self.folder / "redis.conf"
        config.touch(mode=0o600)
        lines = [f"port {self.port}", "bind 127.0.0.1", 'save ""', "appendonly no", "maxclients 20000", "maxmemory 512mb", "maxmemory-policy noeviction"]
        if self.password:
            lines.append(f"requirepass {self.password}")
        config.write_text("\n".join(lines) + "\n")
        self.spawn([find_binary("redis-server", "redis-server"), str(config)])

    def is_ready(self) -> bool:
        return port_answers(self.port)


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

    def begin(self) -> None:
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

    def is_ready(self) -> bool:
        return port_answers(self.port)
