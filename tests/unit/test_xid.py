"""XID events from gauge and count, their windows, and the table that gives them meaning."""

import itertools
import json
import math
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fleet.health import xid
from fleet.health.facts import State
from fleet.health.xid import Burst, Source, XidMemory, XidTableError, table

CASE = Path(__file__).parent.parent / "cases" / "C07-xid-is-a-code"
TABLE = table()
T0 = 1_795_168_800.0


def gauge(memory: XidMemory, values: list[tuple[float, int]], old: int | None = None) -> list[tuple[float, int]]:
    """Feed a gauge's samples; (time, code) of the events."""
    events = []
    for at, new in values:
        before = sum(burst.count for burst in memory.bursts.values()) if memory.bursts else 0
        burst = memory.note_gauge(old=old, new=new, at=at, table=TABLE, tolerance_seconds=30)
        if burst is not None:
            events.append((at, new))
            assert burst.last_at == at
        else:
            assert (sum(burst.count for burst in memory.bursts.values()) if memory.bursts else 0) == before
        old = new
    return events


def test_c07_gauge_alone() -> None:
    rows = json.loads((CASE / "range.json").read_text())["data"]["result"][0]["values"]
    memory = XidMemory()
    events = gauge(memory, [(float(at), int(value)) for at, value in rows])
    assert events == [(T0 + 180, 31), (T0 + 360, 79), (T0 + 540, 79)]
    assert memory.marks[79].count == 2
    assert 13 not in memory.marks


def test_first_sight_has_a_code_and_no_time() -> None:
    memory = XidMemory()
    assert gauge(memory, [(T0, 13)]) == []
    assert memory.last_xid == 13
    assert math.isnan(memory.last_at)


def test_c07_counts_before_or_after_the_gauge_are_the_same() -> None:
    for count_first in (False, True):
        memory = XidMemory()
        gauge(memory, [(T0, 0)])
        if count_first:
            memory.note_count(xid=31, count=1, at=T0 + 180, table=TABLE, tolerance_seconds=30)
        gauge(memory, [(T0 + 180, 31)], old=0)
        if not count_first:
            memory.note_count(xid=31, count=1, at=T0 + 180, table=TABLE, tolerance_seconds=30)
        for at in (240, 300, 360):
            memory.note_count(xid=31, count=2, at=T0 + at, table=TABLE, tolerance_seconds=30)
        assert memory.marks[31].count == 2
        assert memory.bursts[31].count == 2
        memory.note_count(xid=31, count=1, at=T0 + 500, table=TABLE, tolerance_seconds=30)
        assert memory.marks[31].count == 2


@given(st.lists(st.sampled_from([0, 13, 31, 79]), min_size=1, max_size=30))
def test_events_are_exactly_the_changes_to_a_code(values: list[int]) -> None:
    events = gauge(XidMemory(), [(T0 + 400 * number, value) for number, value in enumerate(values)])
    expected = [(T0 + 400 * n, new) for n, (old, new) in enumerate(itertools.pairwise(values), start=1) if new not in (0, old)]
    assert events == expected


def test_close_repeats_fold_into_one_burst_and_later_ones_do_not() -> None:
    memory = XidMemory()
    gauge(memory, [(T0, 0), (T0 + 10, 31), (T0 + 20, 0), (T0 + 30, 31)])
    first = memory.bursts[31]
    assert (first.first_at, first.last_at, first.count) == (T0 + 10, T0 + 30, 2)
    gauge(memory, [(T0 + 30 + TABLE.burst_seconds + 1, 31)], old=0)
    assert memory.bursts[31] is not first
    assert memory.marks[31].count == 3


def test_windows_end_and_sticky_codes_do_not() -> None:
    memory = XidMemory()
    gauge(memory, [(T0, 0), (T0 + 10, 31), (T0 + 20, 79)])
    end = T0 + 10 + TABLE.rule(31).window_seconds
    assert memory.next_end(TABLE) == end
    assert memory.end_by_window(end - 1, TABLE) == []
    assert memory.end_by_window(end, TABLE) == [31]
    assert memory.end_by_window(T0 + 1e9, TABLE) == []
    assert list(memory.marks) == [79]


def test_a_reboot_ends_marks_once_the_gpu_reports_again() -> None:
    memory = XidMemory()
    memory.note_gauge(old=0, new=79, at=T0, table=TABLE, tolerance_seconds=30, boot_id="a")
    assert memory.end_by_reboot("", T0 + 60) == []
    assert memory.end_by_reboot("a", T0 + 60) == []
    assert memory.end_by_reboot("b", T0) == []
    assert memory.end_by_reboot("b", T0 + 60) == [79]


