"""The address of a receiver of syslog, as settings name it. Needs no Django, so that the settings can be checked before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

DEFAULT_PORTS = {"udp": 514, "tcp": 601}


@dataclass(frozen=True)
class Receiver:
    """`tcp` and `udp` have host and port; `unix` a path."""

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def is_datagram(self) -> bool:
        return self.scheme != "tcp"


def read_address(text: str) -> Receiver:
    """`tcp://host:port`, `udp://host:port` or `unix:///path`. Raises ValueError that says what is wrong."""
    parts = urlsplit(text)
    if parts.scheme == "unix" and parts.path.startswith("/") and not parts.netloc:
        return Receiver("unix", path=parts.path)
    if parts.scheme in DEFAULT_PORTS and parts.hostname and not parts.path.strip("/"):
        return Receiver(parts.scheme, parts.hostname, parts.port or DEFAULT_PORTS[parts.scheme])
    raise ValueError(f"{text!r} is none of tcp://host:port, udp://host:port, unix:///path")
