"""Verdicts, hysteresis and contact as pure functions: tables of cases, and whatever the facts are exactly one state comes out."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.health.conditions import gpu_conditions, node_conditions, site_conditions
from fleet.health.contact import CONTACTS, view_contact
from fleet.health.facts import (
    AgentWord,
    Child,
    Condition,
    Contact,
    GpuFacts,
    Held,
    Maintenance,
    NodeFacts,
    Severity,
    SiteFacts,
    State,
    Thresholds,
    Verdict,
    clock_time,
    duration,
)
from fleet.health.signs import REASONS, SIGN_OF_CODE, Sign, signs_of
from fleet.health.verdict import active_conditions, follow, gpu_verdict, node_verdict, settle, site_verdict

NOW = 1_795_168_800.0
TH = Thresholds(interval_seconds=10, heartbeat_seconds=10)
NAN = float("nan")
FINE = GpuFacts(now=NOW, sampled_at=NOW - 3, exporter_at=NOW - 3, contact=Contact.REPORTING, contact_since=NOW - 3, gpus_of_node=4, gpus_fresh=4)
NODE = NodeFacts(
    now=NOW,
    contact=Contact.REPORTING,
    contact_at=NOW - 3,
    exporter_at=NOW - 3,
    exporter_up=1.0,
    has_agent=True,
    heartbeat_at=NOW - 5,
    agent_silent=False,
    gpus_expected=4,
    gpus_fresh=4,
)
SITE = SiteFacts(now=NOW, contact=Contact.REPORTING, contact_at=NOW - 3, nodes=1, gpus_expected=4, gpus_reporting=4)
OK = Verdict(State.OK, "ok", "Reports.", NOW - 1000)
DOWN = Verdict(State.DOWN, "gpu_lost", "Its series stopped.", NOW - 60)
SILENT = Verdict(State.UNKNOWN, "node_down", "No data.", NOW - 60)


def judge(facts: GpuFacts, before: Verdict | None = OK) -> Verdict:
    """The verdict with every condition active at once."""
    found, _ = gpu_conditions(facts, TH)
    held = {condition.code: Held(condition, facts.now, 9, True) for condition in found}
    return gpu_verdict(facts, active_conditions(held), before, TH)


@pytest.mark.parametrize(
    ("changes", "state", "cause"),
    [
        ({}, State.OK, "ok"),
        ({"sampled_at": NAN, "contact": Contact.NEVER}, State.UNKNOWN, "never_reported"),
        ({"sampled_at": NOW - 31, "contact": Contact.LINK_DOWN}, State.UNKNOWN, "link_down"),
        ({"sampled_at": NOW - 31, "contact": Contact.REGION_SILENT}, State.UNKNOWN, "region_silent"),
        ({"sampled_at": NOW - 31, "contact": Contact.NODE_DOWN}, State.UNKNOWN, "node_down"),
        ({"sampled_at": NOW - 31, "contact": Contact.EXPORTER_DOWN}, State.UNKNOWN, "exporter_down"),
        ({"sampled_at": NOW - 31, "contact": Contact.UNDECIDED}, State.UNKNOWN, "silent"),
        ({"sampled_at": NOW - 31, "exporter_at": NOW - 29}, State.UNKNOWN, "silent"),
        ({"sampled_at": NOW - 31, "gpus_fresh": 3}, State.DOWN, "gpu_lost"),
        ({"sampled_at": NOW - 31, "gpus_fresh": 0, "gpus_of_node": 1}, State.DOWN, "gpu_lost"),
        ({"sampled_at": NOW - 31, "gpus_fresh": 0}, State.UNKNOWN, "series_missing"),
        ({"sampled_at": NOW - 31, "agent": AgentWord.OK}, State.UNKNOWN, "series_missing"),
        ({"agent": AgentWord.LOST, "agent_at": NOW}, State.DOWN, "gpu_lost"),
        ({"agent": AgentWord.RESET_REQUIRED, "agent_at": NOW}, State.DOWN, "reset_required"),
        ({"agent": AgentWord.UNKNOWN, "agent_at": NOW, "agent_cause": "driver_mismatch"}, State.UNKNOWN, "driver_mismatch"),
        ({"sampled_at": NOW - 3600, "contact": Contact.LINK_DOWN, "maintenance": Maintenance(NOW - 9, NOW + 9, "swap")}, State.MAINTENANCE, "maintenance"),
        ({"signs": Sign.HW_THERMAL, "judged": Sign.HW_THERMAL, "sampled_at": NOW - 31, "contact": Contact.LINK_DOWN}, State.UNKNOWN, "link_down"),
        ({"signs": Sign.REMAP_PENDING | Sign.REMAP_FAILURE, "judged": 1023}, State.DEGRADED, "row_remap_failure"),
        ({"signs": Sign.SW_THERMAL, "judged": 1023}, State.OK, "ok"),
        ({"signs": Sign.HW_THERMAL, "judged": 0}, State.OK, "ok"),
    ],
)
def test_gpu_verdicts(changes: dict[str, Any], state: State, cause: str) -> None:
    verdict = judge(replace(FINE, **changes))
    assert (verdict.state, verdict.cause) == (state, cause)
    assert verdict.why.endswith((".", "swap"))


def test_the_general_slowdown_hides_behind_its_cause() -> None:
    both = replace(FINE, signs=Sign.HW_SLOWDOWN | Sign.POWER_BRAKE, judged=1023)
    assert [condition.code for condition in gpu_conditions(both, TH)[0]] == ["hw_power_brake"]


def test_why_has_numbers_and_units() -> None:
    hot = replace(FINE, signs=Sign.HW_THERMAL, judged=1023, temperature_celsius=87.0, slowdown_celsius=87.0, sm_clock_hertz=9.9e8)
    assert judge(hot).why == "SM clock cut to 990 MHz by hardware thermal slowdown, 87 °C of 87 °C limit."
    blind = replace(hot, temperature_celsius=NAN, slowdown_celsius=NAN, sm_clock_hertz=NAN)
    assert judge(blind).why == "SM clock cut by hardware thermal slowdown, temperature not reported."


@pytest.mark.parametrize(
    ("changes", "gpus", "state", "cause"),
    [
        ({}, [OK, OK], State.OK, "ok"),
        ({}, [OK, DOWN], State.DEGRADED, "gpu_lost"),
        ({}, [DOWN, DOWN], State.DOWN, "gpu_lost"),
        ({"gpus_fresh": 3}, [OK, OK], State.DEGRADED, "gpu_count"),
        ({"gpus_fresh": 5}, [OK, OK], State.OK, "ok"),
        ({"agent_silent": True, "heartbeat_at": NOW - 90}, [OK], State.DEGRADED, "agent_silent"),
        ({"contact": Contact.NEVER}, [], State.UNKNOWN, "never_reported"),
        ({"contact": Contact.LINK_DOWN}, [SILENT], State.UNKNOWN, "link_down"),
        ({"contact": Contact.REGION_SILENT}, [SILENT], State.UNKNOWN, "region_silent"),
        ({"contact": Contact.UNDECIDED}, [SILENT], State.UNKNOWN, "silent"),
        ({"contact": Contact.NODE_DOWN}, [SILENT], State.DOWN, "node_down"),
        ({"contact": Contact.EXPORTER_DOWN}, [SILENT], State.DEGRADED, "exporter_down"),
        ({"contact": Contact.EXPORTER_DOWN, "has_agent": False}, [SILENT], State.UNKNOWN, "exporter_down"),
        ({"driver_fault": "kernel module 1, library 2", "is_mismatch": True, "driver_fault_at": NOW}, [OK], State.DEGRADED, "driver_mismatch"),
        ({"maintenance": Maintenance(NOW, NOW + 1, "x")}, [DOWN], State.MAINTENANCE, "maintenance"),
    ],
)
def test_node_verdicts(changes: dict[str, Any], gpus: list[Verdict], state: State, cause: str) -> None:
    facts = replace(NODE, **changes)
    found, _ = node_conditions(facts, TH)
    held = {condition.code: Held(condition, NOW, 9, True) for condition in found}
    verdict = node_verdict(facts, active_conditions(held), [Child(f"GPU-{n}", each) for n, each in enumerate(gpus)], OK)
    assert (verdict.state, verdict.cause) == (state, cause)


MAINTAINED = Verdict(State.MAINTENANCE, "maintenance", "Planned.", NOW - 60)
BROKEN = Verdict(State.DEGRADED, "exporter_down", "Exporter silent.", NOW - 60)
NODE_GONE = Verdict(State.DOWN, "node_down", "Exporter and agent silent.", NOW - 60)


@pytest.mark.parametrize(
    ("changes", "nodes", "gpus", "state", "cause"),
    [
        ({}, [OK], [OK], State.OK, "ok"),
        ({}, [OK, NODE_GONE], [OK, SILENT], State.DEGRADED, "node_down"),
        ({}, [DOWN], [DOWN, DOWN], State.DOWN, "gpu_lost"),
        ({}, [BROKEN], [SILENT], State.DEGRADED, "exporter_down"),
        ({}, [MAINTAINED], [MAINTAINED], State.MAINTENANCE, "maintenance"),
        ({}, [MAINTAINED, OK], [MAINTAINED, OK], State.OK, "ok"),
        ({}, [MAINTAINED, DOWN], [MAINTAINED, DOWN], State.DOWN, "gpu_lost"),
        ({"contact": Contact.NEVER}, [], [], State.UNKNOWN, "never_reported"),
        ({"contact": Contact.LINK_DOWN}, [SILENT], [SILENT], State.UNKNOWN, "link_down"),
        ({"contact": Contact.REGION_SILENT, "region_silent_sites": 4, "region_sites": 5}, [SILENT], [SILENT], State.UNKNOWN, "region_silent"),
        ({"maintenance": Maintenance(NOW, NOW + 1, "x"), "contact": Contact.LINK_DOWN}, [SILENT], [SILENT], State.MAINTENANCE, "maintenance"),
    ],
)
def test_site_verdicts(changes: dict[str, Any], nodes: list[Verdict], gpus: list[Verdict], state: State, cause: str) -> None:
    facts = replace(SITE, **changes)
    conditions, _ = site_conditions(facts)
    verdict = site_verdict(facts, conditions, [Child("n", each) for each in nodes], [Child("g", each) for each in gpus], OK)
    assert (verdict.state, verdict.cause) == (state, cause)


def test_one_node_cannot_tell_link_from_node_and_several_can() -> None:
    one, _ = site_conditions(replace(SITE, contact=Contact.LINK_DOWN))
    many, _ = site_conditions(replace(SITE, contact=Contact.LINK_DOWN, nodes=3))
    assert "(link or node)" in one[0].why
    assert "(link)" in many[0].why


times = st.one_of(st.just(NAN), st.floats(NOW - 1000, NOW + 5))
flags = st.integers(0, 1023)
facts_of_gpus = st.builds(
    GpuFacts,
    now=st.just(NOW),
    sampled_at=times,
    exporter_at=times,
    contact=st.sampled_from(Contact),
    contact_since=times,
    gpus_of_node=st.integers(0, 8),
    gpus_fresh=st.integers(0, 8),
    signs=flags,
    judged=flags,
    agent=st.sampled_from(AgentWord),
    agent_at=times,
    maintenance=st.sampled_from([None, Maintenance(NOW - 5, NOW + 5, "swap")]),
    temperature_celsius=times,
    slowdown_celsius=times,
    margin_celsius=times,
    sm_clock_hertz=times,
    power_watts=times,
    ecc_dbe_total=times,
    nvlink_rise=times,
    pcie_rise=times,
)
befores = st.sampled_from([None, OK, DOWN, SILENT, MAINTAINED])


@given(facts_of_gpus, befores)
def test_a_gpu_has_exactly_one_state_whatever_the_facts(facts: GpuFacts, before: Verdict | None) -> None:
    verdict = follow(before, judge(facts, before), NOW)
    assert verdict.state in State
    assert verdict.cause
    assert 0 < len(verdict.why) <= 300
    assert not math.isnan(verdict.since)
    if before is not None:
        assert verdict.since >= before.since
    if not facts.now - facts.sampled_at <= TH.unknown_seconds:
        assert verdict.state is not State.OK  # no data is never healthy
    assert (verdict.state is State.MAINTENANCE) == (facts.maintenance is not None)


node_facts = st.builds(
    NodeFacts,
    now=st.just(NOW),
    contact=st.sampled_from(Contact),
    contact_at=times,
    exporter_at=times,
    exporter_up=st.sampled_from([NAN, 0.0, 1.0]),
    has_agent=st.booleans(),
    heartbeat_at=times,
    agent_silent=st.booleans(),
    gpus_expected=st.integers(0, 8),
    gpus_fresh=st.integers(0, 8),
    driver_fault=st.sampled_from(["", "x"]),
    driver_fault_at=times,
    profiling_suspects=st.sampled_from([(), ("GPU-1", "GPU-2", "GPU-3")]),
    maintenance=st.sampled_from([None, Maintenance(NOW - 5, NOW + 5, "swap")]),
)
children = st.lists(st.sampled_from([OK, DOWN, SILENT, MAINTAINED, BROKEN]).map(lambda verdict: Child("thing", verdict)), max_size=4)


@given(node_facts, children, befores)
def test_a_node_has_exactly_one_state_whatever_the_facts(facts: NodeFacts, gpus: list[Child], before: Verdict | None) -> None:
    found, undecided = node_conditions(facts, TH)
    assert not undecided & {condition.code for condition in found}
    held = {condition.code: Held(condition, NOW, 9, True) for condition in found}
    verdict = follow(before, node_verdict(facts, active_conditions(held), gpus, before), NOW)
    assert verdict.state in State
    assert not math.isnan(verdict.since)
    if facts.contact is not Contact.REPORTING:
        assert verdict.state is not State.OK


@given(st.sampled_from(Contact), children, children, befores)
def test_a_site_has_exactly_one_state_whatever_the_facts(contact: Contact, nodes: list[Child], gpus: list[Child], before: Verdict | None) -> None:
    facts = replace(SITE, contact=contact)
    conditions, _ = site_conditions(facts)
    verdict = follow(before, site_verdict(facts, conditions, nodes, gpus, before), NOW)
    assert verdict.state in State
    assert not math.isnan(verdict.since)


# Signs


@given(st.lists(st.one_of(st.just(NAN), st.integers(0, 511).map(float)), min_size=1, max_size=20))
def test_signs_are_bits_of_the_reasons_and_nothing_is_judged_without_a_value(reasons: list[float]) -> None:
    column, none = np.array(reasons), np.full(len(reasons), NAN)
    before = np.zeros(len(reasons), dtype=np.int32)
    signs, judged = signs_of(clock_reasons=column, margin=none, remap_pending=none, remap_failure=none, before=before, thresholds=TH)
    for value, sign, known in zip(reasons, signs, judged, strict=True):
        expected = 0 if math.isnan(value) else sum(int(each) for mask, each in REASONS if int(value) & mask)
        assert sign == expected
        assert (known == 0) == math.isnan(value)


def test_every_sign_has_a_code() -> None:
    assert set(SIGN_OF_CODE.values()) == set(Sign)


# Hysteresis

HOT = Condition("hot", Severity.MAJOR, State.DEGRADED, "Hot.", NOW, samples=2)


@given(st.lists(st.sampled_from(["on", "off", "unknown"]), max_size=40))
def test_flapping_inputs_move_the_state_no_faster_than_the_recovery_allows(inputs: list[str]) -> None:
    held: dict[str, Held] = {}
    active, moves, last_on = False, [], -math.inf
    for number, word in enumerate(inputs):
        at = NOW + 10 * number
        found = [replace(HOT, since=at)] if word == "on" else []
        held, _ = settle(held, found, {"hot"} if word == "unknown" else set(), sampled_at=at, now=at, thresholds=TH)
        if word == "on":
            last_on = at
        now_active = bool(active_conditions(held))
        if now_active != active:
            moves.append(at)
            active = now_active
            assert now_active or at - last_on > TH.recover_seconds
    ends = moves[1::2]
    assert all(later - sooner >= TH.recover_seconds for sooner, later in zip(moves[::2], ends, strict=False))


def test_the_same_sample_confirms_nothing() -> None:
    held, _ = settle({}, [HOT], set(), sampled_at=NOW, now=NOW, thresholds=TH)
    held, _ = settle(held, [HOT], set(), sampled_at=NOW, now=NOW + 1, thresholds=TH)
    assert not active_conditions(held)
    held, _ = settle(held, [replace(HOT, since=NOW + 10)], set(), sampled_at=NOW + 10, now=NOW + 11, thresholds=TH)
    assert [condition.since for condition in active_conditions(held)] == [NOW]


def test_what_is_undecided_stays_as_it_was() -> None:
    held = {"hot": Held(HOT, NOW, 2, True)}
    after, wake_at = settle(held, [], {"hot"}, sampled_at=NAN, now=NOW + 1e6, thresholds=TH)
    assert after == held
    assert wake_at == math.inf


# Contact


@given(st.data())
def test_contact_is_one_word_for_each_node_and_site(data: st.DataObject) -> None:
    nodes, sites = data.draw(st.integers(1, 8)), 3
    column = st.lists(times, min_size=nodes, max_size=nodes).map(np.array)
    site_rows = np.array(data.draw(st.lists(st.integers(0, sites - 1), min_size=nodes, max_size=nodes)), dtype=np.int32)
    view = view_contact(
        now=NOW,
        thresholds=TH,
        gpu_at=data.draw(column),
        gpu_node_row=np.arange(nodes, dtype=np.int32),
        up=np.array(data.draw(st.lists(st.sampled_from([NAN, 0.0, 1.0]), min_size=nodes, max_size=nodes))),
        up_time=data.draw(column),
        heartbeat=data.draw(column),
        has_agent=np.array(data.draw(st.lists(st.booleans(), min_size=nodes, max_size=nodes))),
        node_active=np.ones(nodes, dtype=np.bool_),
        node_site_row=site_rows,
        site_region=[1] * sites,
    )
    for row in range(nodes):
        word = CONTACTS[view.node[row]]
        at = view.node_at[row]
        assert (word is Contact.NEVER) == bool(np.isnan(at))
        assert (word is Contact.REPORTING) == bool(view.exporter_fresh[row])
        if word in (Contact.LINK_DOWN, Contact.NODE_DOWN):
            assert NOW - view.exporter_at[row] > TH.unknown_seconds or np.isnan(view.exporter_at[row])
        if word is Contact.LINK_DOWN:
            assert CONTACTS[view.site[site_rows[row]]] is Contact.LINK_DOWN


@pytest.mark.parametrize(("at", "text"), [(0, "0 s"), (45, "45 s"), (60, "1 min"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (90000, "1 d 1 h"), (-3, "0 s")])
def test_durations(at: float, text: str) -> None:
    assert duration(at) == text


def test_clock_times() -> None:
    assert clock_time(NOW) == "2026-11-20 10:00:00 UTC"
    assert clock_time(NAN) == "never"
