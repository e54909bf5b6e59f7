"""MIG layout: only AI placements change, what happened is read back, and nothing is done blindly (C26)."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.actions import ParameterError, Target
from agent.actions.mig_layout import ACTION, MigLayout
from agent.backends.base import BackendError, ErrorCode
from agent.backends.cluster import ClusterError, ClusterErrorCode
from agent.converge import Converger, retry_after
from agent.journal import Journal
from agent.mig import ChangeFacts, Verdict, judge_change, plan_change
from agent.protocol import Observation, ObservedState, ProtectedSpan, SliceFacts
from agent.protocol.layout import Instance, LayoutError, format_layout, parse_layout
from tests.agent.documents import CONSOLE_KEY, NODE, T0, A, control, document, setting
from tests.agent.hardware import H100, PCI, Hardware
from tests.agent.node_cluster import NodeCluster, pod
from tests.agent.nvml.node import Node, library

__all__ = ["library"]

CASES = Path(__file__).parent.parent / "cases"
C26 = json.loads((CASES / "C26-mig-change-wedged" / "timelines.json").read_text())
EXPECT = json.loads((CASES / "C26-mig-change-wedged" / "expect.json").read_text())
SEVEN = "1g.10gb@0,1g.10gb@1,1g.10gb@2,1g.10gb@3,1g.10gb@4,1g.10gb@5,1g.10gb@6"
RADIO = (ProtectedSpan(A, 0, 1), ProtectedSpan(A, 1, 1), ProtectedSpan(A, 2, 1))
RADIO_AND_BIG = "1g.10gb@0,1g.10gb@1,1g.10gb@2,3g.40gb@4"


@pytest.fixture
def hardware() -> Hardware:
    return Hardware([A])


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "journal.sqlite3")
    yield journal
    journal.close()


def converger(hardware: Hardware, journal: Journal) -> Converger:
    return Converger(backend=hardware, journal=journal, node_id=NODE, trusted_keys=(CONSOLE_KEY,))


def wants(version: int, layout: str, *, protected: tuple[ProtectedSpan, ...] = (), ends_at: float | None = None) -> Any:
    return document(version, control(setting(layout=layout, ends_at=ends_at), name="mig_layout"), protected=protected)


def shown(agent: Converger) -> Observation:
    (found,) = agent.observations()
    return found


# The change itself.


def test_changes_ai_placements_and_leaves_the_radio(hardware: Hardware, journal: Journal) -> None:
    hardware.partition(A, SEVEN)
    radio = [instance.gpu_instance_id for instance in hardware.slices[A] if instance.start < 3]
    agent = converger(hardware, journal)
    agent.accept(wants(1, RADIO_AND_BIG, protected=RADIO), T0)
    agent.converge(T0)
    assert shown(agent).state is ObservedState.APPLIED
    assert shown(agent).observed == {"layout": RADIO_AND_BIG, "mig_mode": True, "slices": 4, "wanted_slices": 4}
    assert [instance.gpu_instance_id for instance in hardware.slices[A] if instance.start < 3] == radio
    assert hardware.mig_acts == ["destroy 1g.10gb@3", "destroy 1g.10gb@4", "destroy 1g.10gb@5", "destroy 1g.10gb@6", "create 3g.40gb@4"]
    agent.converge(T0 + 10)
    assert len(hardware.mig_acts) == 5


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("3g.40gb@0,3g.40gb@4", "the PHY instance 1g.10gb@0 would go: position 0 is protected"),
        ("1g.10gb@0,1g.10gb@1,3g.40gb@4", "the PHY instance 1g.10gb@2 would go: position 2 is protected"),
        ("1g.10gb@0,1g.10gb@1,2g.20gb@2", "2g.20gb@2 would change what is protected for PHY"),
        ("none", "the PHY instance 1g.10gb@0 would go"),
        ("off", "carries PHY, and MIG mode is of the whole GPU"),
        ("1g.10gb@0,1g.10gb@1,1g.10gb@2,4g.40gb@3", "4g.40gb may start at 0, not at 3"),
        ("1g.10gb@0,1g.10gb@1,1g.10gb@2,1g.5gb@4", "this GPU has no profile 1g.5gb"),
        ("1g.10gb@0,1g.10gb@1,1g.10gb@2,2g.20gb@4,1g.10gb@5", "2g.20gb@4 and 1g.10gb@5 overlap"),
    ],
)
def test_what_would_touch_the_radio_or_cannot_be_is_refused_before_anything_is_done(hardware: Hardware, journal: Journal, layout: str, words: str) -> None:
    hardware.partition(A, SEVEN)
    agent = converger(hardware, journal)
    agent.accept(wants(1, layout, protected=RADIO), T0)
    agent.converge(T0)
    assert shown(agent).state is ObservedState.REFUSED
    assert words in shown(agent).detail
    assert hardware.mig_acts == []


@pytest.mark.parametrize("layout", ["", "1g.10gb", "1g.10gb@8", "1g.10gb@0,1g.10gb@0", "0g.10gb@0", "1g.10gb@0,", "on", 7, None])
def test_what_is_no_layout_is_refused_by_name(layout: Any) -> None:
    with pytest.raises(ParameterError, match="layout"):
        ACTION.check({"layout": layout})


def test_mode_is_changed_where_no_radio_is_and_back_at_the_end(hardware: Hardware, journal: Journal) -> None:
    agent = converger(hardware, journal)
    agent.accept(wants(1, "4g.40gb@0,3g.40gb@4", ends_at=T0 + 60), T0)
    agent.converge(T0)
    assert (hardware.mig, hardware.layout(A)) == (True, "4g.40gb@0,3g.40gb@4")
    converger(hardware, journal).converge(T0 + 60)
    assert (hardware.mig, hardware.layout(A)) == (False, "")


def test_a_layout_that_cannot_be_leaves_the_mode_as_it_was(hardware: Hardware, journal: Journal) -> None:
    agent = converger(hardware, journal)
    agent.accept(wants(1, "3g.40gb@0,4g.40gb@4"), T0)
    agent.converge(T0)
    assert (shown(agent).state, shown(agent).detail) == (ObservedState.REFUSED, "layout: 4g.40gb may start at 0, not at 4")
    assert hardware.mig is False


def test_no_mode_change_on_a_gpu_with_phy(hardware: Hardware, journal: Journal) -> None:
    agent = converger(hardware, journal)
    agent.accept(wants(1, SEVEN, protected=RADIO), T0)
    agent.converge(T0)
    assert shown(agent).state is ObservedState.REFUSED
    assert hardware.mig_acts == []


def test_a_temporary_layout_gives_back_the_one_before(hardware: Hardware, journal: Journal) -> None:
    hardware.partition(A, SEVEN)
    agent = converger(hardware, journal)
    agent.accept(wants(1, RADIO_AND_BIG, protected=RADIO, ends_at=T0 + 60), T0)
    agent.converge(T0)
    again = converger(hardware, journal)
    again.converge(T0 + 60)
    assert hardware.layout(A) == SEVEN
    assert (shown(again).state, shown(again).observed["layout"]) == (ObservedState.ENDED, SEVEN)


def test_c19_instances_that_a_reboot_took_are_drift_and_come_back(hardware: Hardware, journal: Journal) -> None:
    agent = converger(hardware, journal)
    agent.accept(wants(1, "4g.40gb@0,3g.40gb@4"), T0)
    agent.converge(T0)
    hardware.reboot()
    again = converger(hardware, journal)
    again.converge(T0 + 60)
    assert (shown(again).state, shown(again).observed["slices"], shown(again).observed["layout"]) == (ObservedState.DRIFTED, 0, "none")
    again.converge(T0 + 60 + retry_after(1))
    assert (shown(again).state, hardware.layout(A)) == (ObservedState.APPLIED, "4g.40gb@0,3g.40gb@4")


def test_an_instance_too_many_is_drift_and_goes_again(hardware: Hardware, journal: Journal) -> None:
    hardware.partition(A, "3g.40gb@0")
    agent = converger(hardware, journal)
    agent.accept(wants(1, "3g.40gb@0"), T0)
    agent.converge(T0)
    assert (shown(agent).state, hardware.mig_acts) == (ObservedState.APPLIED, [])
    hardware.create_mig_instance(A, "2g.20gb", 4)
    agent.converge(T0 + 60)
    assert (shown(agent).state, shown(agent).detail) == (ObservedState.DRIFTED, "1 of 1 slices found; 3g.40gb@0,2g.20gb@4 stands.")
    agent.converge(T0 + 80)
    assert (shown(agent).state, hardware.layout(A)) == (ObservedState.APPLIED, "3g.40gb@0")


def test_a_missing_phy_instance_is_shown_and_never_made(hardware: Hardware, journal: Journal) -> None:
    hardware.partition(A, SEVEN)
    agent = converger(hardware, journal)
    agent.accept(wants(1, SEVEN, protected=RADIO), T0)
    agent.converge(T0)
    hardware.reboot()
    for seconds in (60, 80, 100, 2000):
        agent.converge(T0 + seconds)
    assert hardware.layout(A) == "1g.10gb@3,1g.10gb@4,1g.10gb@5,1g.10gb@6"
    assert shown(agent).state is ObservedState.DRIFTED
    assert "The radio's 1g.10gb@0, 1g.10gb@1, 1g.10gb@2 is missing" in shown(agent).detail
    assert len(hardware.mig_acts) == 4


# C26.


def facts_of(timeline: str, at: int) -> ChangeFacts:
    """The case's labels and counts at an event, as the agent would know them."""
    event = C26["timelines"][timeline][at]
    labels, wanted = event["labels"], C26["desired"]["per_gpu"] * C26["desired"]["gpus"]
    resource = f"nvidia.com/mig-{C26['desired']['profile']}"
    return ChangeFacts(
        wanted=wanted,
        found=len(event["gpu_instances_found"]) if "gpu_instances_found" in event else None,
        elapsed_seconds=event["t"],
        timeout_seconds=C26["timeout_s"],
        reported_done=labels["nvidia.com/mig.config.state"] != "pending",
        in_use=event["log"].split("GPU ")[1].split(": In use")[0] if "In use" in event.get("log", "") else "",
        advertised=int(event["allocatable"].get(resource, "0")) if "allocatable" in event else None,
        plugin_paused=labels["nvidia.com/gpu.deploy.device-plugin"] == "paused-for-mig-change",
    )


