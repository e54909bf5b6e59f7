"""The one door to live pages: frames, values of watched sites, notices, and who must be checked again.

All of it goes through Redis, which may vanish at any time: what cannot be sent is dropped and the next snapshot heals.
Keys and formats stand in `docs/architecture.md`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np
import redis
import structlog
from django.conf import settings
from numpy.typing import NDArray
from redis.backoff import NoBackoff
from redis.retry import Retry

from fleet import frames

log = structlog.get_logger(__name__)

WATCH_KEY = "live:watch"
DETAIL_KEY = "live:detail"
NOTICE_KEY = "live:notice"
ACCESS_KEY = "access:changed"

AREA_MAXLEN = 120
SNAPSHOT_SECONDS = 10
SNAPSHOT_EXPIRES_SECONDS = 60
WATCH_SECONDS = 15
# What moves less than this is not worth a message to every screen; the published value is off by at most this much.
UTILIZATION_STEP = 100  # of 10,000
POWER_STEP_RATIO = 0.02
# A new contact alone is worth a row when it is the site's turn: each once in this many seconds, spread evenly. A site that falls silent changes state and flags, and travels at once.
CONTACT_TURNS = 120


def area_key(area_id: int) -> str:
    return f"live:area:{area_id}"


def snapshot_key(area_id: int) -> str:
    return f"live:snapshot:{area_id}"


def connect() -> redis.Redis:
    """A client that gives up within a second instead of holding its caller."""
    return redis.Redis.from_url(settings.REDIS_URL, socket_timeout=1, socket_connect_timeout=1, retry=Retry(NoBackoff(), 0), protocol=2)


@cache
def _shared_client() -> redis.Redis:
    return connect()


@dataclass
class Published:
    """What one tick sent. `sent` is false when Redis was away."""

    sent: bool
    rows: int
    bytes: int


@dataclass
class _Area:
    columns: frames.SiteColumns
    seq: int
    behind: bool = True  # the stream's readers lack something: the next message is a whole snapshot
    snapshot_at: float = float("-inf")


class FramePublisher:
    """Turns the site columns of one telemetry process into frames, an area at a time. Call `publish` once a second.

    Not for several threads at once.
    """

    def __init__(self, client: redis.Redis | None = None) -> None:
        self._client = client if client is not None else connect()
        self._areas: dict[int, _Area] = {}
        self.dropped_total = 0
        self.rows_total = 0
        self.bytes_total = 0

    def publish(self, cells: frames.SiteColumns, area_ids: NDArray[np.integer[Any]], *, now: float, newest_arrival: float) -> Published:
        """Send what changed as one delta per area, and a snapshot per area each 10 s.

        `cells`: all sites of this process (`fleet.frames.columns`), sorted by site id; `area_ids`: [len(cells)] database id of each row's area;
        `newest_arrival`: Unix seconds at which the newest sample in `cells` arrived. Never raises for Redis.
        """
        pipe = self._client.pipeline(transaction=False)
        rows = size = 0
        present = [int(area_id) for area_id in np.unique(area_ids)]
        for area_id in sorted({*present, *self._areas}):
            current = cells.take(area_ids == area_id)
            frame = self._next_frame(area_id, current, now)
            data = frames.encode(frame)
            pipe.xadd(area_key(area_id), {"f": data, "t": repr(newest_arrival)}, maxlen=AREA_MAXLEN, approximate=True)
            rows += len(frame.columns)
            size += len(data)
            area = self._areas[area_id]
            if now - area.snapshot_at >= SNAPSHOT_SECONDS or frame.kind == frames.SNAPSHOT or now < area.snapshot_at:
                whole = frames.encode(frames.Frame(frames.SNAPSHOT, area_id, now, area.seq, area.columns))
                pipe.set(snapshot_key(area_id), whole, ex=SNAPSHOT_EXPIRES_SECONDS)
                area.snapshot_at = now
        try:
            pipe.execute()
        except (redis.RedisError, OSError) as error:
            if not any(area.behind for area in self._areas.values()):
                log.warning("live_frames_dropped", error=str(error))
            for area in self._areas.values():
                area.behind = True
            self.dropped_total += 1
            return Published(sent=False, rows=rows, bytes=size)
        for area in self._areas.values():
            area.behind = False
        for gone in set(self._areas) - set(present):
            del self._areas[gone]
        self.rows_total += rows
        self.bytes_total += size
        return Published(sent=True, rows=rows, bytes=size)

    def _next_frame(self, area_id: int, current: frames.SiteColumns, now: float) -> frames.Frame:
        area = self._areas.get(area_id)
        if area is None:
            # Sequences go on rising over a restart, since they start from the clock (milliseconds, one step a second).
            area = self._areas[area_id] = _Area(columns=frames.empty_columns(), seq=int(now * 1000))
        left = not np.isin(area.columns.site_id, current.site_id, assume_unique=True).all()
        delta = current.take(worth_sending(area.columns, current, turn=int(now)))
        area.seq += 1
        if area.behind or left:
            area.columns = current if left else frames.apply(area.columns, delta)
            return frames.Frame(frames.SNAPSHOT, area_id, now, area.seq, area.columns)
        area.columns = frames.apply(area.columns, delta)
        return frames.Frame(frames.DELTA, area_id, now, area.seq, delta)


def worth_sending(before: frames.SiteColumns, after: frames.SiteColumns, *, turn: int) -> NDArray[np.bool_]:
    """Mask over `after`: rows that changed enough to be seen. States, counts and flags always, values by steps, a new contact in the site's turn (`turn`: whole seconds). [len(after)]"""
    at = np.searchsorted(before.site_id, after.site_id)
    known = at < len(before)
    known[known] = before.site_id[at[known]] == after.site_id[known]
    old, new = before.take(at[known]), after.take(known)
    changed = np.zeros(len(new), dtype=np.bool_)
    for field in fields(frames.SiteColumns):
        if field.name not in ("utilization", "power_watts", "contact"):
            changed |= getattr(old, field.name) != getattr(new, field.name)
    changed |= np.abs(old.utilization.astype(np.int32) - new.utilization) >= UTILIZATION_STEP
    for name in ("power_watts", "contact"):
        changed |= np.isnan(getattr(old, name)) != np.isnan(getattr(new, name))
    changed |= np.nan_to_num(np.abs(old.power_watts - new.power_watts)) > np.nan_to_num(np.abs(old.power_watts) * POWER_STEP_RATIO)
    changed |= (new.site_id % CONTACT_TURNS == turn % CONTACT_TURNS) & (np.nan_to_num(old.contact) != np.nan_to_num(new.contact))
    result = np.ones(len(after), dtype=np.bool_)
    result[known] = changed
    return result


