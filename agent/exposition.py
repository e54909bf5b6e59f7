"""Reading the Prometheus text of the node's own exporters: the few families that are asked for, blanks and impossible numbers left out."""

from __future__ import annotations

import http.client
import math
import re
from collections.abc import Iterator
from urllib.parse import urlsplit

MAX_PAGE_BYTES = 8 << 20
_LINE = re.compile(r'^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?[ \t]+(\S+)')
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPED = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


class PageError(Exception):
    """An exporter's page cannot be read now."""


def samples(text: str, names: frozenset[str]) -> Iterator[tuple[str, dict[str, str], float]]:
    """(name, labels, value) of each line of a family in `names`. Lines that are none, and values that are not finite, are passed over."""
    for line in text.splitlines():
        if not line or line[0] == "#":
            continue
        found = _LINE.match(line)
        if found is None or found[1] not in names:
            continue
        try:
            value = float(found[3])
        except ValueError:
            continue
        if math.isfinite(value):
            yield found[1], {name: _unescape(raw) for name, raw in _LABEL.findall(found[2] or "")}, value


def _unescape(raw: str) -> str:
    return re.sub(r"\\.", lambda found: _ESCAPED.get(found[0], found[0]), raw) if "\\" in raw else raw


class Page:
    """One exporter's page, asked over a kept connection."""

    def __init__(self, url: str, *, timeout_seconds: float) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"{url!r} is not an http:// address")
        self._address = (parts.hostname, parts.port or 80)
        self._path = (parts.path or "/metrics") + (f"?{parts.query}" if parts.query else "")
        self._timeout = timeout_seconds
        self._connection: http.client.HTTPConnection | None = None

    def read(self) -> str:
        """Raises PageError. A kept connection that the other side has closed meanwhile is tried once more, anew."""
        kept = self._connection is not None
        try:
            status, body = self._exchange()
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            if not kept or isinstance(error, TimeoutError):
                raise PageError(f"{self._address[0]}:{self._address[1]}: {error}") from error
            return self.read()
        if status != 200 or len(body) > MAX_PAGE_BYTES:
            self.close()
            raise PageError(f"{self._address[0]}:{self._address[1]}: HTTP {status}, {len(body)} bytes")
        return body.decode("utf-8", "replace")

    def _exchange(self) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(*self._address, timeout=self._timeout)
        self._connection.request("GET", self._path)
        response = self._connection.getresponse()
        return response.status, response.read(MAX_PAGE_BYTES + 1)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
