"""The supervisor restarts what dies, names it, and gives up on what dies again and again."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from script.servers import ServerError
from script.stack.program import Program
from script.stack.supervisor import StackFailed, Supervisor


class _Said(list[str]):
    def contains(self, *words: str) -> bool:
        return any(all(word in line for word in words) for line in self)


@pytest.fixture
def said() -> _Said:
    return _Said()


@pytest.fixture
def supervisor(said: _Said) -> Iterator[Supervisor]:
    supervisor = Supervisor(said.append, first_delay_seconds=0.05)
    yield supervisor
    supervisor.stop()


def _program(folder: Path, name: str, script: str, *, ready: Callable[[], bool] | None = None) -> Program:
    return Program(name, folder, ["sh", "-c", script], {"PATH": os.environ["PATH"]}, ready=ready, timeout_seconds=5)


def _watch(supervisor: Supervisor, until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    supervisor.watch(until=lambda: until() or time.monotonic() > deadline, every_seconds=0.02)
    assert until()


def test_what_dies_is_named_with_its_last_lines_and_started_again(tmp_path: Path, supervisor: Supervisor, said: _Said) -> None:
    program = _program(tmp_path, "worker", "echo the last words; exec sleep 60", ready=lambda: (tmp_path / "worker.log").stat().st_size > 0)
    supervisor.start_together([program])
    assert program.process
    first = program.process.pid
    os.kill(first, signal.SIGKILL)
    _watch(supervisor, lambda: said.contains("worker runs again"))
    assert program.process.pid != first
    assert said.contains("worker ended with status -9", "the last words")
    assert "restarted 1 times" in "\n".join(supervisor.status_lines())


def test_what_dies_again_and_again_stops_everything(tmp_path: Path, supervisor: Supervisor) -> None:
    supervisor.start_together([_program(tmp_path, "beat", "echo no luck; exit 3")])
    with pytest.raises(StackFailed, match=r"beat died 7 times[\s\S]*no luck"):
        supervisor.watch(until=lambda: False, every_seconds=0.01)


def test_one_that_is_slow_to_come_back_does_not_hide_the_death_of_another(tmp_path: Path, supervisor: Supervisor, said: _Said) -> None:
    slow = _program(tmp_path, "slow", "exec sleep 60", ready=lambda: not said)
    quick = _program(tmp_path, "quick", "exec sleep 60")
    supervisor.start_together([slow, quick])
    for program in (slow, quick):
        assert program.process
        program.process.kill()
        _watch(supervisor, lambda name=program.name: said.contains(f"{name} ended"))  # type: ignore[misc]
    _watch(supervisor, lambda: said.contains("quick runs again"))
    assert not said.contains("slow runs again")
    assert "restarted 1 times" in supervisor.status_lines()[0]


def test_children_of_the_dead_end_too(tmp_path: Path, supervisor: Supervisor) -> None:
    program = _program(tmp_path, "pool", f"sleep 60 & echo $! >{tmp_path}/child; wait")
    supervisor.start_together([program])
    _watch(supervisor, lambda: (tmp_path / "child").exists() and bool((tmp_path / "child").read_text().strip()))
    child = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/cmdline")
    assert program.process
    program.process.kill()
    _watch(supervisor, lambda: not child.exists() or b"sleep" not in child.read_bytes())


def test_a_start_that_fails_says_why(tmp_path: Path, supervisor: Supervisor) -> None:
    with pytest.raises(ServerError, match=r"web ended with status 2[\s\S]*bad setting"):
        supervisor.start_together([_program(tmp_path, "web", "echo bad setting; exit 2", ready=lambda: False)])


def test_stop_ends_all_last_started_first(tmp_path: Path, supervisor: Supervisor) -> None:
    order = tmp_path / "order"
    script = "trap 'echo {name} >>{order}; exit 0' TERM; touch {order}.{name}; while :; do sleep 0.05; done"
    for name in ("database", "web"):
        program = _program(
            tmp_path,
            name,
            script.format(name=name, order=order),
            ready=lambda name=name: Path(f"{order}.{name}").exists(),  # type: ignore[misc]
        )
        supervisor.start_together([program])
    supervisor.stop()
    assert order.read_text().split() == ["web", "database"]
    assert all("down" in line for line in supervisor.status_lines())
