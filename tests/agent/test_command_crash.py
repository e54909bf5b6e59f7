"""The agent's process ends between any two steps: what it left is settled by reading back, and nothing on the hardware happens twice."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent.backends.base import BackendError, ErrorCode
from agent.backends.cluster import Eviction, EvictionOutcome
from agent.commands import CORDON_OWNER
from agent.protocol import Condition, GpuCondition, HealthReport, ProtectedSpan, SignedCommand
from tests.agent.documents import T0, A, B
from tests.agent.hardware import Hardware
from tests.agent.node_cluster import NodeCluster, pod
from tests.agent.orders import Node, cancel_of, order, phy


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Machine(Hardware):
    """Hardware that takes resets and reboots; it outlives the agent. `after`: what else happens right after an act, as a kill or a lost answer."""

    resets: list[str] = field(default_factory=list)
    reboots: int = 0
    conditions: dict[str, Condition] = field(default_factory=dict)
    tells_resets: bool = True
    boots: bool = True
    after: Callable[[], None] | None = None

    def health(self, now: float) -> HealthReport:
        return HealthReport(at=now, gpus=tuple(GpuCondition(uuid, index, self.conditions.get(uuid, Condition.OK)) for index, uuid in enumerate(self.uuids)))

    def reset_gpu(self, gpu_uuid: str) -> None:
        self._fail("reset_gpu", gpu_uuid)
        self.resets.append(gpu_uuid)
        self.conditions.pop(gpu_uuid, None)
        if self.after:
            self.after()

    def reset_evidence(self, gpu_uuid: str) -> str:
        self._fail("reset_evidence", gpu_uuid)
        return str(self.resets.count(gpu_uuid)) if self.tells_resets else ""

    def reboot(self) -> None:
        self.reboots += 1
        if self.boots:
            self.boot = f"boot-{self.reboots + 1}"
        if self.after:
            self.after()


def killed_at(node: Node, moment: int, what: Callable[[], Any]) -> bool:
    """Run `what`, and end the process right before its `moment`-th write to the journal. False: it came to its end before."""
    journal, count = node.journal, 0
    plain = journal.transaction

    def counted() -> Any:
        nonlocal count
        count += 1
        if count == moment:
            raise Killed
        return plain()

    journal.transaction = counted  # type: ignore[method-assign]
    try:
        what()
    except Killed:
        node.restart()
        return True
    journal.transaction = plain  # type: ignore[method-assign]
    return False


@pytest.mark.parametrize("kind", ["gpu_reset", "reboot", "drain"])
def test_killed_before_any_write_it_ends_once_and_rightly(tmp_path: Path, kind: str) -> None:
    moment = 0
    while True:
        moment += 1
        folder = tmp_path / str(moment)
        folder.mkdir()
        machine, cluster = Machine([A, B]), NodeCluster([pod("a"), pod("b", priority=5)])
        node = Node(folder, machine, cluster)
        wanted = order(1, kind, gpu_uuid=A if kind == "gpu_reset" else "", boot_id="boot-1")

        def life(node: Node = node, wanted: SignedCommand = wanted) -> None:
            node.executor.take(wanted, node.now)
            node.until(node.now + 30)

        killed = killed_at(node, moment, life)
        node.now = node.due_at = max(node.now, T0 + 31)
        node.executor.take(wanted, node.now)
        node.until(node.now + 1000)
        acts = {"gpu_reset": len(machine.resets), "reboot": machine.reboots, "drain": len(cluster.evicted) // 2}[kind]
        assert acts <= 1
        if node.outcome(1)[0] == "done":
            assert acts == 1
        else:
            assert (acts, node.outcome(1)[0]) == (0, "failed"), "only what was never done may be called failed"
        if kind == "drain":
            assert node.outcome(1) == ("done", "")
            assert cluster.evicted == ["a", "b"]
            assert [act for act in cluster.acts if act[0] == "cordon"] == [("cordon", CORDON_OWNER)]
        node.journal.close()
        if not killed:
            break
    assert moment > 5


@pytest.mark.parametrize(
    ("tells", "before", "outcome"), [(True, Condition.OK, "done"), (False, Condition.RESET_REQUIRED, "done"), (False, Condition.OK, "failed")]
)
def test_killed_right_after_the_reset_it_is_judged_by_what_the_gpu_shows(tmp_path: Path, tells: bool, before: Condition, outcome: str) -> None:
    machine = Machine([A], tells_resets=tells, conditions={A: before})
    node = Node(tmp_path, machine, None)

    def die() -> None:
        raise Killed

    machine.after = die
    with pytest.raises(Killed):
        node.give(order(1, "gpu_reset", gpu_uuid=A))
    machine.after = None
    node.restart()
    node.until(T0 + 120)
    assert node.latest[1].state.value == outcome
    if outcome == "failed":
        assert (node.latest[1].code, "not known" in node.latest[1].detail) == ("hardware", True)
    assert machine.resets == [A]
    node.journal.close()


def test_killed_right_after_the_reboot_was_asked_for_the_boot_id_tells(tmp_path: Path) -> None:
    for boots, outcome in ((True, ("done", "")), (False, ("failed", "timeout"))):
        folder = tmp_path / str(boots)
        folder.mkdir()
        machine = Machine([A], boots=boots)
        node = Node(folder, machine, None)

        def die() -> None:
            raise Killed

        machine.after = die
        with pytest.raises(Killed):
            node.give(order(1, "reboot", boot_id="boot-1"))
        node.restart()
        node.until(T0 + 1000)
        node.restart()
        node.until(T0 + 2000)
        assert node.outcome(1) == outcome
        assert machine.reboots == 1
        node.journal.close()


def test_an_answer_that_is_lost_is_no_reason_to_ask_again(tmp_path: Path) -> None:
    machine = Machine([A])

    def lose() -> None:
        raise BackendError(ErrorCode.UNAVAILABLE, "the connection broke")

    machine.after = lose
    node = Node(tmp_path, machine, None)
    node.give(order(1, "gpu_reset", gpu_uuid=A), order(2, "reboot", boot_id="boot-1"))
    node.until(T0 + 2000)
    assert (node.outcome(1), node.outcome(2)) == (("done", ""), ("done", ""))
    assert (machine.resets, machine.reboots) == ([A], 1)
    node.journal.close()


def test_a_reset_that_the_hardware_refuses_or_does_not_survive(tmp_path: Path) -> None:
    machine = Machine([A, B])
    node = Node(tmp_path, machine, None)
    machine.errors = {"reset_gpu": BackendError(ErrorCode.IN_USE, "in use by another client")}
    node.give(order(1, "gpu_reset", gpu_uuid=A))
    assert node.outcome(1) == ("failed", "blocked")
    machine.errors = {"reset_gpu": BackendError(ErrorCode.NOT_SUPPORTED, "Not Supported")}
    node.give(order(2, "gpu_reset", gpu_uuid=A))
    assert node.outcome(2) == ("failed", "hardware")
    machine.errors = {}
    machine.after = lambda: machine.conditions.update({A: Condition.LOST})
    node.give(order(3, "gpu_reset", gpu_uuid=A))
    node.until(T0 + 120)
    assert node.outcome(3) == ("failed", "hardware")
    assert node.latest[3].progress == {"before": "ok", "after": "lost"}
    node.journal.close()


def test_the_second_of_two_reboots_finds_that_the_node_has_booted(tmp_path: Path) -> None:
    machine = Machine([A])
    node = Node(tmp_path, machine, None)
    node.give(order(1, "reboot", boot_id="boot-1"), order(2, "reboot", boot_id="boot-1"))
    node.until(T0 + 100)
    assert (node.outcome(1), node.outcome(2)) == (("done", ""), ("failed", "precondition"))
    assert machine.reboots == 1
    node.give(order(3, "reboot"))
    assert node.outcome(3) == ("failed", "bad_parameters")
    assert "preconditions.boot_id" in node.latest[3].detail
    node.journal.close()


def test_reset_and_reboot_are_refused_where_they_would_reach_the_radio(tmp_path: Path) -> None:
    machine = Machine([A, B])
    node = Node(tmp_path, machine, None, phy=phy(ProtectedSpan(A, 0, 3)))
    node.give(order(1, "gpu_reset", gpu_uuid=A), order(2, "reboot", boot_id="boot-1"), order(3, "gpu_reset", gpu_uuid=B), order(4, "gpu_reset"))
    assert node.outcome(1) == node.outcome(2) == ("failed", "phy")
    assert node.outcome(3) == ("done", "")
    assert node.outcome(4) == ("failed", "bad_parameters")
    assert (machine.resets, machine.reboots) == ([B], 0)
    node.journal.close()


def test_a_cancel_comes_too_late_for_a_reset_that_was_asked_for(tmp_path: Path) -> None:
    machine = Machine([A], boots=False)
    node = Node(tmp_path, machine, None)
    node.give(order(1, "reboot", boot_id="boot-1"), order(2, "gpu_reset", gpu_uuid=A))
    node.give(cancel_of(1), cancel_of(2))
    assert (node.outcome(1), node.outcome(2)) == (("running", ""), ("cancelled", "cancelled"))
    machine.boot = "boot-9"
    node.until(T0 + 60)
    assert node.outcome(1) == ("done", "")
    assert machine.resets == []
    node.journal.close()


def test_a_drain_that_the_agent_was_away_from_goes_on_or_ends_at_its_deadline(tmp_path: Path) -> None:
    cluster = NodeCluster([pod("a"), pod("b")], answers={"b": [Eviction(EvictionOutcome.BUDGET, "pdb"), Eviction(EvictionOutcome.EVICTED)]})
    node = Node(tmp_path, Machine([A]), cluster)
    node.give(order(1, parameters={"deadline_seconds": 60}))
    assert cluster.evicted == ["a"]
    node.restart()
    node.until(T0 + 20)
    assert (node.outcome(1), cluster.evicted) == (("done", ""), ["a", "b"])
    cluster.running = [pod("c")]
    cluster.answers = {"c": [Eviction(EvictionOutcome.BUDGET, "pdb")]}
    node.give(order(2, parameters={"deadline_seconds": 60}))
    cluster.answers = {}
    node.now = node.due_at = T0 + 7200
    node.restart()
    node.work()
    assert node.outcome(2) == ("failed", "blocked"), "after its deadline nothing is evicted any more"
    assert cluster.evicted == ["a", "b"]
    node.journal.close()


def test_diagnostics_are_bounded_and_hold_no_secrets(tmp_path: Path) -> None:
    cluster = NodeCluster([pod(f"p{number}", labels={"token": "hunter2"}) for number in range(400)])
    node = Node(tmp_path, Machine([A, B], conditions={B: Condition.RESET_REQUIRED}), cluster)
    node.give(order(1, "diagnostics"))
    assert node.outcome(1) == ("done", "")
    output = node.latest[1].output
    assert len(output.encode()) <= 16 * 1024
    for words in (
        "agent 0.",
        "driver 570.133.20",
        "boot boot-1",
        f"{B} index 1 reset_required",
        "SM clock 1980 MHz",
        "tenant-amber/p0 Running",
        "and 250 more",
    ):
        assert words in output
    assert "hunter2" not in output
    node.cluster = None
    node.restart()
    node.give(order(2, "diagnostics"))
    assert "no access" in node.latest[2].output
    node.journal.close()


def test_diagnostics_of_a_driver_that_does_not_answer_say_the_rest(tmp_path: Path) -> None:
    machine = Hardware([A])
    machine.errors = {what: BackendError(ErrorCode.UNAVAILABLE, "driver/library mismatch") for what in ("inventory", "health")}
    node = Node(tmp_path, machine, NodeCluster([pod("p0")]))
    node.give(order(1, "diagnostics"))
    assert node.outcome(1) == ("done", "")
    output = node.latest[1].output
    for words in ("agent 0.", "boot boot-1", "node unknown (driver/library mismatch)", "health unknown (", "gpus unknown (", "tenant-amber/p0 Running"):
        assert words in output
    node.journal.close()


def test_only_an_order_that_was_signed_for_it_reaches_the_radio(tmp_path: Path) -> None:
    machine = Machine([A, B])
    node = Node(tmp_path, machine, None, phy=phy(ProtectedSpan(A, 0, 3)))
    node.give(order(1, "gpu_reset", gpu_uuid=A, reaches_phy=True))
    assert node.outcome(1) == ("done", "")
    assert machine.resets == [A]
    node.journal.close()
