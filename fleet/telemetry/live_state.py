"""The last values of the fleet in numpy columns: the memory of one telemetry process. Pure: no Django, no clock, no I/O.

Rows are only appended while the process lives; an object that left the inventory stays as an inactive row. NaN is "no value", never 0.
Public arrays are views of exactly the rows that exist; take them anew after rows were added: `version` has changed when sites, nodes or GPUs were
added or moved, `slice_version` when slices were.
"""

from collections import deque

import numpy as np
from numpy.typing import NDArray

from fleet.inventory.host_names import host_label
from fleet.telemetry.fields import COMPUTE_SLICES, GPU_FIELD_INDEX, GPU_FIELDS, SLICE_FIELD_INDEX, SLICE_FIELDS, XidChange, XidCount, compute_slices
from fleet.telemetry.suspects import profiling_suspect, sliced_profiling_suspect

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Rows = NDArray[np.int32]
Flags = NDArray[np.bool_]

_UTILIZATION = GPU_FIELD_INDEX["utilization_ratio"]
_ENGINE = GPU_FIELD_INDEX["engine_active_ratio"]
_POWER = GPU_FIELD_INDEX["power_watts"]
_POWER_LIMIT = GPU_FIELD_INDEX["power_limit_watts"]
_MEMORY_USED = GPU_FIELD_INDEX["memory_used_bytes"]
_XID = GPU_FIELD_INDEX["xid"]
_NVLINK_ERRORS = GPU_FIELD_INDEX["nvlink_errors_total"]
_SLICE_ENGINE = SLICE_FIELD_INDEX["engine_active_ratio"]
_SLICE_MEMORY_USED = SLICE_FIELD_INDEX["memory_used_bytes"]
_PROFILING_NAMES = ("engine_active_ratio", "sm_active_ratio", "tensor_active_ratio", "dram_active_ratio")
PROFILING_FIELDS = tuple(GPU_FIELD_INDEX[name] for name in _PROFILING_NAMES)
SLICE_PROFILING_FIELDS = tuple(SLICE_FIELD_INDEX[name] for name in _PROFILING_NAMES)
NVLINK_PARTS = 4


class Columns:
    """Growing numpy columns with spare room; `view(name)` is the part that is filled. The last axis is the row."""

    def __init__(self) -> None:
        self.count = 0
        self._room = 0
        self._fills: dict[str, float | int | bool] = {}
        self._arrays: dict[str, NDArray[np.generic]] = {}

    def add_column(self, name: str, dtype: str, fill: float | int | bool, *, depth: int | None = None) -> None:
        self._fills[name] = fill
        shape = (self._room,) if depth is None else (depth, self._room)
        self._arrays[name] = np.full(shape, fill, dtype=dtype)

    def append(self, how_many: int) -> int:
        """Add rows filled with the columns' defaults. Returns the first new row."""
        first = self.count
        self.count += how_many
        if self.count > self._room:
            room = max(self.count, int(self._room * 1.5), 64)
            for name, old in self._arrays.items():
                new = np.full((*old.shape[:-1], room), self._fills[name], dtype=old.dtype)
                new[..., : self._room] = old
                self._arrays[name] = new
            self._room = room
        return first

    def clear(self, row: int) -> None:
        """Fill a row with the columns' defaults."""
        for name, array in self._arrays.items():
            array[..., row] = self._fills[name]

    def names(self) -> tuple[str, ...]:
        return tuple(self._arrays)

    def whole(self, name: str) -> NDArray[np.generic]:
        """The column with its spare room."""
        return self._arrays[name]

    def view(self, name: str) -> NDArray[np.generic]:
        return self._arrays[name][..., : self.count]


