"""How current the series are: ages of what is held, and series that came and no longer come. Pure: no Django, no clock, no I/O."""

import numpy as np

from fleet.telemetry.ingest import Ingest
from fleet.telemetry.live_state import Floats
from fleet.telemetry.series_table import METRICS, Kind


def count_missing(ingest: Ingest, *, now: float, after_seconds: float) -> dict[tuple[int, int | None], int]:
    """(sender id, site id) → how many of its series of GPUs and slices are missing: late themselves, and nobody else reports their cell.

    A slice that ended while its GPU goes on takes its series with it: those are not missing.
    """
    table, state = ingest.table, ingest.state
    late_since = now - after_seconds
    of_gpu = (table.kind == Kind.GPU) & (table.seen_at < late_since)
    of_slice = (table.kind == Kind.SLICE) & (table.seen_at < late_since)
    found: list[int] = []
    with np.errstate(invalid="ignore"):
        slots = np.flatnonzero(of_gpu)
        fields, rows = METRICS.gpu_field[table.metric[slots]], table.row[slots]
        found += slots[~(state.gpu_times[fields, rows] >= late_since) & state.gpu_active[rows]].tolist()
        slots = np.flatnonzero(of_slice)
        fields, rows = METRICS.slice_field[table.metric[slots]], table.row[slots]
        gpu_on = state.gpu_sampled_at[state.slice_gpu_row[rows]] >= late_since
        ended = ~state.slice_live[rows] & gpu_on
        found += slots[~(state.slice_times[fields, rows] >= late_since) & ~ended & state.gpu_active[state.slice_gpu_row[rows]]].tolist()
    if not found:
        return {}
    missing = np.array(found, dtype=np.int64)
    sites = ingest.sites_of(missing)
    counts: dict[tuple[int, int | None], int] = {}
    for sender_id, site_row in zip(table.sender[missing].tolist(), sites.tolist(), strict=True):
        key = (sender_id, int(state.site_id[site_row]) if site_row >= 0 else None)
        counts[key] = counts.get(key, 0) + 1
    return counts


def sample_ages(ingest: Ingest, *, now: float) -> Floats:
    """[n] seconds since the sample time of each GPU's and slice's series that has a value."""
    table, state = ingest.table, ingest.state
    of_gpu, of_slice = np.flatnonzero(table.kind == Kind.GPU), np.flatnonzero(table.kind == Kind.SLICE)
    times = np.concatenate(
        [
            state.gpu_times[METRICS.gpu_field[table.metric[of_gpu]], table.row[of_gpu]],
            state.slice_times[METRICS.slice_field[table.metric[of_slice]], table.row[of_slice]],
        ]
    )
    return np.asarray(now - times[~np.isnan(times)], dtype=np.float64)
