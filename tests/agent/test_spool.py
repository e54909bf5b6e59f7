"""What waits to be told: in order, until it is stored, bounded in number and age, detail dropped first and counted."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.protocol import parse_agent_message
from agent.spool import BATCH, KEEP_SECONDS, Metered, Spool
from agent.store import Store
from tests.agent.documents import T0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "local.sqlite3")
    yield store
    store.close()


def test_events_are_told_with_their_own_time_until_they_are_stored(store: Store, tmp_path: Path) -> None:
    spool = Spool(store)
    spool.add("evicted", T0, "tenant-a/llm", {"reason": "reservation"})
    spool.add("margin_used", T0 + 1, "GPU-1", {"used_bytes": 5.5}, is_detail=True)
    first, second = spool.due(T0 + 7200)
    assert (first.kind, first.at, second.at) == ("evicted", T0, T0 + 1)
    assert parse_agent_message(json.dumps(first.to_json())) == first
    # Not twice within half a minute, again after it, at once on a new connection, and by a restarted agent.
    assert spool.due(T0 + 7210) == ()
    assert spool.due(T0 + 7231) == (first, second)
    spool.forget_told()
    spool.acknowledge([first.id, "unknown"])
    assert spool.due(T0 + 7250) == (second,)
    again = Store(tmp_path / "local.sqlite3")
    assert Spool(again).due(T0 + 7251) == (second,)
    again.close()
    spool.acknowledge([second.id])
    assert spool.count() == 0


def test_words_of_others_are_made_readable(store: Store) -> None:
    spool = Spool(store)
    spool.add("eviction_failed", T0, "a\nb" + "c" * 500, {"error": "line one\n\x00line two\ud800" + "x" * 400})
    (event,) = spool.due(T0)
    assert event.detail["error"] == ("line one  line two " + "x" * 400)[:300]
    assert parse_agent_message(json.dumps(event.to_json())) == event


def test_a_backlog_is_told_in_batches(store: Store) -> None:
    spool = Spool(store)
    with store.transaction():
        for number in range(3 * BATCH):
            spool.add("evicted", T0 + number / 1000, str(number), {})
    seen: list[str] = []
    for round_number in range(3):
        found = spool.due(T0 + 10 + 10 * round_number)
        assert len(found) == BATCH
        assert spool.due(T0 + 11 + 10 * round_number) == ()
        seen += [event.subject for event in found]
        spool.acknowledge(event.id for event in found)
        # Stored at once or not: the link carries no more in that time.
        assert spool.due(T0 + 12 + 10 * round_number) == ()
    assert seen == [str(number) for number in range(3 * BATCH)]


def test_detail_goes_first_then_the_oldest_and_what_went_is_counted(store: Store) -> None:
    spool = Spool(store, max_events=4)
    for number in range(3):
        spool.add("margin_used", T0 + number, f"detail-{number}", {}, is_detail=True)
    for number in range(3):
        spool.add("evicted", T0 + 10 + number, f"act-{number}", {})
    assert [event.subject for event in Spool(store, max_events=100).due(T0 + 20)][:4] == ["detail-2", "act-0", "act-1", "act-2"]
    for number in range(3, 6):
        spool.add("evicted", T0 + 10 + number, f"act-{number}", {})
    subjects = [row[0] for row in store.rows("SELECT subject FROM event ORDER BY number")]
    assert subjects == ["", "act-3", "act-4", "act-5"]
    (said,) = [json.loads(row[0]) for row in store.rows("SELECT detail FROM event WHERE kind = 'spool_dropped'")]
    assert said == {"events": 2, "since": T0 + 11, "detail_only": True}


def test_what_is_older_than_a_week_goes(store: Store) -> None:
    spool = Spool(store)
    spool.add("evicted", T0, "old", {})
    spool.add("evicted", T0 + KEEP_SECONDS + 1, "new", {})
    told = spool.due(T0 + KEEP_SECONDS + 2)
    assert [event.subject for event in told if event.kind == "evicted"] == ["new"]
    (dropped,) = [event for event in told if event.kind == "spool_dropped"]
    assert dropped.detail == {"events": 1, "since": T0 + KEEP_SECONDS + 1, "detail_only": False}
    assert [event.kind for event in spool.due(T0 + KEEP_SECONDS + 100)].count("spool_dropped") == 1


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 10))
@settings(max_examples=60, deadline=None)
def test_it_is_never_fuller_than_its_bound_and_loses_nothing_silently(kinds: list[bool], most: int) -> None:
    store = Store(":memory:")
    spool = Spool(store, max_events=most)
    for number, is_detail in enumerate(kinds):
        spool.add("x", T0 + number, str(number), {}, is_detail=is_detail)
        assert spool.count() <= most
    dropped = sum(count for (count,) in store.rows("SELECT count FROM dropped"))
    assert spool.count() + dropped == len(kinds)
    if store.value("SELECT count(*) FROM event WHERE is_detail = 1"):
        assert store.value("SELECT count FROM dropped WHERE is_detail = 0") is None
    store.close()


def test_metering_of_an_hour_has_one_id_over_restarts_and_adds_up(store: Store) -> None:
    hour = T0 - T0 % 3600
    sample = Metered(uid="u", namespace="n", pod="p", tenant="a", seconds=10, gpus=0.5, slices=1, vram_gib=4, energy_joules=100)
    unknown = Metered(uid="u", namespace="n", pod="p", tenant="a", seconds=10, gpus=0.5, slices=1, vram_gib=None, energy_joules=None)
    Spool(store).meter([sample, sample], hour + 100)
    ((before,),) = store.rows("SELECT id FROM metering")
    Spool(store).meter([unknown], hour + 200)
    Spool(store).meter([sample], hour + 3600)
    (event,) = Spool(store).due(hour + 3601)
    assert (event.id, event.kind, event.at) == (before, "metering", hour + 3600)
    assert {name: event.detail[name] for name in ("seconds", "gpu_seconds", "vram_gib_seconds", "energy_joules")} == {
        "seconds": 30,
        "gpu_seconds": 15,
        "vram_gib_seconds": 80,
        "energy_joules": 200,
    }
    assert event.detail["vram_unknown_seconds"] == event.detail["energy_unknown_seconds"] == 10
    assert len(store.rows("SELECT id FROM metering")) == 1