def test_a_mark_without_a_boot_id_takes_the_first_one_known() -> None:
    memory = XidMemory()
    memory.note_gauge(old=0, new=79, at=T0, table=TABLE, tolerance_seconds=30)
    assert memory.end_by_reboot("a", T0 + 60) == []
    assert memory.end_by_reboot("b", T0 + 60) == [79]


def test_a_seeded_memory_knows_its_events() -> None:
    memory = XidMemory(last_xid=31, last_at=T0)
    memory.seed(Burst(31, T0 - 60, T0, 2, Source.GAUGE))
    assert gauge(memory, [(T0 + 60, 31)]) == []
    assert memory.note_count(xid=31, count=2, at=T0 + 60, table=TABLE, tolerance_seconds=30) is None
    burst = memory.note_count(xid=31, count=3, at=T0 + 60, table=TABLE, tolerance_seconds=30)
    assert burst is not None
    assert (burst.first_at, burst.count) == (T0 - 60, 3)


def test_the_recovery_action_goes_before_the_table_for_known_codes() -> None:
    memory = XidMemory()
    for code in (119, 999):
        memory.note_gauge(old=0, new=code, at=T0, table=TABLE, tolerance_seconds=30)
    advised = {condition.code: condition.advised for condition in memory.conditions(TABLE, TABLE.recovery[2])}
    assert advised["xid_119"] == "Reboot the node."
    assert advised["xid_999"] == TABLE.rule(999).advised


def test_recovery_actions_by_the_drivers_number() -> None:
    assert {value: action.key for value, action in TABLE.recovery.items()} == {
        1: "gpu_reset",
        2: "node_reboot",
        3: "drain_p2p",
        4: "drain_and_reset",
        5: "recover_imex",
    }


# The table


def test_unknown_codes_never_advise_an_act() -> None:
    for code in (1, 162, 170, 999, 65535):
        rule = TABLE.rule(code)
        assert not rule.known
        assert not rule.action.act
        assert not rule.sticky
        assert rule.state is State.DEGRADED


def test_the_codes_that_are_always_watched() -> None:
    for code in (48, 74, 79, 95, 119, 120, 140):
        assert TABLE.rule(code).sticky
        assert TABLE.rule(code).state in (State.DOWN, State.DEGRADED)
    assert TABLE.rule(79).state is State.DOWN
    assert TABLE.rule(79).action.key == "restart_bare_metal"


def test_nvidias_advice_holds_where_sources_disagree() -> None:
    assert TABLE.rule(63).action.key == "ignore"
    assert TABLE.rule(63).advised == "Reset when convenient."
    assert TABLE.rule(63).others["gpud"].startswith("fatal")
    assert TABLE.rule(94).action.key == "restart_app"
    assert TABLE.rule(109).action.key == "reset_gpu"
    assert TABLE.rule(109).others["gpud"] == "warn"
    assert TABLE.rule(121).action.key == "ignore"


def test_every_rule_fits_the_columns_that_store_it() -> None:
    for rule in TABLE.rules.values():
        memory = XidMemory()
        memory.note_gauge(old=0, new=rule.code, at=T0, table=TABLE, tolerance_seconds=30)
        (condition,) = memory.conditions(TABLE)
        assert len(condition.why) <= 300
        assert len(condition.advised) <= 300
        assert len(condition.code) <= 40
        assert xid.xid_of_code(condition.code) == rule.code
        json.dumps(condition.evidence)


@pytest.mark.parametrize(
    ("change", "named"), [({"do": "dance"}, "xids.79"), ({"state": "odd"}, "xids.79"), ({"severity": "odd"}, "xids.79"), ({"meaning": None}, None)]
)
def test_a_table_that_contradicts_itself_names_the_entry(change: dict[str, object], named: str | None) -> None:
    data = yaml.safe_load(xid._FILE.read_text())
    data["xids"][79].update(change)
    if named is None:
        del data["xids"][79]["meaning"]
        named = "xids.79"
    with pytest.raises(XidTableError, match=named):
        xid.load(yaml.safe_dump(data))


@pytest.mark.parametrize(("code", "number"), [("xid_79", 79), ("xid_", None), ("xid_x", None), ("gpu_lost", None)])
def test_codes_of_findings(code: str, number: int | None) -> None:
    assert xid.xid_of_code(code) == number
