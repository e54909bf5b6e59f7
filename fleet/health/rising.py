"""Counters that should stand still: where they rose, by how much, and for how long that counts. Pure: numpy, no Django."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Rising:
    """One counter of many GPUs, [g].

    A rise by `threshold` or more within `window_seconds` counts, and stands for `stand_seconds` after the last one.
    A counter that falls was reset: it starts anew. Times are sample times.
    """

    def __init__(self, threshold: float, window_seconds: float, stand_seconds: float) -> None:
        self.threshold, self.window_seconds, self.stand_seconds = threshold, window_seconds, stand_seconds
        self.rise_at: Floats = np.empty(0)
        self.rise: Floats = np.empty(0)
        self._base: Floats = np.empty(0)
        self._base_at: Floats = np.empty(0)

    def _grow(self, count: int) -> None:
        missing = count - len(self._base)
        if missing > 0:
            self.rise_at, self.rise, self._base, self._base_at = (
                np.concatenate([column, np.full(missing, np.nan)]) for column in (self.rise_at, self.rise, self._base, self._base_at)
            )

    def update(self, values: Floats, times: Floats) -> None:
        """Take the newest values; NaN is "not reported" and changes nothing."""
        self._grow(len(values))
        with np.errstate(invalid="ignore"):
            grown = values - self._base
            within = times - self._base_at <= self.window_seconds
            rose = within & (grown >= self.threshold)
            anew = ~np.isnan(values) & (rose | ~(grown >= 0) | ~within)
        self.rise_at[rose], self.rise[rose] = times[rose], grown[rose]
        self._base[anew], self._base_at[anew] = values[anew], times[anew]

    def standing(self, now: float) -> NDArray[np.bool_]:
        """[g]: a rise counts now."""
        with np.errstate(invalid="ignore"):
            return np.asarray(now - self.rise_at < self.stand_seconds, dtype=np.bool_)

    def next_end(self, row: int) -> float:
        """When the standing rise of a row ends (Unix seconds); NaN when there is none."""
        return float(self.rise_at[row]) + self.stand_seconds

    def seed(self, row: int, at: float) -> None:
        """A rise at `at` was known before this process started."""
        self._grow(row + 1)
        self.rise_at[row] = at

    def forget(self, row: int) -> None:
        """An operator ended it, or the GPU left."""
        if row < len(self._base):
            self.rise_at[row] = self.rise[row] = np.nan
