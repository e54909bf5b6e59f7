"""Where a stack keeps its things: folders, secrets, ports. All private to the user who runs it, all found again at the next start."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pwd
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from script.servers import ADMIN_ROLE, APP_ROLE, OWNER_ROLE, ServerError, reachable_by

CHECKOUT = Path(__file__).resolve().parent.parent.parent
ACCOUNTS = ("viewer", "operator", "lead", "administrator", "acme", "globex")
PORTS = ("web", "gateway", "telemetry", "postgres", "redis", "prometheus", "simulator", "dcgm", "triton", "vllm", "node")
_LOG_LIMIT_BYTES = 10_000_000


def port_is_free(port: int, address: str = "127.0.0.1") -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((address, port))
        except OSError:
            return False
    return True


def next_free_port(first: int, taken: set[int]) -> int:
    for port in range(first, 65536):
        if port not in taken and port_is_free(port) and port_is_free(port, "127.20.0.1"):
            return port
    raise ServerError(f"No free port from {first} on.")


class Layout:
    """Folders, secrets and ports of the stack under `root` (`.demo` of the checkout)."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.logs = self.root / "logs"
        self.secrets = self.root / "secrets"
        self.signing = self.root / "signing"
        self.simulator = self.root / "simulator"
        self._state_file = self.root / "state.json"

    def create(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o711)  # others may pass (PostgreSQL runs as another user) but not list
        for folder in (self.logs, self.secrets, self.signing, self.simulator):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o700)
        for log in self.logs.glob("*.log"):
            if log.stat().st_size > _LOG_LIMIT_BYTES:
                log.replace(log.with_suffix(".log.1"))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Held by the one supervisor that runs on this folder."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / "lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise ServerError(f"{self.root} is in use by process {file.read().strip() or '?'}. Stop that first (Ctrl-C).") from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    def remove(self) -> None:
        """Forget everything: data, secrets, logs. The caller holds the lock."""
        postgres = Path(self.state().get("postgres", self.root / "postgres"))
        for folder in (postgres, self.logs, self.secrets, self.signing, self.simulator, self.root / "redis", self.root / "prometheus"):
            shutil.rmtree(folder, ignore_errors=True)
        for file in (self.root / "inventory.json", self._state_file):
            file.unlink(missing_ok=True)

    def state(self) -> dict[str, Any]:
        return dict(json.loads(self._state_file.read_text())) if self._state_file.exists() else {}

    def remember(self, **facts: Any) -> None:
        part = self._state_file.with_suffix(".part")
        part.write_text(json.dumps(self.state() | facts, indent=1))
        part.replace(self._state_file)

    def postgres_folder(self) -> Path:
        """PostgreSQL never runs as root, and its user must reach its data: under a closed home it lies in /var/tmp instead. Recorded at the first start."""
        known = self.state().get("postgres")
        if known:
            return Path(known)
        folder = self.root / "postgres"
        if os.geteuid() == 0 and not reachable_by(folder, _first_user("postgres", "nobody")):
            folder = Path("/var/tmp") / f"masthead-demo-{hashlib.sha256(str(self.root).encode()).hexdigest()[:12]}"
            shutil.rmtree(folder, ignore_errors=True)
        self.remember(postgres=str(folder))
        return folder

    def ports(self, *, web: int) -> dict[str, int]:
        """A free port for each listener. Those of the last start are kept where they are still free; `web` is wished for, the next free one is taken."""
        known = self.state().get("ports", {})
        taken: set[int] = set()
        ports: dict[str, int] = {}
        for offset, name in enumerate(PORTS):
            wished = web if name == "web" else known.get(name, 20_000 + int(hashlib.sha256(str(self.root).encode()).hexdigest(), 16) % 8_000 + offset)
            ports[name] = next_free_port(wished, taken | (set(known.values()) - {wished}))
            taken.add(ports[name])
        self.remember(ports=ports)
        return ports

    def secret(self, name: str, length: int = 48) -> str:
        """The text of a secret that is made once and readable by this user alone."""
        path = self.secrets / name
        if not path.exists():
            self.write_secret(name, secrets.token_urlsafe(length))
        return path.read_text()

    def write_secret(self, name: str, text: str) -> Path:
        path = self.secrets / name
        part = path.with_name(path.name + ".part")
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        part.replace(path)
        return path

    def database_passwords(self) -> dict[str, str]:
        return {role: self.secret(f"database-{role}", 24) for role in (ADMIN_ROLE, OWNER_ROLE, APP_ROLE)}

    def account_passwords(self) -> dict[str, str]:
        return {name: self.secret(f"account-{name}", 12) for name in ACCOUNTS}

    @property
    def signing_key(self) -> Path:
        return self.signing / "console.pem"

    def protect_signing_key(self) -> None:
        """As root the key gets another owner, so that the gateway, root without any capability, cannot even reach it."""
        if os.geteuid() == 0:
            owner = pwd.getpwnam("nobody")
            for path in (self.signing, self.signing_key):
                os.chown(path, owner.pw_uid, owner.pw_gid)


def _first_user(*names: str) -> str:
    known = {account.pw_name for account in pwd.getpwall()}
    return next(name for name in names if name in known)
