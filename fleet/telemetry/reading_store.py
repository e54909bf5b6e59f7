"""The live state's values in PostgreSQL: changed rows each cycle, everything after a database crash, and back at start.

The reading tables are unlogged. Their rows are written by COPY into a temporary table and one UPDATE; when that meets fewer rows than it
should (a crash emptied the table), all rows are written anew.
"""

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
from django.db import connection, transaction
from numpy.typing import NDArray

from fleet.models import GpuReading, LastKnownReading, MigSlice, SliceReading
from fleet.telemetry.copy_rows import copy_rows
from fleet.telemetry.fields import GPU_FIELD_INDEX, GPU_FIELDS, SLICE_FIELDS
from fleet.telemetry.live_state import Floats, LiveState

Rows = NDArray[np.int64]
_GPU_COLUMNS = tuple(field.name for field in GPU_FIELDS)
_SLICE_COLUMNS = tuple(field.name for field in SLICE_FIELDS)
_XID = GPU_FIELD_INDEX["xid"]


@dataclass(frozen=True)
class Flushed:
    """What one flush wrote. `rewrote`: a table lacked rows and was written whole."""

    gpus: int
    slices: int
    seconds: float
    rewrote: bool


@dataclass(frozen=True)
class _Table:
    name: str
    keys: tuple[tuple[str, str, str], ...]  # (column, PostgreSQL type, kind for COPY)
    columns: tuple[str, ...]
    conflict: str

    @property
    def staging(self) -> str:
        return f"staging_{self.name}"


_GPUS = _Table("fleet_gpu_reading", (("gpu_id", "bigint", "q"),), (*_GPU_COLUMNS, "refused_samples"), "gpu_id")
_SLICES = _Table("fleet_slice_reading", (("gpu_id", "bigint", "q"), ("gpu_instance_id", "integer", "i")), _SLICE_COLUMNS, "gpu_id, gpu_instance_id")


@dataclass
class _Snapshot:
    """Changed rows, copied: what is written while new samples come in. `values` [columns, n], NaN is null."""

    rows: Rows
    keys: list[NDArray[np.generic]]
    sampled_at: Floats
    values: Floats
    stored: NDArray[np.bool_]

    def only(self, which: NDArray[np.bool_]) -> "_Snapshot":
        return _Snapshot(self.rows[which], [key[which] for key in self.keys], self.sampled_at[which], self.values[:, which], self.stored[which])


