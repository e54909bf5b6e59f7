"""The XID gauge through both doors: what is an event, over gaps and restarts (case C07)."""

import struct
from collections.abc import Callable, Iterable

import pytest

from fleet.health.changes import Changes
from fleet.health.xid import table
from fleet.health.xid_watch import XidWatch
from fleet.telemetry.fields import STALE_NAN_BITS, Refusal, Sample
from fleet.telemetry.ingest import Ingest
from tests.fleet.samples import T0, fleet_of, gpu_value, pull, push

STALE = struct.unpack("<d", struct.pack("<Q", STALE_NAN_BITS))[0]
GPU = "GPU-00000000-0000-0000-0000-000000000001"
BLANK = 9223372036854775792.0
Door = Callable[[Ingest, Iterable[Sample]], None]
DOORS = pytest.mark.parametrize("door", [push, pull])


def xid(value: float, at: float, **labels: str) -> Sample:
    return Sample({"__name__": "DCGM_FI_DEV_XID_ERRORS", "UUID": GPU, **labels}, value, at)


def events_of(ingest: Ingest) -> list[tuple[int, float]]:
    """(XID, time) of the events that the changes noted so far make."""
    changes = Changes()
    XidWatch(table(), 45.0).take(ingest.state, lambda row: "", changes)
    return [(event.xid, event.last_at) for event in changes.xids]


@pytest.fixture
def ingest() -> Ingest:
    return fleet_of([GPU])


@pytest.mark.parametrize("labels", [{}, {"GPU_I_ID": "7", "GPU_I_PROFILE": "1g.10gb"}], ids=["whole", "slice"])
@pytest.mark.parametrize("gap", [STALE, BLANK, float("nan")], ids=["stale", "blank", "nan"])
def test_an_xid_within_a_gap_is_an_event(ingest: Ingest, gap: float, labels: dict[str, str]) -> None:
    push(ingest, [xid(0.0, T0, **labels), xid(gap, T0 + 10, **labels), xid(79.0, T0 + 300, **labels)])
    assert events_of(ingest) == [(79, T0 + 300)]


@DOORS
def test_the_code_that_stood_before_a_gap_is_no_event_after_it(ingest: Ingest, door: Door) -> None:
    door(ingest, [xid(13.0, T0), xid(STALE, T0 + 10), xid(13.0, T0 + 300)])
    assert events_of(ingest) == []


def test_first_sight_after_a_gap_that_nothing_came_before_is_no_event(ingest: Ingest) -> None:
    push(ingest, [xid(BLANK, T0), xid(STALE, T0 + 10), xid(79.0, T0 + 300)])
    assert events_of(ingest) == []


def test_a_gpu_that_is_sliced_within_a_gap_keeps_its_code(ingest: Ingest) -> None:
    push(ingest, [xid(31.0, T0), xid(STALE, T0 + 10)])
    push(ingest, [xid(31.0, T0 + 60, GPU_I_ID=str(instance), GPU_I_PROFILE="1g.10gb") for instance in range(7, 10)])
    push(ingest, [xid(STALE, T0 + 70, GPU_I_ID=str(instance), GPU_I_PROFILE="1g.10gb") for instance in range(7, 10)])
    push(ingest, [xid(79.0, T0 + 120)])
    assert events_of(ingest) == [(79, T0 + 120)]


def test_one_event_that_every_slice_repeats_is_one(ingest: Ingest) -> None:
    for n, value in enumerate([0.0, 79.0]):
        push(ingest, [xid(value, T0 + 10 * n, GPU_I_ID=str(i), GPU_I_PROFILE="1g.10gb") for i in range(7, 14)])
    (change,) = ingest.state.take_xid_changes()
    assert (change.gpu_instance_id, change.old, change.new, change.at) == (None, 0, 79, T0 + 10)
    assert gpu_value(ingest, GPU, "xid") == 79


def test_an_event_of_one_slice_names_it(ingest: Ingest) -> None:
    for at, values in ((T0, {7: 0.0, 8: 0.0}), (T0 + 10, {7: 0.0, 8: 31.0})):
        push(ingest, [xid(value, at, GPU_I_ID=str(i), GPU_I_PROFILE="1g.10gb") for i, value in values.items()])
    (change,) = ingest.state.take_xid_changes()
    assert (change.gpu_instance_id, change.new) == (8, 31)


@DOORS
@pytest.mark.parametrize("name", ["DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION", "DCGM_FI_DEV_GPU_RECOVERY_ACTION"])
def test_the_advice_of_an_xid_follows_the_drivers_recovery_action(ingest: Ingest, door: Door, name: str) -> None:
    watch = XidWatch(table(), 45.0)

    def advice(action: float, at: float) -> tuple[str, bool]:
        door(ingest, [Sample({"__name__": name, "UUID": GPU}, action, at), xid(119.0 if at > T0 else 0.0, at)])
        touched = watch.take(ingest.state, lambda row: "", Changes())
        (conditions, _) = watch.conditions(0, at)
        return next((condition.advised for condition in conditions), ""), bool(touched)

    usual = table().rule(119).advised
    assert advice(0.0, T0) == ("", False)
    assert advice(0.0, T0 + 10) == (usual, True)
    assert advice(2.0, T0 + 20) == ("Reboot the node.", True)
    assert advice(2.0, T0 + 30) == ("Reboot the node.", False)
    assert advice(BLANK, T0 + 40) == (usual, True)
    assert ingest.quality.totals[Refusal.OUT_OF_RANGE] == 1
    assert advice(77.0, T0 + 50) == (usual, True)
    assert advice(1.0, T0 + 60) == ("Reset the GPU.", True)
    push(ingest, [Sample({"__name__": name, "UUID": GPU}, 3.0, T0 + 55), Sample({"__name__": name, "UUID": GPU}, STALE, T0 + 70)])
    watch.take(ingest.state, lambda row: "", Changes())
    assert [condition.advised for condition in watch.conditions(0, T0 + 70)[0]] == [usual]
