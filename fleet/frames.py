"""Live frames: columns of site cells, their binary form, difference and application. Pure.

The binary form stands in `docs/architecture.md`; `static/js/lib/fleet_store.js` reads the same bytes in the browser.
Applying a delta to the columns it was made from gives exactly the next columns.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

MAGIC = b"MHF1"
SNAPSHOT, DELTA = 1, 2
STATE_NUMBERS = {"ok": 0, "degraded": 1, "down": 2, "unknown": 3, "maintenance": 4}
STATE_NAMES = tuple(STATE_NUMBERS)

FLAG_STALE = 1  # newest value older than two intervals
FLAG_SILENT = 2  # out of contact

NO_UTILIZATION = 65535
_HEADER = struct.Struct("<4sB3xIIdQ")
# Times travel in steps of 1/8 s, so that `made_at - contact` is exact in a float32 up to 24 days.
_TIME_STEPS = 8.0

# name on the wire -> type, in wire order
_WIRE = (
    ("site_id", "<u4"),
    ("state", "<u1"),
    ("flags", "<u1"),
    ("gpus_reporting", "<u2"),
    ("gpus_expected", "<u2"),
    ("utilization", "<u2"),
    ("power_watts", "<f4"),
    ("since", "<u4"),
    ("age", "<f4"),
)


class FrameError(ValueError):
    """Bytes that are not a frame; the text says what is wrong."""


@dataclass(frozen=True, eq=False)
class SiteColumns:
    """Cells of sites, one row a site, sorted by `site_id`, in the values that travel.

    `utilization` is 0-10000 (65535: none), `power_watts` NaN for none, `since` Unix seconds,
    `contact` Unix seconds of the last contact in steps of 1/8 s (NaN: never).
    """

    site_id: NDArray[np.uint32]
    state: NDArray[np.uint8]
    flags: NDArray[np.uint8]
    gpus_reporting: NDArray[np.uint16]
    gpus_expected: NDArray[np.uint16]
    utilization: NDArray[np.uint16]
    power_watts: NDArray[np.float32]
    since: NDArray[np.uint32]
    contact: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.site_id)

    def take(self, rows: NDArray[Any]) -> SiteColumns:
        """The rows chosen by a mask or by indexes, in that order."""
        return SiteColumns(*(getattr(self, field.name)[rows] for field in fields(self)))

    def equals(self, other: SiteColumns) -> bool:
        """Same rows with the same values; NaN equals NaN."""
        return all(
            np.array_equal(mine, theirs, equal_nan=mine.dtype.kind == "f")
            for mine, theirs in ((getattr(self, field.name), getattr(other, field.name)) for field in fields(self))
        )


def columns(
    *,
    site_id: ArrayLike,
    state: ArrayLike,
    flags: ArrayLike,
    gpus_reporting: ArrayLike,
    gpus_expected: ArrayLike,
    utilization_ratio: ArrayLike,
    power_watts: ArrayLike,
    since: ArrayLike,
    contact: ArrayLike,
) -> SiteColumns:
    """Columns from plain values, all [m] long, any order of sites.

    `state`: `STATE_NUMBERS`; `utilization_ratio`: 0..1, NaN for none; `power_watts`: NaN for none; `since` and `contact`: Unix seconds, `contact` NaN for never.
    """
    ids = np.asarray(site_id, dtype=np.uint32)
    ratio = np.asarray(utilization_ratio, dtype=np.float64)
    known = np.isfinite(ratio)
    utilization = np.where(known, np.rint(np.clip(np.where(known, ratio, 0), 0, 1) * 10_000), NO_UTILIZATION).astype(np.uint16)
    made = SiteColumns(
        site_id=ids,
        state=np.asarray(state, dtype=np.uint8),
        flags=np.asarray(flags, dtype=np.uint8),
        gpus_reporting=_clipped_u16(gpus_reporting),
        gpus_expected=_clipped_u16(gpus_expected),
        utilization=utilization,
        power_watts=np.asarray(power_watts, dtype=np.float32),
        since=np.clip(np.nan_to_num(np.asarray(since, dtype=np.float64)), 0, 2**32 - 1).astype(np.uint32),
        contact=in_time_steps(np.asarray(contact, dtype=np.float64)),
    )
    return made if bool(np.all(ids[:-1] < ids[1:])) else made.take(np.argsort(ids, kind="stable"))


def empty_columns() -> SiteColumns:
    nothing: list[float] = []
    return columns(
        site_id=nothing,
        state=nothing,
        flags=nothing,
        gpus_reporting=nothing,
        gpus_expected=nothing,
        utilization_ratio=nothing,
        power_watts=nothing,
        since=nothing,
        contact=nothing,
    )


def in_time_steps(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Times rounded to the step in which they travel; NaN stays NaN."""
    return np.rint(times * _TIME_STEPS) / _TIME_STEPS


@dataclass(frozen=True, eq=False)
class Frame:
    """A snapshot (all cells of an area) or a delta (the changed ones). `seq` counts the area's deltas; a snapshot holds all up to its `seq`."""

    kind: int
    area_id: int
    made_at: float
    seq: int
    columns: SiteColumns


