"""Which series goes where: digests of label bytes, a dictionary per sender, to slots. Pure: no Django, no clock, no I/O.

A slot names a cell of the live state. Labels are not kept: a series is read in full when its digest is not known. Series that are not taken
share one slot per reason, so that they cost a dictionary entry and no more.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from fleet.telemetry.fields import FIELDS, GPU_FIELD_INDEX, NVLINK_ERROR_METRICS, RATIO_OR_PERCENT, SLICE_FIELD_INDEX, DcgmType, Level, Refusal
from fleet.telemetry.live_state import Columns

MAX_WAITING_KEYS = 500_000
MAX_KEYS = 4_000_000  # of one sender


class Kind(IntEnum):
    """What kind of cell a slot names. `row`, `metric` and `column` of the slot mean what stands behind each."""

    IGNORED = 0  # metric: index of the reason
    GPU = 1  # row of the GPU; metric
    SLICE = 2  # row of the slice; metric
    NODE_UP = 3  # row of the node
    SERVICE = 4  # row of the job's table; metric: index of the job; column: field; slice_row: row of the node
    XID_COUNT = 5  # row of the GPU; column: the XID
    NVLINK_PART = 6  # row of the GPU; column: which of the counters
    NOTHING = 7  # known and without meaning here (GPU_UTIL on a slice's line)
    RECOVERY = 8  # row of the GPU


OF_GPU = (Kind.GPU, Kind.XID_COUNT, Kind.NVLINK_PART, Kind.RECOVERY)
REASONS: tuple[Refusal, ...] = tuple(Refusal)


@dataclass(frozen=True)
class MetricColumns:
    """The table of fields as arrays, indexed by metric."""

    names: tuple[str, ...]
    index: dict[str, int]
    gpu_field: NDArray[np.int64]
    slice_field: NDArray[np.int64]
    whole_only: NDArray[np.bool_]
    scale: NDArray[np.float64]
    minimum: NDArray[np.float64]
    maximum: NDArray[np.float64]
    highest: NDArray[np.bool_]  # of several lines of one scrape the highest counts
    types: tuple[DcgmType, ...]
    percent_twin: NDArray[np.int64]  # the same metric read as a percent, -1: none


def _metric_columns() -> MetricColumns:
    rows = [(field, metric, metric.scale) for field in FIELDS for metric in field.metrics]
    twins = {metric.name: len(rows) + n for n, (field, metric, _) in enumerate([row for row in rows if row[1].name in RATIO_OR_PERCENT])}
    rows += [(field, metric, 0.01) for field, metric, _ in rows if metric.name in twins]
    first = len(rows) - len(twins)
    return MetricColumns(
        names=tuple(metric.name for _, metric, _ in rows),
        index={metric.name: index for index, (_, metric, _) in enumerate(rows[:first])},
        gpu_field=np.array([GPU_FIELD_INDEX[field.name] for field, _, _ in rows]),
        slice_field=np.array([SLICE_FIELD_INDEX.get(field.name, -1) for field, _, _ in rows]),
        whole_only=np.array([field.level is Level.WHOLE for field, _, _ in rows]),
        scale=np.array([scale for _, _, scale in rows]),
        minimum=np.array([field.minimum for field, _, _ in rows]),
        maximum=np.array([field.maximum for field, _, _ in rows]),
        highest=np.array([field.counter or field.name == "xid" for field, _, _ in rows]),
        types=tuple(metric.type for _, metric, _ in rows),
        percent_twin=np.array([twins.get(metric.name, -1) if index < first else -1 for index, (_, metric, _) in enumerate(rows)]),
    )


METRICS = _metric_columns()
NVLINK_PART_OF: dict[str, int] = {name: part for part, old in enumerate(NVLINK_ERROR_METRICS) for name in (old, old.replace("_COUNT_TOTAL", "_TOTAL"))}


class SeriesTable:
    """Slots and the digests that lead to them. The arrays have spare room at their end."""

    kind: NDArray[np.uint8]
    row: NDArray[np.int32]
    metric: NDArray[np.int32]
    column: NDArray[np.int32]
    slice_row: NDArray[np.int32]  # of the slice whose line it is, -1: a whole GPU's
    identity: NDArray[np.int64]
    sender: NDArray[np.int32]
    digest: NDArray[np.int64]
    seen_at: NDArray[np.float64]  # newest arrival

    def __init__(self) -> None:
        self._columns = Columns()
        for name, dtype, fill in (
            ("kind", "u1", 0),
            ("row", "i4", -1),
            ("metric", "i4", -1),
            ("column", "i4", -1),
            ("slice_row", "i4", -1),
            ("identity", "i8", 0),
            ("sender", "i4", -1),
            ("digest", "i8", 0),
            ("seen_at", "f8", float("nan")),
        ):
            self._columns.add_column(name, dtype, fill)
        self._columns.append(len(REASONS) + 1)
        self._renew_views()
        for index in range(len(REASONS)):
            self.kind[index], self.metric[index] = Kind.IGNORED, index
        self.nothing = len(REASONS)
        self.kind[self.nothing] = Kind.NOTHING
        self._free: list[int] = []
        self._keys: dict[int, dict[int, int]] = {}
        self._waiting: dict[str, list[tuple[int, int]]] = {}
        self._waiting_count = 0
        self._overflowed = False

    def _renew_views(self) -> None:
        for name in self._columns.names():
            setattr(self, name, self._columns.whole(name))

    def __len__(self) -> int:
        """Series that are taken."""
        return self._columns.count - len(REASONS) - 1 - len(self._free)

    def keys_of(self, sender_id: int) -> dict[int, int]:
        """The sender's digests and their slots. Decoding reads it; only this class writes to it."""
        return self._keys.setdefault(sender_id, {})

    def add(self, sender_id: int, digest: int, kind: Kind, *, row: int, metric: int = -1, column: int = -1, slice_row: int = -1, identity: int = 0) -> int:
        """A slot for a series that is taken."""
        if self._free:
            slot = self._free.pop()
        else:
            slot = self._columns.append(1)
            if slot >= len(self.kind):
                self._renew_views()
        self.kind[slot], self.row[slot], self.metric[slot], self.column[slot] = kind, row, metric, column
        self.slice_row[slot], self.identity[slot] = slice_row, identity
        self.sender[slot], self.digest[slot] = sender_id, digest
        self.keys_of(sender_id)[digest] = slot
        return slot

    def ignore(self, sender_id: int, digest: int, reason: Refusal | None, *, until_known: str = "") -> int:
        """The shared slot of series that are not taken. `until_known` names what may appear in the inventory and change that."""
        slot = self.nothing if reason is None else REASONS.index(reason)
        keys = self.keys_of(sender_id)
        if len(keys) >= MAX_KEYS:
            return slot
        keys[digest] = slot
        if until_known:
            if self._waiting_count < MAX_WAITING_KEYS:
                self._waiting.setdefault(until_known, []).append((sender_id, digest))
                self._waiting_count += 1
            else:
                self._overflowed = True
        return slot

    def forget_waiting(self, names: Iterable[str]) -> int:
        """These things are known now: their series are read anew when they come next. Returns how many series that is."""
        found = 0
        for name in names:
            for sender_id, digest in self._waiting.pop(name, ()):
                self._keys.get(sender_id, {}).pop(digest, None)
                found += 1
        self._waiting_count -= found
        if found and self._overflowed:
            self._forget_ignored()
        return found

    def _forget_ignored(self) -> None:
        """More waits than is remembered by name: read everything anew that is not taken."""
        last = self.nothing
        for sender_id, keys in self._keys.items():
            self._keys[sender_id] = {digest: slot for digest, slot in keys.items() if slot > last}
        self._waiting.clear()
        self._waiting_count = 0
        self._overflowed = False

    def forget_sender(self, sender_id: int) -> None:
        """Its rights changed, or what it may write moved: all its series are read anew."""
        for slot in self._keys.pop(sender_id, {}).values():
            if slot > self.nothing:
                self._release(slot)

    def forget_rows(self, gpu_rows: NDArray[np.int64], node_rows: NDArray[np.int64], slice_gpu_row: NDArray[np.int32]) -> int:
        """These GPUs and nodes moved or left: their series are read anew when they come next. `slice_gpu_row`: as in the live state."""
        last = self._columns.count
        kind, row = self.kind[:last], self.row[:last]
        gone = np.isin(kind, OF_GPU) & np.isin(row, gpu_rows)
        of_slice = np.flatnonzero(kind == Kind.SLICE)
        gone[of_slice] = np.isin(slice_gpu_row[row[of_slice]], gpu_rows)
        gone |= (kind == Kind.NODE_UP) & np.isin(row, node_rows)
        gone |= (kind == Kind.SERVICE) & np.isin(self.slice_row[:last], node_rows)
        slots = np.flatnonzero(gone).tolist()
        for slot in slots:
            self.forget(slot)
        return len(slots)

    def forget(self, slot: int) -> None:
        """This series is to be read anew when it comes next."""
        self._keys.get(int(self.sender[slot]), {}).pop(int(self.digest[slot]), None)
        self._release(slot)

    def _release(self, slot: int) -> None:
        self.kind[slot], self.row[slot], self.slice_row[slot] = Kind.NOTHING, -1, -1
        self._free.append(slot)

    def sweep(self, *, older_than: float, max_ignored: int = 1_000_000) -> int:
        """Forget series that have not come since `older_than` (Unix seconds), so that pods that come and go cost no memory for ever."""
        first, last = self.nothing + 1, self._columns.count
        used = self.kind[first:last] != Kind.NOTHING
        with np.errstate(invalid="ignore"):
            gone = (np.flatnonzero(used & ~(self.seen_at[first:last] >= older_than)) + first).tolist()
        for slot in gone:
            self.forget(slot)
        if sum(len(keys) for keys in self._keys.values()) - len(self) > max_ignored:
            self._forget_ignored()
        return len(gone)
