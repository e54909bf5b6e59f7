"""Exporters that answer with the same text for ever: what always moves on a powered GPU stands still. Pure: numpy, no Django.

Each scrape gets a new time, so such a node looks fresh. The energy counter of a GPU that draws power moves from reading to reading; without it power,
temperature and clock together do, only more slowly. Any reading that moves, on any GPU of the node, says that the exporter lives.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fleet.health.facts import Thresholds
from fleet.telemetry.fields import GPU_FIELD_INDEX
from fleet.telemetry.live_state import LiveState

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_FIELDS = [GPU_FIELD_INDEX[name] for name in ("energy_joules", "power_watts", "gpu_temperature_celsius", "sm_clock_hertz")]
_ENERGY, _POWER = 0, 1
MOST_INTERVALS_A_STEP = 1.5  # a leap of sample time (a late batch) shows no more than one scrape does; after a gap the hold starts anew


class FrozenWatch:
    """Memory of the moving readings of all GPUs, [g], and since when each node's exporter is frozen, [n]: Unix seconds, NaN where it is not.

    A node stays frozen until a reading of one of its GPUs moves: silence proves nothing.
    """

    def __init__(self, thresholds: Thresholds) -> None:
        self.thresholds = thresholds
        self.node_since: Floats = np.empty(0)
        self._last: Floats = np.empty((len(_FIELDS), 0))
        self._at: Floats = np.empty(0)  # newest sample time that was seen
        self._since: Floats = np.empty(0)  # sample time from which the readings stand
        self._stood: Floats = np.empty(0)  # seconds, of samples that were seen as they came
        self._ever_moved: Flags = np.empty(0, dtype=np.bool_)

    def seed(self, node_row: int, since: float) -> None:
        """The finding was open before this process started."""
        self._fit_nodes(node_row + 1)
        self.node_since[node_row] = since

    def update(self, live: LiveState, *, now: float, gpu_fresh: Flags, exporter_fresh: Flags) -> None:
        """Take the newest readings. `gpu_fresh` [g], `exporter_fresh` [n]: heard of late, and in the inventory."""
        self._fit_nodes(len(live.node_host))
        self._fit_gpus(live)
        thresholds, nodes = self.thresholds, len(self.node_since)
        readings, moved = self._take(live, now)
        with np.errstate(invalid="ignore"):
            energy = readings[_ENERGY] > 0
            powered = (energy | (readings[_POWER] > 0)) & ~(readings[_POWER] <= 0)
            stands = self._stood >= np.where(energy, thresholds.frozen_seconds, thresholds.frozen_seconds_without_energy)
        here = gpu_fresh & live.gpu_active & (live.gpu_node_row >= 0)
        node_of = np.maximum(live.gpu_node_row, 0)
        counts = here & powered
        # A GPU without power is no witness that the text stands still, yet it is one that it changes.
        lively = here & ~stands & (powered | self._ever_moved)
        frozen = exporter_fresh & live.node_active & (np.bincount(node_of[counts], minlength=nodes) > 0)
        frozen &= np.bincount(node_of[lively], minlength=nodes) == 0
        newest = np.full(nodes, -np.inf)
        np.maximum.at(newest, node_of[counts], self._since[counts])
        begins = frozen & np.isnan(self.node_since)
        self.node_since[begins] = newest[begins]
        self.node_since[node_of[moved & here]] = np.nan
        self.node_since[~live.node_active] = np.nan

    def _take(self, live: LiveState, now: float) -> tuple[Floats, Flags]:
        """(the readings that are not too old, NaN where there is none; where one of them is another one than before)."""
        times = live.gpu_times[_FIELDS]
        with np.errstate(invalid="ignore"):
            readings = np.where(now - times <= self.thresholds.unknown_seconds, live.gpu_values[_FIELDS], np.nan)
            # Some boards blink to 0, or have no energy counter and say 0.
            readings[_ENERGY][readings[_ENERGY] <= 0] = np.nan
            known = ~np.isnan(readings)
            moved = ((readings != self._last) & known & ~np.isnan(self._last)).any(axis=0)
            at = np.fmax.reduce(np.where(known, times, np.nan), axis=0)
            step = np.fmin(at - self._at, MOST_INTERVALS_A_STEP * self.thresholds.interval_seconds)
            after_gap = at - self._at > self.thresholds.unknown_seconds
            first = np.isnan(self._since) & known.any(axis=0)
            later = step > 0
        self._stood[later] += step[later]
        self._at = np.fmax(self._at, at)
        anew = moved | first | after_gap
        self._stood[anew], self._since[anew] = 0.0, at[anew]
        self._ever_moved |= moved
        np.copyto(self._last, readings, where=known)
        return readings, moved

    def _fit_nodes(self, count: int) -> None:
        missing = count - len(self.node_since)
        if missing > 0:
            self.node_since = np.concatenate([self.node_since, np.full(missing, np.nan)])

    def _fit_gpus(self, live: LiveState) -> None:
        """Room for new rows. What they hold already (stored before a restart) is what the next reading is compared with."""
        count = len(self._at)
        missing = len(live.gpu_uuid) - count
        if missing > 0:
            self._last = np.concatenate([self._last, live.gpu_values[_FIELDS, count:]], axis=1)
            self._at, self._since = (np.concatenate([column, np.full(missing, np.nan)]) for column in (self._at, self._since))
            self._stood = np.concatenate([self._stood, np.zeros(missing)])
            self._ever_moved = np.concatenate([self._ever_moved, np.zeros(missing, dtype=np.bool_)])
