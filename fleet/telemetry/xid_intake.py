"""XIDs on their way in: the gauge against the last code that it showed, the exporter's counts against those before. Pure: no Django, no clock, no I/O."""

import math

import numpy as np
from numpy.typing import NDArray

from fleet.telemetry.fields import GPU_FIELD_INDEX, XidChange, XidCount
from fleet.telemetry.live_state import Floats, LiveState
from fleet.telemetry.series_table import SeriesTable

Slots = NDArray[np.int64]
_XID = GPU_FIELD_INDEX["xid"]


class XidIntake:
    """What changed goes to the live state as news for health. One thread at a time."""

    def __init__(self, state: LiveState, table: SeriesTable) -> None:
        self._state = state
        self._table = table
        self._counts: dict[tuple[int, int, int], tuple[float, float]] = {}  # (GPU row, slice row, XID) → (count, sample time)

    def note_gauge(self, slots: Slots, rows: NDArray[np.int64], values: Floats, times: Floats) -> None:
        """The XID gauge of a GPU, or of each of its slices, against the last code that it showed, before a gap too. In the order of sample times."""
        state = self._state
        slice_rows = self._table.slice_row[slots]
        order = np.argsort(times, kind="stable")
        held = np.where(slice_rows >= 0, state.slice_xid[slice_rows] if state.slice_count else np.nan, state.gpu_xid[rows])
        with np.errstate(invalid="ignore"):
            newer = ~(times < state.gpu_times[_XID, rows])
        if len(np.unique(slots)) == len(slots):
            order = order[(held[order] != values[order]) & newer[order]]
        whole_now: dict[int, float] = {}
        for index in order.tolist():
            if not newer[index]:
                continue
            row, slice_row, value = int(rows[index]), int(slice_rows[index]), float(values[index])
            if slice_row >= 0:
                old = float(state.slice_xid[slice_row])
                state.slice_xid[slice_row] = value
            else:
                old = whole_now.get(row, float(state.gpu_xid[row]))
                whole_now[row] = value
            if value == old or (math.isnan(old) and value == 0):
                continue
            instance = int(state.slice_instance[slice_row]) if slice_row >= 0 else None
            state.note_xid_change(XidChange(row, instance, None if math.isnan(old) else int(old), int(value), float(times[index])))
        for row, value in whole_now.items():
            state.gpu_xid[row] = value

    def keep_last(self, rows: NDArray[np.int64]) -> None:
        """The cells of these GPUs [n] hold what came: a code stays known when its cell empties."""
        state = self._state
        held = state.gpu_values[_XID, rows]
        state.gpu_xid[rows] = np.where(np.isnan(held), state.gpu_xid[rows], held)

    def take_counts(self, slots: Slots, values: Floats, times: Floats, stale: NDArray[np.bool_]) -> None:
        state = self._state
        for index in np.argsort(times, kind="stable").tolist():
            slot, value, at = int(slots[index]), float(values[index]), float(times[index])
            key = int(self._table.row[slot]), int(self._table.slice_row[slot]), int(self._table.column[slot])
            known = self._counts.get(key)
            if stale[index] or not (math.isfinite(value) and value >= 0) or (known is not None and at <= known[1]):
                continue
            self._counts[key] = (value, at)
            if known is not None and value == known[0]:
                continue
            gpu_row, slice_row, xid = key
            instance = int(state.slice_instance[slice_row]) if slice_row >= 0 else None
            state.note_xid_count(XidCount(gpu_row, instance, xid, None if known is None else int(known[0]), int(value), at))