def encode(frame: Frame) -> bytes:
    """The bytes of a frame. `made_at` travels in steps of 1/8 s."""
    made_at = float(in_time_steps(np.float64(frame.made_at)))  # type: ignore[arg-type]
    cells = frame.columns
    parts = [_HEADER.pack(MAGIC, frame.kind, frame.area_id, len(cells), made_at, frame.seq)]
    for name, wire in _WIRE:
        values = (made_at - cells.contact) if name == "age" else getattr(cells, name)
        data = values.astype(wire, copy=False).tobytes()
        parts.append(data)
        parts.append(bytes(-len(data) % 4))
    return b"".join(parts)


def decode(data: bytes | memoryview, offset: int = 0) -> tuple[Frame, int]:
    """The frame that starts at `offset`, and the offset behind it (frames stand back to back in one message).

    Raises `FrameError` for anything that is not a whole frame.
    """
    if len(data) - offset < _HEADER.size:
        raise FrameError("shorter than a frame's header")
    magic, kind, area_id, count, made_at, seq = _HEADER.unpack_from(data, offset)
    if magic != MAGIC or kind not in (SNAPSHOT, DELTA):
        raise FrameError("not a frame of this version")
    if len(data) - offset < frame_length(count):
        raise FrameError("shorter than its rows")
    position = offset + _HEADER.size
    found: dict[str, NDArray[Any]] = {}
    for name, wire in _WIRE:
        dtype = np.dtype(wire)
        found[name] = np.frombuffer(data, dtype=dtype, count=count, offset=position)
        position += _padded(count * dtype.itemsize)
    contact = made_at - found.pop("age").astype(np.float64)
    return Frame(kind=kind, area_id=area_id, made_at=made_at, seq=seq, columns=SiteColumns(**found, contact=contact)), position


def decode_all(data: bytes | memoryview) -> list[Frame]:
    """All frames of one message."""
    frames: list[Frame] = []
    offset = 0
    while offset < len(data):
        frame, offset = decode(data, offset)
        frames.append(frame)
    return frames


def frame_length(count: int) -> int:
    """Bytes of a frame of `count` rows."""
    return _HEADER.size + sum(_padded(count * np.dtype(wire).itemsize) for _, wire in _WIRE)


def changed_rows(before: SiteColumns, after: SiteColumns) -> NDArray[np.bool_]:
    """Mask over `after`: rows that are new or differ in any value. [len(after)]"""
    same = np.zeros(len(after), dtype=np.bool_)
    at = np.searchsorted(before.site_id, after.site_id)
    inside = at < len(before)
    known = np.zeros(len(after), dtype=np.bool_)
    known[inside] = before.site_id[at[inside]] == after.site_id[inside]
    old = before.take(at[known])
    new = after.take(known)
    equal = np.ones(len(new), dtype=np.bool_)
    for field in fields(SiteColumns):
        mine, theirs = getattr(old, field.name), getattr(new, field.name)
        equal &= (mine == theirs) | ((mine != mine) & (theirs != theirs))
    same[known] = equal
    return ~same


def diff(before: SiteColumns, after: SiteColumns) -> SiteColumns:
    """The rows that turn `before` into `after`. A site that left cannot be told by a delta: send a snapshot then."""
    return after.take(changed_rows(before, after))


def apply(before: SiteColumns, delta: SiteColumns) -> SiteColumns:
    """`before` with the delta's rows written over it; unknown sites are added."""
    if not len(delta):
        return before
    at = np.searchsorted(before.site_id, delta.site_id)
    known = np.zeros(len(delta), dtype=np.bool_)
    inside = at < len(before)
    known[inside] = before.site_id[at[inside]] == delta.site_id[inside]
    made: dict[str, NDArray[Any]] = {}
    for field in fields(SiteColumns):
        column = getattr(before, field.name).copy()
        column[at[known]] = getattr(delta, field.name)[known]
        made[field.name] = column
    whole = SiteColumns(**made)
    if bool(known.all()):
        return whole
    added = delta.take(~known)
    joined = SiteColumns(*(np.concatenate([getattr(whole, field.name), getattr(added, field.name)]) for field in fields(SiteColumns)))
    return joined.take(np.argsort(joined.site_id, kind="stable"))


def only_sites(cells: SiteColumns, site_ids: NDArray[np.uint32]) -> SiteColumns:
    """The rows of these sites (`site_ids` sorted)."""
    at = np.searchsorted(site_ids, cells.site_id)
    inside = at < len(site_ids)
    mask = np.zeros(len(cells), dtype=np.bool_)
    mask[inside] = site_ids[at[inside]] == cells.site_id[inside]
    return cells.take(mask)


def _padded(length: int) -> int:
    return length + -length % 4


def _clipped_u16(values: ArrayLike) -> NDArray[np.uint16]:
    return np.clip(np.asarray(values, dtype=np.float64), 0, 65_535).astype(np.uint16)
