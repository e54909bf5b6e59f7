"""One of the product's own processes, started from the checkout."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

from script.servers import Server, port_answers
from script.stack.layout import CHECKOUT


class Program(Server):
    """`ready` says whether it answers; without it, living for a moment is enough."""

    def __init__(
        self,
        name: str,
        logs: Path,
        command: list[str],
        environment: Mapping[str, str],
        *,
        ready: Callable[[], bool] | None = None,
        timeout_seconds: float = 60,
    ) -> None:
        self.name = name
        super().__init__(logs)
        self.command = command
        self.environment = environment
        self.ready = ready
        self.timeout_seconds = timeout_seconds

    def begin(self) -> None:
        self.spawn(self.command, environment=self.environment, cwd=CHECKOUT)

    def is_ready(self) -> bool:
        return self.ready is None or self.ready()


def listens(port: int) -> Callable[[], bool]:
    return lambda: port_answers(port)


def answers(url: str) -> Callable[[], bool]:
    """Whether `url` gives 200."""

    def check() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=2) as response:  # noqa: S310 (our own loopback address)
                return bool(response.status == 200)
        except OSError:
            return False

    return check
