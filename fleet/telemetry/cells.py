"""Putting samples into cells of the live state. Pure: no Django, no clock, no I/O."""

import numpy as np
from numpy.typing import NDArray

from fleet.telemetry.live_state import Floats

LATE_SECONDS = 120.0  # older than what is held by more than this is a backlog; less is the other replica of a pair


def put_cells(
    grid: Floats,
    grid_times: Floats,
    owner: NDArray[np.int32],
    fields: NDArray[np.int64],
    rows: NDArray[np.int64],
    slots: NDArray[np.int64],
    values: Floats,
    times: Floats,
    highest: NDArray[np.bool_],
    stale: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Put samples [n] into the cells grid[fields, rows]; the newest sample time wins, a value wins over none of the same time.

    `highest`: of equal times the highest counts (one counter on the lines of several slices). `stale` samples end a series: they count only when the
    cell's last value came from that same series. Returns which samples are so late that they belong to a backlog.
    """
    no_value = np.isnan(values)
    order = np.lexsort((np.where(no_value, -np.inf, values), times))
    order = order[~stale[order]]
    f, r, at, new, missing = fields[order], rows[order], times[order], values[order], no_value[order]
    held, held_at = grid[f, r], grid_times[f, r]
    with np.errstate(invalid="ignore"):
        newer = ~(at <= held_at)
        better = (at == held_at) & ~missing & ~(highest[order] & (new < held))
        late = np.zeros(len(values), dtype=np.bool_)
        late[order] = held_at - at > LATE_SECONDS
    taken = newer | better
    f, r = f[taken], r[taken]
    grid[f, r], grid_times[f, r], owner[f, r] = new[taken], at[taken], slots[order[taken]]
    if stale.any():
        ends = np.flatnonzero(stale)
        f, r = fields[ends], rows[ends]
        over = (times[ends] > grid_times[f, r]) & (owner[f, r] == slots[ends])
        f, r = f[over], r[over]
        grid[f, r], grid_times[f, r] = np.nan, times[ends[over]]
    return late


def keep_newest(target: Floats, rows: NDArray[np.int64], times: Floats) -> None:
    """target[rows] = max(target[rows], times); NaN in target counts as nothing."""
    order = np.argsort(times, kind="stable")
    rows, times = rows[order], times[order]
    with np.errstate(invalid="ignore"):
        newer = ~(times <= target[rows])
    target[rows[newer]] = times[newer]
