"""The evaluation without a database: only what changed is judged, chains of changes are whole whatever happens, wide outages come in parts."""

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.health.changes import Changes, FindingChange, Kind, ObjectRef, VerdictChange, newest_findings
from fleet.health.evaluation import Evaluator
from fleet.health.facts import Condition, Severity, State, Thresholds, Verdict
from fleet.health.memory import MOST_A_TICK, Roster
from fleet.health.rising import Rising
from fleet.telemetry.fields import GPU_FIELD_INDEX, XidChange
from fleet.telemetry.live_state import LiveState

T0 = 1_795_168_800.0
TH = Thresholds(interval_seconds=10, heartbeat_seconds=10)
FINE = {
    "gpu_temperature_celsius": 60.0,
    "power_watts": 400.0,
    "utilization_ratio": 0.5,
    "clock_event_reasons": 0.0,
    "row_remap_pending": 0.0,
    "row_remap_failure": 0.0,
    "ecc_dbe_total": 0.0,
    "nvlink_errors_total": 0.0,
    "pcie_replay_total": 0.0,
}


class Fleet:
    """`sites` sites in one region of fifty each, with as many nodes and GPUs as said."""

    def __init__(self, sites: int, *, nodes: int = 1, gpus: int = 1) -> None:
        self.live = LiveState()
        self.live.add_sites([(n + 1, f"S{n}", 1, n // 50 + 1) for n in range(sites)])
        self.live.add_nodes([(n + 1, f"node-{n}", n // nodes + 1) for n in range(sites * nodes)])
        self.live.add_gpus([(n + 1, f"GPU-{n}", n // gpus + 1) for n in range(sites * nodes * gpus)])
        count, hosts = len(self.live.gpu_uuid), len(self.live.node_host)
        self.roster = Roster(
            slowdown_celsius=np.full(count, 87.0),
            expected_gpus=np.full(hosts, float(gpus)),
            has_agent=np.ones(hosts, dtype=np.bool_),
            reports_health=np.ones(hosts, dtype=np.bool_),
            region_slug={n: f"r{n}" for n in range(1, sites // 50 + 2)},
        )
        self.evaluator = Evaluator(TH)
        self.now = T0

    def scrape(self, rows: Any = slice(None), **values: float) -> None:
        for name, value in {**FINE, **values}.items():
            self.live.gpu_values[GPU_FIELD_INDEX[name], rows] = value
            self.live.gpu_times[GPU_FIELD_INDEX[name], rows] = self.now
        self.live.gpu_sampled_at[rows] = self.now

    def beat(self, rows: Any = slice(None)) -> None:
        self.live.node_heartbeat[rows] = self.now
        self.live.node_up[rows], self.live.node_up_time[rows] = 1.0, self.now

    def tick(self) -> Changes:
        self.live.derive()
        return self.evaluator.evaluate(self.live, self.roster, self.now)


def test_only_what_changed_is_judged() -> None:
    fleet = Fleet(200)
    fleet.scrape()
    fleet.beat()
    fleet.tick()
    before = fleet.evaluator.judged_total
    assert before == 600
    for _ in range(20):
        fleet.now += 1
        if fleet.now % 10 == 0:
            fleet.scrape(gpu_temperature_celsius=61.0, power_watts=fleet.now % 300)
            fleet.beat()
        assert not fleet.tick()
    assert fleet.evaluator.judged_total == before
    fleet.now += 1
    fleet.scrape([7], row_remap_pending=1.0)
    changes = fleet.tick()
    assert fleet.evaluator.judged_total == before + 3
    assert [(change.object.kind, change.object.key) for change in changes.verdicts] == [(Kind.GPU, "GPU-7"), (Kind.NODE, "8"), (Kind.SITE, "S7")]


def test_thirty_thousand_gpus_with_one_percent_changing_cost_little() -> None:
    fleet = Fleet(1500, nodes=4, gpus=5)
    fleet.scrape()
    fleet.beat()
    while fleet.tick():
        fleet.now += 0.1
    generator = np.random.default_rng(1)
    seconds = []
    for _ in range(8):
        fleet.now += 1
        fleet.scrape(generator.choice(30_000, 3000, replace=False))
        fleet.beat()
        hot = generator.choice(30_000, 300, replace=False)
        fleet.live.gpu_values[GPU_FIELD_INDEX["clock_event_reasons"], hot] = 0x40
        began = time.process_time()
        fleet.tick()
        seconds.append(time.process_time() - began)
    # 0.04 s on an idle core; the bound leaves room for slow machines and still catches work on every row.
    assert min(seconds) < 0.25


def test_a_wide_outage_is_judged_in_parts_and_nothing_is_forgotten() -> None:
    sites = MOST_A_TICK + 1000
    fleet = Fleet(sites)
    fleet.scrape()
    fleet.beat()
    first = fleet.tick()
    assert len(first.verdicts) == 3 * MOST_A_TICK
    while fleet.tick():
        pass
    for _ in range(3):
        fleet.now += 10
        assert not fleet.tick()
    fleet.now += 1
    changes = Changes()
    ticks = 0
    while part := fleet.tick():
        changes.extend(part)
        ticks += 1
    assert ticks == 2
    assert len(changes.verdicts) == 3 * sites
    for kind in (Kind.GPU, Kind.NODE, Kind.SITE):
        states = {verdict.state for row in range(sites) if (verdict := fleet.evaluator.verdict_of(kind, row)) is not None}
        assert states == {State.UNKNOWN}


def test_a_site_is_unknown_once_its_last_word_is_older_than_three_intervals() -> None:
    fleet = Fleet(1)
    fleet.scrape()
    for second, state in ((0, State.OK), (15, State.OK), (30, State.OK), (31, State.UNKNOWN)):
        fleet.now = T0 + second
        fleet.tick()
        verdict = fleet.evaluator.verdict_of(Kind.SITE, 0)
        assert verdict is not None
        assert verdict.state is state
    assert verdict is not None
    assert (verdict.cause, verdict.since) == ("link_down", T0)


steps = st.lists(
    st.tuples(
        st.sets(st.integers(0, 7)),  # GPUs that are scraped
        st.sets(st.integers(0, 3)),  # nodes whose agents speak
        st.dictionaries(
            st.sampled_from(["clock_event_reasons", "row_remap_pending", "ecc_dbe_total", "gpu_temperature_celsius"]), st.sampled_from([0.0, 1.0, 64.0, 86.0])
        ),
        st.lists(st.tuples(st.integers(0, 7), st.sampled_from([0, 31, 63, 79])), max_size=2),
        st.integers(1, 15),
    ),
    max_size=25,
)


@given(steps)
@settings(max_examples=60)
def test_chains_of_changes_are_whole_whatever_happens(script: list[tuple[set[int], set[int], dict[str, float], list[tuple[int, int]], int]]) -> None:
    fleet = Fleet(2, nodes=2, gpus=2)
    states: dict[tuple[Kind, str], Verdict] = {}
    open_findings: set[tuple[Kind, str, str]] = set()
    for scraped, beating, values, xids, seconds in script:
        if scraped:
            fleet.scrape(sorted(scraped), **values)
        if beating:
            fleet.beat(sorted(beating))
        for row, code in xids:
            fleet.live.note_xid_change(XidChange(row, None, 1, code, fleet.now))
        changes = fleet.tick()
        for change in changes.verdicts:
            key = (change.object.kind, change.object.key)
            assert (states[key].state if key in states else None) == change.before
            if key in states:
                assert change.verdict.since >= states[key].since
            assert change.verdict.since <= fleet.now
            states[key] = change.verdict
        for finding in changes.findings:
            name = (finding.object.kind, finding.object.key, finding.condition.code)
            assert finding.opened == (name not in open_findings)
            if finding.until is None:
                open_findings.add(name)
            else:
                open_findings.remove(name)
                assert finding.until >= finding.condition.since
        cells = fleet.evaluator.cells
        assert cells is not None
        assert set(cells.state.tolist()) <= {0, 1, 2, 3, 4}
        fleet.now += seconds


# Rising counters


def column(*values: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array(values)


def test_rising_counts_a_rise_within_its_window_only() -> None:
    rising = Rising(10, 300, 1800)
    for at, value in ((0, 100), (100, 105), (200, 109), (310, 111), (400, 119)):
        rising.update(column(value), column(at))
        assert not rising.standing(at)[0]
    rising.update(column(121), column(500))
    assert rising.standing(500)[0]
    assert rising.rise[0] == 10
    assert rising.standing(2299)[0]
    assert not rising.standing(2300)[0]


@given(st.lists(st.one_of(st.just(float("nan")), st.floats(0, 1e15)), max_size=30))
def test_falling_or_missing_counters_never_rise(values: list[float]) -> None:
    falling = sorted((value for value in values if value == value), reverse=True)
    rising = Rising(1, 300, 1800)
    for at, value in enumerate(falling):
        rising.update(column(value, float("nan")), column(at, at))
    assert not rising.standing(len(falling)).any()


def test_a_seeded_rise_stands_for_the_rest_of_its_time() -> None:
    rising = Rising(1, 300, 1800)
    rising.seed(3, 1000.0)
    assert rising.standing(2000).tolist() == [False, False, False, True]
    rising.forget(3)
    assert not rising.standing(2000).any()


# Folding


@pytest.mark.parametrize(
    ("lives", "left"),
    [
        ([(True, None)], [(True, None)]),
        ([(True, None), (False, None)], [(True, None)]),
        ([(True, None), (False, 5.0)], [(True, 5.0)]),
        ([(False, 5.0), (True, None)], [(False, 5.0), (True, None)]),
        ([(True, None), (False, 5.0), (True, None), (False, None)], [(True, 5.0), (True, None)]),
    ],
)
def test_findings_fold_by_their_lives(lives: list[tuple[bool, float | None]], left: list[tuple[bool, float | None]]) -> None:
    ref = ObjectRef(Kind.GPU, "GPU-1", 1, 1, "S1", 1)
    condition = Condition("hot", Severity.MAJOR, State.DEGRADED, "Hot.", 1.0)
    folded = newest_findings([FindingChange(ref, condition, 1.0, until=until, opened=opened) for opened, until in lives])
    assert [(change.opened, change.until) for change in folded] == left


def test_a_first_verdict_of_unknown_is_no_transition() -> None:
    ref = ObjectRef(Kind.GPU, "GPU-1", 1, 1, "S1", 1)
    assert not VerdictChange(ref, None, Verdict(State.UNKNOWN, "never_reported", "Has never reported.", T0)).is_transition
    assert VerdictChange(ref, None, Verdict(State.OK, "ok", "Reports.", T0)).is_transition
