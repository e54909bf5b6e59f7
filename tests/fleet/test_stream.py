"""Frames through a real Redis: what readers put together equals what was published, whatever was lost on the way."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from fleet import frames, stream
from script.servers import Redis

NOW = 1_763_632_800.0


@pytest.fixture
def client() -> Iterator[redis.Redis]:
    client = stream.connect()
    client.flushdb()
    yield client
    client.flushdb()
    client.close()


def cells(states: list[int], **changes: object) -> frames.SiteColumns:
    count = len(states)
    values: dict[str, object] = {
        "site_id": np.arange(1, count + 1),
        "state": states,
        "flags": [0] * count,
        "gpus_reporting": [2] * count,
        "gpus_expected": [2] * count,
        "utilization_ratio": [0.5] * count,
        "power_watts": [700.0] * count,
        "since": [NOW - 60] * count,
        "contact": [NOW - 1] * count,
    }
    return frames.columns(**{**values, **changes})  # type: ignore[arg-type]


def states_of(client: redis.Redis, area_id: int = 1) -> list[int]:
    frame = stream.read_area(client, area_id)
    assert frame is not None
    return frame.columns.state.tolist()


def publish(publisher: stream.FramePublisher, states: list[int], tick: int, areas: list[int] | None = None) -> stream.Published:
    return publisher.publish(cells(states), np.array(areas or [1] * len(states)), now=NOW + tick, newest_arrival=NOW + tick)


def test_first_message_is_a_snapshot_then_deltas_of_what_changed(client: redis.Redis) -> None:
    publisher = stream.FramePublisher(client)
    assert publish(publisher, [0, 0, 0], 0).rows == 3
    assert publish(publisher, [0, 2, 0], 1).rows == 1
    assert publish(publisher, [0, 2, 0], 2).rows == 0
    entries: Any = client.xrange(stream.area_key(1))
    kinds = [frames.decode(entry[b"f"])[0].kind for _, entry in entries]
    assert kinds == [frames.SNAPSHOT, frames.DELTA, frames.DELTA]
    assert states_of(client) == [0, 2, 0]


def test_a_snapshot_is_kept_each_ten_seconds_and_with_its_deltas_equals_what_was_published(client: redis.Redis) -> None:
    publisher = stream.FramePublisher(client)
    for tick in range(15):
        publish(publisher, [tick % 5, (tick + 1) % 5], tick)
    stored, _ = frames.decode(client.get(stream.snapshot_key(1)))  # type: ignore[arg-type]
    assert stored.made_at == NOW + 10
    assert states_of(client) == [14 % 5, 15 % 5]


def test_each_area_has_its_own_frames(client: redis.Redis) -> None:
    publisher = stream.FramePublisher(client)
    publish(publisher, [0, 1, 2], 0, areas=[4, 5, 4])
    assert states_of(client, 4) == [0, 2]
    assert states_of(client, 5) == [1]


def test_a_site_that_left_makes_a_snapshot(client: redis.Redis) -> None:
    publisher = stream.FramePublisher(client)
    publish(publisher, [0, 0, 0], 0)
    publish(publisher, [0, 0], 1)
    assert states_of(client) == [0, 0]


def test_small_moves_of_values_stay_at_home_and_states_never(client: redis.Redis) -> None:
    before = cells([0, 0, 0, 0, 0])
    after = cells([0, 0, 0, 0, 1], utilization_ratio=[0.505, 0.52, np.nan, 0.5, 0.5], power_watts=[705.0, 700.0, 700.0, 720.0, 700.0], contact=[NOW + 9] * 5)
    assert stream.worth_sending(before, after, turn=77).tolist() == [False, True, True, True, True]
    later = cells([0] * 5, contact=[NOW + 40] * 5)
    assert stream.worth_sending(before, later, turn=3).tolist() == [False, False, True, False, False]
    assert stream.worth_sending(before, cells([0] * 5, contact=[np.nan] * 5), turn=77).all()


def test_redis_away_drops_and_the_next_message_heals(tmp_path: Path) -> None:
    server = Redis(tmp_path / "redis")
    server.start()
    client = redis.Redis(port=server.port, socket_timeout=1, retry=Retry(NoBackoff(), 0))
    publisher = stream.FramePublisher(client)
    try:
        assert publish(publisher, [0, 0], 0).sent is True
        server.stop()
        assert publish(publisher, [0, 1], 1).sent is False
        assert stream.publish_details(client, [("A", {"at": 1})]) is False
        assert stream.watched_sites(client, NOW) == set()
        server.start()
        assert publish(publisher, [0, 3], 2).sent is True
        assert states_of(client) == [0, 3]
    finally:
        server.stop()
        client.close()


def test_sequences_rise_over_a_restart(client: redis.Redis) -> None:
    publish(stream.FramePublisher(client), [0], 0)
    first = stream.read_area(client, 1)
    publish(stream.FramePublisher(client), [1], 20)
    second = stream.read_area(client, 1)
    assert first is not None
    assert second is not None
    assert second.seq > first.seq
    assert states_of(client) == [1]


def test_a_poller_gets_the_deltas_after_its_sequence_or_nothing(client: redis.Redis) -> None:
    publisher = stream.FramePublisher(client)
    for tick in range(4):
        publish(publisher, [tick], tick)
    newest = stream.read_area(client, 1)
    assert newest is not None
    since = stream.frames_since(client, 1, newest.seq - 2)
    assert since is not None
    assert [frame.seq for frame in since] == [newest.seq - 1, newest.seq]
    assert stream.frames_since(client, 1, newest.seq) == []
    assert stream.frames_since(client, 1, newest.seq - 90) is None


def test_values_that_are_not_numbers_become_null(client: redis.Redis) -> None:
    stream.publish_details(client, [("A", {"at": 1.5, "gpus": {"GPU-1": {"power_watts": np.float64("nan"), "xid": np.float64(79)}}})])
    [(_, entry)] = client.xrange(stream.DETAIL_KEY)  # type: ignore[misc]
    assert entry == {b"s": b"A", b"d": b'{"at":1.5,"gpus":{"GPU-1":{"power_watts":null,"xid":79.0}}}'}


def test_watched_sites_end_by_themselves(client: redis.Redis) -> None:
    client.zadd(stream.WATCH_KEY, {"site:A": NOW + 5, "site:B": NOW - 5})
    assert stream.watched_sites(client, NOW) == {"A"}
