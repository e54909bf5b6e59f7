"""Power cap: the most that a GPU may draw, in watts or in per cent of the board's default or maximum.

The limits are those that this GPU tells of itself, both inclusive. NVML takes whole milliwatts. A cap lasts until the driver lets go
of the GPU: without persistence mode that is when the last process leaves.
"""

from __future__ import annotations

import math

from agent.actions import PERSISTENCE_WARNING, ParameterError, Parameters, Reading, Scalars, Target
from agent.backends.base import BackendError, ErrorCode, PowerReading

WATTS, OF_DEFAULT, OF_MAXIMUM = "watts", "percent_of_default", "percent_of_maximum"


class PowerCap:
    name = "power_cap"
    node_wide = False
    gpu_wide = True
    settle_seconds = 5.0

    def check(self, parameters: Parameters) -> None:
        _asked(parameters)

    def remember(self, target: Target) -> str:
        return ""

    def apply(self, target: Target, parameters: Parameters) -> None:
        limits = target.backend.read_power(target.gpu_uuid)
        milliwatts = wanted_milliwatts(parameters, limits)
        if not limits.min_mw <= milliwatts <= limits.max_mw:
            field, value = _asked(parameters)
            unit = "W" if field == WATTS else f"% ({_watts(milliwatts)} W)"
            allowed = f"{_watts(limits.min_mw)}..{_watts(limits.max_mw)} W"
            raise BackendError(ErrorCode.INVALID, f"{field}: {value:g} {unit} is not within {allowed}, the limits of this GPU", _observed(limits))
        target.backend.set_power_limit(target.gpu_uuid, milliwatts)

    def read(self, target: Target, parameters: Parameters | None) -> Reading:
        power = target.backend.read_power(target.gpu_uuid)
        observed = _observed(power)
        if parameters is None:
            return Reading(holds=None, observed=observed)
        wanted = wanted_milliwatts(parameters, power)
        if power.limit_mw != wanted:
            return Reading(holds=False, observed=observed, detail=f"The limit is {_watts(power.limit_mw)} W, not {_watts(wanted)} W.")
        return Reading(holds=True, observed=observed, detail=PERSISTENCE_WARNING if power.persistence_mode is False else "")

    def undo(self, target: Target) -> None:
        target.backend.reset_power_limit(target.gpu_uuid)


def wanted_milliwatts(parameters: Parameters, limits: PowerReading) -> int:
    """The cap as NVML takes it, whatever the limits allow."""
    field, value = _asked(parameters)
    if field == WATTS:
        return round(value * 1000)
    return round((limits.default_mw if field == OF_DEFAULT else limits.max_mw) * value / 100)


def _asked(parameters: Parameters) -> tuple[str, float]:
    if len(parameters) != 1 or not set(parameters) <= {WATTS, OF_DEFAULT, OF_MAXIMUM}:
        raise ParameterError(f"power_cap takes exactly one of {WATTS}, {OF_DEFAULT} and {OF_MAXIMUM}")
    ((field, value),) = parameters.items()
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ParameterError(f"{field}: not a number of {'watts' if field == WATTS else 'per cent'}")
    return field, float(value)


def _observed(power: PowerReading) -> Scalars:
    limits = {"limit_watts": power.limit_mw, "min_watts": power.min_mw, "max_watts": power.max_mw, "default_watts": power.default_mw}
    return {**{name: milliwatts / 1000 for name, milliwatts in limits.items()}, "persistence_mode": power.persistence_mode}


def _watts(milliwatts: int) -> str:
    return f"{milliwatts / 1000:.3f}".rstrip("0").rstrip(".")


ACTION = PowerCap()
