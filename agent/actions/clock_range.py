"""Clock range: lock the SM clock of a GPU between two bounds.

NVML cannot say whether a lock holds, so the measured clock judges: above the range it does not; within, it does; below, only when
the GPU itself gives a reason to be slower (idle, power cap, heat), and then the reading cannot tell.
"""

from __future__ import annotations

from agent.actions import PERSISTENCE_WARNING, ParameterError, Parameters, Reading, Scalars, Target

LOWEST_MHZ = 100
HIGHEST_MHZ = 5000
# Clocks move in steps of 15 MHz: a bound between two steps is met by its neighbour.
STEP_MHZ = 15


class ClockRange:
    name = "clock_range"
    node_wide = False
    gpu_wide = True
    settle_seconds = 5.0

    def check(self, parameters: Parameters) -> None:
        _bounds(parameters)

    def remember(self, target: Target) -> str:
        return ""

    def apply(self, target: Target, parameters: Parameters) -> None:
        low, high = _bounds(parameters)
        target.backend.set_clock_range(target.gpu_uuid, low, high)

    def read(self, target: Target, parameters: Parameters | None) -> Reading:
        clocks = target.backend.read_clocks(target.gpu_uuid)
        observed: Scalars = {"sm_mhz": clocks.sm_mhz, "persistence_mode": clocks.persistence_mode}
        if clocks.limited_by:
            observed["limited_by"] = ", ".join(clocks.limited_by)
        if parameters is None:
            return Reading(holds=None, observed=observed)
        low, high = _bounds(parameters)
        warning = PERSISTENCE_WARNING if clocks.persistence_mode is False else ""
        if clocks.sm_mhz is None:
            return Reading(holds=None, observed=observed, detail="The GPU does not report its clock.")
        if clocks.sm_mhz > high + STEP_MHZ:
            return Reading(holds=False, observed=observed, detail=f"Measured {clocks.sm_mhz} MHz, above {high} MHz.")
        if clocks.sm_mhz >= low - STEP_MHZ:
            return Reading(holds=True, observed=observed, detail=warning)
        if clocks.limited_by:
            return Reading(holds=None, observed=observed, detail=f"Measured {clocks.sm_mhz} MHz, below {low} MHz: held down by {observed['limited_by']}.")
        return Reading(holds=False, observed=observed, detail=f"Measured {clocks.sm_mhz} MHz, below {low} MHz.")

    def undo(self, target: Target) -> None:
        target.backend.reset_clock_range(target.gpu_uuid)


def _bounds(parameters: Parameters) -> tuple[int, int]:
    if set(parameters) != {"min_mhz", "max_mhz"}:
        raise ParameterError("clock_range takes min_mhz and max_mhz")
    low, high = parameters["min_mhz"], parameters["max_mhz"]
    for name, value in (("min_mhz", low), ("max_mhz", high)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise ParameterError(f"{name}: not a whole number of MHz")
        if not LOWEST_MHZ <= value <= HIGHEST_MHZ:
            raise ParameterError(f"{name}: {value} MHz is not within {LOWEST_MHZ}..{HIGHEST_MHZ} MHz")
    if not isinstance(low, int) or not isinstance(high, int) or low > high:
        raise ParameterError("min_mhz: greater than max_mhz")
    return low, high


ACTION = ClockRange()
