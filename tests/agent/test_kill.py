"""Kill switches and automation-off at the agent: admission first, never PHY, anew each cycle, through restarts, and never `applied` unseen."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.kill import what_stops
from agent.local.placement import Layout, Standing, standing
from agent.phy import Phy
from agent.protocol import GpuFacts, LocalRules, ProtectedSpan, ScopeKind, SwitchKind, SwitchState, SwitchUpdate, parse_agent_message
from tests.agent.documents import NODE, SWITCH_ID, T0, A, B, signed_switch, switch
from tests.agent.local_world import AI_SLICE, PHY_SLICE, RULES, SLICES, Gpus, World, desired, pod

OTHER_ID = "0c1f7a3e-7d3c-4f0e-9c55-1f6f2f1f0a02"
PHY_PODS = (
    pod("du", PHY_SLICE, namespace="ran-phy"),
    pod("du-helper", namespace="ran-phy"),
    pod("stray", PHY_SLICE, namespace="tenant-a"),
    pod("ran-account", AI_SLICE, namespace="shared", service_account="ran"),
)
AI_PODS = (pod("llm", AI_SLICE), pod("asr", B, namespace="tenant-b"), pod("nobody", B, namespace="unlisted"))
LAYOUT = Layout.of(Gpus().inventory(T0), desired().protected)


def names(found: tuple[SwitchUpdate, ...]) -> list[tuple[SwitchState, int, int | None]]:
    return [(update.state, update.stopped, update.remaining) for update in found]


@pytest.mark.parametrize(
    ("armed", "stopped"),
    [
        (switch(), {"llm", "asr", "nobody"}),
        (switch(tenant="a"), {"llm"}),
        (switch(model="asr"), {"asr"}),
        (switch(tenant="a", model="asr"), set()),
        (switch(tenant="unknown"), set()),
        (switch(model="unknown"), set()),
    ],
)
def test_what_a_kill_means(armed: object, stopped: set[str]) -> None:
    found = what_stops(armed, PHY_PODS + AI_PODS, layout=LAYOUT, rules=RULES)  # type: ignore[arg-type]
    assert {each.name for each in found.delete} == stopped
    assert found.held == {}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (pod("x", AI_SLICE), Standing.AI),
        (pod("x", B), Standing.AI),
        (pod("x"), Standing.NO_GPU),
        (pod("x", A), Standing.PHY),
        (pod("x", PHY_SLICE), Standing.PHY),
        (pod("x", AI_SLICE, PHY_SLICE), Standing.PHY),
        (pod("x", "MIG-gone"), Standing.UNKNOWN),
        (pod("x", AI_SLICE, "MIG-gone"), Standing.UNKNOWN),
        (pod("x", namespace="ran-phy"), Standing.PHY),
        (pod("x", AI_SLICE, labels={"app": "ran-phy", "masthead.io/phy": "true"}), Standing.AI),
        (pod("x", AI_SLICE, service_account="ran"), Standing.AI),
    ],
)
def test_who_is_phy_is_known_from_the_document(found: object, expected: Standing) -> None:
    assert standing(found, LAYOUT, RULES) is expected  # type: ignore[arg-type]
    assert standing(pod("x", AI_SLICE), None, RULES) is Standing.UNKNOWN
    assert standing(pod("x", "MIG-gone"), replace(LAYOUT, protected=()), RULES) is Standing.AI


devices = st.sampled_from([PHY_SLICE, AI_SLICE, A, B, "MIG-gone", "GPU-gone"])


@given(
    held=st.lists(st.tuples(st.sampled_from(["ran-phy", "shared", "tenant-a", "tenant-b", "else"]), st.sampled_from(["", "ran"]), st.lists(devices))),
    start=st.integers(0, 7),
    size=st.integers(1, 8),
    scoped=st.sampled_from([("", ""), ("a", ""), ("", "llm"), ("b", "asr")]),
    known=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_nothing_of_phy_is_ever_stopped(held: list[tuple[str, str, list[str]]], start: int, size: int, scoped: tuple[str, str], known: bool) -> None:
    spans = (ProtectedSpan(A, start, size),)
    layout = Layout.of(Gpus().inventory(T0), spans) if known else None
    pods = [pod(str(number), *gpus, namespace=namespace, service_account=account) for number, (namespace, account, gpus) in enumerate(held)]
    overlapping = {part.mig_uuid for part in SLICES if part.start < start + size and start < part.start + part.size} | {A}
    for stopped in what_stops(switch(tenant=scoped[0], model=scoped[1]), pods, layout=layout, rules=RULES).delete:
        assert stopped.namespace != "ran-phy"
        assert (stopped.namespace, stopped.service_account) != ("shared", "ran")
        assert not overlapping & set(stopped.gpus)
        assert stopped.gpus
        assert known


@given(
    namespace=st.sampled_from(["ran-phy", "shared", "tenant-a"]),
    account=st.sampled_from(["", "ran"]),
    held=st.lists(devices, max_size=3),
    spans=st.lists(st.tuples(st.sampled_from([A, B]), st.integers(0, 7), st.integers(1, 4)), max_size=2),
)
@settings(max_examples=200, deadline=None)
def test_kills_and_commands_agree_on_what_is_phy(namespace: str, account: str, held: list[str], spans: list[tuple[str, int, int]]) -> None:
    state = desired(protected=tuple(ProtectedSpan(*span) for span in spans))
    inventory = Gpus().inventory(T0)
    found = pod("x", *held, namespace=namespace, service_account=account)
    spared = standing(found, Layout.of(inventory, state.protected), state.rules) in (Standing.PHY, Standing.UNKNOWN)
    assert spared == Phy.of(state).holds(found, inventory.gpus)


def armed_world(*running: object, **more: object) -> World:
    world = World()
    world.pods.running = list(running)  # type: ignore[arg-type]
    world.agent.accept([signed_switch(switch(**more))], desired(), T0)  # type: ignore[arg-type]
    return world


def test_admission_closes_before_the_first_pod_and_the_stop_is_read_back() -> None:
    world = armed_world(*PHY_PODS, *AI_PODS)
    found = world.agent.step(desired(), T0)
    assert names(found.updates) == [(SwitchState.APPLIED, 3, 0)]
    assert world.pods.running == list(PHY_PODS)
    assert all(gate.kills for gate in world.pods.seen)
    assert world.events("kill")[0]["at"] == T0
    # Said once; nothing new, nothing told.
    assert world.agent.step(desired(), T0 + 10).updates == ()


def test_a_pod_that_goes_slowly_is_pending_until_it_is_gone() -> None:
    world = armed_world(*AI_PODS)
    world.pods.linger = {"llm"}
    found = world.agent.step(desired(), T0)
    assert names(found.updates) == [(SwitchState.PENDING, 2, 1)]
    assert found.due_at == T0 + 0.5
    deletes = len(world.pods.acts)
    world.agent.step(desired(), T0 + 0.5)
    assert len(world.pods.acts) == deletes
    world.agent.step(desired(), T0 + 10.5)
    assert len(world.pods.acts) == deletes + 1
    world.pods.running = []
    assert names(world.agent.step(desired(), T0 + 11).updates) == [(SwitchState.APPLIED, 3, 0)]


def test_recreated_pods_are_stopped_each_cycle_and_counted() -> None:
    world = armed_world(AI_PODS[0])
    world.pods.owners = {"llm"}
    world.agent.step(desired(), T0)
    for cycle in range(1, 4):
        world.agent.step(desired(), T0 + 10 * cycle)
    assert world.pods.acts == [("delete", "llm")] * 4
    world.pods.owners = set()
    (update,) = world.agent.step(desired(), T0 + 100).updates
    assert (update.state, update.stopped, update.remaining) == (SwitchState.APPLIED, 5, 0)


def test_without_an_api_server_admission_is_closed_and_the_stop_is_pending() -> None:
    world = armed_world(*AI_PODS)
    world.pods.away = True
    (update,) = world.agent.step(desired(), T0).updates
    assert (update.state, update.remaining) == (SwitchState.PENDING, None)
    assert "no API server" in update.detail
    assert world.door.gate.kills
    world.pods.away = False
    assert names(world.agent.step(desired(), T0 + 10).updates) == [(SwitchState.APPLIED, 3, 0)]
    # And away again: what cannot be seen is not called done.
    world.pods.away = True
    assert names(world.agent.step(desired(), T0 + 20).updates) == [(SwitchState.PENDING, 3, None)]


def test_an_error_of_several_lines_can_be_told() -> None:
    world = armed_world(*AI_PODS)
    world.pods.away, world.pods.why = True, "Forbidden\n\x1b[31mno\n"
    (update,) = world.agent.step(desired(), T0).updates
    assert parse_agent_message(json.dumps(update.to_json())) == update
    assert world.agent.step(desired(), T0 + 10).updates == ()


def test_without_a_cluster_or_a_document_it_is_pending() -> None:
    world = World(with_cluster=False)
    world.agent.accept([signed_switch()], desired(), T0)
    assert world.agent.step(desired(), T0).updates[0].state is SwitchState.PENDING
    world = armed_world(*AI_PODS)
    (update,) = world.agent.step(None, T0).updates
    assert update.state is SwitchState.PENDING
    assert "PHY" in update.detail
    assert world.pods.acts == []


def test_what_may_be_phy_is_left_and_named() -> None:
    world = armed_world(pod("llm", "MIG-gone"))
    (update,) = world.agent.step(desired(), T0).updates
    assert (update.state, update.remaining) == (SwitchState.PENDING, 1)
    assert "tenant-a/llm may be PHY" in update.detail
    assert world.pods.acts == []
    world = armed_world(pod("static", AI_SLICE, is_mirror=True))
    assert "static pod" in world.agent.step(desired(), T0).updates[0].detail


def test_pods_whose_devices_nobody_knows_are_not_called_stopped() -> None:
    world = armed_world(pod("llm"), pod("du", namespace="ran-phy"))
    (update,) = world.agent.step(desired(), T0).updates
    assert (update.state, update.remaining) == (SwitchState.PENDING, None)
    assert "devices" in update.detail
    # Beside pods whose devices are known, and after a stop, one without a device holds none.
    world.pods.running.append(pod("asr", B, namespace="tenant-b"))
    assert names(world.agent.step(desired(), T0 + 10).updates) == [(SwitchState.APPLIED, 1, 0)]
    assert world.agent.step(desired(), T0 + 20).updates == ()
    assert [each.name for each in world.pods.running] == ["llm", "du"]


def test_a_slice_made_anew_at_a_protected_place_is_phy_at_once() -> None:
    world = armed_world(pod("llm", AI_SLICE))
    moved = replace(SLICES[1], start=0)
    world.gpus.gpus = (GpuFacts(A, 0, "00000000:4C:00.0", mig_enabled=True, slices=(moved,)),)
    world.agent.step(desired(), T0)
    assert world.pods.acts == []


def test_it_holds_through_restarts_reboots_and_partitions_until_released() -> None:
    world = armed_world(*PHY_PODS, *AI_PODS)
    world.agent.step(desired(), T0)
    world.gpus.boot = "boot-2"
    agent = world.restart()
    agent.begin(desired(), T0 + 3600)
    assert world.door.gate.kills
    world.pods.running.append(pod("llm-2", AI_SLICE))
    agent.step(desired(), T0 + 40 * 3600)
    assert world.pods.acts[-1] == ("delete", "llm-2")
    (told,) = agent.step(desired(), T0 + 40 * 3600 + 1, tell_all=True).updates
    assert told.state is SwitchState.APPLIED
    agent.accept([signed_switch(switch(2, armed=False))], desired(), T0 + 41 * 3600)
    (update,) = agent.step(desired(), T0 + 41 * 3600).updates
    assert (update.state, update.version) == (SwitchState.RELEASED, 2)
    assert not world.door.gate.kills
    world.pods.running.append(pod("llm-3", AI_SLICE))
    agent.step(desired(), T0 + 42 * 3600)
    assert world.pods.acts[-1] == ("delete", "llm-2")


def test_an_agent_that_returns_skips_what_was_released_and_refuses_what_is_old() -> None:
    """As in C29: nothing from before lunch fires after lunch, unless it is still armed."""
    world = World()
    world.pods.running = list(AI_PODS)
    world.agent.accept([signed_switch(switch(2, armed=False)), signed_switch(switch(1))], desired(), T0 + 7200)
    found = world.agent.step(desired(), T0 + 7200).updates
    assert [(update.version, update.state) for update in found] == [(1, SwitchState.REFUSED), (2, SwitchState.RELEASED)]
    assert "older" in found[0].detail
    assert world.pods.acts == []
    still_armed = signed_switch(switch(1, switch_id=OTHER_ID))
    world.agent.accept([still_armed], desired(), T0 + 7201)
    assert names(world.agent.step(desired(), T0 + 7201).updates) == [(SwitchState.APPLIED, 3, 0)]
    # The same again is told again, and does nothing again.
    world.agent.accept([still_armed], desired(), T0 + 7202)
    assert names(world.agent.step(desired(), T0 + 7202).updates) == [(SwitchState.APPLIED, 3, 0)]
    assert len(world.pods.acts) == 3


def test_it_ends_by_itself_only_where_an_end_was_set() -> None:
    world = armed_world(*AI_PODS, ends_at=T0 + 5)
    found = world.agent.step(desired(), T0)
    assert found.due_at == T0 + 5
    (update,) = world.agent.step(desired(), T0 + 5).updates
    assert update.state is SwitchState.RELEASED
    assert not world.door.gate.kills
    late = World()
    late.pods.running = list(AI_PODS)
    late.agent.accept([signed_switch(switch(ends_at=T0 + 5))], desired(), T0 + 6)
    assert late.agent.step(desired(), T0 + 6).updates[0].state is SwitchState.RELEASED
    assert late.pods.acts == []


@pytest.mark.parametrize(
    ("scope", "covers"),
    [
        ((ScopeKind.FLEET, ""), True),
        ((ScopeKind.AREA, "west"), True),
        ((ScopeKind.AREA, "east"), False),
        ((ScopeKind.REGION, "west-1"), True),
        ((ScopeKind.SITE, "W1"), True),
        ((ScopeKind.SITE, "w1"), False),
        ((ScopeKind.NODE, str(NODE)), True),
        ((ScopeKind.NODE, "8"), False),
    ],
)
def test_only_a_scope_that_covers_this_node_counts(scope: tuple[ScopeKind, str], covers: bool) -> None:
    world = armed_world(*AI_PODS, scope=scope)
    (update,) = world.agent.step(desired(), T0).updates
    assert (update.state is SwitchState.APPLIED) == covers
    assert bool(world.pods.acts) == covers
    assert bool(world.door.gate.kills) == covers


def test_a_node_that_does_not_know_its_place_says_so() -> None:
    world = armed_world(*AI_PODS, scope=(ScopeKind.SITE, "W1"))
    (update,) = world.agent.step(None, T0).updates
    assert update.state is SwitchState.PENDING
    assert "where this node stands" in update.detail


def test_a_forged_switch_changes_nothing() -> None:
    world = World()
    world.pods.running = list(AI_PODS)
    forged = replace(signed_switch(), signature=bytes(64))
    world.agent.accept([forged], desired(), T0)
    (update,) = world.agent.step(desired(), T0).updates
    assert (update.switch, update.state) == (SWITCH_ID, SwitchState.REFUSED)
    assert world.agent.step(desired(), T0 + 1, tell_all=True).updates == ()
    assert world.pods.acts == []


def test_sequences_rise_over_restarts() -> None:
    world = armed_world(*AI_PODS)
    seen = [update.sequence for update in world.agent.step(desired(), T0).updates]
    agent = world.restart()
    agent.accept([signed_switch(switch(2, armed=False))], desired(), T0 - 50)
    seen += [update.sequence for update in agent.step(desired(), T0 - 50).updates]
    assert seen == sorted(set(seen))
    assert len(seen) == 2


def test_automation_off_is_told_and_stops_no_kill() -> None:
    world = armed_world(*AI_PODS, kind=SwitchKind.AUTOMATION_OFF)
    assert names(world.agent.step(desired(), T0).updates) == [(SwitchState.APPLIED, 0, 0)]
    assert world.pods.acts == []
    world.agent.accept([signed_switch(switch(switch_id=OTHER_ID))], desired(), T0)
    world.agent.step(desired(), T0 + 1)
    assert len(world.pods.acts) == 3


def test_an_operators_namespace_of_the_document_of_now_counts() -> None:
    world = armed_world(pod("llm", AI_SLICE))
    world.agent.step(desired(LocalRules(operator_namespaces=("tenant-a",))), T0)
    assert world.pods.acts == []
