"""What the agent asks of hardware. `nvml.py` is the real one, `simulated.py` speaks to the simulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from agent.protocol import HealthReport, InventoryReport


class ErrorCode(StrEnum):
    GPU_LOST = "gpu_lost"
    RESET_REQUIRED = "reset_required"
    DRIVER_MISMATCH = "driver_mismatch"
    NOT_SUPPORTED = "not_supported"
    NOT_PERMITTED = "not_permitted"
    NOT_PRESENT = "target_not_present"
    INVALID = "invalid_argument"
    UNAVAILABLE = "unavailable"  # the driver or the simulator cannot be reached: try again later


class BackendError(Exception):
    """The hardware said no, or could not be asked. `code` decides what the agent does, the text is for people."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class ClockReading:
    """Clocks of one GPU as measured now. None: the hardware does not say.

    NVML has no call that reads a clock lock back: whether one holds is judged by `sm_mhz` (see `agent/actions/clock_range.py`).
    `limited_by` names clock event reasons that hold the clock down: idle, power_cap, hw_slowdown, sw_thermal, hw_thermal, power_brake.
    """

    sm_mhz: int | None
    max_sm_mhz: int | None
    limited_by: tuple[str, ...] = ()
    persistence_mode: bool | None = None


class Backend(Protocol):
    """All calls block and may be slow: they run in the agent's executor, one at a time per node. GPUs are named by UUID only.

    `now` is Unix seconds and becomes the report's `at`. Only the set, reset and read calls raise `BackendError`;
    `inventory` and `health` never raise for a bad GPU or driver, they say so in the report.
    """

    def boot_id(self) -> str:
        """Changes with every boot of the node."""

    def inventory(self, now: float) -> InventoryReport: ...

    def health(self, now: float) -> HealthReport: ...

    def set_clock_range(self, gpu_uuid: str, min_mhz: int, max_mhz: int) -> None:
        """Lock the SM clock between both bounds, inclusive."""

    def reset_clock_range(self, gpu_uuid: str) -> None:
        """Take the lock away; a GPU without one is not an error."""

    def read_clocks(self, gpu_uuid: str) -> ClockReading: ...

    def close(self) -> None: ...


# What a backend file in this package offers as `open_backend`: the `[backend]` table of the agent's configuration file in, a backend out.
OpenBackend = Callable[[dict[str, str]], Backend]
