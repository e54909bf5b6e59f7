"""A TCP door between a process under test and a server: open it, shut it, open it again."""

import contextlib
import socket
import threading


class TcpDoor:
    """Forwards connections on `port` (loopback) to `target`. While shut, connections are cut and new ones refused at once."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = int(self._listener.getsockname()[1])
        self._open = True
        self._lock = threading.Lock()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        threading.Thread(target=self._serve, daemon=True).start()

    def shut(self) -> None:
        with self._lock:
            self._open = False
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            for end in pair:
                _end(end)

    def reopen(self) -> None:
        self._open = True

    def close(self) -> None:
        self.shut()
        _end(self._listener)

    def _serve(self) -> None:
        while True:
            try:
                inside, _ = self._listener.accept()
            except OSError:
                return
            try:
                if not self._open:
                    raise ConnectionRefusedError
                outside = socket.create_connection(("127.0.0.1", self._target), timeout=5)
                outside.settimeout(None)
            except OSError:
                _end(inside)
                continue
            with self._lock:
                self._pairs.add((inside, outside))
            for source, sink in ((inside, outside), (outside, inside)):
                threading.Thread(target=_pump, args=(source, sink), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    _end(source)
    _end(sink)


def _end(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
