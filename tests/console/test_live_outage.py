"""The live socket through outages of Redis and PostgreSQL, and while access changes all the time: it heals by itself, and nobody stays who may not."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from asgiref.sync import sync_to_async
from django.contrib.sessions.models import Session
from django.db import connection
from prometheus_client import REGISTRY

from console.live import database
from fleet import frames, stream
from fleet.agents.store import close_connections
from tests.builders import make_site, make_user
from tests.console.live_support import ORIGIN, Page, Telemetry, headers, session_cookie
from tests.tcp_door import TcpDoor

OK, DOWN = frames.STATE_NUMBERS["ok"], frames.STATE_NUMBERS["down"]
THREADS = 2
pytestmark = pytest.mark.django_db(transaction=True)


@dataclass
class Doors:
    redis: TcpDoor
    postgres: TcpDoor
    telemetry: Telemetry


@pytest.fixture
async def doors(settings: Any) -> AsyncIterator[Doors]:
    """Doors between the sockets and their servers; the test's own connections go past them."""
    settings.ORIGINS = [ORIGIN]
    redis_url, held = urlsplit(settings.REDIS_URL), connection.settings_dict
    client = stream.connect()
    await sync_to_async(stream.publish_access_changed)(0)  # the process' shared client is made before the door
    client.flushdb()
    made = Doors(TcpDoor(redis_url.port or 6379), TcpDoor(int(held["PORT"])), Telemetry())
    direct = held["PORT"]
    await sync_to_async(lambda: connection.ensure_connection())()
    await close_connections(database._threads, threads=THREADS)
    settings.REDIS_URL = f"redis://127.0.0.1:{made.redis.port}{redis_url.path}"
    held["PORT"] = str(made.postgres.port)
    yield made
    held["PORT"] = direct
    await sync_to_async(lambda: connection.close())()
    await close_connections(database._threads, threads=THREADS)
    made.redis.close()
    made.postgres.close()
    client.flushdb()
    client.close()


@sync_to_async
def cast() -> dict[str, Any]:
    viewer = make_user(role="viewer")
    return {"site": make_site().pk, "cookie": session_cookie(viewer), "viewer": viewer, "other": session_cookie(make_user("other", role="viewer"))}


def interruptions() -> float:
    return REGISTRY.get_sample_value("masthead_live_interruptions_total") or 0


async def eventually(holds: Callable[[], bool], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if holds():
            return True
        await asyncio.sleep(0.02)
    return False


async def test_frames_come_again_after_redis_and_postgresql_were_both_away(doors: Doors) -> None:
    made = await cast()
    site = made["site"]
    await doors.telemetry.publish({site: OK})
    page = Page(headers(cookie=made["cookie"]))
    assert await page.open()
    await page.send(op="subscribe", areas="all")
    assert await page.until(lambda page: page.cells == {site: OK})
    before = interruptions()
    doors.postgres.shut()
    doors.redis.shut()
    assert await eventually(lambda: interruptions() > before)
    doors.redis.reopen()
    # Redis answers again, PostgreSQL does not: the reader has to come through this more than once.
    before = interruptions()
    assert await eventually(lambda: interruptions() >= before + 2)
    doors.postgres.reopen()
    await doors.telemetry.publish({site: DOWN})
    assert await page.until(lambda page: page.cells == {site: DOWN}, 10)
    await page.close()


async def test_a_socket_says_that_the_database_is_away_and_opens_none_meanwhile(doors: Doors) -> None:
    made = await cast()
    page = Page(headers(cookie=made["cookie"]))
    assert await page.open()
    assert await page.until(lambda page: page.last("hello") is not None)
    doors.postgres.shut()
    await page.send(op="watch", site="SITE")
    assert await page.until(lambda page: page.closed_with == 4503)
    assert not await Page(headers(cookie=made["cookie"])).open()
    doors.postgres.reopen()
    again = Page(headers(cookie=made["cookie"]))
    assert await again.open()
    await again.close()


async def test_a_task_that_fails_starts_anew(doors: Doors) -> None:
    """A notice that is none is a fault of whoever wrote it, not the end of all pages."""
    made = await cast()
    site = made["site"]
    await doors.telemetry.publish({site: OK})
    page = Page(headers(cookie=made["cookie"]))
    assert await page.open()
    await page.send(op="subscribe", areas="all")
    assert await page.until(lambda page: page.cells == {site: OK})
    client = stream.connect()
    await sync_to_async(client.xadd)(stream.NOTICE_KEY, {"d": "no JSON"})
    await sync_to_async(client.xadd)(stream.NOTICE_KEY, {"x": "no notice"})
    client.close()
    await doors.telemetry.publish({site: DOWN})
    assert await page.until(lambda page: page.cells == {site: DOWN}, 10)
    await page.close()


async def test_c42_an_expired_session_ends_its_socket_while_others_access_changes_all_the_time(doors: Doors) -> None:
    made = await cast()
    page, other = Page(headers(cookie=made["cookie"])), Page(headers(cookie=made["other"]))
    assert await page.open()
    assert await other.open()
    await sync_to_async(Session.objects.filter(session_key=made["cookie"]).update)(expire_date=datetime.now(UTC) - timedelta(seconds=1))
    busy = True

    async def change() -> None:
        other_user = await sync_to_async(lambda: type(made["viewer"]).objects.get(username="other").pk)()
        while busy:
            await sync_to_async(stream.publish_access_changed)(other_user)
            await asyncio.sleep(0.2)

    changing = asyncio.create_task(change())
    assert await page.until(lambda page: page.closed_with == 4401, 6)
    busy = False
    await changing
    await other.close()
