"""A node's hardware in memory, for tests of what the agent does with it: it obeys, or fails as told, and logs every act."""

from dataclasses import dataclass, field

from agent.backends.base import BackendError, ClockReading, ErrorCode, MigProfile, MigReading, PowerReading
from agent.protocol import Condition, GpuCondition, GpuFacts, HealthReport, InventoryReport, NodeFacts, SliceFacts
from agent.protocol.layout import parse_layout

IDLE_MHZ = 1980
PCI = "00000000:4C:00.0"
H100 = (
    MigProfile("1g.10gb", (0, 1, 2, 3, 4, 5, 6), 1, 7),
    MigProfile("1g.20gb", (0, 2, 4, 6), 2, 4),
    MigProfile("2g.20gb", (0, 2, 4), 2, 3),
    MigProfile("3g.40gb", (0, 4), 4, 2),
    MigProfile("4g.40gb", (0,), 4, 1),
    MigProfile("7g.80gb", (0,), 8, 1),
)
SIZES = {profile.name: profile.size for profile in H100}


@dataclass
class Hardware:
    """`locks`, `caps` (mW) and `slices` are what the GPUs hold; `deaf` GPUs accept everything and ignore it; `errors` maps an act to what it raises.

    `mig` is the mode of all GPUs (None: they have none); `clients` counts processes by GPU instance id.
    """

    uuids: list[str]
    locks: dict[str, tuple[int, int]] = field(default_factory=dict)
    deaf: set[str] = field(default_factory=set)
    errors: dict[str, BackendError] = field(default_factory=dict)
    acts: list[tuple[str, str]] = field(default_factory=list)
    persistence_mode: bool | None = True
    limited_by: tuple[str, ...] = ()
    idle_mhz: int = IDLE_MHZ
    boot: str = "boot-1"
    caps: dict[str, int] = field(default_factory=dict)
    limits_mw: tuple[int, int, int] = (200_000, 700_000, 700_000)
    mig: bool | None = False
    slices: dict[str, list[SliceFacts]] = field(default_factory=dict)
    clients: dict[int, int] = field(default_factory=dict)
    mig_acts: list[str] = field(default_factory=list)
    next_instance: int = 1

    def boot_id(self) -> str:
        return self.boot

    def inventory(self, now: float) -> InventoryReport:
        self._read("inventory")
        gpus = tuple(GpuFacts(uuid=uuid, index=index, pci_bus_id=f"00000000:{index:02X}:00.0") for index, uuid in enumerate(self.uuids))
        return InventoryReport(at=now, node=NodeFacts(driver_version="570.133.20"), gpus=gpus, complete=True, gpu_count=len(gpus))

    def health(self, now: float) -> HealthReport:
        self._read("health")
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

    def reboot(self) -> None:
        """What the driver held is gone; the mode of MIG is not."""
        self.boot = f"{self.boot}+"
        self.locks.clear()
        self.caps.clear()
        self.slices.clear()
        self.clients.clear()

    def set_power_limit(self, gpu_uuid: str, milliwatts: int) -> None:
        self._act(f"power {milliwatts}", gpu_uuid)
        if gpu_uuid not in self.deaf:
            self.caps[gpu_uuid] = milliwatts

    def reset_power_limit(self, gpu_uuid: str) -> None:
        self._act("power reset", gpu_uuid)
        self.caps.pop(gpu_uuid, None)

    def read_power(self, gpu_uuid: str) -> PowerReading:
        self._fail("read_power", gpu_uuid)
        low, high, default = self.limits_mw
        return PowerReading(self.caps.get(gpu_uuid, default), low, high, default, self.persistence_mode)

    def partition(self, gpu_uuid: str, layout: str) -> None:
        """MIG mode on, with these instances."""
        self.mig = True
        self.slices[gpu_uuid] = []
        for place in parse_layout(layout) or ():
            self._place(gpu_uuid, place.profile, place.start)

    def _place(self, gpu_uuid: str, profile: str, start: int) -> int:
        found = SliceFacts(self.next_instance, 0, profile, start, SIZES[profile], f"MIG-{self.next_instance}")
        self.next_instance += 1
        self.slices[gpu_uuid] = sorted([*self.slices.get(gpu_uuid, []), found], key=lambda instance: instance.start)
        return found.gpu_instance_id

    def layout(self, gpu_uuid: str) -> str:
        return ",".join(f"{instance.profile}@{instance.start}" for instance in self.slices.get(gpu_uuid, []))

    def read_mig(self, gpu_uuid: str) -> MigReading:
        self._fail("read_mig", gpu_uuid)
        if not self.mig:
            return MigReading(self.mig, self.mig, PCI)
        return MigReading(True, True, PCI, tuple(self.slices.get(gpu_uuid, ())), H100, dict(self.clients))

    def set_mig_mode(self, gpu_uuid: str, enabled: bool) -> None:
        self._mig_act(f"mode {enabled}", gpu_uuid)
        self.mig = enabled

    def create_mig_instance(self, gpu_uuid: str, profile: str, start: int) -> int:
        self._mig_act(f"create {profile}@{start}", gpu_uuid)
        if gpu_uuid in self.deaf:
            return 0
        size = SIZES[profile]
        if any(start < other.start + other.size and other.start < start + size for other in self.slices.get(gpu_uuid, ())):
            raise BackendError(ErrorCode.NO_ROOM, "NVML: Insufficient Resources")
        return self._place(gpu_uuid, profile, start)

    def destroy_mig_instance(self, gpu_uuid: str, gpu_instance_id: int) -> None:
        instance = next(found for found in self.slices[gpu_uuid] if found.gpu_instance_id == gpu_instance_id)
        self._mig_act(f"destroy {instance.profile}@{instance.start}", gpu_uuid)
        if self.clients.get(gpu_instance_id):
            raise BackendError(ErrorCode.IN_USE, "NVML: In use by another client")
        self.slices[gpu_uuid].remove(instance)

    def _mig_act(self, act: str, gpu_uuid: str) -> None:
        self.mig_acts.append(act)
        self._fail(act, gpu_uuid)

    def reset_gpu(self, gpu_uuid: str) -> None:
        self._act("reset_gpu", gpu_uuid)

    def reset_evidence(self, gpu_uuid: str) -> str:
        self._fail("reset_evidence", gpu_uuid)
        return str(self.acts.count(("reset_gpu", gpu_uuid)))

    def close(self) -> None:
        self.acts.append(("close", ""))

    def _read(self, what: str) -> None:
        if what in self.errors:
            raise self.errors[what]

    def _act(self, act: str, gpu_uuid: str) -> None:
        self._fail(act, gpu_uuid)
        self.acts.append((act, gpu_uuid))

    def _fail(self, act: str, gpu_uuid: str) -> None:
        if gpu_uuid not in self.uuids:
            raise BackendError(ErrorCode.NOT_PRESENT, f"no GPU {gpu_uuid}")
        if act in self.errors:
            raise self.errors[act]
