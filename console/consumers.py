"""The socket of live pages, `/live/`: authorise, subscribe, relay."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from django.db import Error as DatabaseError

from console.access import Access
from console.live import metrics
from console.live.database import in_database
from console.live.hub import LiveHub, hub_of_this_loop
from console.live.identity import Identity, admit_session, admit_token, bearer_secret, may_knock, session_of
from console.live.viewer import DATABASE_AWAY, Send, Viewer

Receive = Callable[[], Awaitable[dict[str, Any]]]

MESSAGE_CHARACTERS = 16_384
# A page sends a handful of messages; more than this in one window is a fault or an attack.
MESSAGES_PER_WINDOW, WINDOW_SECONDS = 60, 10.0
WATCHED_SITES = 20
GOODBYE_SECONDS = 5.0


async def live_socket(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """ASGI application of one socket. Handshakes from other sites are refused before anything is looked up."""
    if scope["path"] != "/live/":
        await _refuse(receive, send, "path")
        return
    if not may_knock(scope["headers"]):
        await _refuse(receive, send, "origin")
        return
    try:
        admitted = await in_database(_admit)(scope)
    except DatabaseError:
        await _refuse(receive, send, "database away")
        return
    if admitted is None:
        await _refuse(receive, send, "signed out")
        return
    identity, access = admitted
    if not access.is_operator_side:
        await _refuse(receive, send, "no access")
        return
    await receive()
    await send({"type": "websocket.accept"})
    hub = hub_of_this_loop()
    viewer = Viewer(identity, access, send)
    sender = asyncio.create_task(viewer.run(hub.snapshot))
    try:
        await hub.add(viewer)
        await _serve(hub, viewer, receive, sender)
    except DatabaseError:
        viewer.close("the database does not answer", DATABASE_AWAY)
        with contextlib.suppress(TimeoutError, OSError):
            await asyncio.wait_for(asyncio.shield(sender), GOODBYE_SECONDS)
    finally:
        hub.remove(viewer)
        sender.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await sender


async def _serve(hub: LiveHub, viewer: Viewer, receive: Receive, sender: asyncio.Task[None]) -> None:
    """Obey messages until either side ends."""
    counted, window = 0, time.monotonic()
    while True:
        message = asyncio.ensure_future(receive())
        await asyncio.wait({message, sender}, return_when=asyncio.FIRST_COMPLETED)
        if not message.done():
            message.cancel()
            return
        event = message.result()
        if event["type"] == "websocket.disconnect" or sender.done():
            return
        if time.monotonic() - window > WINDOW_SECONDS:
            counted, window = 0, time.monotonic()
        counted += 1
        if counted > MESSAGES_PER_WINDOW:
            viewer.close("too many messages", 4429)
            continue
        await _obey(hub, viewer, event.get("text"))


async def _obey(hub: LiveHub, viewer: Viewer, text: str | None) -> None:
    """One message of a page. Nothing here changes anything but what this socket gets to see."""
    try:
        content = json.loads(text) if text and len(text) <= MESSAGE_CHARACTERS else None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        viewer.offer_json({"op": "error", "detail": "Send one JSON object as text."})
        return
    match content:
        case {"op": "subscribe", "areas": "all"}:
            await hub.subscribe(viewer, None)
        case {"op": "subscribe", "areas": list(areas)} if len(areas) <= 1000 and all(type(area) is int for area in areas):
            await hub.subscribe(viewer, frozenset(areas))
        case {"op": "resync", "area": int(area)}:
            metrics.RESYNCS.labels(by="client").inc()
            hub.resync(viewer, area)
        case {"op": "watch", "site": str(code)}:
            region_id = await in_database(_region_of)(viewer.access, code)
            if region_id is None:
                viewer.offer_json({"op": "error", "detail": "No such site.", "site": code})
            elif len(viewer.watching) >= WATCHED_SITES:
                viewer.offer_json({"op": "error", "detail": f"At most {WATCHED_SITES} sites at a time.", "site": code})
            else:
                viewer.watching[code] = region_id
                await hub.refresh_watch()
        case {"op": "unwatch", "site": str(code)}:
            viewer.watching.pop(code, None)
        case {"op": op}:
            viewer.offer_json({"op": "error", "detail": f"Unknown or malformed op {str(op)[:40]!r}."})
        case _:
            viewer.offer_json({"op": "error", "detail": "op: missing."})


def _admit(scope: dict[str, Any]) -> tuple[Identity, Access] | None:
    now = datetime.now(UTC)
    secret = bearer_secret(scope["headers"])
    return admit_token(secret, now=now) if secret else admit_session(session_of(scope["headers"]), now=now)


def _region_of(access: Access, code: str) -> int | None:
    return access.sites().filter(code=code).values_list("region_id", flat=True).first() if len(code) <= 40 and "\x00" not in code else None


async def _refuse(receive: Receive, send: Send, reason: str) -> None:
    """Answered with 403 by the server: the socket never opens."""
    metrics.REFUSED.labels(reason=reason).inc()
    await receive()
    await send({"type": "websocket.close", "code": 4403})