def test_c26_a_wedged_change_fails_at_its_time_out_with_the_facts() -> None:
    early = facts_of("wedged", 1)
    assert not judge_change(early).over
    assert not judge_change(replace(early, elapsed_seconds=EXPECT["wedged"]["by_s"] - 1)).over
    verdict = judge_change(replace(early, elapsed_seconds=EXPECT["wedged"]["by_s"]))
    assert (verdict.over, verdict.success, verdict.code, verdict.may_retry) == (True, False, "timeout", False)
    assert f"{EXPECT['wedged']['advertised']} of {EXPECT['wedged']['wanted']} advertised" in verdict.detail
    assert "the device plugin is paused" in verdict.detail
    assert "Asking for the same again does not help" in verdict.detail
    assert judge_change(facts_of("wedged", 2)).code == "timeout"


def test_c26_a_word_of_success_without_slices_is_no_success() -> None:
    verdict = judge_change(facts_of("says-success", 1))
    assert (verdict.over, verdict.success, verdict.code) == (True, False, "mismatch")
    assert f"{EXPECT['says-success']['verified']} of {EXPECT['says-success']['wanted']} slices found" in verdict.detail


def test_c26_a_gpu_in_use_is_named_and_not_tried_again() -> None:
    verdict = judge_change(facts_of("in-use", 1))
    assert (verdict.over, verdict.success, verdict.code, verdict.may_retry) == (True, False, "in_use", EXPECT["in-use"]["auto_retry"])
    assert EXPECT["in-use"]["pci"] in verdict.detail
    assert facts_of("in-use", 1).plugin_paused is False


