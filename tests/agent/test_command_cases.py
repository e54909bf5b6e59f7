"""Cases C17, C18, C19 and C29 at the agent: a command means the device that it was given for, and an agent that was cut off runs nothing late."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from agent.commands import Context, Memo, Refusal, Turn, object_schema
from agent.protocol import CommandBody, CommandState, GpuFacts, InventoryReport, SliceFacts, layout_hash
from tests.agent.hardware import Hardware
from tests.agent.node_cluster import NodeCluster, pod
from tests.agent.orders import Node, order
from tests.agent.test_command_crash import Machine

CASES = Path(__file__).parents[1] / "cases"


def case(name: str, file: str = "expect.json") -> Any:
    return json.loads((next(CASES.glob(f"{name}-*")) / file).read_text())


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_c17_a_command_is_bound_to_the_uuid_and_touches_no_other_gpu(tmp_path: Path) -> None:
    right = case("C17")
    machine = Machine(right["present"])
    node = Node(tmp_path, machine, None)
    assert {gpu.uuid: gpu.index for gpu in machine.inventory(0).gpus} == right["index_after"], "the index is another GPU's now"
    node.give(order(1, "gpu_reset", gpu_uuid=right["command_bound_to"]))
    assert (node.outcome(1), node.latest[1].detail.startswith("Target not present")) == (("failed", "not_present"), True)
    assert machine.resets == right["touched_gpus"]
    node.journal.close()


def test_c18_a_reset_for_the_gpu_that_was_replaced_is_refused(tmp_path: Path) -> None:
    queued, right = case("C18", "open.json")["queued_command"], case("C18")
    machine = Machine([found["uuid"] for found in case("C18", "2-after.json")["gpus"]])
    node = Node(tmp_path, machine, None)
    node.give(order(1, queued["action"], gpu_uuid=queued["gpu_uuid"]))
    assert (node.outcome(1), right["queued_command"]) == (("failed", "not_present"), "refused_target_missing")
    assert (machine.uuids, machine.resets) == ([right["added"]], [])
    node.journal.close()


@dataclass
class Reconfigured(Hardware):
    """One GPU whose slices are those of a report of case C19."""

    report: Mapping[str, Any] = field(default_factory=dict)

    def inventory(self, now: float) -> InventoryReport:
        starts = {"1g.10gb": 1, "4g.40gb": 4, "3g.40gb": 4}
        slices, start = [], 0
        for found in self.report["slices"]:
            slices.append(SliceFacts(found["gi_id"], found["ci_id"], found["profile"], start, starts[found["profile"]], found["uuid"]))
            start += starts[found["profile"]]
        gpu = GpuFacts(self.uuids[0], 0, "00000000:19:00.0", mig_enabled=True, slices=tuple(slices))
        return InventoryReport(at=now, node=super().inventory(now).node, gpus=(gpu,), complete=True, gpu_count=1)


def test_c19_a_command_for_a_slice_of_an_earlier_layout_is_refused(tmp_path: Path) -> None:
    reports, command = case("C19", "agent_reports.json"), case("C19", "command.json")
    first, second, _, fourth = reports["reports"]
    machine = Reconfigured([reports["gpu_uuid"]], report=second)
    old = layout_hash(Reconfigured([reports["gpu_uuid"]], report=first).inventory(0).gpus[0])
    cluster = NodeCluster([pod("llm-0", uid="u", gpus=(second["slices"][0]["uuid"],))])
    sent = at(command["sent_at"])
    node = Node(tmp_path, machine, cluster, now=sent)
    wanted: dict[str, int | float | str | bool | None] = {"namespace": "tenant-amber", "pod": "llm-0", "uid": "u"}
    node.give(order(1, "evict", parameters=wanted | {"mig_uuid": command["mig_uuid"]}, not_after=sent + 600))
    assert (node.outcome(1), case("C19")["command_result"]) == (("failed", "not_present"), "refused_target_missing")
    node.give(order(2, "evict", gpu_uuid=reports["gpu_uuid"], parameters=wanted, mig_layout=old, not_after=sent + 600))
    assert node.outcome(2) == ("failed", "precondition"), "the same by the hash of the layout that it was given for"
    # The same UUID under another profile is another slice: the hash tells them apart.
    now = layout_hash(machine.inventory(0).gpus[0])
    machine.report = fourth
    node.give(
        order(3, "evict", gpu_uuid=reports["gpu_uuid"], parameters=wanted | {"mig_uuid": second["slices"][0]["uuid"]}, mig_layout=now, not_after=sent + 600)
    )
    assert node.outcome(3) == ("failed", "precondition")
    assert cluster.acts == []
    node.journal.close()


@dataclass
class Lock:
    """A kind of the case, for as long as it takes to see what runs and in which order."""

    name: str
    ran: list[int]
    locked: list[list[int]]
    exclusive: bool = False
    needs_boot_id: bool = False
    schema: Mapping[str, Any] = field(default_factory=lambda: object_schema(low={"type": "integer", "default": 0}, high={"type": "integer", "default": 0}))

    def subject(self, body: CommandBody) -> str:
        return ""

    def refusal(self, context: Context) -> Refusal | None:
        return None

    def step(self, context: Context, memo: Memo) -> Turn:
        self.ran.append(context.body.sequence)
        self.locked.append([int(context.parameter("low", 0)), int(context.parameter("high", 0))])
        return Turn(CommandState.DONE)

    def settle(self, context: Context, memo: Memo) -> Turn:
        return self.step(context, memo)

    def cancel(self, context: Context, memo: Memo) -> Turn | None:
        return None


@pytest.mark.parametrize("arrival", [[41, 42, 43, 44], [44, 43, 42, 41]])
@pytest.mark.parametrize("one_by_one", [True, False])
def test_c29_after_the_partition_nothing_runs_late_and_nothing_older_runs_after_something_newer(tmp_path: Path, arrival: list[int], one_by_one: bool) -> None:
    queue, right = case("C29", "queue.json"), case("C29")
    ran: list[int] = []
    locked: list[list[int]] = []
    kinds = {name: Lock(name, ran, locked) for name in ("kill_switch", "restore", "lock_clocks")}
    # The node's clock is 90 s behind the console's.
    now = at(queue["partition"]["to"]) - 90
    node = Node(tmp_path, Hardware(["GPU-1"]), None, kinds=dict(kinds), now=now)
    node.executor.set_clock_offset(-90)
    orders = {}
    for command in queue["commands"]:
        low, high = command.get("mhz", (0, 0))
        parameters: dict[str, int | float | str | bool | None] = {"low": low, "high": high}
        issued_at, not_after = at(command["issued_at"]), at(command["expires_at"])
        orders[command["seq"]] = order(command["seq"], command["action"], parameters=parameters, issued_at=issued_at, not_after=not_after)
    for batch in [[number] for number in arrival] if one_by_one else [arrival]:
        node.give(*(orders[number] for number in batch))
    assert ran in right["executed_seq_one_of"]
    assert [number for number in (41, 42, 43, 44) if node.outcome(number) == ("expired", "expired")] == right["expired_seq"]
    assert locked[-1] == right["final_clock_lock_mhz"]
    if 43 not in ran:
        assert node.outcome(43) == ("skipped", "superseded")
    node.journal.close()
