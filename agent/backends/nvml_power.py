"""Clocks and power limits through NVML. NVMLError passes through, translated by the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

from agent.backends.base import ClockReading, PowerReading

T = TypeVar("T")
_EVENT_REASONS = {0x1: "idle", 0x4: "power_cap", 0x8: "hw_slowdown", 0x20: "sw_thermal", 0x40: "hw_thermal", 0x80: "power_brake"}


def read_clocks(handle: Any) -> ClockReading:
    reasons = optional(lambda: _event_reasons(handle)) or 0
    return ClockReading(
        sm_mhz=optional(lambda: int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))),
        max_sm_mhz=optional(lambda: int(pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM))),
        limited_by=tuple(name for bit, name in _EVENT_REASONS.items() if reasons & bit),
        persistence_mode=persistence_mode(handle),
    )


def read_power(handle: Any) -> PowerReading:
    low, high = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
    return PowerReading(
        limit_mw=int(pynvml.nvmlDeviceGetPowerManagementLimit(handle)),
        min_mw=int(low),
        max_mw=int(high),
        default_mw=int(pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle)),
        persistence_mode=persistence_mode(handle),
    )


def reset_limit(handle: Any) -> None:
    """To the board's default, where it is not there already."""
    default = int(pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle))
    if int(pynvml.nvmlDeviceGetPowerManagementLimit(handle)) != default:
        pynvml.nvmlDeviceSetPowerManagementLimit(handle, default)


def optional(call: Callable[[], T]) -> T | None:
    """The value, or None where the GPU has no such thing or may not be asked. A lost GPU still raises."""
    try:
        return call()
    except pynvml.NVMLError as error:
        if error.value in (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED):
            raise
        return None


def persistence_mode(handle: Any) -> bool | None:
    mode = optional(lambda: pynvml.nvmlDeviceGetPersistenceMode(handle))
    return None if mode is None else bool(mode)


def _event_reasons(handle: Any) -> int:
    try:
        return int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except pynvml.NVMLError_FunctionNotFound:
        return int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
