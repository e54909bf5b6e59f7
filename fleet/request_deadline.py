"""A deadline for a whole HTTP request of `requests`, whose own timeout counts silence only: a source that drips bytes would hold its caller for ever."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from requests.adapters import HTTPAdapter
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool


class Line:
    """The sockets of one session. One request at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self.is_cut = False

    def hold(self, sock: socket.socket) -> None:
        """Take note of a new socket. Raises TimeoutError when the deadline has passed."""
        with self._lock:
            if self.is_cut:
                sock.close()
                raise TimeoutError("the request's deadline has passed")
            self._sockets = [each for each in self._sockets if each.fileno() >= 0] + [sock]

    @contextmanager
    def limit(self, seconds: float) -> Iterator[None]:
        """Whatever is read or written within this block fails once the seconds are over; `is_cut` says that they are."""
        self.is_cut = False
        timer = threading.Timer(seconds, self._cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _cut(self) -> None:
        with self._lock:
            self.is_cut = True
            for sock in self._sockets:
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue  # closed in the meantime
            self._sockets.clear()


class LineAdapter(HTTPAdapter):
    """Connections of a session whose sockets a `Line` holds; through proxies too."""

    def __init__(self, line: Line, **options: Any) -> None:
        self._pools = {"http": _pool(HTTPConnectionPool, line), "https": _pool(HTTPSConnectionPool, line)}
        super().__init__(**options)

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, **options)
        self.poolmanager.pool_classes_by_scheme = self._pools

    def proxy_manager_for(self, *args: Any, **options: Any) -> Any:
        manager = super().proxy_manager_for(*args, **options)
        manager.pool_classes_by_scheme = self._pools
        return manager


def _pool(base: type[HTTPConnectionPool], line: Line) -> type[HTTPConnectionPool]:
    connection: Any = base.ConnectionCls

    class Connection(connection):
        def connect(self) -> None:
            super().connect()
            line.hold(self.sock)

    return type(base.__name__, (base,), {"ConnectionCls": Connection})
