"""MIG through NVML: instances with their placements, what the GPU offers, and making and removing them. NVMLError passes through, translated by the caller."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pynvml

from agent.backends.base import BackendError, ErrorCode, MigProfile, MigReading
from agent.protocol import SliceFacts

_NO_INSTANCE = 0xFFFFFFFF
_NO_SUCH_PROFILE = (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument)


def read_mig(handle: Any) -> MigReading:
    bus = pynvml.nvmlDeviceGetPciInfo(handle).busId
    pci_bus_id = bus.decode(errors="replace") if isinstance(bus, bytes) else str(bus)
    try:
        current, pending = (mode == pynvml.NVML_DEVICE_MIG_ENABLE for mode in pynvml.nvmlDeviceGetMigMode(handle))
    except pynvml.NVMLError_NotSupported:
        return MigReading(enabled=None, pending=None, pci_bus_id=pci_bus_id)
    if not current:
        try:
            profiles = _offers(handle)
        except pynvml.NVMLError:
            profiles = ()  # some drivers tell them in MIG mode only
        return MigReading(enabled=False, pending=pending, pci_bus_id=pci_bus_id, profiles=profiles)
    instances = read_slices(handle)
    return MigReading(True, pending, pci_bus_id, instances=instances, profiles=_offers(handle), clients=_clients(handle))


def read_slices(handle: Any) -> tuple[SliceFacts, ...]:
    """The GPU instances of a GPU in MIG mode, by first memory position; also those without a compute instance."""
    devices: dict[int, tuple[int, str]] = {}
    for number in range(int(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle))):
        try:
            device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except pynvml.NVMLError_NotFound:
            continue
        instance = int(pynvml.nvmlDeviceGetGpuInstanceId(device))
        devices.setdefault(instance, (int(pynvml.nvmlDeviceGetComputeInstanceId(device)), str(pynvml.nvmlDeviceGetUUID(device))))
    slices: list[SliceFacts] = []
    for profile_id, most, name in _profiles(handle):
        count = ctypes.c_uint(most)
        array: Any = pynvml.c_nvmlGpuInstance_t * max(most, 1)
        instances: Any = array()
        pynvml.nvmlDeviceGetGpuInstances(handle, profile_id, instances, ctypes.byref(count))
        for number in range(count.value):
            info = pynvml.nvmlGpuInstanceGetInfo(instances[number])
            compute, uuid = devices.get(int(info.id), (None, ""))
            slices.append(SliceFacts(int(info.id), compute, name, int(info.placement.start), int(info.placement.size), uuid))
    return tuple(sorted(slices, key=lambda found: found.start))


def set_mode(handle: Any, enabled: bool) -> None:
    wanted = pynvml.NVML_DEVICE_MIG_ENABLE if enabled else pynvml.NVML_DEVICE_MIG_DISABLE
    pynvml.nvmlDeviceSetMigMode(handle, wanted)
    current, _ = pynvml.nvmlDeviceGetMigMode(handle)
    if current != wanted:
        raise BackendError(ErrorCode.RESET_REQUIRED, "MIG mode is set and takes effect with the GPU's next reset.")


def create(handle: Any, profile: str, start: int) -> int:
    """A GPU instance with one compute instance over all of it; where the second cannot be made the first goes again."""
    found = next(((profile_id, most) for profile_id, most, name in _profiles(handle) if name == profile), None)
    if found is None:
        raise BackendError(ErrorCode.INVALID, f"this GPU has no profile {profile}")
    size = next((place.size for place in _placements(handle, found[0]) if place.start == start), None)
    if size is None:
        raise BackendError(ErrorCode.INVALID, f"{profile} cannot start at position {start}")
    placement = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
    instance = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, found[0], ctypes.byref(placement))
    try:
        pynvml.nvmlGpuInstanceCreateComputeInstance(instance, _widest_compute_profile(instance))
    except pynvml.NVMLError:
        pynvml.nvmlGpuInstanceDestroy(instance)
        raise
    return int(pynvml.nvmlGpuInstanceGetInfo(instance).id)


def destroy(handle: Any, gpu_instance_id: int) -> None:
    """Compute instances first. When the GPU instance itself is held, its compute instance is put back."""
    instance = pynvml.nvmlDeviceGetGpuInstanceById(handle, gpu_instance_id)
    removed: list[int] = []
    try:
        for profile_id, compute in list(_compute_instances(instance)):
            pynvml.nvmlComputeInstanceDestroy(compute)
            removed.append(profile_id)
        pynvml.nvmlGpuInstanceDestroy(instance)
    except pynvml.NVMLError:
        for profile_id in removed:
            pynvml.nvmlGpuInstanceCreateComputeInstance(instance, profile_id)
        raise


def _profiles(handle: Any) -> Iterator[tuple[int, int, str]]:
    """(profile id, most instances, name such as 1g.10gb) of each kind that the GPU offers."""
    for profile in range(int(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT)):
        try:
            yield _profile(handle, profile)
        except _NO_SUCH_PROFILE:
            continue


def _profile(handle: Any, profile: int) -> tuple[int, int, str]:
    try:
        info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, profile, version=2)
        name = info.name.decode(errors="replace") if isinstance(info.name, bytes) else str(info.name)
        name = name.removeprefix("MIG ").strip()
    except (pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_ArgumentVersionMismatch):
        info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, profile, version=1)
        name = ""
    if not name:
        name = f"{int(info.sliceCount)}g.{round(int(info.memorySizeMB) / 1024)}gb"
    return int(info.id), int(info.instanceCount), name


def _offers(handle: Any) -> tuple[MigProfile, ...]:
    return tuple(_offer(handle, profile_id, most, name) for profile_id, most, name in _profiles(handle))


def _offer(handle: Any, profile_id: int, most: int, name: str) -> MigProfile:
    places = _placements(handle, profile_id)
    starts = tuple(sorted(int(place.start) for place in places))
    return MigProfile(name=name, starts=starts, size=max((int(place.size) for place in places), default=0), max_instances=most)


def _placements(handle: Any, profile_id: int) -> list[Any]:
    """Where the profile may stand on this board, free or not: {start, size} each."""
    count = ctypes.c_uint(0)
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, None, ctypes.byref(count))
    array: Any = pynvml.c_nvmlGpuInstancePlacement_t * max(count.value, 1)
    places: Any = array()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, places, ctypes.byref(count))
    return list(places[: count.value])


def _compute_profiles(instance: Any) -> Iterator[Any]:
    for profile in range(int(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT)):
        try:
            yield pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, profile, pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, version=1)
        except _NO_SUCH_PROFILE:
            continue


def _widest_compute_profile(instance: Any) -> int:
    return int(max(_compute_profiles(instance), key=lambda info: int(info.sliceCount)).id)


def _compute_instances(instance: Any) -> Iterator[tuple[int, Any]]:
    """(profile id, compute instance) of all that the GPU instance holds."""
    for info in _compute_profiles(instance):
        count = ctypes.c_uint(int(info.instanceCount))
        array: Any = pynvml.c_nvmlComputeInstance_t * max(count.value, 1)
        found: Any = array()
        pynvml.nvmlGpuInstanceGetComputeInstances(instance, int(info.id), found, ctypes.byref(count))
        yield from ((int(info.id), found[number]) for number in range(count.value))


def _clients(handle: Any) -> dict[int, int] | None:
    """Processes per GPU instance."""
    try:
        processes = [*pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle), *pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3(handle)]
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_NoPermission):
        return None
    return dict(Counter(int(process.gpuInstanceId) for process in processes if process.gpuInstanceId not in (None, _NO_INSTANCE)))
