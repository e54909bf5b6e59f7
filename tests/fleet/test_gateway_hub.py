"""The gateway's hub in this process, with a clock that the test turns and a door before PostgreSQL: a revoked key keeps no socket, however long PostgreSQL was away."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
import redis
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connection

from agent.protocol import CloseCode, Heartbeat, SignedSwitch
from fleet.agents.hub import Hub
from fleet.agents.session import Event, Session
from fleet.control.desired_state import WAKE_KEY
from fleet.control.switches import Relayed
from fleet.models import AgentConnection, AgentIdentity, Node
from tests.builders import T0, make_node
from tests.tcp_door import TcpDoor

pytestmark = pytest.mark.django_db(transaction=True)


class Clock:
    def __init__(self) -> None:
        self.now = T0

    def __call__(self) -> float:
        return self.now.timestamp()


class Socket:
    """One agent's end: what was sent to it."""

    def __init__(self) -> None:
        self.sent: list[Event] = []

    async def receive(self) -> Event:
        return {"type": "websocket.disconnect"}

    async def send(self, event: Event) -> None:
        self.sent.append(event)

    @property
    def closed_with(self) -> int | None:
        return next((event["code"] for event in self.sent if event["type"] == "websocket.close"), None)


@pytest.fixture
async def door() -> AsyncIterator[TcpDoor]:
    """Before PostgreSQL; the connections of the test itself, which are open already, go past it."""
    held = connection.settings_dict
    await sync_to_async(lambda: connection.ensure_connection())()
    direct, made = held["PORT"], TcpDoor(int(held["PORT"]))
    held["PORT"] = str(made.port)
    yield made
    held["PORT"] = direct
    await sync_to_async(lambda: connection.close())()
    made.close()


@pytest.fixture
async def hub(door: TcpDoor) -> AsyncIterator[Hub]:
    made = Hub(redis_url=settings.REDIS_URL, heartbeat_seconds=1000, clock=Clock())
    # Only the loops under test: then it is the check that found PostgreSQL away.
    made._tasks = [asyncio.create_task(made._forever(loop)) for loop in (made._check_loop, made._wake_loop)]
    yield made
    door.reopen()
    await made.stop()


async def eventually(holds: Callable[[], Any], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if holds():
            return True
        await asyncio.sleep(0.02)
    return False


async def fails_again(hub: Hub) -> bool:
    """A whole pass that began after now has found PostgreSQL away."""
    for _ in range(2):
        hub.database_away = False
        if not await eventually(lambda: hub.database_away):
            return False
    return True


async def joined(hub: Hub, key: bytes) -> tuple[Session, Socket]:
    """A node whose key was accepted."""
    node = await sync_to_async(make_node)()
    await AgentIdentity.objects.acreate(node=node, public_key=key, enrolled_at=T0)
    socket = Socket()
    session = Session(hub, socket.receive, socket.send)
    session.node_id, session.key = node.pk, key
    session.touch()
    await hub.joined(session, "1")
    return session, socket


async def test_a_revocation_during_a_long_outage_closes_the_socket(hub: Hub, door: TcpDoor) -> None:
    _, socket = await joined(hub, b"a" * 32)
    _, other = await joined(hub, b"b" * 32)
    door.shut()
    assert await eventually(lambda: hub.database_away)
    revoked_at = T0 + timedelta(minutes=1)
    await AgentIdentity.objects.filter(public_key=b"a" * 32).aupdate(revoked_at=revoked_at)
    hub.clock.now = T0 + timedelta(hours=1)  # type: ignore[attr-defined]
    assert await fails_again(hub)
    door.reopen()
    assert await eventually(lambda: socket.closed_with == CloseCode.REVOKED)
    assert json.loads(socket.sent[0]["text"])["type"] == "refusal"
    assert other.closed_with is None


async def test_a_wake_during_an_outage_is_not_forgotten(hub: Hub, door: TcpDoor) -> None:
    """Revoked by a process whose clock is far behind: only the wake tells."""
    session, socket = await joined(hub, b"a" * 32)
    door.shut()
    assert await eventually(lambda: hub.database_away)
    await AgentIdentity.objects.filter(public_key=b"a" * 32).aupdate(revoked_at=datetime(2026, 1, 1, tzinfo=UTC))
    client = redis.Redis.from_url(settings.REDIS_URL)
    await sync_to_async(client.xadd)(WAKE_KEY, {"n": session.node_id})
    client.close()
    assert await fails_again(hub)
    door.reopen()
    assert await eventually(lambda: socket.closed_with == CloseCode.REVOKED)


class StuckSocket(Socket):
    """An agent that reads nothing."""

    async def send(self, event: Event) -> None:
        await asyncio.Event().wait()


async def test_an_agent_that_does_not_read_holds_up_nobody_elses_switch(hub: Hub) -> None:
    others = [(await joined(hub, bytes([number]) * 32))[1] for number in range(3)]
    node = await sync_to_async(make_node)()
    stuck = StuckSocket()
    session = Session(hub, stuck.receive, stuck.send)
    session.node_id, session.key = node.pk, b"s" * 32
    hub.sessions[node.pk] = session
    signed = SignedSwitch(switch=str(uuid4()), version=1, body=b"{}", signature=b"0" * 64, key_id="k")
    relaying = asyncio.create_task(hub.courier._relay([Relayed("fleet", "", signed)], list(hub.sessions)))
    assert await eventually(lambda: all(socket.sent for socket in others))
    assert {event["text"] for socket in others for event in socket.sent} == {json.dumps(signed.to_json())}
    relaying.cancel()


async def test_a_node_is_written_when_its_boot_changes_and_not_with_every_heartbeat(hub: Hub) -> None:
    session, _ = await joined(hub, b"a" * 32)

    async def beat(boot_id: str) -> None:
        hub.heard(session, Heartbeat(at=T0.timestamp(), boot_id=boot_id, clock_offset_seconds=0.0, applied_version=1))
        await hub._flush()

    node = Node.objects.filter(pk=session.node_id)
    await beat("first")
    assert (await node.aget()).boot_id == "first"
    await node.aupdate(boot_id="as somebody else wrote it")
    await beat("first")
    assert (await node.aget()).boot_id == "as somebody else wrote it", "nothing new was to be written"
    await beat("second")
    assert (await node.aget()).boot_id == "second"
    assert (await AgentConnection.objects.aget(node_id=session.node_id)).heartbeat_at == T0
