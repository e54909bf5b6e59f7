"""A node for tests of what its agent does alone: GPUs with slices, pods that come and go, and an exporter that says what they use."""

import threading
from dataclasses import dataclass, field, replace

from agent.admission import Gate
from agent.backends.base import Backend, BackendError, ClockReading
from agent.backends.cluster import ClusterError, ClusterErrorCode, Cordon, Eviction, EvictionOutcome, Pod
from agent.door import Door
from agent.local.control import LocalControl
from agent.local.usage import DeviceUsage, Usage
from agent.protocol import DesiredState, GpuFacts, HealthReport, InventoryReport, LocalRules, NodeFacts, Place, ProtectedSpan, SliceFacts, WorkloadRule
from agent.store import Store
from tests.agent.documents import CONSOLE_KEY, NODE, A, B

GIB = 1 << 30
# A is sliced 3g (memory positions 0-3, the radio's) + 3g (4-7, for AI); B is whole.
PHY_SLICE, AI_SLICE = "MIG-phy", "MIG-ai"
SLICES = (SliceFacts(1, 0, "3g.40gb", 0, 4, PHY_SLICE), SliceFacts(2, 0, "3g.40gb", 4, 4, AI_SLICE))
PROTECTED = (ProtectedSpan(A, 0, 4),)
RULES = LocalRules(
    operator_namespaces=("ran-phy",),
    operator_service_accounts=("shared/ran",),
    workloads=(
        WorkloadRule("tenant-a", "a", priority=3, memory_bytes=10 * GIB, models=("llm",)),
        WorkloadRule("tenant-b", "b", priority=5, models=("asr",)),
        WorkloadRule("tenant-c", "c", priority=9, slices=1),
    ),
)


def pod(name: str, *gpus: str, namespace: str = "tenant-a", uid: str = "", phase: str = "Running", **more: object) -> Pod:
    return Pod(namespace=namespace, name=name, uid=uid or f"uid-{name}", phase=phase, gpus=gpus, owner_kind="ReplicaSet", **more)  # type: ignore[arg-type]


def desired(rules: LocalRules = RULES, *, protected: tuple[ProtectedSpan, ...] = PROTECTED, controls: tuple[object, ...] = ()) -> DesiredState:
    return DesiredState(
        target_kind="node",
        target_key=str(NODE),
        version=1,
        issued_at=0.0,
        not_after=None,
        controls=controls,  # type: ignore[arg-type]
        protected=protected,
        place=Place(area="west", region="west-1", site="W1", node=str(NODE), time_zone="Europe/Berlin"),
        rules=rules,
    )


@dataclass
class Gpus:
    """A sliced GPU and a whole one."""

    gpus: tuple[GpuFacts, ...] = (
        GpuFacts(A, 0, "00000000:4C:00.0", mig_enabled=True, slices=SLICES),
        GpuFacts(B, 1, "00000000:4D:00.0", mig_enabled=False),
    )
    complete: bool = True
    boot: str = "boot-1"
    locks: dict[str, tuple[int, int]] = field(default_factory=dict)
    acts: list[tuple[str, str, int]] = field(default_factory=list)
    error: BackendError | None = None

    def boot_id(self) -> str:
        return self.boot

    def inventory(self, now: float) -> InventoryReport:
        return InventoryReport(at=now, node=NodeFacts(), gpus=self.gpus, complete=self.complete, gpu_count=len(self.gpus))

    def health(self, now: float) -> HealthReport:
        return HealthReport(at=now, gpus=())

    def set_clock_range(self, gpu_uuid: str, min_mhz: int, max_mhz: int) -> None:
        if self.error:
            raise self.error
        self.acts.append(("set", gpu_uuid, max_mhz))
        self.locks[gpu_uuid] = (min_mhz, max_mhz)

    def reset_clock_range(self, gpu_uuid: str) -> None:
        if self.error:
            raise self.error
        self.acts.append(("reset", gpu_uuid, 0))
        self.locks.pop(gpu_uuid, None)

    def read_clocks(self, gpu_uuid: str) -> ClockReading:
        return ClockReading(sm_mhz=min(1980, self.locks.get(gpu_uuid, (0, 9999))[1]), max_sm_mhz=1980)

    def close(self) -> None:
        self.acts.clear()