class LiveState:
    """Columns of sites, nodes, GPUs and slices (shapes and types: docs/architecture.md, "Telemetry")."""

    gpu_id: Ints
    gpu_node_row: Rows
    gpu_site_row: Rows
    gpu_active: Flags
    gpu_values: Floats
    gpu_times: Floats
    gpu_sampled_at: Floats  # newest sample time of the row
    gpu_refused: Floats  # samples out of range since the process began to count
    gpu_owner: Rows  # [len(GPU_FIELDS), g]: slot of the series that wrote the cell last, -1 none
    gpu_nvlink_parts: Floats
    gpu_recovery: Floats  # the recovery action that the driver names (0: none), and its sample time
    gpu_recovery_at: Floats
    gpu_xid: Floats  # the last code that the gauge showed, kept when its series ends
    gpu_stored: Flags  # the row is in the reading table
    gpu_changed: Flags
    gpu_suspect: Flags  # profiling values contradict the others: not to be used
    slice_gpu_row: Rows
    slice_instance: Rows
    slice_compute: Rows  # compute slices of the profile, 0 when unknown
    slice_live: Flags  # its series are there: not ended, and not silent while its GPU goes on
    slice_values: Floats
    slice_times: Floats
    slice_sampled_at: Floats
    slice_owner: Rows
    slice_xid: Floats
    slice_stored: Flags
    slice_changed: Flags
    node_id: Ints
    node_site_row: Rows
    node_active: Flags
    node_up: Floats
    node_up_time: Floats
    node_heartbeat: Floats
    site_id: Ints
    site_area: Ints
    site_region: Ints
    site_active: Flags
    site_last_contact: Floats

    def __init__(self, *, slice_silent_seconds: float = 90.0) -> None:
        """`slice_silent_seconds`: a slice that nothing came of for so long, while its GPU goes on, is no longer there."""
        nan = float("nan")
        self.slice_silent_seconds = slice_silent_seconds
        self.version = self.slice_version = 0
        self.arrived_at = nan  # newest arrival (Unix seconds) among the samples taken
        self.gpu_uuid: list[str] = []
        self.slice_profile: list[str] = []
        self.site_code: list[str] = []
        self.node_host: list[str] = []
        self.gpu_row_of: dict[str, int] = {}
        self.slice_row_of: dict[tuple[int, int], int] = {}
        self.node_row_of_id: dict[int, int] = {}
        self.site_row_of_id: dict[int, int] = {}
        self.site_row_of_code: dict[str, int] = {}
        self.node_row_of_host: dict[tuple[int, str], int] = {}  # (site row, first label of the host name)
        self.node_rows_of_host: dict[str, list[int]] = {}
        # Filled by the thread that takes samples, emptied by the one that evaluates.
        self._xid_changes: deque[XidChange] = deque()
        self._xid_counts: deque[XidCount] = deque()
        self._gpus, self._slices, self._nodes, self._sites = Columns(), Columns(), Columns(), Columns()
        for name, dtype, fill in (("id", "i8", -1), ("node_row", "i4", -1), ("site_row", "i4", -1), ("active", "?", False)):
            self._gpus.add_column(name, dtype, fill)
        for name in ("values", "times"):
            self._gpus.add_column(name, "f8", nan, depth=len(GPU_FIELDS))
        self._gpus.add_column("owner", "i4", -1, depth=len(GPU_FIELDS))
        self._gpus.add_column("nvlink_parts", "f8", nan, depth=NVLINK_PARTS)
        for name in ("sampled_at", "xid", "recovery", "recovery_at"):
            self._gpus.add_column(name, "f8", nan)
        self._gpus.add_column("refused", "f8", 0.0)
        for name in ("changed", "suspect", "stored"):
            self._gpus.add_column(name, "?", False)
        for name, dtype, fill in (("gpu_row", "i4", -1), ("instance", "i4", -1), ("compute", "i4", 0), ("live", "?", False)):
            self._slices.add_column(name, dtype, fill)
        for name in ("values", "times"):
            self._slices.add_column(name, "f8", nan, depth=len(SLICE_FIELDS))
        self._slices.add_column("owner", "i4", -1, depth=len(SLICE_FIELDS))
        self._slices.add_column("sampled_at", "f8", nan)
        self._slices.add_column("xid", "f8", nan)
        for name in ("changed", "stored"):
            self._slices.add_column(name, "?", False)
        for name, dtype, fill in (("id", "i8", -1), ("site_row", "i4", -1), ("active", "?", False)):
            self._nodes.add_column(name, dtype, fill)
        for name in ("up", "up_time", "heartbeat"):
            self._nodes.add_column(name, "f8", nan)
        for name, dtype, fill in (("id", "i8", -1), ("area", "i8", -1), ("region", "i8", -1), ("active", "?", False)):
            self._sites.add_column(name, dtype, fill)
        self._sites.add_column("last_contact", "f8", nan)
        self._renew_views("gpu", "slice", "node", "site")

    def _renew_views(self, *prefixes: str) -> None:
        for prefix in prefixes:
            columns: Columns = getattr(self, f"_{prefix}s")
            for name in columns.names():
                setattr(self, f"{prefix}_{name}", columns.view(name))
        if prefixes == ("slice",):
            self.slice_version += 1
        else:
            self.version += 1

    # Rows

    @property
    def gpu_count(self) -> int:
        return self._gpus.count

    @property
    def slice_count(self) -> int:
        return self._slices.count

    def add_sites(self, rows: list[tuple[int, str, int, int]]) -> None:
        """Add sites as (database id, code, area id, region id), or refresh those that exist."""
        new = [row for row in rows if row[0] not in self.site_row_of_id]
        first = self._sites.append(len(new))
        if new:
            self._renew_views("site")
        for offset, (site_id, code, _, _) in enumerate(new):
            self.site_row_of_id[site_id] = first + offset
            self.site_code.append(code)
        for site_id, code, area, region in rows:
            row = self.site_row_of_id[site_id]
            self.site_id[row], self.site_area[row], self.site_region[row], self.site_active[row] = site_id, area, region, True
            if self.site_code[row] != code:
                self.site_row_of_code.pop(self.site_code[row], None)
                self.site_code[row] = code
            self.site_row_of_code[code] = row

    def add_nodes(self, rows: list[tuple[int, str, int]]) -> None:
        """Add nodes as (database id, host name, site's database id), or refresh those that exist. Their sites must be there."""
        new = [row for row in rows if row[0] not in self.node_row_of_id]
        first = self._nodes.append(len(new))
        if new:
            self._renew_views("node")
        for offset, (node_id, host, _) in enumerate(new):
            self.node_row_of_id[node_id] = first + offset
            self.node_host.append(host)
        for node_id, host, site_id in rows:
            row, site_row = self.node_row_of_id[node_id], self.site_row_of_id[site_id]
            self.version += int(self.node_site_row[row] not in (-1, site_row))
            self._name_node(row, site_row, host)
            self.node_id[row], self.node_site_row[row], self.node_active[row] = node_id, site_row, True

    def _name_node(self, row: int, site_row: int, host: str) -> None:
        old, new = host_label(self.node_host[row]), host_label(host)
        if self.node_row_of_host.get((int(self.node_site_row[row]), old)) == row:
            del self.node_row_of_host[int(self.node_site_row[row]), old]
        rows = self.node_rows_of_host.get(old, [])
        if row in rows:
            rows.remove(row)
        self.node_host[row] = host
        self.node_row_of_host[site_row, new] = row
        self.node_rows_of_host.setdefault(new, []).append(row)

    def add_gpus(self, rows: list[tuple[int, str, int]]) -> None:
        """Add GPUs as (database id, UUID, node's database id), or refresh those that exist. Their nodes must be there."""
        new = [row for row in rows if row[1] not in self.gpu_row_of]
        first = self._gpus.append(len(new))
        if new:
            self._renew_views("gpu")
        for offset, (_, gpu_uuid, _) in enumerate(new):
            self.gpu_row_of[gpu_uuid] = first + offset
            self.gpu_uuid.append(gpu_uuid)
        for gpu_id, gpu_uuid, node_id in rows:
            row, node_row = self.gpu_row_of[gpu_uuid], self.node_row_of_id[node_id]
            self.version += int(self.gpu_node_row[row] not in (-1, node_row))
            self.gpu_id[row], self.gpu_node_row[row], self.gpu_site_row[row] = gpu_id, node_row, self.node_site_row[node_row]
            self.gpu_active[row] = True

    def slice_row(self, gpu_row: int, instance: int, profile: str) -> int:
        """The row of a slice, added when new. Another profile under the same instance is a new layout: its old values go."""
        row = self.slice_row_of.get((gpu_row, instance))
        if row is None:
            row = self._slices.append(1)
            self._renew_views("slice")
            self.slice_row_of[gpu_row, instance] = row
            self.slice_profile.append(profile)
            self.slice_gpu_row[row], self.slice_instance[row] = gpu_row, instance
            self.slice_xid[row] = self.gpu_xid[gpu_row]
            self.slice_compute[row] = compute_slices(profile)
        elif profile and self.slice_profile[row] != profile:
            if self.slice_profile[row]:
                self.slice_values[:, row] = np.nan
                self.slice_changed[row] = True
            self.slice_profile[row] = profile
            self.slice_compute[row] = compute_slices(profile)
        return row

    # News for the health engine

    def note_xid_change(self, change: XidChange) -> None:
        self._xid_changes.append(change)

    def note_xid_count(self, count: XidCount) -> None:
        self._xid_counts.append(count)

    def take_xid_changes(self) -> list[XidChange]:
        """The XID changes since the last call, oldest first. One change that several slices of a GPU repeat is one, without an instance."""
        merged: dict[tuple[int, int, float], XidChange] = {}
        while self._xid_changes:
            change = self._xid_changes.popleft()
            key = (change.gpu_row, change.new, change.at)
            known = merged.get(key)
            if known is None:
                merged[key] = change
            elif known.gpu_instance_id != change.gpu_instance_id:
                merged[key] = XidChange(change.gpu_row, None, known.old, change.new, change.at)
        return sorted(merged.values(), key=lambda change: change.at)

    def take_xid_counts(self) -> list[XidCount]:
        """The changes of XID counts since the last call, oldest first."""
        counts = [self._xid_counts.popleft() for _ in range(len(self._xid_counts))]
        return sorted(counts, key=lambda count: count.at)

    # What follows from the values

    def derive(self) -> None:
        """Refresh what is computed from other columns: sliced GPUs' utilisation, suspect profiling, NVLink error sums, sites' last contact."""
        engines = self._derive_sliced()
        power, power_limit = self.gpu_values[_POWER], self.gpu_values[_POWER_LIMIT]
        sliced_suspect = sliced_profiling_suspect(engines, self.gpu_values[_MEMORY_USED], power, power_limit)
        self.gpu_suspect[:] = sliced_suspect | profiling_suspect(self.gpu_values[_ENGINE], self.gpu_values[_UTILIZATION], power, power_limit)
        self.gpu_values[_UTILIZATION, sliced_suspect] = np.nan
        parts = self.gpu_nvlink_parts
        any_part = ~np.isnan(parts).all(axis=0)
        self.gpu_values[_NVLINK_ERRORS, any_part] = np.nansum(parts[:, any_part], axis=0)
        contact = self.site_last_contact
        seen = ~np.isnan(self.gpu_sampled_at) & (self.gpu_site_row >= 0)
        _raise_to(contact, self.gpu_site_row[seen], self.gpu_sampled_at[seen])
        seen = ~np.isnan(self.node_heartbeat)
        _raise_to(contact, self.node_site_row[seen], self.node_heartbeat[seen])
        seen = self.node_up == 1
        _raise_to(contact, self.node_site_row[seen], self.node_up_time[seen])

    def _derive_sliced(self) -> Floats:
        """A sliced GPU's utilisation is its live slices' engine-active ratios, weighted by compute slices of 7; its used memory their sum.

        A live slice without a value makes the GPU's value unknown; a GPU whose slices all ended has none. Not every door tells that a series ended:
        a slice that falls behind its GPU is not live. Returns [g]: the sum of those ratios, NaN where the GPU's utilisation does not come from slices.
        """
        engines = np.full(self._gpus.count, np.nan)
        if not self._slices.count:
            return engines
        heard_at = np.fmax.reduce(self.slice_times, axis=0)
        with np.errstate(invalid="ignore"):
            self.slice_live &= ~(self.gpu_sampled_at[self.slice_gpu_row] - heard_at > self.slice_silent_seconds)
        count = self._gpus.count
        live = self.slice_live
        rows = self.slice_gpu_row[live]
        sliced = np.zeros(count, dtype=np.bool_)
        sliced[self.slice_gpu_row] = True
        any_live = np.zeros(count, dtype=np.bool_)
        any_live[rows] = True
        # A GPU that was un-sliced since reports GPU_UTIL itself again, later than its slices' last samples.
        newest = np.full(count, -np.inf)
        np.maximum.at(newest, self.slice_gpu_row, np.nan_to_num(self.slice_sampled_at, nan=-np.inf))
        for field, slice_field, weights in (
            (_UTILIZATION, _SLICE_ENGINE, self.slice_compute[live] / COMPUTE_SLICES),
            (_MEMORY_USED, _SLICE_MEMORY_USED, np.ones(len(rows))),
        ):
            sums = np.bincount(rows, weights=weights * self.slice_values[slice_field][live], minlength=count)
            own = self.gpu_owner[field] >= 0
            with np.errstate(invalid="ignore"):
                own &= self.gpu_times[field] > newest
            target = sliced & ~own
            self.gpu_values[field, target] = np.where(any_live, sums, np.nan)[target]
            if field == _UTILIZATION:
                chosen = target & any_live
                engines[chosen] = np.bincount(rows, weights=self.slice_values[_SLICE_ENGINE][live], minlength=count)[chosen]
            self.gpu_times[field, target & np.isfinite(newest)] = newest[target & np.isfinite(newest)]
        return engines

    def shown_values(self, rows: NDArray[np.integer]) -> Floats:
        """[len(GPU_FIELDS), n]: what is stored and shown of these GPUs. Suspect profiling is left out; the last XID stands while its series is away."""
        values = self.gpu_values[:, rows]
        values[_XID] = self.gpu_xid[rows]
        suspect = self.gpu_suspect[rows]
        for field in PROFILING_FIELDS:
            values[field, suspect] = np.nan
        return values

    def shown_slice_values(self, rows: NDArray[np.integer]) -> Floats:
        """[len(SLICE_FIELDS), n]: what is stored and shown of these slices. Suspect profiling is left out."""
        values = self.slice_values[:, rows]
        suspect = self.gpu_suspect[self.slice_gpu_row[rows]]
        for field in SLICE_PROFILING_FIELDS:
            values[field, suspect] = np.nan
        return values

    def reporting(self, *, now: float, within_seconds: float) -> Flags:
        """[g]: active GPUs with a sample of at most that age."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.gpu_active & (now - self.gpu_sampled_at <= within_seconds), dtype=np.bool_)


def _raise_to(target: Floats, rows: NDArray[np.integer], values: Floats) -> None:
    """target[rows] = max(target[rows], values), NaN in target counting as nothing."""
    best = np.full(len(target), -np.inf)
    np.maximum.at(best, rows, values)
    np.copyto(target, np.fmax(target, np.where(np.isfinite(best), best, np.nan)))
