"""The agent's configuration file (TOML), and what enrolment left in its state folder.

state_dir = "/var/lib/masthead-agent"   # key, enrolment, journal; only the agent's user may read it
ca_file = ""                            # PEM of a private CA, when the gateway's certificate is not publicly trusted
allow_plain_http = false                # true: dial ws:// to other hosts than this one (a closed network only)
converge_seconds = 10                   # how often desired state is compared with the hardware
inspect_seconds = 30                    # how often inventory and health are looked at

[local]                                 # what the agent does on its own; every key may be left out
admission_port = 8471                   # the admission door on 127.0.0.1; left out: no port
admission_socket = "/run/masthead/admission.sock"   # the same on a Unix socket; left out: no socket
depth_urls = ["http://127.0.0.1:8002/metrics"]      # pages of this node's Triton and vLLM, whose queues the door goes by
usage_url = "http://127.0.0.1:9400/metrics"         # this node's dcgm-exporter: VRAM, load and energy

[backend]
kind = "nvml"                           # a file in agent/backends; all other keys of the table are its options

[cluster]                               # left out: this agent has no access to Kubernetes
kind = "kubernetes"                     # a file in agent/backends; all other keys of the table are its options
node = "gpu-ams-004"                    # the node's name in Kubernetes; left out: the environment's NODE_NAME
"""

from __future__ import annotations

import ipaddress
import json
import os
import ssl
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agent.protocol.wire import ProtocolError, Reader, dump_canonical, encode_bytes, load_object


class ConfigError(Exception):
    """The configuration cannot be used; the text names the file and the field."""


@dataclass(frozen=True)
class LocalConfig:
    admission_port: int | None = None
    admission_socket: Path | None = None
    depth_urls: tuple[str, ...] = ()
    usage_url: str = ""

    @classmethod
    def parse(cls, reader: Reader) -> LocalConfig:
        found = cls(
            admission_port=reader.optional("admission_port", lambda name: reader.integer(name, low=1, high=65535)),
            admission_socket=reader.optional("admission_socket", lambda name: Path(reader.text(name, longest=100))),
            depth_urls=reader.optional("depth_urls", lambda name: reader.texts(name, most=64, longest=300)) or (),
            usage_url=reader.optional("usage_url", lambda name: reader.text(name, longest=300, empty=True)) or "",
        )
        reader.done()
        for name, urls in (("depth_urls", found.depth_urls), ("usage_url", (found.usage_url,) if found.usage_url else ())):
            if not all(url.startswith("http://") for url in urls):
                raise ProtocolError(reader.at(name), "is not an http:// address of this node")
        return found


@dataclass(frozen=True)
class Config:
    state_dir: Path
    backend_kind: str = "nvml"
    backend_options: dict[str, str] = field(default_factory=dict)
    cluster_kind: str = ""
    cluster_options: dict[str, str] = field(default_factory=dict)
    ca_file: Path | None = None
    allow_plain_http: bool = False
    converge_seconds: float = 10
    inspect_seconds: float = 30
    local: LocalConfig = field(default_factory=LocalConfig)

    @property
    def key_file(self) -> Path:
        return self.state_dir / "agent.key"

    @property
    def enrolment_file(self) -> Path:
        return self.state_dir / "enrolment.json"

    @property
    def journal_file(self) -> Path:
        return self.state_dir / "journal.sqlite3"

    @property
    def local_file(self) -> Path:
        return self.state_dir / "local.sqlite3"


def load_config(path: Path) -> Config:
    """Raises ConfigError naming the bad field."""
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    values.setdefault("state_dir", "/var/lib/masthead-agent")
    try:
        reader = Reader(values)
        backend = reader.optional("backend", lambda name: reader.scalars(name)) or {}
        cluster = reader.optional("cluster", lambda name: reader.scalars(name))
        config = Config(
            state_dir=Path(reader.text("state_dir", longest=500)),
            backend_kind=str(backend.pop("kind", "nvml")),
            backend_options={name: str(value) for name, value in backend.items()},
            cluster_kind="" if cluster is None else str(cluster.pop("kind", "kubernetes")),
            cluster_options={name: str(value) for name, value in (cluster or {}).items()},
            ca_file=Path(text) if (text := reader.optional("ca_file", lambda name: reader.text(name, longest=500, empty=True))) else None,
            allow_plain_http=bool(reader.optional("allow_plain_http", reader.boolean)),
            converge_seconds=reader.optional("converge_seconds", lambda name: reader.number(name, low=0.1, high=3600)) or 10,
            inspect_seconds=reader.optional("inspect_seconds", lambda name: reader.number(name, low=0.1, high=3600)) or 30,
            local=reader.optional("local", lambda name: LocalConfig.parse(reader.child(name))) or LocalConfig(),
        )
        reader.done()
    except ProtocolError as error:
        raise ConfigError(f"{path}: {error}") from error
    return config


@dataclass(frozen=True)
class Enrolment:
    """Which node this agent is, whom it dials, and whose documents it believes."""

    node_id: int
    gateway_url: str
    console_keys: tuple[bytes, ...]

    def save(self, path: Path) -> None:
        """Written whole or not at all."""
        data = dump_canonical({"node_id": self.node_id, "gateway_url": self.gateway_url, "console_keys": [encode_bytes(key) for key in self.console_keys]})
        part = path.with_suffix(".part")
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)

    @classmethod
    def load(cls, path: Path) -> Enrolment:
        """Raises ConfigError when the node is not enrolled or the file is damaged."""
        try:
            reader = Reader(load_object(path.read_bytes()))
            keys = reader.texts("console_keys", most=8)
            found = cls(
                node_id=reader.integer("node_id", low=1),
                gateway_url=reader.text("gateway_url", longest=500),
                console_keys=tuple(Reader({"console_keys": key}).binary("console_keys", shortest=32, longest=32) for key in keys),
            )
            reader.done()
        except FileNotFoundError:
            raise ConfigError(f"{path}: this node is not enrolled. Run: masthead-agent enrol --bundle TEXT") from None
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from error
        except (ProtocolError, json.JSONDecodeError) as error:
            raise ConfigError(f"{path}: {error}") from error
        return found


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_gateway_url(url: str, *, allow_plain_http: bool) -> None:
    """Refuse what is not a WebSocket address, and plain ws:// to another host unless it was allowed."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
        _ = parts.port
    except ValueError as error:
        raise ConfigError(f"gateway_url: {url}: {error}") from error
    if parts.scheme not in ("ws", "wss") or not host:
        raise ConfigError(f"gateway_url: {url} is not a ws:// or wss:// address")
    if parts.scheme == "ws" and not (allow_plain_http or is_loopback(host)):
        raise ConfigError(f"gateway_url: {url} is not encrypted. Use wss://, or set allow_plain_http = true on a closed network")


def tls_context(url: str, ca_file: Path | None) -> ssl.SSLContext | None:
    """The context that verifies the gateway's certificate and host name; None for ws://."""
    if urlsplit(url).scheme != "wss":
        return None
    try:
        return ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
    except OSError as error:
        raise ConfigError(f"ca_file: {ca_file}: {error}") from error
