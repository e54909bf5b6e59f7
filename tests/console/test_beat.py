"""One beat schedules at a time, whatever happens to Redis."""

import threading
from collections.abc import Iterator

import pytest
import redis
from django.conf import settings

from console.beat import LOCK_KEY, BeatLock
from console.celery import app


@pytest.fixture
def client() -> Iterator["redis.Redis"]:
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        client.delete(LOCK_KEY)
        yield client
        client.delete(LOCK_KEY)


def test_only_one_holds_the_lock(client: "redis.Redis") -> None:
    first, second = BeatLock(client), BeatLock(client)
    assert first.acquire(stop=threading.Event())
    assert not second.renew()
    assert first.renew()


def test_a_released_lock_is_taken_over(client: "redis.Redis") -> None:
    first, second = BeatLock(client), BeatLock(client)
    assert first.renew()
    second.release()
    assert not second.renew()
    first.release()
    assert second.renew()


def test_a_lock_that_redis_lost_is_taken_again(client: "redis.Redis") -> None:
    lock = BeatLock(client)
    assert lock.renew()
    client.flushdb()
    assert lock.renew()
    assert 0 < client.ttl(LOCK_KEY) <= 10


def test_waiting_ends_when_told_to_stop(client: "redis.Redis") -> None:
    assert BeatLock(client).renew()
    stop = threading.Event()
    stop.set()
    assert not BeatLock(client).acquire(stop=stop)


def test_every_entry_of_the_schedule_names_a_task_that_exists() -> None:
    app.loader.import_default_modules()
    for name, entry in app.conf.beat_schedule.items():
        assert entry["task"] in app.tasks, f"{name}: {entry['task']} is no task"
