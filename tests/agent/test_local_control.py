"""An agent alone with its node: reservations, claims, power schedule and metering, with their limits, and with automation off."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from agent.backends.base import BackendError, ErrorCode
from agent.local.evictions import WINDOW_SECONDS
from agent.protocol import GpuFacts, LocalRules, PowerSchedule, SwitchKind, WorkloadRule
from tests.agent.documents import T0, A, B, control, layer, signed_switch, switch
from tests.agent.local_world import AI_SLICE, PHY_SLICE, RULES, SLICES, World, desired, pod

POWER = replace(RULES, power=PowerSchedule(enabled=True))
NIGHT = datetime(2026, 11, 20, 2, 30, tzinfo=UTC).timestamp()  # 03:30 in Berlin
DAY = datetime(2026, 11, 20, 11, 0, tzinfo=UTC).timestamp()
EVENING = datetime(2026, 11, 20, 22, 30, tzinfo=UTC).timestamp()


def world_with(*running: object) -> World:
    world = World()
    world.pods.running = list(running)  # type: ignore[arg-type]
    return world


def detail_of(world: World, kind: str) -> list[dict[str, object]]:
    return [json.loads(str(event["detail"])) for event in world.events(kind)]


# Reservations.


def test_over_the_reservation_is_warned_then_evicted_after_the_grace_and_audited() -> None:
    world = world_with(pod("llm", AI_SLICE))
    world.exporter.use(A, 2, 11.5)
    assert world.agent.cycle(desired(), T0) == T0 + 10
    assert world.pods.acts == []
    (warned,) = world.events("reservation_exceeded")
    assert (warned["subject"], warned["at"]) == ("tenant-a/llm", T0)
    # The end of the grace is when the next look is due.
    assert world.agent.cycle(desired(), T0 + 55) == T0 + 60
    assert world.pods.acts == []
    world.agent.cycle(desired(), T0 + 60)
    assert world.pods.acts == [("evict", "llm")]
    (evicted,) = detail_of(world, "evicted")
    assert (evicted["reason"], evicted["tenant"], evicted["device"]) == ("reservation", "a", AI_SLICE)
    assert len(world.events("reservation_exceeded")) == 1


def test_back_within_at_the_end_of_the_grace_is_not_evicted() -> None:
    world = world_with(pod("llm", AI_SLICE))
    world.exporter.use(A, 2, 11.5)
    world.agent.cycle(desired(), T0)
    world.exporter.use(A, 2, 11)
    world.agent.cycle(desired(), T0 + 60)
    world.exporter.use(A, 2, 12)
    world.agent.cycle(desired(), T0 + 70)
    assert world.pods.acts == []
    assert len(world.events("reservation_exceeded")) == 2


def test_the_grace_goes_on_through_a_restart() -> None:
    world = world_with(pod("llm", AI_SLICE))
    world.exporter.use(A, 2, 11.5)
    world.agent.cycle(desired(), T0)
    world.restart().cycle(desired(), T0 + 60)
    assert world.pods.acts == [("evict", "llm")]


@pytest.mark.parametrize("silent", [True, False])
def test_use_that_is_not_known_evicts_nobody_and_is_said(silent: bool) -> None:
    world = world_with(pod("llm", AI_SLICE))
    world.exporter.use(A, 2, 20)
    world.agent.cycle(desired(), T0)
    if silent:
        world.exporter.silent = True
    else:
        # Two pods on one slice: nobody can say who uses how much.
        world.pods.running.append(pod("beside", AI_SLICE))
    world.agent.cycle(desired(), T0 + 60)
    world.agent.cycle(desired(), T0 + 120)
    assert world.pods.acts == []
    assert "tenant-a/llm" in {event["subject"] for event in world.events("reservation_unknown")}


def test_phy_has_no_reservation_to_exceed() -> None:
    rules = replace(RULES, operator_namespaces=(), workloads=(WorkloadRule("ran-phy", "x", memory_bytes=1), *RULES.workloads))
    world = world_with(pod("du", PHY_SLICE, namespace="ran-phy"), pod("stray", PHY_SLICE))
    world.exporter.use(A, 1, 39)
    for seconds in (0, 60, 120):
        world.agent.cycle(desired(rules), T0 + seconds)
    assert world.pods.acts == []


def test_local_evictions_keep_to_the_documents_limit_and_kills_do_not_count() -> None:
    names = [f"llm-{number}" for number in range(5)]
    slices = tuple(replace(SLICES[1], gpu_instance_id=10 + number, mig_uuid=f"MIG-{number}", start=4, size=1) for number in range(5))
    world = world_with(*(pod(name, f"MIG-{number}") for number, name in enumerate(names)))
    world.gpus.gpus = (GpuFacts(A, 0, "00000000:4C:00.0", mig_enabled=True, slices=(SLICES[0], *slices)),)
    for number in range(5):
        world.exporter.use(A, 10 + number, 20)
    world.agent.cycle(desired(), T0)
    world.agent.cycle(desired(), T0 + 60)
    assert world.pods.acts == [("evict", name) for name in names[:3]]
    assert [event["subject"] for event in world.events("eviction_limit")] == ["tenant-a/llm-3", "tenant-a/llm-4"]
    # A restart does not forget it; the hour after does.
    world.restart().cycle(desired(), T0 + 70)
    assert len(world.pods.acts) == 3
    world.agent.cycle(desired(), T0 + 60 + WINDOW_SECONDS)
    assert len(world.pods.acts) == 5
    world.pods.running = [pod(f"more-{number}", AI_SLICE) for number in range(5)]
    world.gpus.gpus = (GpuFacts(A, 0, "00000000:4C:00.0", mig_enabled=True, slices=SLICES),)
    world.agent.accept([signed_switch()], desired(), T0 + 4000)
    world.agent.step(desired(), T0 + 4000)
    assert [act for act, _ in world.pods.acts].count("delete") == 5


def test_a_budget_forbids_an_eviction_and_it_does_not_count() -> None:
    world = world_with(pod("llm", AI_SLICE))
    world.pods.budgets = {"llm"}
    world.exporter.use(A, 2, 20)
    for seconds in (0, 60, 70, 80, 90):
        world.agent.cycle(desired(), T0 + seconds)
    (refused,) = detail_of(world, "eviction_refused")
    assert (refused["outcome"], refused["detail"]) == ("budget", "llm-budget")
    world.pods.budgets = set()
    world.agent.cycle(desired(), T0 + 100)
    assert world.pods.acts == [("evict", "llm")]


def test_automation_off_warns_and_does_nothing() -> None:
    world = world_with(pod("llm", AI_SLICE), pod("waits", namespace="tenant-c", phase="Pending"), pod("asr", B, namespace="tenant-b"))
    world.agent.accept([signed_switch(switch(kind=SwitchKind.AUTOMATION_OFF))], desired(), T0)
    world.exporter.use(A, 2, 20)
    for seconds in (0, 60, 120):
        world.agent.cycle(desired(POWER), T0 + seconds)
    assert world.pods.acts == []
    assert world.gpus.acts == []
    assert {event["subject"] for event in world.events("eviction_not_allowed")} == {"tenant-a/llm"}
    world.agent.accept([signed_switch(switch(2, kind=SwitchKind.AUTOMATION_OFF, armed=False))], desired(), T0 + 130)
    world.agent.cycle(desired(POWER), T0 + 130)
    assert ("evict", "llm") in world.pods.acts
    assert world.gpus.acts != []


def test_reservations_that_do_not_fit_and_a_margin_that_is_used_are_said_once() -> None:
    rules = replace(RULES, workloads=(WorkloadRule("tenant-a", "a", memory_bytes=79 << 30),))
    world = world_with(pod("llm", B))
    world.exporter.use(B, None, 79, total_gib=80)
    for seconds in (0, 10, 20):
        world.agent.cycle(desired(rules), T0 + seconds)
    assert [event["subject"] for event in world.events("reservations_do_not_fit")] == [B]
    assert [event["subject"] for event in world.events("margin_used")] == [B]
    assert world.pods.acts == []


# Claims on slices.


def claims(*running: object) -> World:
    return world_with(pod("waits", namespace="tenant-c", phase="Pending"), *running)


def test_a_high_claim_evicts_the_lowest_after_a_start_would_have_taken() -> None:
    world = claims(pod("llm", AI_SLICE), pod("asr", B, namespace="tenant-b"))
    world.agent.cycle(desired(), T0)
    world.agent.cycle(desired(), T0 + 10)
    assert world.pods.acts == []
    world.agent.cycle(desired(), T0 + 20)
    assert world.pods.acts == [("evict", "llm")]
    assert detail_of(world, "evicted")[0]["reason"] == "priority"
    # The slice is free now: nobody else has to go.
    world.agent.cycle(desired(), T0 + 30)
    assert len(world.pods.acts) == 1


@pytest.mark.parametrize(
    "others",
    [
        (pod("llm", AI_SLICE),),  # B is free
        (pod("same", AI_SLICE, namespace="tenant-d"), pod("same-2", B, namespace="tenant-d")),  # as high as the claim
        (pod("du", AI_SLICE, namespace="ran-phy"), pod("ran", B, namespace="shared", service_account="ran")),
        (pod("has-it", AI_SLICE, namespace="tenant-c"), pod("asr", B, namespace="tenant-b")),  # the claim is for one slice
        (pod("going", AI_SLICE, is_terminating=True), pod("asr", B, namespace="tenant-b")),
    ],
)
def test_nobody_gives_way(others: tuple[object, ...]) -> None:
    rules = replace(RULES, workloads=(*RULES.workloads, WorkloadRule("tenant-d", "d", priority=9)))
    world = claims(*others)
    for seconds in (0, 20, 40):
        world.agent.cycle(desired(rules), T0 + seconds)
    assert world.pods.acts == []


def test_a_low_claim_waits_and_what_is_free_must_be_known() -> None:
    rules = replace(RULES, workloads=(*RULES.workloads[:2], WorkloadRule("tenant-c", "c", priority=7, slices=1)))
    world = claims(pod("llm", AI_SLICE), pod("asr", B, namespace="tenant-b"))
    for seconds in (0, 20, 40):
        world.agent.cycle(desired(rules), T0 + seconds)
    world.gpus.complete = False
    world.agent.cycle(desired(), T0 + 60)
    assert world.pods.acts == []
    world.pods.away = True
    world.gpus.complete = True
    world.agent.cycle(desired(), T0 + 70)
    assert world.pods.acts == []


# Power.


def test_the_schedule_holds_on_gpus_without_phy_alone() -> None:
    world = world_with()
    world.exporter.use(B, None, 1, active=0.2)
    world.agent.cycle(desired(POWER), NIGHT)
    assert world.gpus.locks == {B: (210, 1100)}
    world.exporter.use(B, None, 1, active=0.8)
    world.agent.cycle(desired(POWER), NIGHT + 10)
    assert world.gpus.locks == {B: (210, 1410)}
    world.agent.cycle(desired(POWER), DAY)
    assert world.gpus.locks == {B: (210, 1980)}
    world.exporter.silent = True
    world.agent.cycle(desired(POWER), DAY + 10)
    assert world.gpus.locks == {B: (210, 1410)}
    world.agent.cycle(desired(POWER), EVENING)
    assert world.gpus.locks == {B: (210, 1100)}
    world.agent.cycle(desired(POWER), EVENING + 10)
    assert len(world.gpus.acts) == 5
    allowed = replace(RULES, power=PowerSchedule(enabled=True, phy_gpus=(A,)))
    world.agent.cycle(desired(allowed), EVENING + 20)
    assert set(world.gpus.locks) == {A, B}


def test_a_gpu_that_a_phy_pod_holds_is_left_alone_too() -> None:
    world = world_with(pod("du", B, namespace="ran-phy"))
    world.agent.cycle(desired(POWER), EVENING)
    assert world.gpus.locks == {}
    world.pods.running = []
    world.agent.cycle(desired(POWER), EVENING + 10)
    assert set(world.gpus.locks) == {B}
    # It comes to carry PHY: what we set is taken off it.
    world.pods.running = [pod("du", B, namespace="ran-phy")]
    world.agent.cycle(desired(POWER), EVENING + 20)
    assert world.gpus.locks == {}
    world.pods.running, world.pods.away = [], True
    world.agent.cycle(desired(POWER), EVENING + 30)
    assert world.gpus.locks == {}


def test_it_is_set_again_after_reboot_and_driver_reload_and_taken_off_at_its_end() -> None:
    world = world_with()
    world.agent.cycle(desired(POWER), EVENING)
    world.gpus.locks.clear()
    world.agent.cycle(desired(POWER), EVENING + 10)
    assert world.gpus.locks == {B: (210, 1100)}
    world.gpus.boot, world.gpus.locks = "boot-2", {}
    world.restart().cycle(desired(POWER), EVENING + 20)
    assert world.gpus.locks == {B: (210, 1100)}
    world.agent.cycle(desired(), EVENING + 30)
    assert world.gpus.locks == {}
    assert world.gpus.acts[-1] == ("reset", B, 0)
    world.agent.cycle(desired(), EVENING + 40)
    assert world.gpus.acts[-1] == ("reset", B, 0)
    assert len(world.gpus.acts) == 4


def test_a_clock_range_of_people_goes_before_the_schedule() -> None:
    world = world_with()
    world.agent.cycle(desired(POWER), EVENING)
    by_hand = desired(POWER, controls=(control(layer(starts_at=EVENING, ends_at=EVENING + 100), gpu_uuid=B),))
    world.gpus.locks[B] = (1200, 1400)
    world.agent.cycle(by_hand, EVENING + 10)
    assert world.gpus.locks == {B: (1200, 1400)}
    world.agent.cycle(by_hand, EVENING + 200)
    assert world.gpus.locks == {B: (210, 1100)}


def test_trouble_is_said_and_tried_again() -> None:
    world = world_with()
    world.gpus.error = BackendError(ErrorCode.GPU_LOST, "gone")
    for seconds in (0, 10):
        world.agent.cycle(desired(POWER), EVENING + seconds)
    assert len(world.events("power_schedule_failed")) == 1
    world.gpus.error = None
    world.agent.cycle(desired(POWER), EVENING + 20)
    assert world.gpus.locks == {B: (210, 1100)}
    mars = replace(desired(POWER), place=replace(desired().place, time_zone="Mars/Olympus"))
    world.agent.cycle(mars, DAY)
    assert world.gpus.locks == {B: (210, 1100)}
    assert "Mars" in str(world.events("power_schedule_stands_still")[0]["detail"])


# Metering.


def test_each_workload_is_metered_by_the_hour_with_one_id() -> None:
    hour = EVENING - EVENING % 3600
    world = world_with(pod("llm", AI_SLICE), pod("asr", B, namespace="tenant-b"))
    world.exporter.use(A, 2, 20)
    world.exporter.use(B, None, 40)
    for number in range(3):
        world.exporter.energy = {A: 1000.0 + 7000 * number, B: 500.0 * number}
        world.agent.cycle(desired(), hour + 10 * number)
    assert world.events("metering") == []
    # An exporter that is silent, and a counter that began anew, are not known: neither 0 nor invented.
    world.exporter.silent = True
    world.agent.cycle(desired(), hour + 30)
    world.exporter.silent = False
    world.exporter.energy = {A: 5.0}
    world.agent.cycle(desired(), hour + 40)
    world.pods.running = []
    world.restart().cycle(desired(), hour + 3600)
    found = {str(each["pod"]): each for each in detail_of(world, "metering")}
    llm = found["llm"]
    assert (llm["tenant"], llm["hour"], llm["seconds"]) == ("a", hour, 40)
    assert llm["gpu_seconds"] == pytest.approx(40 * 3 / 7, abs=1e-3)
    assert llm["slice_seconds"] == 40
    assert (llm["vram_gib_seconds"], llm["vram_unknown_seconds"]) == (20 * 30, 10)
    assert llm["energy_joules"] == pytest.approx(2 * 7000 * 3 / 7, abs=1e-3)
    assert llm["energy_unknown_seconds"] == 20
    assert (found["asr"]["gpu_seconds"], found["asr"]["slice_seconds"], found["asr"]["energy_joules"]) == (40, 0, 1000)


def test_a_gap_in_which_nobody_looked_is_not_metered() -> None:
    world = world_with(pod("llm", AI_SLICE))
    hour = EVENING - EVENING % 3600
    world.agent.cycle(desired(), hour)
    world.agent.cycle(desired(), hour + 1000)
    world.agent.cycle(desired(), hour + 1010)
    world.agent.cycle(desired(), hour + 3600)
    (found,) = detail_of(world, "metering")
    assert found["seconds"] == 10


def test_a_device_that_pods_share_is_counted_once() -> None:
    world = world_with(pod("one", B), pod("two", B))
    hour = EVENING - EVENING % 3600
    world.agent.cycle(desired(), hour)
    world.agent.cycle(desired(), hour + 10)
    world.agent.cycle(desired(), hour + 3600)
    assert [each["gpu_seconds"] for each in detail_of(world, "metering")] == [5, 5]


def test_a_document_without_rules_asks_nothing_of_cluster_and_exporter() -> None:
    world = world_with(pod("llm", AI_SLICE))
    hour = EVENING - EVENING % 3600
    world.agent.cycle(desired(POWER), hour)
    world.agent.cycle(desired(POWER), hour + 10)
    asked = world.pods.asked
    world.agent.cycle(desired(LocalRules()), hour + 20)
    assert world.pods.asked == asked
    assert world.gpus.locks == {}
    # What was metered before is told all the same.
    world.agent.cycle(desired(LocalRules()), hour + 3600)
    assert [each["seconds"] for each in detail_of(world, "metering")] == [10]


def test_without_a_document_or_a_cluster_nothing_is_done() -> None:
    world = world_with(pod("llm", AI_SLICE))
    world.exporter.use(A, 2, 39)
    assert world.agent.cycle(None, T0) == T0 + 10
    alone = World(with_cluster=False)
    alone.agent.cycle(desired(POWER), EVENING)
    assert alone.gpus.locks == {B: (210, 1100)}
    alone.agent.cycle(desired(LocalRules()), EVENING + 10)
    assert alone.gpus.locks == {}
