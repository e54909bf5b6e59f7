"""Who holds what on the node, and what of it is the radio's. Pure.

PHY is known from the signed document alone: protected placements, operator's namespaces and service accounts. Labels say nothing, since a tenant
can set them. What cannot be told apart from PHY is treated like PHY.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from agent.backends.cluster import Pod
from agent.protocol import InventoryReport, LocalRules, ProtectedSpan, SliceFacts

GPU_COMPUTE_SLICES = 7
_COMPUTE_SLICES = re.compile(r"(\d+)g\.")


class Standing(StrEnum):
    PHY = "phy"
    AI = "ai"
    NO_GPU = "no_gpu"
    UNKNOWN = "unknown"  # holds a device of which nobody can say whether it is protected


@dataclass(frozen=True)
class Device:
    """A whole GPU (`slice` None) or one MIG slice. `gpu_instance_id` None for the whole GPU."""

    uuid: str
    gpu_uuid: str
    slice: SliceFacts | None = None

    @property
    def gpu_instance_id(self) -> int | None:
        return self.slice.gpu_instance_id if self.slice else None

    @property
    def compute_share(self) -> float:
        """Share of the GPU's compute, 0..1."""
        found = _COMPUTE_SLICES.match(self.slice.profile) if self.slice else None
        return int(found[1]) / GPU_COMPUTE_SLICES if found else 1.0


@dataclass(frozen=True)
class Layout:
    """The node's devices that pods can hold, by UUID, and its GPUs. `complete`: every GPU answered and told its slices."""

    devices: dict[str, Device]
    gpus: frozenset[str]
    protected: tuple[ProtectedSpan, ...]
    complete: bool

    @classmethod
    def of(cls, inventory: InventoryReport, protected: tuple[ProtectedSpan, ...]) -> Layout:
        devices: dict[str, Device] = {}
        for gpu in inventory.gpus:
            if gpu.mig_enabled is not True and not gpu.slices:
                devices[gpu.uuid] = Device(gpu.uuid, gpu.uuid)
            for found in gpu.slices or ():
                if found.mig_uuid:
                    devices[found.mig_uuid] = Device(found.mig_uuid, gpu.uuid, found)
        told = all(gpu.mig_enabled is False or gpu.slices is not None for gpu in inventory.gpus)
        return cls(devices=devices, gpus=frozenset(gpu.uuid for gpu in inventory.gpus), protected=protected, complete=inventory.complete and told)

    def is_protected(self, uuid: str) -> bool | None:
        """None: the device is not known, and something on this node is protected."""
        if not self.protected:
            return False
        if self.carries_phy(uuid):
            return True
        device = self.devices.get(uuid)
        if device is None or device.slice is None:
            return False if uuid in self.gpus else None
        spans = [span for span in self.protected if span.gpu_uuid == device.gpu_uuid]
        first, last = device.slice.start, device.slice.start + device.slice.size
        return any(span.start < last and first < span.start + span.size for span in spans)

    def carries_phy(self, gpu_uuid: str) -> bool:
        return any(span.gpu_uuid == gpu_uuid for span in self.protected)

    def ai_devices(self) -> dict[str, Device]:
        return {uuid: device for uuid, device in self.devices.items() if self.is_protected(uuid) is False}


def standing(pod: Pod, layout: Layout | None, rules: LocalRules) -> Standing:
    """`layout` None: the hardware cannot be asked, so that only a pod without any device is known not to be PHY."""
    if rules.is_operators(pod.namespace, pod.service_account):
        return Standing.PHY
    if not pod.gpus:
        return Standing.NO_GPU
    if layout is None:
        return Standing.UNKNOWN
    answers = [layout.is_protected(uuid) for uuid in pod.gpus]
    if True in answers:
        return Standing.PHY
    return Standing.UNKNOWN if None in answers else Standing.AI


def is_over(pod: Pod) -> bool:
    """The pod's containers ended; it holds nothing any more."""
    return pod.phase in ("Succeeded", "Failed")


def holders(pods: Iterable[Pod]) -> dict[str, list[Pod]]:
    """Device UUID → the pods that hold it."""
    found: dict[str, list[Pod]] = {}
    for pod in pods:
        if not is_over(pod):
            for uuid in pod.gpus:
                found.setdefault(uuid, []).append(pod)
    return found
