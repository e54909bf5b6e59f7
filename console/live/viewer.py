"""One open socket: what waits to be sent to it, in bounds."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from console.access import Access
from console.live.identity import Identity

Send = Callable[[dict[str, Any]], Awaitable[None]]

QUEUE_LIMIT = 16
# The close code that says: come again, the database does not answer now.
DATABASE_AWAY = 4503


class Viewer:
    """A socket and its queue. Whoever reads too slowly loses the queue and gets one snapshot instead."""

    def __init__(self, identity: Identity, access: Access, send: Send) -> None:
        self.identity = identity
        self.access = access
        self.areas: frozenset[int] | None = None  # None: all that the scope holds
        self.watching: dict[str, int] = {}  # site code -> region id
        self.subscribed = False
        self.resyncs = 0
        self._send = send
        self._queue: deque[dict[str, Any]] = deque()
        self._behind = False
        self._bye: tuple[int, str] | None = None
        self._wake: asyncio.Future[None] | None = None

    def offer(self, message: dict[str, Any]) -> None:
        """Queue an ASGI message (shared between viewers: never changed). Over the limit everything queued is dropped and a snapshot owed."""
        if self._behind or self._bye:
            return
        if len(self._queue) >= QUEUE_LIMIT:
            self._queue.clear()
            self._behind = True
            self.resyncs += 1
        else:
            self._queue.append(message)
        self._rouse()

    def offer_json(self, content: dict[str, Any]) -> None:
        self.offer(text_message(content))

    def close(self, reason: str, code: int = 4401) -> None:
        """Say why and close; what still waits is not sent."""
        self._queue.clear()
        self._bye = (code, reason)
        self._rouse()

    async def run(self, snapshot: Callable[[Viewer], list[dict[str, Any]]]) -> None:
        """Send what waits until the socket is closed. `snapshot` makes the messages owed to a viewer that fell behind."""
        while True:
            if self._bye:
                code, reason = self._bye
                await self._send(text_message({"op": "bye", "reason": reason}))
                await self._send({"type": "websocket.close", "code": code, "reason": reason})
                return
            if self._behind:
                self._behind = False
                self._queue.extend(snapshot(self))
            if self._queue:
                await self._send(self._queue.popleft())
                continue
            self._wake = asyncio.get_running_loop().create_future()
            try:
                await self._wake
            finally:
                self._wake = None

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


def text_message(content: dict[str, Any]) -> dict[str, Any]:
    return {"type": "websocket.send", "text": json.dumps(content, separators=(",", ":"))}


def bytes_message(data: bytes) -> dict[str, Any]:
    return {"type": "websocket.send", "bytes": data}
