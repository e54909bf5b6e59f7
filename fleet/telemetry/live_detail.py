"""What changed on the sites that somebody looks at, GPU by GPU, for `stream.publish_details`."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fleet.telemetry.fields import GPU_FIELDS, SLICE_FIELDS
from fleet.telemetry.live_state import Floats, LiveState, Rows

_GPU_NAMES = tuple(field.name for field in GPU_FIELDS)
_SLICE_NAMES = tuple(field.name for field in SLICE_FIELDS)
Detail = dict[str, Any]


class DetailWatch:
    """Remembers what each watched site was last told. One thread at a time."""

    def __init__(self, state: LiveState) -> None:
        self._state = state
        self._told: dict[str, tuple[dict[int, Floats], dict[int, Floats]]] = {}

    def changes(self, codes: set[str], *, now: float) -> Iterator[tuple[str, Detail]]:
        """(site code, detail) of watched sites with changed values; the first time all of them. Hold the state's lock."""
        for gone in set(self._told) - codes:
            del self._told[gone]
        state = self._state
        for code in sorted(codes):
            site_row = state.site_row_of_code.get(code)
            if site_row is None:
                continue
            told_gpus, told_slices = self._told.setdefault(code, ({}, {}))
            gpu_rows = np.flatnonzero((state.gpu_site_row == site_row) & state.gpu_active)
            slice_rows = np.flatnonzero(np.isin(state.slice_gpu_row, gpu_rows)) if len(gpu_rows) else np.empty(0, dtype=np.int64)
            gpus = {
                state.gpu_uuid[row]: {**changed, "sampled_at": float(state.gpu_sampled_at[row])}
                for row, changed in _changed(told_gpus, gpu_rows, state.shown_values(gpu_rows), _GPU_NAMES)
            }
            slices = {
                f"{state.gpu_uuid[int(state.slice_gpu_row[row])]}/{int(state.slice_instance[row])}": changed
                for row, changed in _changed(told_slices, slice_rows, state.shown_slice_values(slice_rows), _SLICE_NAMES)
            }
            if gpus or slices:
                yield code, {"at": now, "gpus": gpus, "slices": slices}


def _changed(
    told: dict[int, Floats], rows: "Rows | np.ndarray[tuple[int], np.dtype[np.int64]]", values: Floats, names: tuple[str, ...]
) -> Iterator[tuple[int, dict[str, float]]]:
    """(row, what differs from what was told) of rows [n] with values [len(names), n]."""
    for number, row in enumerate(rows.tolist()):
        current = values[:, number].copy()
        before = told.get(row)
        told[row] = current
        if before is None:
            yield row, dict(zip(names, current.tolist(), strict=True))
            continue
        differs = np.flatnonzero((current != before) & ~(np.isnan(current) & np.isnan(before)))
        if len(differs):
            yield row, {names[index]: float(current[index]) for index in differs.tolist()}