def test_success_is_slices_that_were_found() -> None:
    done = ChangeFacts(wanted=3, found=3, elapsed_seconds=10, timeout_seconds=900, reported_done=True)
    assert judge_change(done) == Verdict(over=True, success=True, code="", detail="3 of 3 slices found.", may_retry=False)
    assert not judge_change(replace(done, found=None)).success


def test_c26_success_without_slices_is_failed_on_the_hardware_too(hardware: Hardware, journal: Journal) -> None:
    hardware.partition(A, "none")
    hardware.deaf.add(A)
    agent = converger(hardware, journal)
    agent.accept(wants(1, "2g.20gb@0,2g.20gb@2,2g.20gb@4"), T0)
    agent.converge(T0)
    assert (shown(agent).state, shown(agent).observed["slices"]) == (ObservedState.FAILED, 0)
    assert "0 of 3 slices found" in shown(agent).detail


def test_c26_a_held_instance_stops_the_change_before_anything_went(hardware: Hardware, journal: Journal) -> None:
    hardware.partition(A, SEVEN)
    busy = hardware.slices[A][5].gpu_instance_id
    hardware.clients[busy] = 2
    agent = converger(hardware, journal)
    agent.accept(wants(1, RADIO_AND_BIG), T0)
    for seconds in (0, 10, 30, 70, 150, 1000):
        agent.converge(T0 + seconds)
    assert (shown(agent).state, shown(agent).observed["error"], shown(agent).observed["pci_bus_id"]) == (ObservedState.FAILED, "in_use", PCI)
    assert shown(agent).detail.startswith(f"GPU {PCI}: 1g.10gb@5 in use by 2 processes. Nothing was changed.")
    assert hardware.mig_acts == []
    hardware.clients.clear()
    agent.converge(T0 + 2000)
    assert (shown(agent).state, hardware.layout(A)) == (ObservedState.APPLIED, RADIO_AND_BIG)


