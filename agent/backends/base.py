"""What the agent asks of hardware. `nvml.py` is the real one, `simulated.py` speaks to the simulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from agent.protocol import HealthReport, InventoryReport, SliceFacts


class ErrorCode(StrEnum):
    GPU_LOST = "gpu_lost"
    RESET_REQUIRED = "reset_required"
    DRIVER_MISMATCH = "driver_mismatch"
    NOT_SUPPORTED = "not_supported"
    NOT_PERMITTED = "not_permitted"
    NOT_PRESENT = "target_not_present"
    INVALID = "invalid_argument"
    IN_USE = "in_use"  # a client holds what would have to go
    NO_ROOM = "insufficient_resources"
    TIMEOUT = "timeout"
    UNAVAILABLE = "unavailable"  # the driver or the simulator cannot be reached: try again later


class BackendError(Exception):
    """The hardware said no, or could not be asked. `code` decides what the agent does, the text is for people, `facts` go to the console."""

    def __init__(self, code: ErrorCode, message: str, facts: Mapping[str, int | float | str | bool | None] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.facts = dict(facts or {})


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


@dataclass(frozen=True)
class PowerReading:
    """Power limits of one GPU in milliwatts, as NVML has them. `min_mw` and `max_mw` are both allowed. `limit_mw` is the one set now."""

    limit_mw: int
    min_mw: int
    max_mw: int
    default_mw: int
    persistence_mode: bool | None = None


@dataclass(frozen=True)
class MigProfile:
    """A kind of GPU instance that this GPU offers: it takes `size` memory positions from one of `starts`."""

    name: str
    starts: tuple[int, ...]
    size: int
    max_instances: int


@dataclass(frozen=True)
class MigReading:
    """MIG of one GPU. `enabled` None: the GPU has no MIG; `pending` is the mode after its next reset.
    `profiles` may be empty while the mode is off: not every driver tells them then.

    `clients` counts processes per GPU instance id; None where the driver does not tell. A client that is no process (a monitor's handle)
    is in no count, so that 0 does not promise that an instance can go.
    """

    enabled: bool | None
    pending: bool | None
    pci_bus_id: str
    instances: tuple[SliceFacts, ...] = ()
    profiles: tuple[MigProfile, ...] = ()
    clients: Mapping[int, int] | None = field(default_factory=dict)


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

    def set_power_limit(self, gpu_uuid: str, milliwatts: int) -> None: ...

    def reset_power_limit(self, gpu_uuid: str) -> None:
        """Back to the board's default; idempotent."""

    def read_power(self, gpu_uuid: str) -> PowerReading: ...

    def read_mig(self, gpu_uuid: str) -> MigReading: ...

    def set_mig_mode(self, gpu_uuid: str, enabled: bool) -> None:
        """The mode of the whole GPU. Raises RESET_REQUIRED where it only takes effect with the GPU's next reset."""

    def create_mig_instance(self, gpu_uuid: str, profile: str, start: int) -> int:
        """A GPU instance at this memory position with one compute instance over all of it; returns its GPU instance id."""

    def destroy_mig_instance(self, gpu_uuid: str, gpu_instance_id: int) -> None:
        """With its compute instances. Raises IN_USE while a client holds it, and leaves it whole then."""

    def reset_gpu(self, gpu_uuid: str) -> None:
        """Reset one GPU; returns when it is over. Raises IN_USE while a client holds it, UNAVAILABLE when it is not known whether it happened."""

    def reset_evidence(self, gpu_uuid: str) -> str:
        """A text that changes with every reset of this GPU, "" where the hardware cannot tell."""

    def reboot(self) -> None:
        """Ask for a reboot of the node; it happens a while later. Raises UNAVAILABLE when it is not known whether it was asked for."""

    def close(self) -> None: ...


# What a backend file in this package offers as `open_backend`: the `[backend]` table of the agent's configuration file in, a backend out.
OpenBackend = Callable[[dict[str, str]], Backend]
