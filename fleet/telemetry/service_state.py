"""The last two scrapes of every service item (node-exporter, Triton, vLLM, `up`) in numpy columns. Pure: no Django, no clock, no I/O."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.telemetry.live_state import Columns, Floats
from fleet.telemetry.service_metrics import FIELDS_OF_JOB, JOBS, Scrape, derive

_SETTLE_SECONDS = 1.0  # a scrape's samples arrive within this time; a row is not read in the middle of one


@dataclass(frozen=True)
class ServiceRow:
    """One item as it is shown and stored. `values` holds every field that the item ever reported; None is no value now."""

    node_row: int
    job: str
    item: str
    sampled_at: float
    values: dict[str, float | None]


class _Table:
    """The items of one job. Fields are rows of the arrays, items their columns."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.names = tuple(field.name for field in FIELDS_OF_JOB[job])
        self.items: list[tuple[int, str]] = []
        self.columns = Columns()
        for name in ("values", "times", "previous", "previous_times"):
            self.columns.add_column(name, "f8", float("nan"), depth=len(self.names))
        self.columns.add_column("sampled_at", "f8", float("nan"))
        self.columns.add_column("arrived_at", "f8", float("nan"))
        for name in ("changed", "waited"):
            self.columns.add_column(name, "?", False)

    def floats(self, name: str) -> Floats:
        return self.columns.view(name).view(np.float64)

    def flags(self, name: str) -> NDArray[np.bool_]:
        return self.columns.view(name).view(np.bool_)


class ServiceState:
    def __init__(self) -> None:
        self._tables = {job: _Table(job) for job in JOBS}
        self._row_of: dict[tuple[str, int, str], int] = {}

    def __len__(self) -> int:
        return len(self._row_of)

    def row(self, job: str, node_row: int, item: str) -> int:
        """The row of an item in its job's table, added when new."""
        key = (job, node_row, item)
        row = self._row_of.get(key)
        if row is None:
            table = self._tables[job]
            row = self._row_of[key] = table.columns.append(1)
            table.items.append((node_row, item))
        return row

    def put(self, job: str, rows: NDArray[np.int64], fields: NDArray[np.int64], values: Floats, times: Floats, stale: NDArray[np.bool_], *, now: float) -> None:
        """Take samples of one job, [n] each. NaN is no value; a stale one counts only when it is newer than what is held."""
        table = self._tables[job]
        order = np.lexsort((stale, times))
        pending = order
        while len(pending):
            cells = fields[pending] * table.columns.count + rows[pending]
            _, first = np.unique(cells, return_index=True)
            turn = np.zeros(len(pending), dtype=np.bool_)
            turn[first] = True
            self._put_once(table, rows[pending[turn]], fields[pending[turn]], values[pending[turn]], times[pending[turn]], now)
            pending = pending[~turn]

    @staticmethod
    def _put_once(table: _Table, rows: NDArray[np.int64], fields: NDArray[np.int64], values: Floats, times: Floats, now: float) -> None:
        held, held_times = table.floats("values"), table.floats("times")
        with np.errstate(invalid="ignore"):
            newer = ~(times <= held_times[fields, rows])
        rows, fields, values, times = rows[newer], fields[newer], values[newer], times[newer]
        keep = ~np.isnan(held[fields, rows])
        kept_fields, kept_rows = fields[keep], rows[keep]
        table.floats("previous")[kept_fields, kept_rows] = held[kept_fields, kept_rows]
        table.floats("previous_times")[kept_fields, kept_rows] = held_times[kept_fields, kept_rows]
        held[fields, rows] = values
        held_times[fields, rows] = times
        sampled_at = table.floats("sampled_at")
        sampled_at[rows] = np.fmax(sampled_at[rows], times)
        table.floats("arrived_at")[rows] = now
        table.flags("changed")[rows] = True

    def take_changed(self, *, now: float) -> list[tuple[ServiceRow, tuple[str, int]]]:
        """The rows that changed and whose scrape has settled, each with the key for `keep_changed`. They count as unchanged from here."""
        found = []
        for job, table in self._tables.items():
            changed, waited = table.flags("changed"), table.flags("waited")
            with np.errstate(invalid="ignore"):
                settled = ~(now - table.floats("arrived_at") < _SETTLE_SECONDS)
            ready = changed & (settled | waited)
            waited[:] = changed & ~ready
            changed[ready] = False
            found += [(self._read(table, row), (job, row)) for row in np.flatnonzero(ready).tolist()]
        return found

    def keep_changed(self, keys: list[tuple[str, int]]) -> None:
        """The rows could not be stored: they are changed still."""
        for job, row in keys:
            self._tables[job].flags("changed")[row] = True

    def mark_all_changed(self) -> None:
        """The table may lack any of them."""
        for table in self._tables.values():
            table.flags("changed")[:] = ~np.isnan(table.floats("sampled_at"))

    def read(self, job: str, node_row: int, item: str) -> ServiceRow | None:
        row = self._row_of.get((job, node_row, item))
        return None if row is None else self._read(self._tables[job], row)

    @staticmethod
    def _read(table: _Table, row: int) -> ServiceRow:
        values, times = table.floats("values")[:, row], table.floats("times")[:, row]
        earlier, earlier_times = table.floats("previous")[:, row], table.floats("previous_times")[:, row]
        last = {name: float(value) for name, value in zip(table.names, values, strict=True) if not np.isnan(value)}
        before = {name: float(value) for name, value in zip(table.names, earlier, strict=True) if not np.isnan(value)}
        node_row, item = table.items[row]
        sampled_at = float(table.floats("sampled_at")[row])
        shown: dict[str, float | None] = {
            name: (None if np.isnan(value) else float(value)) for name, value, at in zip(table.names, values, times, strict=True) if not np.isnan(at)
        }
        if not last:
            return ServiceRow(node_row, table.job, item, sampled_at, shown)
        previous = Scrape(float(np.nanmax(earlier_times)), before) if before else None
        shown.update(derive(table.job, Scrape(sampled_at, last), previous))
        return ServiceRow(node_row, table.job, item, sampled_at, shown)
