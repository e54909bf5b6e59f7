"""Orders are taken once, begin in time and in order, and are told until they are stored; whatever is wrong with them is refused and touches nothing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agent.backends.base import BackendError, ErrorCode
from agent.commands import CommandKind, Context, Memo, Refusal, Turn, object_schema
from agent.protocol import CommandAck, CommandBody, CommandCode, CommandState, layout_hash
from tests.agent.documents import T0, A, B
from tests.agent.hardware import Hardware
from tests.agent.node_cluster import NodeCluster, pod
from tests.agent.orders import Node, cancel_of, order


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Recorder:
    """A kind that does what it is told for `seconds`, and records each act; a crash after its act is settled by the record."""

    name: str = "act"
    exclusive: bool = False
    needs_boot_id: bool = False
    seconds: float = 0.0
    dies: bool = False
    acts: list[int] = field(default_factory=list)
    schema: Mapping[str, Any] = field(default_factory=lambda: object_schema(watts={"type": "integer", "minimum": 1, "maximum": 700, "default": 1}))

    def subject(self, body: CommandBody) -> str:
        return body.gpu_uuid

    def refusal(self, context: Context) -> Refusal | None:
        return None

    def step(self, context: Context, memo: Memo) -> Turn:
        if self.dies:
            raise Killed
        if not memo:
            return Turn(CommandState.RUNNING, memo={"intent": True})
        if context.body.target not in self.acts:
            self.acts.append(context.body.target)
        if context.now < context.begun_at + self.seconds:
            return Turn(CommandState.RUNNING, again_seconds=1.0)
        return Turn(CommandState.DONE, detail="Done.")

    def settle(self, context: Context, memo: Memo) -> Turn:
        return self.step(context, memo)

    def cancel(self, context: Context, memo: Memo) -> Turn | None:
        return Turn(CommandState.CANCELLED, CommandCode.CANCELLED, "Stopped.")


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def node(tmp_path: Path, recorder: Recorder) -> Iterator[Node]:
    kinds: dict[str, CommandKind] = {"act": recorder}
    found = Node(tmp_path, Hardware([A, B]), NodeCluster(), kinds=kinds)
    yield found
    found.journal.close()


def test_an_order_is_accepted_run_and_told_until_it_is_stored(node: Node, recorder: Recorder) -> None:
    node.give(order(1, "act"))
    assert node.outcome(1) == ("done", "")
    assert recorder.acts == [1]
    (update,) = node.executor.untold()
    node.restart()
    assert node.executor.untold() == (update,)
    node.executor.take(CommandAck(1, update.sequence - 1), T0)
    assert node.executor.untold() == (update,)
    node.executor.take(CommandAck(1, update.sequence), T0)
    assert node.executor.untold() == ()


def test_the_same_order_again_starts_nothing_and_gets_the_stored_result(node: Node, recorder: Recorder) -> None:
    recorder.seconds = 10
    node.give(order(1, "act"))
    node.until(T0 + 3)
    node.give(order(1, "act"), order(1, "act"))
    assert node.outcome(1) == ("running", "")
    node.until(T0 + 20)
    first = node.latest[1]
    node.executor.take(CommandAck(1, first.sequence), node.now)
    node.restart()
    node.executor.take(order(1, "act"), node.now)
    assert node.executor.work(node.phy, node.now).updates == (first,)
    assert recorder.acts == [1]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"key": Ed25519PrivateKey.generate()}, "unknown_key"),
        ({"node": 8}, "wrong_target"),
        ({"kind": "melt"}, "unknown_kind"),
        ({"parameters": {"watts": 900}}, "bad_parameters"),
        ({"parameters": {"kilowatts": 1}}, "bad_parameters"),
        ({"parameters": {"watts": "300 W"}}, "bad_parameters"),
        ({"boot_id": "boot-0"}, "precondition"),
        ({"gpu_uuid": "GPU-none"}, "not_present"),
        ({"gpu_uuid": A, "mig_layout": "0123456789abcdef"}, "precondition"),
    ],
)
def test_what_is_wrong_is_refused_with_its_code_and_touches_nothing(node: Node, recorder: Recorder, change: dict[str, object], code: str) -> None:
    arguments: dict[str, object] = {"kind": "act"} | change
    node.give(order(5, **arguments))  # type: ignore[arg-type]
    assert node.outcome(5) == ("failed", code)
    assert recorder.acts == []
    node.give(order(5, "act"))
    assert node.outcome(5) == ("failed", code), "a target that was refused stays so"


def test_a_tampered_order_is_refused_and_a_tampered_cancel_stops_nothing(node: Node, recorder: Recorder) -> None:
    recorder.seconds = 10
    good = order(2, "act")
    bad = type(good)(target=3, body=good.body.replace(b'"target":2', b'"target":3'), signature=good.signature, key_id=good.key_id)
    node.give(bad)
    assert node.outcome(3) == ("failed", "bad_signature")
    node.give(good)
    stop = cancel_of(2)
    node.give(type(stop)(2, stop.body, bytes(64), stop.key_id), cancel_of(2, key=Ed25519PrivateKey.generate()), cancel_of(2, node=9))
    assert node.outcome(2) == ("running", "")
    # An order and a cancel are signed over different contexts: one is never the other.
    node.give(type(stop)(2, good.body, good.signature, good.key_id))
    assert node.outcome(2) == ("running", "")
    assert recorder.acts == [2]


def test_preconditions_that_hold_let_it_begin(node: Node, recorder: Recorder) -> None:
    gpu = node.backend.inventory(T0).gpus[0]
    assert layout_hash(gpu) == ""
    node.give(order(1, "act", boot_id="boot-1", gpu_uuid=A))
    assert node.outcome(1) == ("done", "")


def test_expiry_is_judged_by_the_consoles_clock_when_it_comes_and_when_it_begins(node: Node, recorder: Recorder) -> None:
    recorder.exclusive, recorder.seconds = True, 100.0
    node.executor.set_clock_offset(30.0)
    node.give(order(1, "act", not_after=T0 - 29))
    assert node.outcome(1) == ("running", ""), "our clock is 30 s ahead: it is not late yet"
    node.give(order(2, "act", not_after=T0 - 31))
    assert node.outcome(2) == ("expired", "expired")
    node.give(order(3, "act", not_after=T0 + 40))
    assert node.outcome(3) == ("accepted", "")
    node.until(T0 + 200)
    assert node.outcome(1) == ("done", "")
    assert node.outcome(3) == ("expired", "expired"), "it waited behind another one for too long"
    assert node.latest[3].at == pytest.approx(T0 + 70, abs=0.1)
    assert recorder.acts == [1]


def test_a_clock_that_is_said_to_be_far_ahead_brings_no_old_order_back(node: Node) -> None:
    node.executor.set_clock_offset(86_400.0)
    node.give(order(1, "act", not_after=T0 - 3600))
    assert node.outcome(1) == ("expired", "expired")
    node.executor.set_clock_offset(-7200.0)
    node.give(order(2, "act", not_after=T0 + 3600))
    assert node.outcome(2) == ("expired", "expired"), "a clock that is behind makes an order late all the earlier"


def test_the_clocks_offset_survives_a_restart(node: Node) -> None:
    node.executor.set_clock_offset(-60.0)
    node.restart()
    node.give(order(1, "act", not_after=T0 + 30))
    assert node.outcome(1) == ("expired", "expired")


def test_an_order_that_comes_behind_a_later_one_of_its_kind_and_subject_is_skipped(node: Node, recorder: Recorder) -> None:
    node.give(order(11, "act", sequence=44))
    node.give(order(10, "act", sequence=43), order(12, "act", sequence=42, gpu_uuid=A))
    assert node.outcome(10) == ("skipped", "superseded")
    assert node.outcome(12) == ("done", ""), "another subject is another matter"
    assert recorder.acts == [11, 12]


def test_orders_of_a_subject_run_one_after_the_other_in_their_order(node: Node, recorder: Recorder) -> None:
    recorder.seconds = 5
    node.give(order(2, "act"), order(1, "act"), order(3, "act", gpu_uuid=A))
    assert recorder.acts == [1, 3]
    node.until(T0 + 20)
    assert recorder.acts == [1, 3, 2]


def test_a_command_that_runs_alone_waits_and_is_waited_for(node: Node, tmp_path: Path) -> None:
    alone, other = Recorder(name="alone", exclusive=True, seconds=5), Recorder(seconds=5)
    node.kinds = {"alone": alone, "act": other}
    node.restart()
    node.give(order(1, "act"), order(2, "alone"), order(3, "act", gpu_uuid=A))
    assert (other.acts, alone.acts) == ([1], [])
    node.until(T0 + 9)
    assert (other.acts, alone.acts) == ([1], [2])
    node.until(T0 + 30)
    assert (other.acts, alone.acts) == ([1, 3], [2])


def test_a_cancel_ends_it_before_it_begins_while_it_runs_and_not_after(node: Node, recorder: Recorder) -> None:
    recorder.seconds = 10
    node.give(order(1, "act"), order(2, "act"))
    node.give(cancel_of(2), cancel_of(1), cancel_of(1))
    assert node.outcome(1) == node.outcome(2) == ("cancelled", "cancelled")
    recorder.seconds = 0
    node.give(order(3, "act"))
    node.give(cancel_of(3))
    assert node.outcome(3) == ("done", "")
    assert recorder.acts == [1, 3]


def test_a_cancel_that_comes_before_its_order_keeps_it_from_ever_beginning(node: Node, recorder: Recorder) -> None:
    node.give(cancel_of(1))
    assert node.outcome(1) == ("cancelled", "cancelled")
    node.restart()
    node.give(order(1, "act"))
    assert node.outcome(1) == ("cancelled", "cancelled")
    assert recorder.acts == []


def test_hardware_that_cannot_be_asked_delays_the_beginning_until_it_expires(tmp_path: Path, recorder: Recorder) -> None:
    class Silent(Hardware):
        def boot_id(self) -> str:
            raise BackendError(ErrorCode.UNAVAILABLE, "no answer")

    node = Node(tmp_path, Silent([A]), None, kinds={"act": recorder})
    node.give(order(1, "act", boot_id="boot-1", not_after=T0 + 60))
    node.until(T0 + 59)
    assert node.outcome(1) == ("accepted", "")
    node.until(T0 + 61)
    assert node.outcome(1) == ("expired", "expired")
    assert recorder.acts == []
    node.journal.close()


def test_an_order_that_had_begun_but_touched_nothing_expires_like_any_other(node: Node, recorder: Recorder) -> None:
    recorder.dies = True
    with pytest.raises(Killed):
        node.give(order(1, "act", not_after=T0 + 60))
    recorder.dies = False
    node.now = T0 + 61
    node.restart()
    node.work()
    assert node.outcome(1) == ("expired", "expired")
    assert recorder.acts == []


def test_a_fault_in_one_kind_ends_that_command_alone(tmp_path: Path) -> None:
    class Faulty(Recorder):
        def step(self, context: Context, memo: Memo) -> Turn:
            raise KeyError("a fault of ours")

    healthy = Recorder()
    node = Node(tmp_path, Hardware([A]), None, kinds={"faulty": Faulty(name="faulty"), "act": healthy})
    node.give(order(1, "faulty"), order(2, "act"))
    assert node.outcome(1) == ("failed", "hardware")
    assert node.outcome(2) == ("done", "")
    node.journal.close()


def test_old_orders_are_forgotten_only_when_they_are_over_stored_and_long_expired(node: Node) -> None:
    node.give(order(1, "act"), order(2, "act", not_after=T0 + 30 * 86_400), order(3, "act"))
    for target in (1, 2):
        node.executor.take(CommandAck(target, node.latest[target].sequence), T0)
    node.now = T0 + 9 * 86_400
    node.restart()
    node.work()
    journal = node.executor._journal
    assert [journal.find(target) is None for target in (1, 2, 3)] == [True, False, False]


def test_a_drain_is_among_the_kinds_that_every_agent_knows(tmp_path: Path) -> None:
    node = Node(tmp_path, Hardware([A]), NodeCluster([pod("llm-0")]))
    node.give(order(1, "drain"))
    node.until(T0 + 10)
    assert node.outcome(1) == ("done", "")
    node.journal.close()
