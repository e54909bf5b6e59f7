"""How a node's GPUs answer NVML: one condition per GPU, and the driver's own state."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, ClassVar

from agent.protocol.inventory import MAX_GPUS
from agent.protocol.wire import Reader


class Condition(StrEnum):
    OK = "ok"
    LOST = "lost"
    RESET_REQUIRED = "reset_required"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class GpuCondition:
    """`uuid` is empty only for a GPU that never told its own; `index` is then all that is known."""

    uuid: str
    index: int | None
    condition: Condition
    detail: str = ""

    @classmethod
    def parse(cls, reader: Reader) -> GpuCondition:
        found = cls(
            uuid=reader.text("uuid", longest=64, empty=True),
            index=reader.optional("index", lambda name: reader.integer(name, high=255)),
            condition=reader.choice("condition", Condition),
            detail=reader.text("detail", longest=300, empty=True),
        )
        reader.done()
        return found


@dataclass(frozen=True)
class DriverMismatch:
    """The loaded kernel module and the library differ: nothing works until the driver is reloaded or the node rebooted."""

    loaded_module: str
    library: str

    @classmethod
    def parse(cls, reader: Reader) -> DriverMismatch:
        found = cls(loaded_module=reader.text("loaded_module", longest=40, empty=True), library=reader.text("library", longest=40, empty=True))
        reader.done()
        return found


@dataclass(frozen=True)
class HealthReport:
    """`driver_error` says why the driver as a whole cannot be asked ("" when it can); GPUs are then `unknown`."""

    type: ClassVar[str] = "health"
    at: float
    gpus: tuple[GpuCondition, ...]
    driver_mismatch: DriverMismatch | None = None
    driver_error: str = ""

    @classmethod
    def parse(cls, reader: Reader) -> HealthReport:
        found = cls(
            at=reader.number("at", low=0, high=1e11),
            gpus=reader.items("gpus", GpuCondition.parse, most=MAX_GPUS),
            driver_mismatch=reader.optional("driver_mismatch", lambda name: DriverMismatch.parse(reader.child(name))),
            driver_error=reader.text("driver_error", longest=300, empty=True),
        )
        reader.done()
        return found

    def to_json(self) -> dict[str, Any]:
        return {"type": self.type, **asdict(self)}