@dataclass
class Pods:
    """`away`: no API server. `owners`: names whose pods come back anew. `linger`: told to go, but still there. `budgets`: names that no eviction gets past.

    `hangs`: answers nothing before it is set.
    """

    running: list[Pod] = field(default_factory=list)
    away: bool = False
    owners: set[str] = field(default_factory=set)
    linger: set[str] = field(default_factory=set)
    budgets: set[str] = field(default_factory=set)
    acts: list[tuple[str, str]] = field(default_factory=list)
    seen: list[Gate] = field(default_factory=list)
    door: Door | None = None
    made: int = 0
    hangs: threading.Event | None = None
    asked: int = 0
    why: str = "no API server"

    def _ask(self) -> None:
        self.asked += 1
        if self.hangs is not None:
            self.hangs.wait(10)
        if self.away:
            raise ClusterError(ClusterErrorCode.UNAVAILABLE, self.why)

    def cordon(self) -> Cordon:
        return Cordon(False)

    def set_cordon(self, owner: str) -> Cordon:
        return Cordon(True, owner)

    def clear_cordon(self, owner: str) -> Cordon:
        return Cordon(False)

    def pods(self) -> tuple[Pod, ...]:
        self._ask()
        return tuple(self.running)

    def evict(self, pod: Pod, *, grace_seconds: int | None = None) -> Eviction:
        self._ask()
        if pod.name in self.budgets:
            return Eviction(EvictionOutcome.BUDGET, "llm-budget")
        self.acts.append(("evict", pod.name))
        self._go(pod)
        return Eviction(EvictionOutcome.EVICTED)

    def delete(self, pod: Pod, *, grace_seconds: int | None = None) -> None:
        self._ask()
        self.acts.append(("delete", pod.name))
        if self.door is not None:
            self.seen.append(self.door.gate)
        self._go(pod)

    def _go(self, gone: Pod) -> None:
        self.running = [
            replace(found, is_terminating=True) if found.uid == gone.uid and found.name in self.linger else found
            for found in self.running
            if found.uid != gone.uid or found.name in self.linger
        ]
        if gone.name in self.owners:
            self.made += 1
            self.running.append(replace(gone, uid=f"{gone.uid}-{self.made}"))

    def close(self) -> None:
        self.acts.clear()


@dataclass
class Exporter:
    """What the devices use, by (GPU UUID, GPU instance)."""

    devices: dict[tuple[str, int | None], DeviceUsage] = field(default_factory=dict)
    energy: dict[str, float] = field(default_factory=dict)
    silent: bool = False

    def read(self, now: float) -> Usage | None:
        return None if self.silent else Usage(at=now, devices=dict(self.devices), energy_joules=dict(self.energy))

    def use(self, gpu_uuid: str, instance: int | None, used_gib: float, *, total_gib: float = 40, active: float | None = 0.5) -> None:
        self.devices[(gpu_uuid, instance)] = DeviceUsage(used_gib * GIB, total_gib * GIB, active)

    def close(self) -> None:
        self.devices.clear()


@dataclass
class World:
    """`store` outlives the agent: `restart` is a new agent on the old file."""

    gpus: Gpus = field(default_factory=Gpus)
    pods: Pods = field(default_factory=Pods)
    exporter: Exporter = field(default_factory=Exporter)
    store: Store = field(default_factory=lambda: Store(":memory:"))
    door: Door = field(default_factory=lambda: Door(depth_of=lambda model: 0, clock=lambda: 0.0))
    with_cluster: bool = True

    def __post_init__(self) -> None:
        self.pods.door = self.door
        self.agent = self.restart()

    def restart(self) -> LocalControl:
        backend: Backend = self.gpus  # type: ignore[assignment]
        self.agent = LocalControl(
            store=self.store,
            node_id=NODE,
            trusted_keys=(CONSOLE_KEY,),
            backend=backend,
            cluster=self.pods if self.with_cluster else None,
            usage=self.exporter,
            door=self.door,
        )
        return self.agent

    def events(self, kind: str) -> list[dict[str, object]]:
        """All that was written for telling, by kind, in order."""
        rows = self.store.rows("SELECT subject, detail, at FROM event WHERE kind = ? ORDER BY number", (kind,))
        return [{"subject": subject, "detail": detail, "at": at} for subject, detail, at in rows]
