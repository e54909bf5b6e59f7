"""Faults of a GPU: throttling, margin, memory, links, XIDs; hysteresis; what ends them."""

from datetime import timedelta
from typing import Any

import pytest

from fleet.health.clearing import ClearingRefused, clear_finding
from fleet.inventory.seen import mark_present
from fleet.models import AuditEntry, Finding, Gpu, GpuHealth, HealthTransition, Node, XidEvent
from tests.builders import make_gpu, make_node
from tests.fleet.health_world import START, World, enrol, state_of, when

pytestmark = pytest.mark.django_db


@pytest.fixture
def gpu() -> Gpu:
    return make_gpu(node=make_node())


def moves(gpu: Gpu) -> list[str]:
    return list(HealthTransition.objects.filter(kind="gpu", object_key=gpu.uuid).order_by("pk").values_list("to_state", flat=True))


def test_thermal_slowdown_needs_two_samples_and_its_end_must_hold(gpu: Gpu) -> None:
    world = World()
    world.run(30)
    world.run(10, clock_event_reasons=0x48, gpu_temperature_celsius=87.0, sm_clock_hertz=9.9e8)
    assert state_of(gpu) == ("ok", "ok")
    world.run(10, clock_event_reasons=0x48, gpu_temperature_celsius=87.0, sm_clock_hertz=9.9e8)
    health = GpuHealth.objects.get(gpu=gpu)
    assert (health.state, health.cause, health.since) == ("degraded", "hw_thermal_slowdown", when(START + 30))
    assert health.why == "SM clock cut to 990 MHz by hardware thermal slowdown, 87 °C of 87 °C limit."
    assert set(Finding.objects.filter(kind="gpu").values_list("code", flat=True)) == {"hw_thermal_slowdown", "thermal_margin_low"}
    world.run(30)
    assert state_of(gpu)[0] == "degraded"
    world.run(10)
    assert state_of(gpu) == ("ok", "ok")
    finding = Finding.objects.get(code="hw_thermal_slowdown")
    assert (finding.since, finding.until) == (when(START + 30), when(START + 50))
    assert GpuHealth.objects.get(gpu=gpu).since == when(START + 80)


def test_a_wobbling_throttle_is_one_finding_and_one_transition(gpu: Gpu) -> None:
    world = World()
    world.run(30)
    for turn in range(12):
        world.run(10, clock_event_reasons=0x40 if turn % 3 else 0)
    assert moves(gpu) == ["ok", "degraded"]
    assert Finding.objects.filter(code="hw_thermal_slowdown").count() == 1
    world.run(60)
    assert moves(gpu) == ["ok", "degraded", "ok"]


def test_one_hot_sample_now_and_then_is_nothing(gpu: Gpu) -> None:
    world = World()
    for turn in range(9):
        world.run(10, clock_event_reasons=0x80 if turn % 3 == 1 else 0)
    assert moves(gpu) == ["ok"]
    assert not Finding.objects.exists()


@pytest.mark.parametrize("reasons", [0x1, 0x2, 0x4, 0x7])
def test_idle_application_clocks_and_our_own_cap_are_no_findings(gpu: Gpu, reasons: int) -> None:
    world = World()
    world.run(40, clock_event_reasons=float(reasons))
    assert state_of(gpu) == ("ok", "ok")
    assert not Finding.objects.exists()


def test_software_thermal_slowdown_warns_and_changes_no_state(gpu: Gpu) -> None:
    world = World()
    world.run(40, clock_event_reasons=float(0x20))
    assert state_of(gpu) == ("ok", "ok")
    assert Finding.objects.get().severity == "warning"


@pytest.mark.parametrize(
    ("values", "cause"),
    [
        ({"clock_event_reasons": 0x80}, "hw_power_brake"),
        ({"clock_event_reasons": 0x8}, "hw_slowdown"),
        ({"gpu_temperature_celsius": 85.0}, "thermal_margin_low"),
        ({"gpu_temperature_celsius": 60.0, "temperature_margin_celsius": 2.0}, "thermal_margin_low"),
        ({"row_remap_pending": 1}, "row_remap_pending"),
        ({"row_remap_failure": 1}, "row_remap_failure"),
        ({"ecc_dbe_total": 1}, "ecc_double_bit"),
        ({"nvlink_errors_total": 20}, "nvlink_errors"),
        ({"pcie_replay_total": 90}, "pcie_replay"),
    ],
)
def test_each_fault_degrades_and_is_found(gpu: Gpu, values: dict[str, Any], cause: str) -> None:
    world = World()
    world.run(20)
    world.run(20, **values)
    assert state_of(gpu) == ("degraded", cause)
    finding = Finding.objects.get(code=cause)
    assert finding.advised_action
    assert finding.object_key == gpu.uuid
    assert state_of(gpu.node) == state_of(gpu.node.site) == ("degraded", cause)


def test_the_margin_has_one_threshold_to_come_and_another_to_go(gpu: Gpu) -> None:
    world = World()
    for temperature in (85.0, 85.0, 83.0, 85.0, 83.0, 83.0, 83.0, 83.0, 83.0):
        world.run(10, gpu_temperature_celsius=temperature)
    assert state_of(gpu) == ("degraded", "thermal_margin_low")
    world.run(60, gpu_temperature_celsius=75.0)
    assert moves(gpu) == ["ok", "degraded", "ok"]