class ReadingStore:
    """Writes and reads the values of one live state. `lock` is held while rows are copied out or marked, not while the database works."""

    def __init__(self, state: LiveState, lock: AbstractContextManager[object]) -> None:
        self._state = state
        self._lock = lock

    def flush(self) -> Flushed:
        """Write the rows that changed since the last flush. When the database fails they count as changed again, and its error is raised."""
        began = time.monotonic()
        with self._lock:
            gpus, slices = self._gpu_snapshot(), self._slice_snapshot()
            self._state.gpu_changed[gpus.rows] = False
            self._state.slice_changed[slices.rows] = False
        try:
            with transaction.atomic():
                whole = [self._write(_GPUS, gpus), self._write(_SLICES, slices)]
            if any(whole):
                self._rewrite(whole)
        except Exception:
            with self._lock:
                self._state.gpu_changed[gpus.rows] = True
                self._state.slice_changed[slices.rows] = True
            raise
        with self._lock:
            self._state.gpu_stored[gpus.rows] = True
            self._state.slice_stored[slices.rows] = True
        return Flushed(len(gpus.rows), len(slices.rows), time.monotonic() - began, any(whole))

    def _rewrite(self, whole: list[bool]) -> None:
        """Write every row of the tables that lack some."""
        with self._lock:
            everything = [self._gpu_snapshot(changed_only=False), self._slice_snapshot(changed_only=False)]
        with transaction.atomic():
            for table, snapshot, wanted in zip((_GPUS, _SLICES), everything, whole, strict=True):
                if wanted and len(snapshot.rows):
                    self._stage(table, snapshot)
                    self._upsert(table)

    def _gpu_snapshot(self, *, changed_only: bool = True) -> _Snapshot:
        state = self._state
        chosen = state.gpu_active & ~np.isnan(state.gpu_sampled_at)
        rows = np.flatnonzero(chosen & state.gpu_changed if changed_only else chosen)
        values = np.concatenate([state.shown_values(rows), state.gpu_refused[None, rows]])
        return _Snapshot(rows, [state.gpu_id[rows]], state.gpu_sampled_at[rows], values, state.gpu_stored[rows])

    def _slice_snapshot(self, *, changed_only: bool = True) -> _Snapshot:
        state = self._state
        chosen = state.gpu_active[state.slice_gpu_row] & ~np.isnan(state.slice_sampled_at)
        rows = np.flatnonzero(chosen & state.slice_changed if changed_only else chosen)
        keys: list[NDArray[np.generic]] = [state.gpu_id[state.slice_gpu_row[rows]], state.slice_instance[rows]]
        return _Snapshot(rows, keys, state.slice_sampled_at[rows], state.shown_slice_values(rows), state.slice_stored[rows])

    def _write(self, table: _Table, snapshot: _Snapshot) -> bool:
        """Update the rows that are in the table, add the new ones. True when the table lacks rows that it should hold."""
        if not snapshot.stored.all():
            self._stage(table, snapshot.only(~snapshot.stored))
            self._upsert(table)
        held = snapshot.only(snapshot.stored)
        if not len(held.rows):
            return not len(snapshot.rows) and self._is_emptied(table)
        columns = self._stage(table, held)
        with connection.cursor() as cursor:
            cursor.execute(_update_statement(table, columns))
            return cursor.rowcount != len(held.rows)

    def _is_emptied(self, table: _Table) -> bool:
        """Nothing changed: does the table still hold what was stored?"""
        stored = self._state.gpu_stored if table is _GPUS else self._state.slice_stored
        if not stored.any():
            return False
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT NOT EXISTS (SELECT 1 FROM {table.name})")  # noqa: S608 - constant names
            return bool(cursor.fetchone()[0])

    @staticmethod
    def _stage(table: _Table, snapshot: _Snapshot) -> dict[str, bool]:
        """COPY rows into the temporary table. Returns the columns that hold values: name → some are NaN. Columns without any are not sent."""
        with_nan = np.isnan(snapshot.values)
        sent = {name: bool(with_nan[index].any()) for index, name in enumerate(table.columns) if not with_nan[index].all()}
        fields: list[tuple[str, NDArray[np.generic]]] = [(kind, values) for (_, _, kind), values in zip(table.keys, snapshot.keys, strict=True)]
        fields += [("t", snapshot.sampled_at), *(("d", snapshot.values[table.columns.index(name)]) for name in sent)]
        names = ", ".join([*(name for name, _, _ in table.keys), "sampled_at", *sent])
        keys = ", ".join(f"{name} {its_type}" for name, its_type, _ in table.keys)
        doubles = ", ".join(f"{name} double precision" for name in table.columns)
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE TEMP TABLE IF NOT EXISTS {table.staging} ({keys}, sampled_at timestamptz, {doubles}) ON COMMIT DELETE ROWS")
            cursor.execute(f"DELETE FROM {table.staging}")  # noqa: S608 - constant names
            with cursor.copy(f"COPY {table.staging} ({names}) FROM STDIN (FORMAT BINARY)") as copy:
                copy.write(copy_rows(fields))
        return sent

    @staticmethod
    def _upsert(table: _Table) -> None:
        names = [*(name for name, _, _ in table.keys), "sampled_at", *table.columns]
        values = ", ".join(name if name not in table.columns else f"NULLIF({name}, 'NaN')" for name in names)
        updates = ", ".join(f"{name} = EXCLUDED.{name}" for name in ("sampled_at", *table.columns))
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO {table.name} ({', '.join(names)}) SELECT {values} FROM {table.staging} ON CONFLICT ({table.conflict}) DO UPDATE SET {updates}"  # noqa: S608
            )

    # Back at start

    def seed(self) -> int:
        """Fill the live state with what the tables hold, so that a restarted process knows what it knew. Returns the GPUs that have values."""
        with self._lock:
            seeded = self._seed_gpus() + self._seed_last_known()
            self._seed_slices()
            self._state.derive()
        return seeded

    def _seed_gpus(self) -> int:
        state = self._state
        row_of_id = {int(gpu_id): row for row, gpu_id in enumerate(state.gpu_id)}
        count = 0
        for gpu_id, at, *values in GpuReading.objects.values_list("gpu_id", "sampled_at", *_GPU_COLUMNS).iterator(chunk_size=5_000):
            row = row_of_id.get(gpu_id)
            if row is None or at is None:
                continue
            state.gpu_values[:, row] = [np.nan if value is None else value for value in values]
            state.gpu_sampled_at[row] = at.timestamp()
            state.gpu_times[:, row] = np.where(np.isnan(state.gpu_values[:, row]), np.nan, at.timestamp())
            state.gpu_xid[row] = state.gpu_values[_XID, row]
            state.gpu_stored[row] = True
            count += 1
        return count

    def _seed_last_known(self) -> int:
        """GPUs that the unlogged table lost: from the logged copy, where there is one."""
        state = self._state
        index = {name: number for number, name in enumerate(_GPU_COLUMNS)}
        count = 0
        for known in LastKnownReading.objects.select_related("gpu").iterator(chunk_size=2_000):
            row = state.gpu_row_of.get(known.gpu.uuid)
            if row is None or not np.isnan(state.gpu_sampled_at[row]):
                continue
            at = known.sampled_at.timestamp()
            for name, value in known.values.items():
                if name in index and value is not None:
                    state.gpu_values[index[name], row], state.gpu_times[index[name], row] = value, at
            state.gpu_xid[row] = state.gpu_values[_XID, row]
            state.gpu_sampled_at[row] = at
            state.gpu_changed[row] = True
            count += 1
        return count

    def _seed_slices(self) -> None:
        state = self._state
        row_of_id = {int(gpu_id): row for row, gpu_id in enumerate(state.gpu_id)}
        live = MigSlice.objects.filter(ended_at__isnull=True).values_list("gpu_id", "gpu_instance_id", "profile")
        profiles = {(gpu_id, instance): profile for gpu_id, instance, profile in live.iterator(chunk_size=10_000)}
        stored = SliceReading.objects.values_list("gpu_id", "gpu_instance_id", "sampled_at", *_SLICE_COLUMNS)
        for gpu_id, instance, at, *values in stored.iterator(chunk_size=5_000):
            gpu_row = row_of_id.get(gpu_id)
            if gpu_row is None or at is None:
                continue
            row = state.slice_row(gpu_row, instance, profiles.get((gpu_id, instance), ""))
            state.slice_values[:, row] = [np.nan if value is None else value for value in values]
            state.slice_sampled_at[row] = at.timestamp()
            state.slice_times[:, row] = np.where(np.isnan(state.slice_values[:, row]), np.nan, at.timestamp())
            state.slice_live[row] = (gpu_id, instance) in profiles and not np.isnan(state.slice_values[:, row]).all()
            state.slice_stored[row] = True


def _update_statement(table: _Table, columns: dict[str, bool]) -> str:
    """UPDATE of all value columns from the temporary table; a column that was not sent is null in every row."""
    parts = ["sampled_at = new.sampled_at"]
    for name in table.columns:
        if name not in columns:
            parts.append(f"{name} = NULL")
        else:
            parts.append(f"{name} = NULLIF(new.{name}, 'NaN')" if columns[name] else f"{name} = new.{name}")
    match = " AND ".join(f"old.{name} = new.{name}" for name, _, _ in table.keys)
    return f"UPDATE {table.name} AS old SET {', '.join(parts)} FROM {table.staging} AS new WHERE {match}"  # noqa: S608 - constant names
