"""Start processes in order, watch them, restart what dies, stop all in reverse order."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psutil

from script.servers import Server, ServerError, end_group

LONGEST_DELAY_SECONDS = 20.0
DEATHS_ALLOWED = 6
DEATHS_WINDOW_SECONDS = 120.0


class StackFailed(Exception):
    """A process died again and again; the text names it with its last lines."""


@dataclass
class _Watched:
    server: Server
    deaths: list[float] = field(default_factory=list)
    restarts: int = 0
    start_again_at: float | None = None
    answers_by: float | None = None  # set from its restart until it answers


class Supervisor:
    """`say` gets one line for each thing worth telling. `tick` is called often by whoever waits; nothing here runs by itself."""

    def __init__(self, say: Callable[[str], None], *, first_delay_seconds: float = 0.5) -> None:
        self._say = say
        self._first_delay_seconds = first_delay_seconds
        self._watched: dict[str, _Watched] = {}
        self._stopping = threading.Event()

    def __getitem__(self, name: str) -> Server:
        return self._watched[name].server

    def names(self) -> tuple[str, ...]:
        """In the order in which they were started."""
        return tuple(self._watched)

    def start_together(self, servers: Sequence[Server]) -> None:
        """Start these at the same time and wait for all. From the main thread, like `tick`: the processes end with the thread that started them."""
        for server in servers:
            self._watched[server.name] = _Watched(server)
            server.begin()
        for server in servers:
            server.wait_ready()

    def tick(self) -> None:
        """Notice the dead, restart them after a growing delay; `StackFailed` when one dies too often. Never waits: one that is slow must not hide another's death."""
        for watched in self._watched.values():
            if self._stopping.is_set():
                return
            if watched.start_again_at is not None:
                if time.monotonic() >= watched.start_again_at:
                    self._restart(watched)
            elif watched.server.process is None or watched.server.process.poll() is not None:
                self._bury(watched)
            elif watched.answers_by is not None:
                self._look_whether_it_answers(watched, watched.answers_by)

    def watch(self, *, until: Callable[[], bool], every_seconds: float = 0.25) -> None:
        """Keep all running until `until` says so."""
        while not until():
            self.tick()
            time.sleep(every_seconds)

    def stop(self) -> None:
        """Stop all, last started first. May be called at any time, also after a failed start."""
        self._stopping.set()
        for watched in reversed(self._watched.values()):
            watched.server.stop()

    def status_lines(self) -> list[str]:
        width = max(map(len, self._watched), default=0)
        return [f"  {name:<{width}}  {self._state_of(watched)}" for name, watched in self._watched.items()]

    def memory_bytes(self) -> int:
        """What all processes and their children hold, shared pages shared out (the kernel's PSS)."""
        total = 0
        for watched in self._watched.values():
            if watched.server.process is None:
                continue
            with contextlib.suppress(psutil.NoSuchProcess):
                first = psutil.Process(watched.server.process.pid)
                for process in (first, *first.children(recursive=True)):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        total += process.memory_full_info().pss
        return total

    def _state_of(self, watched: _Watched) -> str:
        process = watched.server.process
        again = f", restarted {watched.restarts} times" if watched.restarts else ""
        if process is None or process.poll() is not None:
            return f"down{again}"
        return f"running  pid {process.pid}{again}  log {watched.server.log}"

    def _bury(self, watched: _Watched) -> None:
        server, now = watched.server, time.monotonic()
        if server.process:
            end_group(server.process.pid)
        code = server.process.returncode if server.process else "?"
        watched.deaths = [at for at in watched.deaths if now - at < DEATHS_WINDOW_SECONDS] + [now]
        if len(watched.deaths) > DEATHS_ALLOWED:
            raise StackFailed(f"{server.name} died {len(watched.deaths)} times in {DEATHS_WINDOW_SECONDS:.0f} s. Its last lines:\n{server.last_lines}")
        delay = min(self._first_delay_seconds * 2 ** (len(watched.deaths) - 1), LONGEST_DELAY_SECONDS)
        self._say(f"{server.name} ended with status {code}; starting it again in {delay:g} s. Its last lines:\n{server.last_lines}")
        watched.start_again_at = now + delay

    def _restart(self, watched: _Watched) -> None:
        watched.restarts += 1
        watched.start_again_at = None
        watched.answers_by = time.monotonic() + watched.server.timeout_seconds
        try:
            watched.server.begin()
        except ServerError as error:
            self._say(str(error))

    def _look_whether_it_answers(self, watched: _Watched, answers_by: float) -> None:
        server = watched.server
        if server.is_ready():
            watched.answers_by = None
            self._say(f"{server.name} runs again (pid {server.process.pid if server.process else '?'})")
        elif time.monotonic() > answers_by:
            self._say(f"{server.name} does not answer; stopping it. Its last lines:\n{server.last_lines}")
            server.stop(timeout_seconds=2)
