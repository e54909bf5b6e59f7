"""A client of the live socket for tests: the real ASGI application, real Redis, the frames put together as the browser does."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from asgiref.sync import sync_to_async
from channels.testing import WebsocketCommunicator
from django.conf import settings
from django.test import Client

from console.asgi import application
from console.models import User
from fleet import frames, stream
from fleet.models import Site

ORIGIN = "http://localhost:8000"
NOW = 1_763_632_800.0


def session_cookie(user: User) -> str:
    client = Client()
    client.force_login(user)
    return str(client.cookies[settings.SESSION_COOKIE_NAME].value)


def headers(*, cookie: str | None = None, origin: str | None = ORIGIN, token: str | None = None) -> list[tuple[bytes, bytes]]:
    made = [(b"host", b"localhost:8000")]
    if origin is not None:
        made.append((b"origin", origin.encode()))
    if cookie is not None:
        made.append((b"cookie", f"{settings.SESSION_COOKIE_NAME}={cookie}".encode()))
    if token is not None:
        made.append((b"authorization", f"Bearer {token}".encode()))
    return made


class Page:
    """What a browser page would know: the cells by site id, the messages that came, whether the socket is open."""

    def __init__(self, given: list[tuple[bytes, bytes]]) -> None:
        self.socket = WebsocketCommunicator(application, "/live/", headers=given)
        self.cells: dict[int, int] = {}
        self.wholes: dict[int, frames.Frame] = {}
        self.messages: list[dict[str, Any]] = []
        self.closed_with: int | None = None

    async def open(self) -> bool:
        connected, _ = await self.socket.connect(timeout=5)
        return bool(connected)

    async def send(self, **content: Any) -> None:
        await self.socket.send_to(text_data=json.dumps(content))

    async def until(self, wanted: Callable[[Page], bool], seconds: float = 5) -> bool:
        """Read until `wanted` holds; False when time ran out."""
        deadline = time.monotonic() + seconds
        while not wanted(self):
            left = deadline - time.monotonic()
            if left <= 0 or not await self._read(left):
                return wanted(self)
        return True

    async def until_notice(self, kind: str, seconds: float = 5) -> bool:
        return await self.until(lambda page: any(message.get("type") == kind for message in page.messages), seconds)

    async def _read(self, seconds: float) -> bool:
        if self.closed_with is not None:
            return False
        if self.socket.output_queue.empty():
            try:
                event = await asyncio.wait_for(self.socket.output_queue.get(), seconds)
            except TimeoutError:
                return False
        else:
            event = self.socket.output_queue.get_nowait()
        if event["type"] == "websocket.close":
            self.closed_with = event["code"]
        elif event.get("bytes") is not None:
            for frame in frames.decode_all(event["bytes"]):
                whole = stream.advance(self.wholes.get(frame.area_id), frame)
                assert whole is not None, "a gap"
                self.wholes[frame.area_id] = whole
                self.cells.update(zip(frame.columns.site_id.tolist(), frame.columns.state.tolist(), strict=True))
        else:
            self.messages.append(json.loads(event["text"]))
        return True

    def last(self, op: str) -> dict[str, Any] | None:
        return next((message for message in reversed(self.messages) if message["op"] == op), None)

    async def close(self) -> None:
        await self.socket.disconnect(timeout=5)


class Telemetry:
    """Publishes states of sites as the telemetry process does."""

    def __init__(self) -> None:
        self.publisher = stream.FramePublisher(stream.connect())
        self.tick = 0

    async def publish(self, states: dict[int, int]) -> None:
        """`states`: site id -> state number, all sites each time."""
        await sync_to_async(self._publish)(states)

    def _publish(self, states: dict[int, int]) -> None:
        self.tick += 1
        ids = sorted(states)
        areas = dict(Site.objects.values_list("pk", "region__area_id"))
        count = len(ids)
        cells = frames.columns(
            site_id=ids,
            state=[states[one] for one in ids],
            flags=[0] * count,
            gpus_reporting=[1] * count,
            gpus_expected=[1] * count,
            utilization_ratio=[0.5] * count,
            power_watts=[300.0] * count,
            since=[NOW] * count,
            contact=[NOW] * count,
        )
        now = time.time() + self.tick
        self.publisher.publish(cells, np.array([areas[one] for one in ids]), now=now, newest_arrival=now)