def test_a_pod_that_holds_a_slice_keeps_it_though_nothing_runs_on_it(hardware: Hardware, journal: Journal) -> None:
    hardware.partition(A, SEVEN)
    slice_uuid = hardware.slices[A][4].mig_uuid
    cluster = NodeCluster([pod("notebook", gpus=(slice_uuid,)), pod("over", phase="Succeeded", gpus=(hardware.slices[A][5].mig_uuid,))])
    agent = Converger(backend=hardware, cluster=cluster, journal=journal, node_id=NODE, trusted_keys=(CONSOLE_KEY,))
    agent.accept(wants(1, RADIO_AND_BIG), T0)
    agent.converge(T0)
    assert f"GPU {PCI}: 1g.10gb@4 in use by pod tenant-amber/notebook. Nothing was changed." in shown(agent).detail
    assert hardware.mig_acts == []
    cluster.error = ClusterError(ClusterErrorCode.UNAVAILABLE, "the API server cannot be reached")
    agent.converge(T0 + 20)
    assert (shown(agent).state, shown(agent).observed) == (ObservedState.FAILED, {"error": "unavailable"})
    cluster.error = None
    cluster.running.clear()
    agent.converge(T0 + 60)
    assert (shown(agent).state, hardware.layout(A)) == (ObservedState.APPLIED, RADIO_AND_BIG)


def test_c26_a_client_that_is_no_process_is_not_tried_again_until_people_ask_anew(hardware: Hardware, journal: Journal) -> None:
    hardware.partition(A, SEVEN)
    hardware.errors["destroy 1g.10gb@5"] = BackendError(ErrorCode.IN_USE, "NVML: In use by another client")
    agent = converger(hardware, journal)
    agent.accept(wants(1, RADIO_AND_BIG), T0)
    agent.converge(T0)
    tried = list(hardware.mig_acts)
    assert tried == ["destroy 1g.10gb@3", "destroy 1g.10gb@4", "destroy 1g.10gb@5", "create 1g.10gb@3", "create 1g.10gb@4"]
    assert hardware.layout(A) == SEVEN
    assert "a client that the driver does not name" in shown(agent).detail
    again = converger(hardware, journal)
    for seconds in (20, 60, 200, 2000, 4000):
        again.converge(T0 + seconds)
    assert hardware.mig_acts == tried
    hardware.errors.clear()
    again.accept(document(2), T0)
    again.converge(T0 + 5000)
    again.accept(wants(3, RADIO_AND_BIG), T0)
    again.converge(T0 + 5001)
    assert (shown(again).state, hardware.layout(A)) == (ObservedState.APPLIED, RADIO_AND_BIG)


class Stuck(Hardware):
    """A driver that does not come back from making an instance until it is let."""

    def __init__(self) -> None:
        super().__init__([A])
        self.free = threading.Event()
        self.entered = threading.Event()

    def create_mig_instance(self, gpu_uuid: str, profile: str, start: int) -> int:
        self.entered.set()
        assert self.free.wait(20)
        return super().create_mig_instance(gpu_uuid, profile, start)


def test_c26_a_driver_that_hangs_holds_up_nothing_else_and_fails_at_the_time_out(journal: Journal) -> None:
    hardware = Stuck()
    hardware.partition(A, "none")
    agent = Converger(backend=hardware, journal=journal, node_id=NODE, trusted_keys=(CONSOLE_KEY,), actions={"mig_layout": MigLayout(wait_seconds=0.05)})
    agent.accept(wants(1, "2g.20gb@0,2g.20gb@2,2g.20gb@4"), T0)
    assert agent.converge(T0).observations == ()
    assert hardware.entered.is_set()
    assert agent.converge(T0 + 899).observations == ()
    agent.converge(T0 + 900)
    assert shown(agent).state is ObservedState.FAILED
    assert "Not done after 900 s: 0 of 3 slices found" in shown(agent).detail
    agent.converge(T0 + 5000)
    assert hardware.mig_acts == []
    hardware.free.set()
    for step in range(2000):
        agent.converge(T0 + 6000 + step)
        if shown(agent).state is ObservedState.APPLIED:
            break
    assert (shown(agent).state, hardware.mig_acts.count("create 2g.20gb@0")) == (ObservedState.APPLIED, 1)


