"""What a source saw, in one form for all sources, and how PCI addresses are compared."""

import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from fleet.models import Source, Workload

_PCI = re.compile(r"^(?:([0-9A-Fa-f]{1,8}):)?([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-7])$")
# Clocks of agents and exporters differ a little; only what is older than this beside what we know is late.
LATE = timedelta(minutes=2)


def pci_address(text: str) -> str:
    """One spelling of a PCI address (`00000000:19:00.0`); other text is returned as it is."""
    found = _PCI.match(text.strip())
    if not found:
        return text.strip()
    domain, bus, device, function = found.groups()
    return f"{int(domain or '0', 16):08X}:{bus.upper()}:{device.upper()}.{function}"


@dataclass(frozen=True)
class ObservedGpu:
    """A GPU that answered at `at`. None or "": the source did not say. `node_id` None: the source named no node that we know."""

    uuid: str
    node_id: int | None
    at: datetime
    index: int | None = None
    pci_bus_id: str = ""
    serial: str = ""
    model_name: str = ""
    mig_enabled: bool | None = None
    power_limit_watts: float | None = None


@dataclass(frozen=True)
class ObservedSlice:
    gpu_uuid: str
    gpu_instance_id: int
    profile: str
    at: datetime
    compute_instance_id: int | None = None
    start: int | None = None
    size: int | None = None
    mig_uuid: str = ""


@dataclass(frozen=True)
class ObservedWorkload:
    """A container on a GPU, or on its slice. `sharing` None: the source cannot tell; it is then MIG on a slice, else whole."""

    gpu_uuid: str
    gpu_instance_id: int | None
    namespace: str
    pod: str
    container: str
    at: datetime
    sharing: Workload.Sharing | None = None


@dataclass
class Observed:
    """All that one source saw. What is not listed is unknown, except where one of the last four says that the list was complete."""

    source: Source
    gpus: list[ObservedGpu] = field(default_factory=list)
    slices: list[ObservedSlice] = field(default_factory=list)
    workloads: list[ObservedWorkload] = field(default_factory=list)
    complete_nodes: dict[int, datetime] = field(default_factory=dict)
    complete_slices: dict[str, datetime] = field(default_factory=dict)
    complete_workload_nodes: dict[int, datetime] = field(default_factory=dict)
    complete_workloads: dict[tuple[str, int | None], datetime] = field(default_factory=dict)
    all_sharers: set[tuple[str, int | None]] = field(default_factory=set)  # of these places, the workloads that share it are all named


@dataclass
class Reconciled:
    """What changed. GPU ids are database ids, `unplaced` are UUIDs of GPUs that stand on no node that we know."""

    created: list[int] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)
    replaced: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    returned: list[int] = field(default_factory=list)
    slices_started: int = 0
    slices_ended: int = 0
    workloads_started: int = 0
    workloads_ended: int = 0
    disagreements: int = 0
    unplaced: list[str] = field(default_factory=list)

    def add(self, other: "Reconciled") -> None:
        for name in ("created", "moved", "replaced", "missing", "returned", "unplaced"):
            getattr(self, name).extend(getattr(other, name))
        for name in ("slices_started", "slices_ended", "workloads_started", "workloads_ended", "disagreements"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def changed(self) -> bool:
        return any(vars(self).values())
