"""What agents say of their GPUs (C30): one bad GPU blinds nobody to the others, and "cannot ask" is not "zero GPUs"."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent.protocol.health import Condition, DriverMismatch, GpuCondition, HealthReport
from fleet.health import reports
from fleet.models import Finding, Gpu, Node, ReportedCondition
from tests.builders import make_gpu, make_node
from tests.fleet.health_world import START, World, enrol, state_of, when

pytestmark = pytest.mark.django_db
CASE = Path(__file__).parent.parent / "cases" / "C30-nvml-errors"
NVML: dict[str, Any] = json.loads((CASE / "nvml.json").read_text())
EXPECT: dict[str, Any] = json.loads((CASE / "expect.json").read_text())
WORDS = {15: Condition.LOST, 16: Condition.RESET_REQUIRED}


def report(name: str, at: float) -> HealthReport:
    """The case as the agent's report: a GPU that answers no call does not tell its UUID."""
    case = NVML[name]
    if case["nvmlInit"]:
        return HealthReport(at=at, gpus=(), driver_mismatch=DriverMismatch(case["loaded_module"], case["library"]))
    gpus = [
        GpuCondition(gpu.get("uuid", ""), gpu["index"], WORDS[gpu["error"]["code"]] if "error" in gpu else Condition.OK, gpu.get("error", {}).get("name", ""))
        for gpu in case["gpus"]
    ]
    return HealthReport(at=at, gpus=tuple(gpus))


@pytest.fixture
def node() -> Node:
    """A node whose eight GPUs the inventory knows by UUID and index."""
    node = make_node(expected_gpus=8)
    uuids = {gpu["index"]: gpu["uuid"] for name in ("lost", "reset-required") for gpu in NVML[name]["gpus"] if "uuid" in gpu}
    for index, gpu_uuid in uuids.items():
        make_gpu(gpu_uuid, node=node, index=index)
    enrol(node)
    return node


def tell(world: World, node: Node, name: str) -> None:
    reports.apply(node.pk, report(name, world.now), when(world.now))


def test_lost_is_known_by_the_last_uuid_of_its_index(node: Node) -> None:
    world = World()
    world.run(31)
    tell(world, node, "lost")
    lost = EXPECT["lost"]["lost_uuid"]
    others = [gpu for gpu in node.gpus.all() if gpu.uuid != lost]
    assert len(others) == EXPECT["lost"]["reported"]
    world.run(10, gpus=others)
    assert state_of(Gpu.objects.get(uuid=lost)) == ("down", "gpu_lost")
    assert {state_of(gpu) for gpu in others} == {("ok", "ok")}
    finding = Finding.objects.get(code="gpu_lost")
    assert (finding.object_key, finding.severity) == (lost, "critical")
    assert "NVML_ERROR_GPU_IS_LOST" in finding.summary
    assert state_of(node) == ("degraded", "gpu_lost")
    assert node.gpus.count() == 8


def test_reset_required_names_the_gpu(node: Node) -> None:
    world = World()
    world.run(31)
    tell(world, node, "reset-required")
    world.run(10)
    bad = EXPECT["reset-required"]["needs_reset"]
    assert state_of(Gpu.objects.get(uuid=bad)) == ("down", "reset_required")
    assert {state_of(gpu) for gpu in node.gpus.exclude(uuid=bad)} == {("ok", "ok")}
    assert "reset" in Finding.objects.get(code="reset_required").advised_action


def test_mismatch_makes_gpus_unknown_with_both_versions(node: Node) -> None:
    world = World()
    world.run(31)
    tell(world, node, "mismatch")
    world.run(60, gpus=[])
    assert {state_of(gpu)[0] for gpu in node.gpus.all()} == {EXPECT["mismatch"]["state"]}
    assert node.gpus.count() == EXPECT["mismatch"]["inventory_gpus"]
    finding = Finding.objects.get(code="driver_mismatch")
    assert NVML["mismatch"]["loaded_module"] in finding.summary
    assert NVML["mismatch"]["library"] in finding.summary
    assert finding.advised_action == "Reload the driver or reboot the node."
    assert state_of(node)[0] == "degraded"
    world.now += -world.now % 10
    reports.apply(node.pk, HealthReport(at=world.now, gpus=tuple(GpuCondition(g.uuid, g.index, Condition.OK) for g in node.gpus.all())), when(world.now))
    world.run(20)
    assert {state_of(gpu) for gpu in node.gpus.all()} == {("ok", "ok")}
    assert state_of(node) == ("ok", "ok")


def test_a_mismatch_outranks_telemetry_that_still_comes(node: Node) -> None:
    world = World()
    world.run(31)
    tell(world, node, "mismatch")
    world.run(10)
    assert {state_of(gpu) for gpu in node.gpus.all()} == {("unknown", "driver_mismatch")}


def test_not_supported_is_healthy() -> None:
    node = make_node()
    gpu = make_gpu(NVML["not-supported"]["gpus"][0]["uuid"], node=node)
    enrol(node)
    world = World()
    world.run(31)
    tell(world, node, "not-supported")
    world.run(10)
    assert state_of(gpu) == ("ok", "ok")
    assert EXPECT["not-supported"]["healthy"]
    assert not ReportedCondition.objects.exists()


def test_a_driver_that_cannot_be_asked_at_all(node: Node) -> None:
    reports.apply(node.pk, HealthReport(at=START, gpus=(), driver_error="NVML_ERROR_DRIVER_NOT_LOADED"), when(START))
    world = World()
    world.run(10)
    assert Finding.objects.get(code="driver_error").kind == "node"
    assert {state_of(gpu)[0] for gpu in node.gpus.all()} == {"unknown"}


def test_a_gpu_that_the_driver_no_longer_lists_is_lost(node: Node) -> None:
    rest = [GpuCondition(gpu.uuid, gpu.index, Condition.OK) for gpu in node.gpus.all()][1:]
    assert reports.apply(node.pk, HealthReport(at=START, gpus=tuple(rest)), when(START)) == 1
    row = ReportedCondition.objects.get()
    assert (row.gpu_uuid, row.condition) == (node.gpus.all()[0].uuid, "lost")


def test_a_repeated_report_keeps_since_and_a_better_one_ends_it(node: Node) -> None:
    reports.apply(node.pk, report("lost", START), when(START))
    reports.apply(node.pk, report("lost", START + 60), when(START + 60))
    row = ReportedCondition.objects.get()
    assert (row.since, row.last_at) == (when(START), when(START + 60))
    good = HealthReport(at=START + 90, gpus=tuple(GpuCondition(gpu.uuid, gpu.index, Condition.OK) for gpu in node.gpus.all()))
    assert reports.apply(node.pk, good, when(START + 90)) == 0
    assert not ReportedCondition.objects.exists()


def test_an_agents_clock_that_runs_ahead_makes_no_future(node: Node) -> None:
    reports.apply(node.pk, report("lost", START + 10_000), when(START))
    assert ReportedCondition.objects.get().since == when(START)


def test_series_that_stop_while_the_agent_sees_the_gpu_are_missing_series() -> None:
    node = make_node()
    gpus = [make_gpu(node=node, index=index) for index in range(2)]
    enrol(node)
    world = World()
    world.run(61)
    world.now += 9
    world.run(60, gpus=gpus[1:])
    assert state_of(gpus[0]) == ("unknown", "series_missing")
    assert state_of(node)[0] == "degraded"
