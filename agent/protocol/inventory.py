"""What a node is made of, as its agent sees it. A value that the agent cannot ask is None, never a default."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from agent.protocol.wire import Reader

MAX_GPUS = 64
MAX_SLICES = 16
MAX_WORKLOADS = 2000


class Sharing(StrEnum):
    WHOLE = "whole"
    MIG = "mig"
    MPS = "mps"
    TIME_SLICED = "time_sliced"


@dataclass(frozen=True)
class SliceFacts:
    """A MIG GPU instance with its first compute instance. `start` and `size` are memory positions."""

    gpu_instance_id: int
    compute_instance_id: int | None
    profile: str
    start: int
    size: int
    mig_uuid: str

    @classmethod
    def parse(cls, reader: Reader) -> SliceFacts:
        found = cls(
            gpu_instance_id=reader.integer("gpu_instance_id", high=255),
            compute_instance_id=reader.optional("compute_instance_id", lambda name: reader.integer(name, high=255)),
            profile=reader.text("profile", longest=20),
            start=reader.integer("start", high=7),
            size=reader.integer("size", low=1, high=8),
            mig_uuid=reader.text("mig_uuid", longest=64, empty=True),
        )
        reader.done()
        return found


@dataclass(frozen=True)
class GpuFacts:
    """One GPU that answers. `mig_enabled` and `slices` are None when the GPU could not be asked for them; without MIG they are False and ()."""

    uuid: str
    index: int
    pci_bus_id: str
    serial: str = ""
    name: str = ""
    memory_bytes: int | None = None
    power_limit_watts: float | None = None
    numa_node: int | None = None
    mig_enabled: bool | None = None
    persistence_mode: bool | None = None
    sharing: Sharing | None = None
    slices: tuple[SliceFacts, ...] | None = None

    @classmethod
    def parse(cls, reader: Reader) -> GpuFacts:
        found = cls(
            uuid=reader.text("uuid", longest=64),
            index=reader.integer("index", high=255),
            pci_bus_id=reader.text("pci_bus_id", longest=20),
            serial=reader.text("serial", longest=40, empty=True),
            name=reader.text("name", longest=80, empty=True),
            memory_bytes=reader.optional("memory_bytes", lambda name: reader.integer(name, high=1 << 50)),
            power_limit_watts=reader.optional("power_limit_watts", lambda name: reader.number(name, low=0, high=100_000)),
            numa_node=reader.optional("numa_node", lambda name: reader.integer(name, high=1023)),
            mig_enabled=reader.optional("mig_enabled", reader.boolean),
            persistence_mode=reader.optional("persistence_mode", reader.boolean),
            sharing=reader.optional("sharing", lambda name: reader.choice(name, Sharing)),
            slices=reader.optional("slices", lambda name: reader.items(name, SliceFacts.parse, most=MAX_SLICES)),
        )
        reader.done()
        return found


@dataclass(frozen=True)
class WorkloadFacts:
    """A container on a GPU (`gpu_instance_id` None) or on one of its slices."""

    gpu_uuid: str
    gpu_instance_id: int | None
    namespace: str
    pod: str
    container: str
    sharing: Sharing

    @classmethod
    def parse(cls, reader: Reader) -> WorkloadFacts:
        found = cls(
            gpu_uuid=reader.text("gpu_uuid", longest=64),
            gpu_instance_id=reader.optional("gpu_instance_id", lambda name: reader.integer(name, high=255)),
            namespace=reader.text("namespace", longest=253),
            pod=reader.text("pod", longest=253),
            container=reader.text("container", longest=253, empty=True),
            sharing=reader.choice("sharing", Sharing),
        )
        reader.done()
        return found


@dataclass(frozen=True)
class NodeFacts:
    """`topology` is the parsed `nvidia-smi topo -m`: {devices: [names], links: {a: {b: word}}, numa: {device: n}, cpus: {device: "0-31"}}."""

    driver_version: str = ""
    cuda_version: str = ""
    kubelet_version: str = ""
    numa_nodes: int | None = None
    topology: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, reader: Reader) -> NodeFacts:
        found = cls(
            driver_version=reader.text("driver_version", longest=40, empty=True),
            cuda_version=reader.text("cuda_version", longest=20, empty=True),
            kubelet_version=reader.text("kubelet_version", longest=40, empty=True),
            numa_nodes=reader.optional("numa_nodes", lambda name: reader.integer(name, low=1, high=1024)),
            topology=reader.nested("topology", limit=128 * 1024),
        )
        reader.done()
        return found


@dataclass(frozen=True)
class InventoryReport:
    """The whole inventory of a node at `at` (Unix seconds, agent's clock).

    `complete` is False when the driver could not list its GPUs (see the health report): what is absent then is unknown, not gone.
    `gpu_count` is what the driver counts, also those that do not answer; None when it cannot say.
    `workloads` is None when the agent cannot see pods.
    """

    type: ClassVar[str] = "inventory"
    at: float
    node: NodeFacts
    gpus: tuple[GpuFacts, ...]
    complete: bool
    gpu_count: int | None
    workloads: tuple[WorkloadFacts, ...] | None = None

    @classmethod
    def parse(cls, reader: Reader) -> InventoryReport:
        found = cls(
            at=reader.number("at", low=0, high=1e11),
            node=NodeFacts.parse(reader.child("node")),
            gpus=reader.items("gpus", GpuFacts.parse, most=MAX_GPUS),
            complete=reader.boolean("complete"),
            gpu_count=reader.optional("gpu_count", lambda name: reader.integer(name, high=MAX_GPUS)),
            workloads=reader.optional("workloads", lambda name: reader.items(name, WorkloadFacts.parse, most=MAX_WORKLOADS)),
        )
        reader.done()
        return found

    def to_json(self) -> dict[str, Any]:
        return {"type": self.type, **asdict(self)}
