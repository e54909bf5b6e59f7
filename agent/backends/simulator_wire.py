"""One node's line to `python -m agent.simulator hardware`: JSON over loopback HTTP on a connection that is kept."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

TIMEOUT_SECONDS = 10.0


class SimulatorUnavailable(Exception):
    """The simulator gave no answer. What was asked for may have happened all the same."""


class SimulatorWire:
    """Safe to use from several threads, one at a time. Raises ValueError for an address that is none."""

    def __init__(self, url: str, node: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None or parts.port is None:
            raise ValueError(f"expected http://host:port, found {url!r}")
        self._address = (parts.hostname, parts.port)
        self._path = f"/nodes/{quote(node, safe='')}"
        self._connection: http.client.HTTPConnection | None = None
        self._lock = threading.Lock()

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, once: bool = False) -> tuple[int, dict[str, Any]]:
        """Status and object of the answer. A kept connection that the other side has closed meanwhile is tried once more, anew; never with `once`."""
        with self._lock:
            if once:
                self._drop()
            fresh = self._connection is None
            try:
                return self._exchange(method, path, body)
            except (OSError, http.client.HTTPException, ValueError) as error:
                self._drop()
                if fresh:
                    raise SimulatorUnavailable(f"the simulator cannot be asked: {error}") from error
            try:
                return self._exchange(method, path, body)
            except (OSError, http.client.HTTPException, ValueError) as error:
                self._drop()
                raise SimulatorUnavailable(f"the simulator cannot be asked: {error}") from error

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, dict[str, Any]]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(*self._address, timeout=TIMEOUT_SECONDS)
        headers = {"Content-Type": "application/json"} if body is not None else {}
        self._connection.request(method, self._path + path, json.dumps(body) if body is not None else None, headers)
        response = self._connection.getresponse()
        answer = json.loads(response.read())
        if not isinstance(answer, dict):
            raise ValueError("the answer is not an object")
        return response.status, answer
