"""One of the product's own processes, started from the checkout."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

from script.servers import Server, ServerError, port_answers
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

    def wait_ready(self) -> None:
        deadline = time.monotonic() + self.timeout_seconds
        while self.ready is not None and not self.ready():
            process = self.process
            if process is None or process.poll() is not None:
                code = process.returncode if process else "?"
                raise ServerError(f"{self.name} ended with status {code} before it answered.\n{self.last_lines}")
            if time.monotonic() > deadline:
                raise ServerError(f"{self.name} did not answer within {self.timeout_seconds:.0f} s.\n{self.last_lines}")
            time.sleep(0.05)


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
