"""A node's hardware in memory, for tests of what the agent does with it: it obeys, or fails as told, and logs every act."""

from dataclasses import dataclass, field

from agent.backends.base import BackendError, ClockReading, ErrorCode
from agent.protocol import Condition, GpuCondition, GpuFacts, HealthReport, InventoryReport, NodeFacts

IDLE_MHZ = 1980


@dataclass
class Hardware:
    """`locks` is what the GPUs hold; `deaf` GPUs accept a lock and ignore it; `errors` maps an act to what it raises."""

    uuids: list[str]
    locks: dict[str, tuple[int, int]] = field(default_factory=dict)
    deaf: set[str] = field(default_factory=set)
    errors: dict[str, BackendError] = field(default_factory=dict)
    acts: list[tuple[str, str]] = field(default_factory=list)
    persistence_mode: bool | None = True
    limited_by: tuple[str, ...] = ()
    idle_mhz: int = IDLE_MHZ
    boot: str = "boot-1"

    def boot_id(self) -> str:
        return self.boot

    def inventory(self, now: float) -> InventoryReport:
        gpus = tuple(GpuFacts(uuid=uuid, index=index, pci_bus_id=f"00000000:{index:02X}:00.0") for index, uuid in enumerate(self.uuids))
        return InventoryReport(at=now, node=NodeFacts(driver_version="570.133.20"), gpus=gpus, complete=True, gpu_count=len(gpus))

    def health(self, now: float) -> HealthReport:
        return HealthReport(at=now, gpus=tuple(GpuCondition(uuid, index, Condition.OK) for index, uuid in enumerate(self.uuids)))

    def set_clock_range(self, gpu_uuid: str, min_mhz: int, max_mhz: int) -> None:
        self._act("set", gpu_uuid)
        if gpu_uuid not in self.deaf:
            self.locks[gpu_uuid] = (min_mhz, max_mhz)

    def reset_clock_range(self, gpu_uuid: str) -> None:
        self._act("reset", gpu_uuid)
        self.locks.pop(gpu_uuid, None)

    def read_clocks(self, gpu_uuid: str) -> ClockReading:
        self._fail("read", gpu_uuid)
        low, high = self.locks.get(gpu_uuid, (0, 9999))
        return ClockReading(sm_mhz=min(max(self.idle_mhz, low), high), max_sm_mhz=1980, limited_by=self.limited_by, persistence_mode=self.persistence_mode)

    def close(self) -> None:
        self.acts.append(("close", ""))

    def _act(self, act: str, gpu_uuid: str) -> None:
        self._fail(act, gpu_uuid)
        self.acts.append((act, gpu_uuid))

    def _fail(self, act: str, gpu_uuid: str) -> None:
        if gpu_uuid not in self.uuids:
            raise BackendError(ErrorCode.NOT_PRESENT, f"no GPU {gpu_uuid}")
        if act in self.errors:
            raise self.errors[act]
