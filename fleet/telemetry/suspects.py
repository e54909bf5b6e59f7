"""Profiling values that contradict what else a GPU reports (case C08). Pure: no Django, no clock, no I/O."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class SuspectLimits:
    """When a profiling value of 0 contradicts the other readings (busy although "0"). A power limit that is not known: the watts count."""

    utilization_ratio: float = 0.5
    power_share: float = 0.3
    power_watts: float = 150.0
    memory_bytes: float = 2.0**30  # of a sliced GPU, whose utilisation comes from the profiling module itself
    lone_power_share: float = 0.6  # no GPU draws so much without work
    lone_power_watts: float = 300.0


def profiling_suspect(engine: Floats, utilization: Floats, power: Floats, power_limit: Floats, limits: SuspectLimits = SuspectLimits()) -> Flags:
    """Where the profiling module reads 0 on a whole GPU that two other readings call busy. All arguments [n]; NaN never makes a suspect."""
    floor = np.where(np.isnan(power_limit), limits.power_watts, limits.power_share * power_limit)
    with np.errstate(invalid="ignore"):
        return np.asarray((engine == 0) & (utilization >= limits.utilization_ratio) & (power >= floor), dtype=np.bool_)


def sliced_profiling_suspect(engines: Floats, memory: Floats, power: Floats, power_limit: Floats, limits: SuspectLimits = SuspectLimits()) -> Flags:
    """Where the profiling module reads 0 on every slice of a GPU that draws power with memory in use, or draws what no idle GPU does.

    `engines` [n]: sum of the engine-active ratios of its live slices; the other arguments [n] are the device's. NaN never makes a suspect.
    """
    floor, lone = (
        np.where(np.isnan(power_limit), watts, share * power_limit)
        for watts, share in ((limits.power_watts, limits.power_share), (limits.lone_power_watts, limits.lone_power_share))
    )
    with np.errstate(invalid="ignore"):
        busy = ((power >= floor) & (memory >= limits.memory_bytes)) | (power >= lone)
        return np.asarray((engines == 0) & busy, dtype=np.bool_)