def test_counters_that_stand_high_or_fall_are_no_rise(gpu: Gpu) -> None:
    world = World()
    world.run(20, ecc_dbe_total=7.0, pcie_replay_total=5000.0)
    world.run(20, ecc_dbe_total=0.0, pcie_replay_total=0.0)
    assert not Finding.objects.exists()


def test_counted_errors_mark_for_half_an_hour_after_the_last(gpu: Gpu) -> None:
    world = World()
    world.run(20)
    world.run(20, ecc_dbe_total=1.0)
    for _ in range(29):
        world.now += 50  # a long time in few steps, never deaf for more than a moment
        world.scrape(ecc_dbe_total=1.0)
        world.tick()
        world.now += 10
        world.scrape(ecc_dbe_total=1.0)
        world.tick()
    assert state_of(gpu) == ("degraded", "ecc_double_bit")
    world.now += 120
    world.scrape(ecc_dbe_total=1.0)
    world.tick()
    assert state_of(gpu) == ("ok", "ok")


def test_silence_ends_no_finding(gpu: Gpu) -> None:
    world = World()
    world.run(40, row_remap_pending=1)
    world.run(80, gpus=[])
    assert state_of(gpu) == ("unknown", "link_down")
    assert Finding.objects.open().filter(code="row_remap_pending").exists()
    world.now = START + 120
    world.run(40, row_remap_pending=1)
    assert state_of(gpu) == ("degraded", "row_remap_pending")
    assert Finding.objects.filter(code="row_remap_pending").count() == 1


def test_a_series_that_is_not_reported_judges_nothing(gpu: Gpu) -> None:
    world = World()
    missing: dict[str, Any] = dict.fromkeys(("row_remap_pending", "row_remap_failure", "clock_event_reasons", "gpu_temperature_celsius", "ecc_dbe_total"))
    world.run(60, **missing)
    assert state_of(gpu) == ("ok", "ok")


# XIDs


def test_xid_79_takes_the_gpu_down_with_its_advised_action(gpu: Gpu) -> None:
    world = World()
    world.run(30)
    world.xid(gpu, 79)
    world.run(10)
    health = GpuHealth.objects.get(gpu=gpu)
    assert (health.state, health.cause, health.why) == ("down", "xid_79", "XID 79: GPU has fallen off the bus.")
    assert (health.last_xid, health.last_xid_at) == (79, when(START + 30))
    finding = Finding.objects.get(code="xid_79")
    assert finding.advised_action == "Restart the node (bare metal). Then: contact NVIDIA support."
    assert finding.evidence["advice"]["gpud"] == "fatal; reboot, then hardware"
    event = XidEvent.objects.get()
    assert (event.xid, event.count, event.source) == (79, 1, "gauge")
    assert state_of(gpu.node.site) == ("down", "xid_79")
    world.xid(gpu, 0, old=79)
    world.run(60)
    assert state_of(gpu)[0] == "down"


def test_a_lost_gpu_is_down_for_the_xid_that_says_why() -> None:
    node = make_node()
    gpus = [make_gpu(node=node, index=index) for index in range(2)]
    world = World()
    world.run(30)
    world.xid(gpus[0], 79, at=START + 20)
    world.run(60, gpus=gpus[1:])
    assert state_of(gpus[0]) == ("down", "xid_79")
    assert set(Finding.objects.filter(kind="gpu").values_list("code", flat=True)) == {"xid_79", "gpu_lost", "gpu_missing"}
    assert state_of(node.site) == ("degraded", "xid_79")
    assert "XID 79: GPU has fallen off the bus" in node.site.health.why


def test_a_sticky_xid_ends_with_a_reboot_of_the_node(gpu: Gpu) -> None:
    enrol(gpu.node)
    Node.objects.update(boot_id="boot-1")
    world = World()
    world.run(30)
    world.xid(gpu, 79)
    world.run(60, gpus=[])
    assert state_of(gpu)[0] == "down"
    world.now = START + 90
    world.run(40)
    assert state_of(gpu) == ("down", "xid_79")
    Node.objects.update(boot_id="boot-2")
    world.run(40)
    assert state_of(gpu) == ("ok", "ok")
    assert "rebooted" in Finding.objects.get(code="xid_79").ended_because


def test_a_sticky_xid_ends_by_an_operators_word(gpu: Gpu) -> None:
    world = World()
    world.run(30)
    world.xid(gpu, 48)
    world.run(10)
    assert state_of(gpu) == ("down", "xid_48")
    finding = Finding.objects.get(code="xid_48")
    with pytest.raises(ClearingRefused):
        clear_finding(finding=finding, reason=" ", actor="alice", now=when(world.now))
    clear_finding(finding=finding, reason="field diagnostic passed", actor="alice", now=when(world.now))
    world.run(10)
    assert state_of(gpu) == ("ok", "ok")
    finding.refresh_from_db()
    assert finding.ended_because == "Cleared by alice: field diagnostic passed"
    assert AuditEntry.objects.get(action="finding.clear").actor == "alice"
    world.run(70)
    assert Finding.objects.count() == 1
    world.xid(gpu, 48, old=0)
    world.run(10)
    assert state_of(gpu) == ("down", "xid_48")


