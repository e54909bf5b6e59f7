"""The hub of a web process: one reader of Redis' streams, the newest state of each area, and the viewers it is handed to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Collection
from datetime import UTC, datetime
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import redis.asyncio
import structlog
from django.conf import settings
from django.db import Error as DatabaseError
from redis.exceptions import RedisError

from console.access import Access
from console.live import metrics
from console.live.database import in_database
from console.live.identity import check
from console.live.scopes import Group, RegionKey, RegionScope, load_scope, region_key
from console.live.viewer import DATABASE_AWAY, Viewer, text_message
from fleet import frames, stream
from fleet.models import Area

log = structlog.get_logger(__name__)

BEAT_SECONDS = 5.0
RECHECK_SECONDS = 3.0
RESTART_SECONDS = 1.0
# Frames of one tick arrive within moments of each other; they leave as one message.
GATHER_SECONDS = 0.03
# Longer than this without an answer of the database nobody can be checked, so nobody stays.
UNCHECKED_SECONDS = 60.0
SCOPE_SECONDS = 10.0


class LiveHub:
    """Runs while it has viewers. One per event loop; everything but the database happens on that loop."""

    def __init__(self, *, beat_seconds: float = BEAT_SECONDS, recheck_seconds: float = RECHECK_SECONDS) -> None:
        self.viewers: set[Viewer] = set()
        self._beat_seconds = beat_seconds
        self._recheck_seconds = recheck_seconds
        self._groups: dict[tuple[RegionKey, frozenset[int] | None], Group] = {}
        self._scopes: dict[RegionKey, tuple[float, RegionScope]] = {}
        self._wholes: dict[int, frames.Frame] = {}
        self._scope_locks: dict[RegionKey, asyncio.Lock] = {}
        self._area_ids: list[int] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._client: redis.asyncio.Redis | None = None
        self._suspects: set[int] = set()
        self._checked_at = time.monotonic()  # when everybody was last found to be allowed here
        self._suspected = asyncio.Event()
        self._ready = asyncio.Event()

    # Viewers come and go

    async def add(self, viewer: Viewer) -> None:
        self.viewers.add(viewer)
        metrics.SOCKETS.set(len(self.viewers))
        if not self._tasks:
            self._start()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ready.wait(), 2)
        await self._greet(viewer)

    def remove(self, viewer: Viewer) -> None:
        self.viewers.discard(viewer)
        self._leave_group(viewer)
        metrics.SOCKETS.set(len(self.viewers))
        if not self.viewers:
            self._stop()

    async def subscribe(self, viewer: Viewer, areas: frozenset[int] | None) -> None:
        """Send snapshots of these areas (None: all of the scope), then their deltas."""
        viewer.areas = areas
        viewer.subscribed = True
        await self._join_group(viewer)

    def resync(self, viewer: Viewer, area_id: int) -> None:
        group = self._groups.get(_group_key(viewer))
        if group is not None and viewer in group.viewers and (whole := self._wholes.get(area_id)) is not None:
            for message in group.snapshots([whole]):
                viewer.offer(message)

    def snapshot(self, viewer: Viewer) -> list[dict[str, Any]]:
        """What is owed to a viewer that fell behind."""
        group = self._groups.get(_group_key(viewer))
        return group.snapshots(self._wholes.values()) if group is not None and viewer in group.viewers else []

    async def _greet(self, viewer: Viewer) -> None:
        scope = await self._scope(region_key(viewer.access))
        regions = viewer.access.region_ids
        viewer.offer_json(
            {"op": "hello", "areas": sorted(scope.area_ids), "scope": "fleet" if regions is None else {"regions": regions}, "version": settings.VERSION}
        )

    async def _join_group(self, viewer: Viewer) -> None:
        scope = await self._scope(region_key(viewer.access))
        self._leave_group(viewer)
        if viewer not in self.viewers:
            return
        key = _group_key(viewer)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(scope=scope, chosen=viewer.areas)
        for message in group.snapshots(self._wholes.values()):
            viewer.offer(message)
        group.viewers.add(viewer)

    def _leave_group(self, viewer: Viewer) -> None:
        for key, group in list(self._groups.items()):
            group.viewers.discard(viewer)
            if not group.viewers:
                del self._groups[key]

    async def _scope(self, key: RegionKey) -> RegionScope:
        """The scope of these regions, at most `SCOPE_SECONDS` old; many who ask at once wait for one answer."""
        async with self._scope_locks.setdefault(key, asyncio.Lock()):
            at, scope = self._scopes.get(key, (float("-inf"), None))
            if scope is None or time.monotonic() - at > SCOPE_SECONDS:
                scope = await in_database(load_scope)(key)
                self._scopes[key] = (time.monotonic(), scope)
            return scope

    # Life of the hub

    def _start(self) -> None:
        self._ready.clear()
        self._checked_at = time.monotonic()
        self._tasks = [
            asyncio.create_task(self._forever(work, name)) for work, name in ((self._read, "read"), (self._beat, "beat"), (self._recheck, "recheck"))
        ]

    async def _forever(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        """Keep one of our tasks alive: whatever ended it is logged, and after a pause it starts anew."""
        while True:
            try:
                await work()
            except (RedisError, OSError, frames.FrameError, DatabaseError) as error:
                log.warning("live_task_interrupted", task=name, error=str(error))
            except Exception:
                log.exception("live_task_failed", task=name)
            metrics.INTERRUPTIONS.inc()
            self._ready.set()
            await asyncio.sleep(RESTART_SECONDS)

    def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks = []
        self._groups.clear()
        self._scopes.clear()
        self._scope_locks.clear()
        self._wholes.clear()

    # Frames, details, notices

    async def _read(self) -> None:
        # `block` below is shorter than this timeout; no timeout at all would hang on a dead peer.
        client = redis.asyncio.Redis.from_url(settings.REDIS_URL, socket_timeout=5, socket_connect_timeout=2, protocol=2)
        self._client = client
        try:
            await self._read_streams(client)
        finally:
            self._client = None
            with contextlib.suppress(RedisError, OSError):
                await client.aclose()

    async def _read_streams(self, client: redis.asyncio.Redis) -> None:
        """Catch up from the stored snapshots and what the streams still hold, then relay until something breaks."""
        positions: dict[str, str] = {}
        now = f"{int(time.time() * 1000)}-0"
        for key in (stream.DETAIL_KEY, stream.NOTICE_KEY, stream.ACCESS_KEY):
            last: Any = await client.xrevrange(key, count=1)
            positions[key] = last[0][0].decode() if last else now
        self._area_ids = await in_database(_area_ids)()
        looked_at = time.monotonic()
        await self._load_snapshots(client, self._area_ids)
        positions.update({stream.area_key(area_id): "0" for area_id in self._area_ids})
        first = True
        while True:
            answer: Any = await client.xread(positions, block=None if first else 1000)  # type: ignore[arg-type]
            if answer and not first:
                await asyncio.sleep(GATHER_SECONDS)
                _move(positions, answer)
                answer = [*answer, *(await client.xread(positions) or [])]  # type: ignore[arg-type]
            if answer:
                _move(positions, answer)
                await self._relay(client, answer)
            first = False
            self._ready.set()
            if time.monotonic() - looked_at > SCOPE_SECONDS:
                looked_at = time.monotonic()
                for area_id in await self._renew_scopes():
                    positions[stream.area_key(area_id)] = "0"

    async def _load_snapshots(self, client: redis.asyncio.Redis, area_ids: Collection[int]) -> None:
        for area_id in area_ids:
            stored = await client.get(stream.snapshot_key(area_id))
            if isinstance(stored, bytes):
                frame, _ = frames.decode(stored)
                newest = stream.advance(self._wholes.get(area_id), frame)
                if newest is not None:
                    self._wholes[area_id] = newest

    async def _relay(self, client: redis.asyncio.Redis, answer: list[Any]) -> None:
        arrived: list[tuple[frames.Frame, bytes]] = []
        broken: set[int] = set()
        for raw_key, entries in answer:
            key = raw_key.decode()
            for _, entry in entries:
                if key == stream.DETAIL_KEY:
                    self._detail(entry[b"s"].decode(), entry[b"d"])
                elif key == stream.NOTICE_KEY:
                    self._notice(entry[b"d"])
                elif key == stream.ACCESS_KEY:
                    self._suspects.add(int(entry[b"u"]))
                    self._suspected.set()
                else:
                    self._take(entry[b"f"], arrived, broken)
        if broken:
            await self._load_snapshots(client, broken)
            arrived = [item for item in arrived if item[0].area_id not in broken]
            arrived += [(whole, frames.encode(whole)) for area_id in broken if (whole := self._wholes.get(area_id)) is not None]
        if arrived:
            for group in self._groups.values():
                group.deliver(arrived)
            metrics.TICKS.inc()

    def _take(self, data: bytes, arrived: list[tuple[frames.Frame, bytes]], broken: set[int]) -> None:
        frame, _ = frames.decode(data)
        before = self._wholes.get(frame.area_id)
        after = stream.advance(before, frame)
        if after is before:
            if before is None:
                broken.add(frame.area_id)
            return
        if after is None:  # we missed something ourselves
            del self._wholes[frame.area_id]
            broken.add(frame.area_id)
            return
        self._wholes[frame.area_id] = after
        arrived.append((frame, data))

    def _detail(self, code: str, data: bytes) -> None:
        message: dict[str, Any] | None = None
        for viewer in self.viewers:
            if code in viewer.watching:
                message = message or text_message({"op": "detail", "site": code, **json.loads(data)})
                viewer.offer(message)

    def _notice(self, data: bytes) -> None:
        notice = json.loads(data)
        message = text_message({"op": "notice", **notice})
        for viewer in self.viewers:
            if _may_hear(viewer.access, notice):
                viewer.offer(message)

    # Beats and watched sites

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._beat_seconds)
            now = time.time()
            for group in self._groups.values():
                seq = {area_id: whole.seq for area_id, whole in self._wholes.items() if area_id in group.area_ids}
                message = text_message({"op": "beat", "seq": seq, "at": now})
                for viewer in group.viewers:
                    viewer.offer(message)
            for viewer in self.viewers:
                if not viewer.subscribed:
                    viewer.offer_json({"op": "beat", "seq": {}, "at": now})
            await self.refresh_watch()

    async def refresh_watch(self) -> None:
        watched = {code for viewer in self.viewers for code in viewer.watching}
        if watched and self._client is not None:
            until = time.time() + stream.WATCH_SECONDS
            with contextlib.suppress(RedisError, OSError):
                await self._client.zadd(stream.WATCH_KEY, {f"site:{code}": until for code in watched})

    # Who may stay

    async def _recheck(self) -> None:
        """Suspects at once; everybody by a clock of its own, so that no stream of suspects puts it off."""
        due = time.monotonic() + self._recheck_seconds
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._suspected.wait(), max(0.0, due - time.monotonic()))
            self._suspected.clear()
            suspects, self._suspects = self._suspects, set()
            everybody = time.monotonic() >= due
            if everybody:
                due = time.monotonic() + self._recheck_seconds
            viewers = [viewer for viewer in self.viewers if everybody or viewer.identity.user_id in suspects]
            try:
                if viewers:
                    found = await in_database(check)({viewer.identity for viewer in viewers}, now=datetime.now(UTC))
                    await self._apply(viewers, found)
            except DatabaseError as error:
                log.warning("live_recheck_failed", error=str(error))
                if time.monotonic() - self._checked_at > UNCHECKED_SECONDS:
                    for viewer in self.viewers:
                        viewer.close("cannot check who you are: the database does not answer", DATABASE_AWAY)
                continue
            if everybody:
                self._checked_at = time.monotonic()

    async def _apply(self, viewers: list[Viewer], found: Any) -> None:
        for viewer in viewers:
            access: Access | None = found[viewer.identity]
            if access is None:
                viewer.close("signed out")
            elif not access.is_operator_side:
                viewer.close("no access", 4403)
            elif access != viewer.access:
                narrowed = region_key(access) != region_key(viewer.access)
                viewer.access = access
                if narrowed:
                    viewer.watching = {code: region for code, region in viewer.watching.items() if _sees(access, region)}
                    self._leave_group(viewer)
                    await self._greet(viewer)
                    if viewer.subscribed:
                        await self._join_group(viewer)

    async def _renew_scopes(self) -> list[int]:
        """Read the sites of each scope in use anew; returns areas that are new."""
        try:
            for (regions, _), group in list(self._groups.items()):
                before = group.scope
                group.renew(await self._scope(regions))
                if not _same_scope(before, group.scope):
                    for message in group.snapshots(self._wholes.values()):
                        for viewer in group.viewers:
                            viewer.offer(message)
            area_ids = await in_database(_area_ids)()
        except DatabaseError as error:
            log.warning("live_scopes_not_renewed", error=str(error))
            return []
        new = [area_id for area_id in area_ids if area_id not in self._area_ids]
        self._area_ids = area_ids
        return new


_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, LiveHub] = WeakKeyDictionary()


def hub_of_this_loop() -> LiveHub:
    loop = asyncio.get_running_loop()
    hub = _hubs.get(loop)
    if hub is None:
        hub = _hubs[loop] = LiveHub()
    return hub


def _area_ids() -> list[int]:
    return list(Area.objects.order_by("pk").values_list("pk", flat=True))


def _group_key(viewer: Viewer) -> tuple[RegionKey, frozenset[int] | None]:
    return region_key(viewer.access), viewer.areas


def _move(positions: dict[str, str], answer: list[Any]) -> None:
    for key, entries in answer:
        if entries:
            positions[key.decode()] = entries[-1][0].decode()


def _sees(access: Access, region_id: int) -> bool:
    return access.region_ids is None or region_id in access.region_ids


def _may_hear(access: Access, notice: dict[str, Any]) -> bool:
    if notice.get("user_id") is not None:
        return bool(notice["user_id"] == access.user_id)
    if notice.get("region_id") is None:
        return access.region_ids is None
    return _sees(access, notice["region_id"])


def _same_scope(before: RegionScope, after: RegionScope) -> bool:
    if before.area_ids != after.area_ids or (before.site_ids is None) != (after.site_ids is None):
        return False
    return before.site_ids is None or after.site_ids is None or np.array_equal(before.site_ids, after.site_ids)
