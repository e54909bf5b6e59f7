"""The pure decisions of an agent alone, as tables and as properties: schedule, reservations, slices."""

import math
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.local.allocation import Holder, Waiting, gives_way
from agent.local.power import Level, UnknownZone, bound_mhz, level_at, local_hour
from agent.local.reservations import Step, Verdict, eats_margin, fits, memory_verdict, next_step
from agent.protocol import PowerSchedule

GIB = 1 << 30
SCHEDULE = PowerSchedule(enabled=True)
NOT_AMOUNTS = [math.nan, math.inf, -math.inf, -1.0]


@pytest.mark.parametrize(
    ("hour", "load", "level"),
    [
        (2, 0.0, Level.ECO),
        (2, 0.39, Level.ECO),
        (2, 0.40, Level.BASE),
        (5, 0.1, Level.ECO),
        (5, 0.9, Level.BASE),
        (6, 0.9, Level.ECO),
        (7, 0.9, Level.ECO),
        (8, 0.70, Level.BASE),
        (8, 0.71, Level.BOOST),
        (21, 1.0, Level.BOOST),
        (21, 0.0, Level.BASE),
        (22, 1.0, Level.ECO),
        (0, 1.0, Level.ECO),
        (1, 0.0, Level.ECO),
        # Unknown is neither low nor high.
        (2, None, Level.BASE),
        (5, None, Level.BASE),
        (8, None, Level.BASE),
        (21, None, Level.BASE),
        (23, None, Level.ECO),
    ],
)
def test_the_level_of_an_hour_and_a_load(hour: int, load: float | None, level: Level) -> None:
    assert level_at(hour, load, SCHEDULE) is level


def test_the_bounds_of_the_levels() -> None:
    assert [bound_mhz(level, SCHEDULE) for level in Level] == [1100, 1410, 1980]


@pytest.mark.parametrize("load", [*NOT_AMOUNTS, 1.01, 70.0])
def test_what_is_no_load_is_refused(load: float) -> None:
    with pytest.raises(ValueError, match="load"):
        level_at(3, load, SCHEDULE)


@given(hour=st.integers(0, 23))
def test_an_unknown_load_is_never_eco_by_its_load_and_never_boost(hour: int) -> None:
    level = level_at(hour, None, SCHEDULE)
    assert level is not Level.BOOST
    # Eco only where each known load is eco too: by the clock, not by what is not known.
    assert level is not Level.ECO or {level_at(hour, load, SCHEDULE) for load in (0.0, 0.5, 1.0)} == {Level.ECO}


@given(hour=st.integers(0, 23), lower=st.floats(0, 1), higher=st.floats(0, 1))
def test_more_load_never_means_a_lower_clock(hour: int, lower: float, higher: float) -> None:
    lower, higher = sorted((lower, higher))
    assert bound_mhz(level_at(hour, lower, SCHEDULE), SCHEDULE) <= bound_mhz(level_at(hour, higher, SCHEDULE), SCHEDULE)


@pytest.mark.parametrize(
    ("utc", "zone", "hour"),
    [
        ("2026-11-20T10:00", "Europe/Berlin", 11),
        # The hour from 02:00 to 03:00 does not exist on this day, and comes twice on that one.
        ("2026-03-29T00:59", "Europe/Berlin", 1),
        ("2026-03-29T01:00", "Europe/Berlin", 3),
        ("2026-10-25T00:30", "Europe/Berlin", 2),
        ("2026-10-25T01:30", "Europe/Berlin", 2),
        ("2026-10-25T02:00", "Europe/Berlin", 3),
        ("2026-03-08T09:59", "America/Los_Angeles", 1),
        ("2026-03-08T10:00", "America/Los_Angeles", 3),
        ("2026-06-01T20:30", "Asia/Kolkata", 2),
        ("2026-06-01T20:30", "UTC", 20),
    ],
)
def test_the_hour_at_the_site(utc: str, zone: str, hour: int) -> None:
    assert local_hour(datetime.fromisoformat(utc).replace(tzinfo=UTC).timestamp(), zone) == hour


@given(day=st.sampled_from(["2026-03-29", "2026-10-25", "2026-06-21"]), minute=st.integers(0, 26 * 60))
def test_on_days_when_the_clock_changes_night_is_what_the_clock_at_the_site_says(day: str, minute: int) -> None:
    at = datetime.fromisoformat(f"{day}T00:00").replace(tzinfo=ZoneInfo("Europe/Berlin")).timestamp() + 60 * minute
    shown = datetime.fromtimestamp(at, ZoneInfo("Europe/Berlin")).strftime("%H")
    assert (level_at(local_hour(at, "Europe/Berlin"), 0.5, SCHEDULE) is Level.BASE) == ("02" <= shown < "06" or "08" <= shown < "22")


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../etc/passwd", "", "/UTC"])
def test_a_zone_that_is_none_is_named(zone: str) -> None:
    with pytest.raises(UnknownZone, match="time zone"):
        local_hour(0.0, zone)


@pytest.mark.parametrize(
    ("used", "reserved", "verdict"),
    [
        (0, 10 * GIB, Verdict.WITHIN),
        (11 * GIB, 10 * GIB, Verdict.WITHIN),
        (11 * GIB + 1, 10 * GIB, Verdict.OVER),
        (None, 10 * GIB, Verdict.UNKNOWN),
        (99 * GIB, None, Verdict.NONE),
        (None, None, Verdict.NONE),
    ],
)
def test_more_than_a_tenth_over_the_reservation_is_over(used: float | None, reserved: int | None, verdict: Verdict) -> None:
    assert memory_verdict(used, reserved, over_ratio=1.10) is verdict


