"""MIG of the simulated GPUs as it stands now: mode, instances and what runs on them. It starts as configured; agents change it, boots clear it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from agent.backends.base import ErrorCode, MigProfile, MigReading
from agent.protocol import SliceFacts
from agent.simulator import boards
from agent.simulator.config import GpuConfig, SimulatorConfig, SliceConfig, WorkloadConfig

# GPU instance ids as the driver numbers them: each size of instance from a number of its own.
_FIRST_ID = {1: 7, 2: 3, 4: 1, 8: 0}


class HardwareError(Exception):
    """The simulated driver refuses. `code` is one of `agent.backends.base.ErrorCode`."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Partitions:
    """`gpus` by UUID, as they are now. The layout of a GPU that an agent changed is gone after a boot; the others' own boot service restores theirs."""

    def __init__(self, config: SimulatorConfig) -> None:
        self._configured = {gpu.uuid: gpu for node in config.nodes for gpu in node.gpus}
        self.gpus = dict(self._configured)
        self._changed: set[str] = set()

    def boot(self, gpu_uuids: Iterable[str]) -> None:
        """Instances do not survive it; the radio's are put back by those who run it."""
        for uuid in gpu_uuids:
            configured = self._configured[uuid]
            if uuid not in self._changed:
                self.gpus[uuid] = configured
            elif self.gpus[uuid].mig is not None:
                self.gpus[uuid] = replace(configured, mig=tuple(part for part in configured.mig or () if part.purpose == "phy"), workload=None)

    def read(self, gpu_uuid: str) -> MigReading:
        gpu = self.gpus[gpu_uuid]
        board = boards.BOARDS[gpu.sku]
        if not board.mig:
            return MigReading(enabled=None, pending=None, pci_bus_id=gpu.pci_bus_id)
        enabled = gpu.mig is not None
        if not enabled:
            return MigReading(enabled=False, pending=False, pci_bus_id=gpu.pci_bus_id, profiles=_profiles(board))
        clients = {part.gpu_instance_id: 1 for part in gpu.mig or () if part.workload is not None}
        return MigReading(True, True, gpu.pci_bus_id, instances=slices_of(gpu), profiles=_profiles(board), clients=clients)

    def check_mode(self, gpu_uuid: str, enabled: bool) -> None:
        """Raises HardwareError as the driver would."""
        gpu = self.gpus[gpu_uuid]
        if not boards.BOARDS[gpu.sku].mig:
            raise HardwareError(ErrorCode.NOT_SUPPORTED, "Not Supported")
        if (enabled and gpu.workload is not None) or (not enabled and gpu.mig):
            raise HardwareError(ErrorCode.IN_USE, "In use by another client")

    def set_mode(self, gpu_uuid: str, enabled: bool) -> None:
        gpu = self.gpus[gpu_uuid]
        self._changed.add(gpu_uuid)
        if enabled != (gpu.mig is not None):
            self.gpus[gpu_uuid] = replace(gpu, mig=() if enabled else None, workload=None)

    def next_id(self, gpu_uuid: str, profile: str, start: int) -> int:
        """The id that an instance would get there. Raises HardwareError when it cannot be."""
        gpu = self.gpus[gpu_uuid]
        if gpu.mig is None:
            raise HardwareError(ErrorCode.NOT_SUPPORTED, "MIG mode is off")
        offer = next((found for found in _profiles(boards.BOARDS[gpu.sku]) if found.name == profile), None)
        if offer is None or start not in offer.starts:
            raise HardwareError(ErrorCode.INVALID, f"profile, start: {profile}@{start} is no placement of this GPU")
        standing = slices_of(gpu)
        compute = sum(boards.compute_slices(instance.profile) for instance in standing) + boards.compute_slices(profile)
        if compute > boards.COMPUTE_SLICES or any(other.start < start + offer.size and start < other.start + other.size for other in standing):
            raise HardwareError(ErrorCode.NO_ROOM, "Insufficient Resources")
        taken = {instance.gpu_instance_id for instance in standing}
        return next(number for number in range(_FIRST_ID[offer.size], 256) if number not in taken)

    def create(self, gpu_uuid: str, part: SliceConfig) -> None:
        gpu = self.gpus[gpu_uuid]
        self._changed.add(gpu_uuid)
        self.gpus[gpu_uuid] = replace(gpu, mig=tuple(sorted([*(gpu.mig or ()), part], key=lambda found: found.start)))

    def check_destroy(self, gpu_uuid: str, gpu_instance_id: int) -> None:
        """Raises HardwareError when there is no such instance, or something runs on it."""
        part = next((part for part in self.gpus[gpu_uuid].mig or () if part.gpu_instance_id == gpu_instance_id), None)
        if part is None:
            raise HardwareError(ErrorCode.NOT_PRESENT, f"gpu_instance_id: there is no instance {gpu_instance_id}")
        if part.workload is not None:
            raise HardwareError(ErrorCode.IN_USE, "In use by another client")

    def destroy(self, gpu_uuid: str, gpu_instance_id: int) -> None:
        gpu = self.gpus[gpu_uuid]
        self._changed.add(gpu_uuid)
        self.gpus[gpu_uuid] = replace(gpu, mig=tuple(part for part in gpu.mig or () if part.gpu_instance_id != gpu_instance_id))

    def set_workload(self, gpu_uuid: str, gpu_instance_id: int | None, workload: WorkloadConfig | None) -> None:
        """What runs on the GPU (`gpu_instance_id` None) or on one of its instances from now on."""
        gpu = self.gpus[gpu_uuid]
        if gpu_instance_id is None:
            self.gpus[gpu_uuid] = replace(gpu, workload=workload)
        else:
            parts = (replace(part, workload=workload) if part.gpu_instance_id == gpu_instance_id else part for part in gpu.mig or ())
            self.gpus[gpu_uuid] = replace(gpu, mig=tuple(parts))


def slices_of(gpu: GpuConfig) -> tuple[SliceFacts, ...]:
    """The instances as NVML lists them."""
    board = boards.BOARDS[gpu.sku]
    return tuple(
        SliceFacts(
            gpu_instance_id=part.gpu_instance_id,
            compute_instance_id=0,
            profile=part.profile,
            start=part.start,
            size=boards.profile_size(board, part.profile, "profile"),
            mig_uuid=part.mig_uuid,
        )
        for part in gpu.mig or ()
    )


def _profiles(board: boards.Board) -> tuple[MigProfile, ...]:
    return tuple(MigProfile(name, starts, size, most) for name, starts, size, most in boards.mig_profiles(board))
