"""The last two scrapes of every service item (node-exporter, Triton, vLLM, `up`) in numpy columns. Pure: no Django, no clock, no I/O.

An item that several servers of a node carry (or several GPUs, or engines) has a row for each of its parts; it is read as one, and its parts beside it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.telemetry.live_state import Columns, Floats
from fleet.telemetry.service_metrics import FIELDS_OF_JOB, JOBS, Item
from fleet.telemetry.service_rates import Pair, Scrape, combine, derive

_SETTLE_SECONDS = 1.0  # a scrape's samples arrive within this time; a row is not read in the middle of one


@dataclass(frozen=True)
class ServiceRow:
    """One item, or one part of it, as it is shown and stored. `values` holds every field that it ever reported; None is no value now."""

    node_row: int
    job: str
    item: str  # "name", or "name [part]"
    sampled_at: float
    values: dict[str, float | None]


class _Table:
    """The items of one job. Fields are rows of the arrays, items their columns."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.names = tuple(field.name for field in FIELDS_OF_JOB[job])
        self.items: list[tuple[int, Item]] = []
        self.rows_of: dict[tuple[int, str], tuple[int, ...]] = {}  # (node row, name of the item) → rows of its parts
        self.free: list[int] = []
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
    def __init__(self, *, silent_seconds: float = 90.0) -> None:
        """`silent_seconds`: a part that nothing came of for so long, while another of its item goes on, is left out of the item."""
        self._silent_seconds = silent_seconds
        self._tables = {job: _Table(job) for job in JOBS}
        self._row_of: dict[tuple[str, int, Item], int] = {}

    def __len__(self) -> int:
        return len(self._row_of)

    def row(self, job: str, node_row: int, item: Item) -> int:
        """The row of an item's part in its job's table, added when new."""
        key = (job, node_row, item)
        row = self._row_of.get(key)
        if row is None:
            table = self._tables[job]
            if table.free:
                row = table.free.pop()
                table.items[row] = (node_row, item)
            else:
                row = table.columns.append(1)
                table.items.append((node_row, item))
            self._row_of[key] = row
            place = (node_row, item.name)
            table.rows_of[place] = (*table.rows_of.get(place, ()), row)
        return row

    def sweep(self, in_use: Mapping[str, NDArray[np.integer]], *, older_than: float) -> int:
        """Forget the parts of items that no series leads to (`in_use`: rows by job) and that nothing came of since `older_than` (Unix seconds)."""
        count = 0
        for job, table in self._tables.items():
            idle = np.ones(table.columns.count, dtype=np.bool_)
            idle[in_use[job]] = False
            idle[table.free] = False
            with np.errstate(invalid="ignore"):
                idle &= ~(table.floats("arrived_at") >= older_than)
            for row in np.flatnonzero(idle).tolist():
                node_row, item = table.items[row]
                del self._row_of[job, node_row, item]
                rest = tuple(other for other in table.rows_of.pop((node_row, item.name)) if other != row)
                if rest:
                    table.rows_of[node_row, item.name] = rest
                table.columns.clear(row)
                table.free.append(row)
                count += 1
        return count

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
        """The items (and parts) that changed and whose scrape has settled, each with the key for `keep_changed`. They count as unchanged from here."""
        found = []
        for job, table in self._tables.items():
            changed, waited = table.flags("changed"), table.flags("waited")
            with np.errstate(invalid="ignore"):
                settled = ~(now - table.floats("arrived_at") < _SETTLE_SECONDS)
            ready = changed & (settled | waited)
            waited[:] = changed & ~ready
            changed[ready] = False
            told: set[tuple[int, str]] = set()
            for row in np.flatnonzero(ready).tolist():
                node_row, item = table.items[row]
                if (node_row, item.name) not in told:
                    told.add((node_row, item.name))
                    found += [(each, (job, row)) for each in self._read(table, table.rows_of[node_row, item.name])]
        return found

    def keep_changed(self, keys: list[tuple[str, int]]) -> None:
        """The rows could not be stored: they are changed still."""
        for job, row in keys:
            self._tables[job].flags("changed")[row] = True

    def mark_all_changed(self) -> None:
        """The table may lack any of them."""
        for table in self._tables.values():
            table.flags("changed")[:] = ~np.isnan(table.floats("sampled_at"))

    def read(self, job: str, node_row: int, name: str) -> list[ServiceRow]:
        """The item of that name, its parts behind it where there are several; empty when it was never reported."""
        table = self._tables[job]
        rows = table.rows_of.get((node_row, name))
        return [] if rows is None else self._read(table, rows)

    def _read(self, table: _Table, rows: tuple[int, ...]) -> list[ServiceRow]:
        parts: dict[str, list[int]] = {}
        for row in rows:
            parts.setdefault(table.items[row][1].part, []).append(row)
        name = table.items[rows[0]][1].name
        whole = self._combine(table, name, list(rows))
        return [whole] if len(parts) == 1 else [whole, *(self._combine(table, f"{name} [{part}]".strip(), members) for part, members in parts.items())]

    def _combine(self, table: _Table, text: str, rows: list[int]) -> ServiceRow:
        """These rows of a table as one."""
        sampled_at = float(np.fmax.reduce(table.floats("sampled_at")[rows]))
        shown: dict[str, float | None] = {}
        pairs: list[Pair] = []
        for row in rows:
            reported = ~np.isnan(table.floats("times")[:, row])
            shown.update((table.names[index], None) for index in np.flatnonzero(reported).tolist())
            if sampled_at - table.floats("sampled_at")[row] <= self._silent_seconds:
                pairs += self._pairs(table, row)
        if pairs:
            shown.update(combine(table.job, [last for last, _ in pairs]))
            shown.update(derive(table.job, pairs))
        return ServiceRow(table.items[rows[0]][0], table.job, text, sampled_at, shown)

    @staticmethod
    def _pairs(table: _Table, row: int) -> list[Pair]:
        """The last two scrapes of a row; none when it has no value now."""
        last, before = (
            {name: float(value) for name, value in zip(table.names, table.floats(column)[:, row], strict=True) if not np.isnan(value)}
            for column in ("values", "previous")
        )
        if not last:
            return []
        earlier = table.floats("previous_times")[:, row]
        return [(Scrape(float(table.floats("sampled_at")[row]), last), Scrape(float(np.nanmax(earlier)), before) if before else None)]