@pytest.mark.parametrize("bad", NOT_AMOUNTS)
def test_what_is_no_amount_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="used_bytes"):
        memory_verdict(bad, GIB, over_ratio=1.1)
    with pytest.raises(ValueError, match="total_bytes"):
        eats_margin(0, bad, margin_bytes=1)
    with pytest.raises(ValueError, match="total_bytes"):
        fits([1], bad, margin_bytes=1)


def test_the_systems_margin() -> None:
    assert eats_margin(38 * GIB, 40 * GIB, margin_bytes=2 * GIB) is False
    assert eats_margin(38 * GIB + 1, 40 * GIB, margin_bytes=2 * GIB) is True
    assert eats_margin(None, 40 * GIB, margin_bytes=2 * GIB) is None
    assert fits([20 * GIB, 18 * GIB], 40 * GIB, margin_bytes=2 * GIB) is True
    assert fits([20 * GIB, 18 * GIB + 1], 40 * GIB, margin_bytes=2 * GIB) is False
    assert fits([1], None, margin_bytes=1) is None


@pytest.mark.parametrize(
    ("verdict", "since", "now", "step", "kept"),
    [
        (Verdict.OVER, None, 100.0, Step.WARN, 100.0),
        (Verdict.OVER, 100.0, 159.9, Step.WAIT, 100.0),
        (Verdict.OVER, 100.0, 160.0, Step.EVICT, 100.0),
        (Verdict.WITHIN, 100.0, 160.0, Step.NOTHING, None),
        (Verdict.NONE, 100.0, 160.0, Step.NOTHING, None),
        (Verdict.UNKNOWN, 100.0, 160.0, Step.WAIT, 100.0),
        (Verdict.UNKNOWN, None, 160.0, Step.NOTHING, None),
        # A clock that was set back begins the grace anew.
        (Verdict.OVER, 100.0, 50.0, Step.WARN, 50.0),
    ],
)
def test_warned_first_and_judged_again_at_the_end_of_the_grace(verdict: Verdict, since: float | None, now: float, step: Step, kept: float | None) -> None:
    found = next_step(verdict, since, grace_seconds=60, now=now)
    assert (found.step, found.since) == (step, kept)


@given(verdicts=st.lists(st.sampled_from(Verdict), max_size=30), grace=st.floats(0, 100))
def test_nobody_is_evicted_without_a_warning_a_whole_grace_ago(verdicts: list[Verdict], grace: float) -> None:
    since, warned = None, None
    for number, verdict in enumerate(verdicts):
        now = 10.0 * number
        found = next_step(verdict, since, grace_seconds=grace, now=now)
        if found.step is Step.WARN:
            warned = now
        if found.step is Step.EVICT:
            assert verdict is Verdict.OVER
            assert warned is not None
            assert now - warned >= grace
        since = found.since


def holder(name: str, priority: int, started_at: float = 0.0, devices: int = 1, *, leaving: bool = False) -> Holder:
    return Holder(name, priority, started_at, devices, leaving)


@pytest.mark.parametrize(
    ("waiting", "held", "free", "gone"),
    [
        ([9], [holder("low", 2), holder("mid", 5)], 0, ["low"]),
        ([9], [holder("low", 2)], 1, []),
        ([8], [holder("low", 2)], 0, ["low"]),
        ([7], [holder("low", 2)], 0, []),
        ([9], [holder("same", 9)], 0, []),
        ([8], [holder("higher", 9)], 0, []),
        ([9], [], 0, []),
        ([9], [holder("old", 2, 1.0), holder("new", 2, 2.0)], 0, ["new"]),
        ([9, 9], [holder("low", 2), holder("mid", 5)], 0, ["low", "mid"]),
        ([9, 9], [holder("wide", 2, devices=2), holder("mid", 5)], 0, ["wide"]),
        ([9, 9], [holder("low", 2), holder("mid", 5)], 1, ["low"]),
        ([9], [holder("going", 2, leaving=True), holder("mid", 5)], 0, []),
        ([3, 9], [holder("low", 2)], 1, []),
    ],
)
def test_who_gives_way(waiting: list[int], held: list[Holder], free: int, gone: list[str]) -> None:
    found = gives_way([Waiting(str(number), priority, 0.0) for number, priority in enumerate(waiting)], held, free=free, evicts_above=7)
    assert [each.uid for each in found] == gone


@given(
    waiting=st.lists(st.integers(0, 10), max_size=8),
    held=st.lists(st.tuples(st.integers(0, 10), st.floats(0, 100), st.integers(1, 3), st.booleans()), max_size=8),
    free=st.integers(0, 3),
    above=st.integers(0, 10),
)
@settings(max_examples=500)
def test_never_an_equal_or_a_higher_one_and_never_more_than_needed(waiting: list[int], held: list[tuple[int, float, int, bool]], free: int, above: int) -> None:
    holders = [Holder(str(number), *each) for number, each in enumerate(held)]
    gone = gives_way([Waiting(str(number), priority, 0.0) for number, priority in enumerate(waiting)], holders, free=free, evicts_above=above)
    strong = [priority for priority in waiting if priority > above]
    assert len(gone) <= len(strong)
    assert len({each.uid for each in gone}) == len(gone)
    for each in gone:
        assert not each.leaving
        assert each.priority < max(strong)
        # Nobody lower, or as low and newer, stayed.
        assert all(other.leaving or other in gone or (other.priority, -other.started_at) >= (each.priority, -each.started_at) for other in holders)
    assert free == 0 or len(gone) <= max(0, len(waiting) - free)