def test_other_xids_degrade_for_a_window(gpu: Gpu) -> None:
    world = World()
    world.run(30)
    world.xid(gpu, 31)
    world.run(10)
    assert state_of(gpu) == ("degraded", "xid_31")
    for _ in range(61):
        world.now += 30
        world.scrape()
        world.tick()
    assert state_of(gpu) == ("ok", "ok")
    assert "No repeat" in Finding.objects.get(code="xid_31").ended_because


def test_an_informational_xid_is_recorded_and_changes_no_state(gpu: Gpu) -> None:
    world = World()
    world.run(30)
    world.xid(gpu, 63)
    world.run(10)
    assert state_of(gpu) == ("ok", "ok")
    assert Finding.objects.get().code == "xid_63"


def test_an_unknown_xid_never_advises_an_act(gpu: Gpu) -> None:
    world = World()
    world.run(30)
    world.xid(gpu, 999)
    world.run(10)
    assert state_of(gpu) == ("degraded", "xid_999")
    assert Finding.objects.get().advised_action == "Contact NVIDIA support."


def test_first_sight_is_no_event(gpu: Gpu) -> None:
    world = World()
    world.scrape()
    world.xid(gpu, 13, old=None)
    world.run(20)
    health = GpuHealth.objects.get(gpu=gpu)
    assert (health.last_xid, health.last_xid_at, health.state) == (13, None, "ok")
    assert not XidEvent.objects.exists()
    assert not Finding.objects.exists()


def test_the_exporters_count_adds_repeats(gpu: Gpu) -> None:
    world = World()
    world.run(30)
    world.xid(gpu, 31)
    world.xid_count(gpu, 31, 1)
    world.run(10)
    world.xid_count(gpu, 31, 3, old=1)
    world.run(10)
    event = XidEvent.objects.get()
    assert (event.count, event.first_at, event.last_at) == (3, when(START + 30), when(START + 40))
    assert Finding.objects.get().count == 3


def test_two_xids_stand_beside_each_other(gpu: Gpu) -> None:
    world = World()
    world.run(30)
    world.xid(gpu, 31)
    world.xid(gpu, 79, old=31, at=START + 31)
    world.run(10)
    assert set(Finding.objects.open().values_list("code", flat=True)) == {"xid_31", "xid_79"}
    assert state_of(gpu) == ("down", "xid_79")


# Replacement, flapping, data quality


def test_a_replaced_gpu_takes_its_faults_with_it(gpu: Gpu) -> None:
    world = World()
    world.run(30)
    world.xid(gpu, 79)
    world.run(10)
    new = make_gpu(node=gpu.node)
    Gpu.objects.filter(pk=gpu.pk).update(presence="retired", retired_at=when(world.now), replaced_by=new)
    world.live.gpu_active[world.live.gpu_row_of[gpu.uuid]] = False
    world.live.add_gpus([(new.pk, new.uuid, new.node_id)])
    world.run(40, gpus=[new])
    assert state_of(gpu) == ("unknown", "retired")
    assert state_of(new) == state_of(gpu.node) == ("ok", "ok")
    assert not Finding.objects.open().exists()
    assert Finding.objects.get().ended_because == "GPU replaced"


def test_a_state_that_changes_too_often_is_found(gpu: Gpu) -> None:
    world = World()
    for _ in range(4):
        world.run(40, gpus=[])
        world.now = world.now + (-world.now % 10)
        world.run(20)
    finding = Finding.objects.get(kind="site", code="flapping")
    assert finding.severity == "warning"
    for _ in range(40):
        world.now += 30
        world.scrape()
        world.tick()
    assert not Finding.objects.open().exists()


def test_suspect_profiling_is_one_finding_of_the_node() -> None:
    node = make_node()
    gpus = [make_gpu(node=node, index=index) for index in range(4)]
    world = World()
    for _ in range(3):
        world.scrape(utilization_ratio=0.99, engine_active_ratio=0.0, power_watts=660.0)
        world.scrape(gpus[3:], utilization_ratio=0.03, engine_active_ratio=0.0, power_watts=92.0)
        for _ in range(10):
            world.tick()
            world.now += 1
    finding = Finding.objects.get()
    assert (finding.kind, finding.object_key, finding.code) == ("node", str(node.pk), "profiling_suspect")
    assert finding.evidence["gpus"] == [gpu.uuid for gpu in gpus[:3]]
    assert state_of(node) == ("ok", "ok")


def test_present_again_needs_no_telemetry_of_ours(gpu: Gpu) -> None:
    Gpu.objects.filter(pk=gpu.pk).update(presence="expected")
    World().run(5)
    gpu.refresh_from_db()
    assert gpu.presence == "present"
    assert mark_present([gpu.pk], when(START) + timedelta(minutes=1)) == 0