def read_area(client: redis.Redis, area_id: int) -> frames.Frame | None:
    """The newest state of an area as one snapshot: the stored one and the deltas after it. None when there is none. Raises `redis.RedisError`."""
    stored = client.get(snapshot_key(area_id))
    whole = frames.decode(stored)[0] if isinstance(stored, bytes) else None
    for _, entry in _entries(client.xrange(area_key(area_id))):
        whole = advance(whole, frames.decode(entry[b"f"])[0])
    return whole


def frames_since(client: redis.Redis, area_id: int, seq: int) -> list[frames.Frame] | None:
    """The deltas after `seq`, unbroken; None when the stream no longer holds them all. Raises `redis.RedisError`."""
    found: list[frames.Frame] = []
    for _, entry in _entries(client.xrange(area_key(area_id))):
        frame, _ = frames.decode(entry[b"f"])
        if frame.kind == frames.SNAPSHOT and frame.seq != seq:
            found = []
            if frame.seq > seq:
                return None
        elif frame.seq > seq:
            if frame.seq != (found[-1].seq if found else seq) + 1:
                return None
            found.append(frame)
        elif frame.seq == seq:
            found = []
    return found


def advance(whole: frames.Frame | None, frame: frames.Frame) -> frames.Frame | None:
    """The state after `frame`: a snapshot replaces, the next delta is applied, an older one is ignored; after a gap None until the next snapshot."""
    if frame.kind == frames.SNAPSHOT:
        return frame if whole is None or frame.seq >= whole.seq or frame.made_at > whole.made_at else whole
    if whole is None or frame.seq <= whole.seq:
        return whole
    if frame.seq != whole.seq + 1:
        return None
    return frames.Frame(frames.SNAPSHOT, frame.area_id, frame.made_at, frame.seq, frames.apply(whole.columns, frame.columns))


def watched_sites(client: redis.Redis, now: float) -> set[str]:
    """Codes of the sites that somebody looks at; empty when Redis is away."""
    try:
        client.zremrangebyscore(WATCH_KEY, "-inf", now)
        members: Any = client.zrangebyscore(WATCH_KEY, now, "+inf")
    except (redis.RedisError, OSError):
        return set()
    return {member.decode().removeprefix("site:") for member in members}


def publish_details(client: redis.Redis, details: Iterable[tuple[str, Mapping[str, Any]]]) -> bool:
    """Send changed values of watched sites: pairs of site code and `{"at", "gpus": {uuid: {field: value}}, "slices": {"uuid/gi": {…}}}`. NaN is sent as null."""
    pipe = client.pipeline(transaction=False)
    for code, detail in details:
        pipe.xadd(DETAIL_KEY, {"s": code, "d": json.dumps(_without_nan(detail), separators=(",", ":"))}, maxlen=1000, approximate=True)
    return _execute(pipe)


def publish_notices(notices: Iterable[Mapping[str, Any]]) -> bool:
    """Tell live pages that something happened, after the commit that stored it: `{"type", "site", "region_id", "kind", "key", …}`.

    A notice with `user_id` goes to that user only; one with `region_id` to who sees the region; one with neither to who sees the whole fleet.
    """
    pipe = _shared_client().pipeline(transaction=False)
    for notice in notices:
        pipe.xadd(NOTICE_KEY, {"d": json.dumps(_without_nan(notice), separators=(",", ":"), default=str)}, maxlen=1000, approximate=True)
    return _execute(pipe)


def publish_access_changed(user_id: int) -> bool:
    """Have the open sockets of a user checked at once: roles, membership, activity, sessions or tokens changed."""
    pipe = _shared_client().pipeline(transaction=False)
    pipe.xadd(ACCESS_KEY, {"u": str(user_id)}, maxlen=1000, approximate=True)
    return _execute(pipe)


_complained = threading.local()


def _execute(pipe: Any) -> bool:
    if not len(pipe):
        return True
    try:
        pipe.execute()
    except (redis.RedisError, OSError) as error:
        if time.monotonic() - getattr(_complained, "at", float("-inf")) > 60:
            _complained.at = time.monotonic()
            log.warning("live_message_dropped", error=str(error))
        return False
    return True


def _entries(answer: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    return answer or []


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value