# Properties.

spans = st.lists(st.builds(ProtectedSpan, st.just(A), st.integers(0, 7), st.integers(1, 4)), max_size=3).map(tuple)
places = st.lists(st.sampled_from([Instance(start, profile.name) for profile in H100 for start in profile.starts]), max_size=7)


def _fitting(chosen: list[Instance]) -> str:
    """The part of `chosen` that fits beside what came before."""
    taken: set[int] = set()
    kept: list[Instance] = []
    for instance in chosen:
        span = set(range(instance.start, instance.start + next(profile.size for profile in H100 if profile.name == instance.profile)))
        if not span & taken:
            taken |= span
            kept.append(instance)
    return format_layout(kept)


def _refusal(hardware: Hardware, wanted: str, protected: tuple[ProtectedSpan, ...] = ()) -> BackendError | None:
    try:
        ACTION.apply(Target(hardware, A, protected=protected), {"layout": wanted})
    except BackendError as error:
        return error
    return None


@given(current=places.map(_fitting), wanted=places.map(_fitting), protected=spans)
def test_no_change_ever_touches_a_protected_span(current: str, wanted: str, protected: tuple[ProtectedSpan, ...]) -> None:
    hardware = Hardware([A])
    hardware.partition(A, current)
    reserved = {position for span in protected for position in range(span.start, span.start + span.size)}

    def on_protected() -> list[SliceFacts]:
        return [instance for instance in hardware.slices[A] if reserved & set(range(instance.start, instance.start + instance.size))]

    before, layout = on_protected(), hardware.layout(A)
    refused = _refusal(hardware, wanted, protected)
    if refused is not None:
        assert (refused.code, hardware.mig_acts, hardware.layout(A)) == (ErrorCode.INVALID, [], layout)
    assert on_protected() == before


@given(current=places.map(_fitting), wanted=places.map(_fitting))
def test_without_radio_every_layout_that_fits_is_reached_and_then_nothing_is_left_to_do(current: str, wanted: str) -> None:
    hardware = Hardware([A])
    hardware.partition(A, current)
    refused = _refusal(hardware, wanted)
    if refused is not None:
        assert "compute slices" in str(refused) or "fit" in str(refused)
        return
    assert (hardware.layout(A) or "none") == wanted
    assert ACTION.read(Target(hardware, A), {"layout": wanted}).holds is True
    assert plan_change(hardware.slices[A], parse_layout(wanted) or (), protected=(), profiles=H100).done


@given(st.text(alphabet="0123456789gb.@,+mef onf", max_size=30))
def test_a_text_is_a_layout_or_refused_and_reads_back_the_same(text: str) -> None:
    try:
        layout = parse_layout(text)
    except LayoutError:
        return
    assert parse_layout(format_layout(layout)) == layout


# Through NVIDIA's own binding.

BOARD = (
    "profile 0 19 7 1 9984 MIG 1g.10gb\nprofile 1 14 3 2 20096 MIG 2g.20gb\nprofile 2 9 2 3 40448 MIG 3g.40gb\nprofile 3 5 1 4 40448 MIG 4g.40gb\n"
    "places 19 1 0,1,2,3,4,5,6\nplaces 14 2 0,2,4\nplaces 9 4 0,4\nplaces 5 4 0\n"
)


@pytest.fixture
def node(library: Path, tmp_path: Path) -> Iterator[Node]:
    node = Node(library, tmp_path)
    yield node
    node.stop()


def sliced(*more: str) -> list[str]:
    return [f"gpu 0 uuid {A}", f"gpu 0 pci {PCI}", "gpu 0 mig 1", BOARD, *(f"mig 0 {7 + start} 0 19 {start} 1 MIG-{start}" for start in range(7)), *more]


