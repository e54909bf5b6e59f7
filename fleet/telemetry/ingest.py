"""Samples into the live state, whichever door they came through. Pure: no Django, no clock, no I/O.

The sample's own time counts, not its arrival: what is older than what is held changes nothing. Blanks, numbers out of range and ends of series
are absence (NaN). What a sender may not write, or what makes no sense, is refused, counted, and the rest taken.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fleet.telemetry.cells import keep_newest, put_cells
from fleet.telemetry.fields import (
    FUTURE_TOLERANCE_SECONDS,
    GPU_FIELD_INDEX,
    MAX_RECOVERY_ACTION,
    STALE_NAN_BITS,
    Refusal,
    Sample,
    SeriesSeen,
    is_blank,
)
from fleet.telemetry.live_state import Floats, LiveState
from fleet.telemetry.quality import Quality
from fleet.telemetry.remote_write_decoder import decode, digest
from fleet.telemetry.resolver import Resolver, SenderScope
from fleet.telemetry.series_table import METRICS, OF_GPU, REASONS, Kind, SeriesTable
from fleet.telemetry.service_metrics import JOBS
from fleet.telemetry.service_state import ServiceState
from fleet.telemetry.sightings import Sightings
from fleet.telemetry.xid_intake import XidIntake

Slots = NDArray[np.int64]
Labels = Mapping[str, str]

EARLIEST_SECONDS = 946_684_800.0  # 2000-01-01: no clock of ours showed less, and not every time before it can be stored
_XID = GPU_FIELD_INDEX["xid"]
_NVLINK = GPU_FIELD_INDEX["nvlink_errors_total"]


@dataclass(frozen=True)
class Taken:
    """What became of a body: samples taken, samples not."""

    samples: int
    refused: int


class Ingest:
    """The one function both doors end in, with what it remembers: series, sightings, refusals. One thread at a time."""

    def __init__(self, state: LiveState, services: ServiceState, *, silent_after_seconds: float) -> None:
        self.state = state
        self.services = services
        self.table = SeriesTable()
        self.sightings = Sightings(state, silent_after_seconds=silent_after_seconds)
        self.quality = Quality()
        self.resolver = Resolver(state, services, self.table, self.sightings)
        self.samples_total = 0
        self._xids = XidIntake(state, self.table)

    def take_body(self, data: bytes, sender: SenderScope, *, now: float) -> Taken:
        """Take an inflated remote_write body. Raises DecodeError, and then nothing of it was taken."""
        batch = decode(data, self.table.keys_of(sender.id))
        taken = self._take(sender, batch.slots, batch.values, batch.times_ms / 1000, lambda index: batch.read(index).labels, now)
        if not batch.fresh and not batch.others:
            return taken
        slots: list[int] = []
        values: list[float] = []
        times: list[float] = []
        labels: list[Labels] = []
        keys = self.table.keys_of(sender.id)
        for new in batch.fresh:
            slot = keys.get(new.digest)
            slots.append(self.resolver.resolve(new.labels, new.digest, sender, at=new.millis / 1000) if slot is None else slot)
            values.append(new.value)
            times.append(new.millis / 1000)
            labels.append(new.labels)
        for series in batch.read_others():
            if series.histograms:
                self.quality.count(sender.id, None, Refusal.HISTOGRAM, series.histograms, now=now, example=partial(_example, series.labels))
            if not series.samples:
                continue
            key = digest(series.simple_key) if series.simple_key is not None else _digest_of(series.labels)
            slot = keys.get(key)
            if slot is None:
                slot = self.resolver.resolve(series.labels, key, sender, at=series.samples[-1][1] / 1000)
            for value, millis in series.samples:
                slots.append(slot)
                values.append(value)
                times.append(millis / 1000)
                labels.append(series.labels)
        rest = self._take(sender, np.array(slots, dtype=np.int64), np.array(values, dtype=np.float64), np.array(times), labels.__getitem__, now)
        return Taken(taken.samples + rest.samples, taken.refused + rest.refused)

    def take_samples(self, samples: Iterable[Sample], sender: SenderScope, *, now: float) -> Taken:
        """Take samples of a query (pull)."""
        slots: list[int] = []
        found = list(samples)
        keys = self.table.keys_of(sender.id)
        for sample in found:
            key = _digest_of(sample.labels)
            slot = keys.get(key)
            slots.append(self.resolver.resolve(sample.labels, key, sender, at=sample.at) if slot is None else slot)
        values = np.array([sample.value for sample in found], dtype=np.float64)
        times = np.array([sample.at for sample in found], dtype=np.float64)
        return self._take(sender, np.array(slots, dtype=np.int64), values, times, lambda index: found[index].labels, now)

    def sweep(self, *, older_than: float) -> None:
        """Forget series, and parts of services, that have not come since `older_than` (Unix seconds)."""
        table = self.table
        table.sweep(older_than=older_than)
        of_service = table.kind == Kind.SERVICE
        in_use = {job: table.row[of_service & (table.metric == index)] for index, job in enumerate(JOBS)}
        self.services.sweep(in_use, older_than=older_than)

    def _take(self, sender: SenderScope, slots: Slots, values: Floats, times: Floats, read: Callable[[int], Labels], now: float) -> Taken:
        """Sort samples [n] by what their slots name and put them there."""
        if not len(slots):
            return Taken(0, 0)
        table = self.table
        table.seen_at[slots] = now
        kinds = table.kind[slots]
        refused = self._refuse_ignored(sender, slots, kinds, read, now)
        future = times > now + FUTURE_TOLERANCE_SECONDS
        if future.any():
            future &= kinds != Kind.IGNORED
            refused += self._refuse(sender, Refusal.FUTURE, slots, future, read, now)
        ancient = times < EARLIEST_SECONDS
        if ancient.any():
            ancient &= kinds != Kind.IGNORED
            refused += self._refuse(sender, Refusal.TOO_OLD, slots, ancient, read, now)
        stale = values.view(np.int64) == STALE_NAN_BITS
        wanted = ~(future | ancient)
        for kind in np.unique(kinds).tolist():
            index = np.flatnonzero((kinds == kind) & wanted)
            if not len(index):
                continue
            part = (slots[index], values[index], times[index], stale[index])
            if kind in (Kind.GPU, Kind.SLICE):
                refused += self._take_cells(sender, kind == Kind.SLICE, *part, partial(_read_part, read, index), now)
            elif kind == Kind.NODE_UP:
                self._take_up(*part)
            elif kind == Kind.SERVICE:
                self._take_services(*part, now)
            elif kind == Kind.XID_COUNT:
                self._xids.take_counts(*part)
            elif kind == Kind.NVLINK_PART:
                self._take_nvlink(*part)
            elif kind == Kind.RECOVERY:
                refused += self._take_recovery(sender, *part, partial(_read_part, read, index), now)
        taken = len(slots) - refused
        self.samples_total += taken
        if taken:
            self.state.arrived_at = now
        return Taken(taken, refused)

    # Refusals

    def _refuse_ignored(self, sender: SenderScope, slots: Slots, kinds: NDArray[np.uint8], read: Callable[[int], Labels], now: float) -> int:
        ignored = kinds == Kind.IGNORED
        if not ignored.any():
            return 0
        index = np.flatnonzero(ignored)
        counts = np.bincount(slots[index], minlength=len(REASONS))
        for reason_index in np.flatnonzero(counts).tolist():
            first = int(index[int(np.argmax(slots[index] == reason_index))])
            count = int(counts[reason_index])
            self.quality.count(sender.id, None, REASONS[reason_index], count, now=now, example=partial(_example_at, read, first))
        return len(index)

    def _refuse(self, sender: SenderScope, reason: Refusal, slots: Slots, which: NDArray[np.bool_], read: Callable[[int], Labels], now: float) -> int:
        """Count the samples `which` [n] as refused, by the site they belong to."""
        index = np.flatnonzero(which)
        if not len(index):
            return 0
        sites = self.sites_of(slots[index])
        for site_row in np.unique(sites).tolist():
            of_site = index[sites == site_row]
            site_id = int(self.state.site_id[site_row]) if site_row >= 0 else None
            first = int(of_site[0])
            self.quality.count(sender.id, site_id, reason, len(of_site), now=now, example=partial(_example_at, read, first))
        return len(index)

    def sites_of(self, slots: Slots) -> NDArray[np.int64]:
        """[n] site rows of slots; -1 where that is not known."""
        kinds, rows = self.table.kind[slots], self.table.row[slots]
        sites = np.full(len(slots), -1, dtype=np.int64)
        of_gpu = np.isin(kinds, OF_GPU)
        sites[of_gpu] = self.state.gpu_site_row[rows[of_gpu]]
        of_slice = kinds == Kind.SLICE
        sites[of_slice] = self.state.gpu_site_row[self.state.slice_gpu_row[rows[of_slice]]]
        of_node = kinds == Kind.NODE_UP
        sites[of_node] = self.state.node_site_row[rows[of_node]]
        return sites

    # Cells of GPUs and slices

    def _take_cells(
        self,
        sender: SenderScope,
        of_slices: bool,
        slots: Slots,
        raw: Floats,
        times: Floats,
        stale: NDArray[np.bool_],
        read: Callable[[int], Labels],
        now: float,
    ) -> int:
        state, table = self.state, self.table
        metric = table.metric[slots].astype(np.int64)
        metric = self._as_percent(slots, metric, raw)
        with np.errstate(invalid="ignore", over="ignore"):
            values = raw * METRICS.scale[metric]
            good = (values >= METRICS.minimum[metric]) & (values <= METRICS.maximum[metric])
        rows = table.row[slots].astype(np.int64)
        refused = 0
        bad = ~good
        if bad.any():
            refused = self._refuse_values(sender, slots, raw, metric, rows, bad & ~stale, of_slices, read, now)
            values[bad] = np.nan
        if of_slices:
            fields = METRICS.slice_field[metric]
            grid, grid_times, owner = state.slice_values, state.slice_times, state.slice_owner
            sampled_at, changed = state.slice_sampled_at, state.slice_changed
        else:
            fields = METRICS.gpu_field[metric]
            grid, grid_times, owner = state.gpu_values, state.gpu_times, state.gpu_owner
            sampled_at, changed = state.gpu_sampled_at, state.gpu_changed
            xid = np.flatnonzero((fields == _XID) & good)
            if len(xid):
                self._xids.note_gauge(slots[xid], rows[xid], values[xid], times[xid])
        late = put_cells(grid, grid_times, owner, fields, rows, slots, values, times, METRICS.highest[metric], stale)
        if not of_slices and len(xid):
            self._xids.keep_last(rows[xid])
        if late.any():
            self._refuse(sender, Refusal.TOO_OLD, slots, late, read, now)
        fresh = ~stale
        told = fresh & good  # a GPU that sends nothing but blanks has not been sampled: no data is never healthy
        keep_newest(sampled_at, rows[told], times[told])
        changed[rows] = True
        slice_rows = table.slice_row[slots].astype(np.int64)
        if of_slices:
            state.slice_live[rows[fresh]] = True
            parents = state.slice_gpu_row[rows].astype(np.int64)
            keep_newest(state.gpu_sampled_at, parents[told], times[told])
            state.gpu_changed[parents] = True
            if stale.any():
                ended = rows[stale]
                state.slice_live[ended] = ~np.isnan(state.slice_values[:, ended]).all(axis=0)
        self._note_identities(slots, rows, slice_rows, times, fresh, sender, read, now)
        return refused

    def _as_percent(self, slots: Slots, metric: NDArray[np.int64], raw: Floats) -> NDArray[np.int64]:
        """A series that may be a ratio or a percent shows by a number over 1 that it is a percent, from then on."""
        twin = METRICS.percent_twin[metric]
        shows = (twin >= 0) & (raw > 1) & (raw <= 100)
        if not shows.any():
            return metric
        self.table.metric[slots[shows]] = twin[shows]
        return self.table.metric[slots].astype(np.int64)

    def _refuse_values(
        self,
        sender: SenderScope,
        slots: Slots,
        raw: Floats,
        metric: NDArray[np.int64],
        rows: NDArray[np.int64],
        bad: NDArray[np.bool_],
        of_slices: bool,
        read: Callable[[int], Labels],
        now: float,
    ) -> int:
        no_number = bad & np.isnan(raw)
        blank = np.zeros(len(bad), dtype=np.bool_)
        for index in np.flatnonzero(bad & ~no_number).tolist():
            blank[index] = is_blank(float(raw[index]), METRICS.types[metric[index]]) or is_any_blank(float(raw[index]))
        out = bad & ~no_number & ~blank
        gpu_rows = self.state.slice_gpu_row[rows[out]] if of_slices else rows[out]
        np.add.at(self.state.gpu_refused, gpu_rows, 1.0)
        return sum(
            self._refuse(sender, reason, slots, which, read, now)
            for reason, which in ((Refusal.NOT_A_NUMBER, no_number), (Refusal.BLANK, blank), (Refusal.OUT_OF_RANGE, out))
        )

    def _note_identities(
        self,
        slots: Slots,
        rows: NDArray[np.int64],
        slice_rows: NDArray[np.int64],
        times: Floats,
        fresh: NDArray[np.bool_],
        sender: SenderScope,
        read: Callable[[int], Labels],
        now: float,
    ) -> None:
        identities = self.table.identity[slots]

        for slices in (False, True):
            index = np.flatnonzero(((slice_rows >= 0) == slices) & fresh)
            if len(index):

                def seen(i: int, index: NDArray[np.int64] = index) -> SeriesSeen:
                    where = int(index[i])
                    return self.resolver.seen(read(where), sender, at=float(times[where]))

                own_rows = slice_rows[index] if slices else rows[index]
                self.sightings.note(own_rows, identities[index], times[index], seen, slices=slices, now=now)

    # The rest

    def _take_up(self, slots: Slots, values: Floats, times: Floats, stale: NDArray[np.bool_]) -> None:
        state, rows = self.state, self.table.row[slots]
        for index in np.lexsort((stale, times)).tolist():
            row, at = int(rows[index]), float(times[index])
            if at < state.node_up_time[row] or (stale[index] and at == state.node_up_time[row]):
                continue
            state.node_up[row], state.node_up_time[row] = (float(values[index]) if values[index] in (0.0, 1.0) else math.nan), at

    def _take_services(self, slots: Slots, values: Floats, times: Floats, stale: NDArray[np.bool_], now: float) -> None:
        jobs, columns = self.table.metric[slots], self.table.column[slots]
        values = np.where(np.isfinite(values), values, np.nan) * self.resolver.service_scale[jobs, columns]
        values[values > self.resolver.service_maximum[jobs, columns]] = np.nan
        for job_index in np.unique(jobs).tolist():
            of_job = jobs == job_index
            chosen = slots[of_job]
            rows, fields = self.table.row[chosen].astype(np.int64), self.table.column[chosen].astype(np.int64)
            self.services.put(JOBS[job_index], rows, fields, values[of_job], times[of_job], stale[of_job], now=now)

    def _take_recovery(
        self, sender: SenderScope, slots: Slots, values: Floats, times: Floats, stale: NDArray[np.bool_], read: Callable[[int], Labels], now: float
    ) -> int:
        state, rows = self.state, self.table.row[slots]
        with np.errstate(invalid="ignore"):
            good = (values >= 0) & (values <= MAX_RECOVERY_ACTION) & (values == np.floor(values))
        for index in np.lexsort((stale, times)).tolist():
            row, at = int(rows[index]), float(times[index])
            if not at < state.gpu_recovery_at[row] and not (stale[index] and at == state.gpu_recovery_at[row]):
                state.gpu_recovery[row], state.gpu_recovery_at[row] = (float(values[index]) if good[index] else math.nan), at
        return self._refuse(sender, Refusal.OUT_OF_RANGE, slots, ~good & ~stale, read, now)

    def _take_nvlink(self, slots: Slots, values: Floats, times: Floats, stale: NDArray[np.bool_]) -> None:
        state = self.state
        rows, parts = self.table.row[slots].astype(np.int64), self.table.column[slots].astype(np.int64)
        with np.errstate(invalid="ignore"):
            newer = ~(times < state.gpu_times[_NVLINK, rows])
        good = (values >= 0) & (values < 2.0**62)
        taken = newer & (good | stale)
        rows, parts = rows[taken], parts[taken]
        state.gpu_nvlink_parts[parts, rows] = np.where(good, values, np.nan)[taken]
        keep_newest(state.gpu_times[_NVLINK], rows, times[taken])
        keep_newest(state.gpu_sampled_at, rows, np.where(stale, -np.inf, times)[taken])
        state.gpu_changed[rows] = True


def is_any_blank(value: float) -> bool:
    """A blank of any of DCGM's types, on a field whose range it is out of."""
    return 2147483632 <= value < 2147483648 or 140737488355328 <= value < 140737488355332 or value >= 9.2233720368547e18


def _digest_of(labels: Labels) -> int:
    return hash(tuple(sorted(labels.items())))


def _read_part(read: Callable[[int], Labels], index: NDArray[np.int64], number: int) -> Labels:
    """The labels of sample `number` of the part [n] of all samples that `index` chose."""
    return read(int(index[number]))


def _example_at(read: Callable[[int], Labels], index: int) -> str:
    return _example(read(index))


def _example(labels: Labels) -> str:
    """A series as an operator would look for it."""
    name = labels.get("__name__", "")
    rest = ",".join(f'{key}="{labels[key]}"' for key in ("site", "node", "Hostname", "UUID", "GPU_I_ID", "job", "instance") if labels.get(key))
    return f"{name}{{{rest}}}"[:300]