def test_instances_are_destroyed_and_made_by_placement_with_their_compute_instances(node: Node) -> None:
    node.hardware(*sliced())
    assert node.ask("apply", control="mig_layout", gpu=A, parameters={"layout": RADIO_AND_BIG}, protected=[(0, 3)]) == {"before": SEVEN}
    acts = node.acts()
    assert acts[:8] == [line for gi in (10, 11, 12, 13) for line in (f"compute_destroy {A} {gi} 0", f"destroy {A} {gi} {gi - 7}")]
    assert (acts[8], acts[9].split()[0], acts[9].split()[3]) == (f"create {A} 9 4", "compute", "102")
    reading = node.ask("look", control="mig_layout", gpu=A, parameters={"layout": RADIO_AND_BIG})
    assert (reading["holds"], reading["observed"]["layout"]) == (True, RADIO_AND_BIG)
    (gpu,) = node.inspect()[0]["gpus"]
    assert [(found["profile"], found["start"], found["size"], found["compute_instance_id"]) for found in gpu["slices"]][3:] == [("3g.40gb", 4, 4, 0)]
    node.hardware(*sliced("epoch 1"))
    assert node.ask("look", control="mig_layout", gpu=A, parameters={"layout": RADIO_AND_BIG})["holds"] is False
    assert node.ask("undo", control="mig_layout", gpu=A, before=SEVEN) is None


def test_what_is_held_is_named_and_stays_whole(node: Node) -> None:
    node.hardware(*sliced("hold 0 12 1"))
    answer = node.ask("apply", control="mig_layout", gpu=A, parameters={"layout": RADIO_AND_BIG})
    assert (answer["error"], answer["facts"]["pci_bus_id"], answer["facts"]["held_by_processes"]) == ("in_use", PCI, 1)
    assert node.acts() == []
    node.hardware(*sliced("hold 0 10 0"))
    answer = node.ask("apply", control="mig_layout", gpu=A, parameters={"layout": RADIO_AND_BIG})
    assert (answer["error"], answer["facts"]["held_by_processes"]) == ("in_use", 0)
    assert node.acts() == [f"compute_destroy {A} 10 0"]
    again = node.ask("apply", control="mig_layout", gpu=A, parameters={"layout": RADIO_AND_BIG}, last=answer["facts"])
    assert again["error"] == "in_use"
    assert len(node.acts()) == 1


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("error 0 nvmlDeviceCreateGpuInstanceWithPlacement 10", "timeout"),
        ("error 0 nvmlDeviceCreateGpuInstanceWithPlacement 23", "insufficient_resources"),
        ("error 0 nvmlGpuInstanceDestroy 4", "not_permitted"),
        ("error 0 nvmlGpuInstanceCreateComputeInstance 999", "unavailable"),
    ],
)
def test_errors_in_the_midst_are_said_and_what_stands_is_read_back(node: Node, line: str, code: str) -> None:
    node.hardware(*sliced(line))
    assert node.ask("apply", control="mig_layout", gpu=A, parameters={"layout": RADIO_AND_BIG})["error"] == code
    reading = node.ask("look", control="mig_layout", gpu=A, parameters={"layout": RADIO_AND_BIG})
    assert (reading["holds"], reading["observed"]["slices"]) == (False, 3)


def test_mode_through_nvml(node: Node) -> None:
    whole = [f"gpu 0 uuid {A}", "gpu 0 mig 0", BOARD]
    node.hardware(*whole)
    assert node.ask("apply", control="mig_layout", gpu=A, parameters={"layout": "4g.40gb@0,3g.40gb@4"}) == {"before": "off"}
    assert node.ask("look", control="mig_layout", gpu=A, parameters={"layout": "4g.40gb@0,3g.40gb@4"})["holds"] is True
    assert node.ask("undo", control="mig_layout", gpu=A, before="off") is None
    assert node.ask("look", control="mig_layout", gpu=A, parameters={"layout": "off"})["holds"] is True
    acts = node.acts()
    assert node.ask("apply", control="mig_layout", gpu=A, parameters={"layout": "3g.40gb@0,4g.40gb@4"})["error"] == "invalid_argument"
    assert node.acts() == acts
    node.hardware(*whole, "epoch 1", "gpu 0 reset_for_mig 1")
    assert node.ask("apply", control="mig_layout", gpu=A, parameters={"layout": "4g.40gb@0"})["error"] == "reset_required"
    node.hardware(f"gpu 0 uuid {A}", "epoch 2")
    assert node.ask("apply", control="mig_layout", gpu=A, parameters={"layout": "4g.40gb@0"})["error"] == "not_supported"
