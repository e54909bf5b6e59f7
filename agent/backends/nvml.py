"""The real hardware, through NVIDIA's own binding (`nvidia-ml-py`).

One GPU that fails does not hide the others, and a driver that cannot be asked is not a node without GPUs.
"""

from __future__ import annotations

import _ctypes
import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml

from agent.backends import node_tools, nvml_mig, nvml_power
from agent.backends.base import BackendError, ClockReading, ErrorCode, MigReading, PowerReading
from agent.backends.nvml_power import optional, persistence_mode
from agent.backends.nvml_topology import read_topology
from agent.protocol import Condition, DriverMismatch, GpuCondition, GpuFacts, HealthReport, InventoryReport, NodeFacts, Sharing

_CODES = {
    pynvml.NVML_ERROR_GPU_IS_LOST: ErrorCode.GPU_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED: ErrorCode.RESET_REQUIRED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: ErrorCode.DRIVER_MISMATCH,
    pynvml.NVML_ERROR_NOT_SUPPORTED: ErrorCode.NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: ErrorCode.NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION: ErrorCode.NOT_PERMITTED,
    pynvml.NVML_ERROR_INVALID_ARGUMENT: ErrorCode.INVALID,
    pynvml.NVML_ERROR_FREQ_NOT_SUPPORTED: ErrorCode.INVALID,
    pynvml.NVML_ERROR_NOT_FOUND: ErrorCode.NOT_PRESENT,
    pynvml.NVML_ERROR_GPU_NOT_FOUND: ErrorCode.NOT_PRESENT,
    pynvml.NVML_ERROR_IN_USE: ErrorCode.IN_USE,
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: ErrorCode.NO_ROOM,
    pynvml.NVML_ERROR_TIMEOUT: ErrorCode.TIMEOUT,
}
_CONDITIONS = {
    pynvml.NVML_ERROR_GPU_IS_LOST: (Condition.LOST, "The GPU fell off the bus."),
    pynvml.NVML_ERROR_RESET_REQUIRED: (Condition.RESET_REQUIRED, "The GPU needs a reset."),
}
# After these the library has to be initialised again.
_DRIVER_GONE = {
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
}
_LIBRARY = re.compile(r"libnvidia-ml\.so\.([0-9][0-9.]*[0-9])")
_MODULE = re.compile(r"Kernel Module(?: for \S+)?\s+([0-9][0-9.]*[0-9])")


@contextmanager
def _translated() -> Iterator[None]:
    """NVML's errors as BackendError with NVML's own words."""
    try:
        yield
    except pynvml.NVMLError as error:
        raise BackendError(_CODES.get(error.value, ErrorCode.UNAVAILABLE), f"NVML: {error}") from error


class NvmlBackend:
    """`proc` and `sys` are where the kernel shows itself; the commands reset a GPU and reboot the node."""

    def __init__(
        self,
        *,
        proc: Path = Path("/proc"),
        sys: Path = Path("/sys"),
        reset_command: str = node_tools.RESET_COMMAND,
        reboot_command: str = node_tools.REBOOT_COMMAND,
    ) -> None:
        self._proc = proc
        self._sys = sys
        self._reset_command = reset_command
        self._reboot_command = reboot_command
        self._ready = False
        self._inside = 0
        self._kubelet_version: str | None = None

    def boot_id(self) -> str:
        return (self._proc / "sys/kernel/random/boot_id").read_text().strip()

    def close(self) -> None:
        if self._ready:
            self._ready = False
            pynvml.nvmlShutdown()

    # Reports.

    def inventory(self, now: float) -> InventoryReport:
        try:
            self._open()
            count = int(pynvml.nvmlDeviceGetCount())
            node = self._node_facts()
        except pynvml.NVMLError as error:
            self._forget(error)
            return InventoryReport(at=now, node=NodeFacts(kubelet_version=self._kubelet()), gpus=(), complete=False, gpu_count=None)
        gpus: list[GpuFacts] = []
        handles: dict[str, tuple[Any, str]] = {}
        for index in range(count):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                facts = self._gpu_facts(handle, index)
                _probe(handle)
            except pynvml.NVMLError as error:
                # A lost GPU is left to the health report; one that needs a reset, or has another fault, is still there when it tells its UUID.
                if error.value == pynvml.NVML_ERROR_GPU_IS_LOST or (identity := self._identity(index)) is None:
                    continue
                facts = identity
            else:
                handles[f"GPU{index}"] = (handle, facts.pci_bus_id)
            gpus.append(facts)
        topology = read_topology(handles, self._sys)
        node = NodeFacts(node.driver_version, node.cuda_version, node.kubelet_version, node.numa_nodes, topology)
        return InventoryReport(at=now, node=node, gpus=tuple(gpus), complete=True, gpu_count=count)

    def health(self, now: float) -> HealthReport:
        try:
            self._open()
            count = int(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError as error:
            mismatch = None
            if error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
                mismatch = DriverMismatch(loaded_module=self._module_version(), library=self._library_version())
            self._forget(error)
            return HealthReport(at=now, gpus=(), driver_mismatch=mismatch, driver_error=f"NVML: {error}")
        return HealthReport(at=now, gpus=tuple(_condition(index) for index in range(count)))

    # Clocks.

    def set_clock_range(self, gpu_uuid: str, min_mhz: int, max_mhz: int) -> None:
        with _translated():
            pynvml.nvmlDeviceSetGpuLockedClocks(self._handle(gpu_uuid), min_mhz, max_mhz)

    def reset_clock_range(self, gpu_uuid: str) -> None:
        with _translated():
            pynvml.nvmlDeviceResetGpuLockedClocks(self._handle(gpu_uuid))

    def read_clocks(self, gpu_uuid: str) -> ClockReading:
        with _translated():
            return nvml_power.read_clocks(self._handle(gpu_uuid))

    # Power.

    def set_power_limit(self, gpu_uuid: str, milliwatts: int) -> None:
        with _translated():
            pynvml.nvmlDeviceSetPowerManagementLimit(self._handle(gpu_uuid), milliwatts)

    def reset_power_limit(self, gpu_uuid: str) -> None:
        with _translated():
            nvml_power.reset_limit(self._handle(gpu_uuid))

    def read_power(self, gpu_uuid: str) -> PowerReading:
        with _translated():
            return nvml_power.read_power(self._handle(gpu_uuid))

    # MIG.

    def read_mig(self, gpu_uuid: str) -> MigReading:
        with _translated():
            return nvml_mig.read_mig(self._handle(gpu_uuid))

    def set_mig_mode(self, gpu_uuid: str, enabled: bool) -> None:
        with self._acting_on_mig():
            nvml_mig.set_mode(self._handle(gpu_uuid), enabled)

    def create_mig_instance(self, gpu_uuid: str, profile: str, start: int) -> int:
        with self._acting_on_mig():
            return nvml_mig.create(self._handle(gpu_uuid), profile, start)

    def destroy_mig_instance(self, gpu_uuid: str, gpu_instance_id: int) -> None:
        with self._acting_on_mig():
            nvml_mig.destroy(self._handle(gpu_uuid), gpu_instance_id)

    @contextmanager
    def _acting_on_mig(self) -> Iterator[None]:
        """These calls come from other threads and may hang: the library stays loaded under them."""
        self._inside += 1
        try:
            with _translated():
                yield
        finally:
            self._inside -= 1

    # The whole GPU and the whole node.

    def reset_gpu(self, gpu_uuid: str) -> None:
        if self._inside:
            raise BackendError(ErrorCode.IN_USE, "the agent itself is changing MIG on this node")
        self.close()
        node_tools.reset_gpu(gpu_uuid, command=self._reset_command)

    def reset_evidence(self, gpu_uuid: str) -> str:
        """NVML counts no resets."""
        return ""

    def reboot(self) -> None:
        node_tools.reboot(command=self._reboot_command)

    # The library.

    def _open(self) -> None:
        if not self._ready:
            pynvml.nvmlInit()
            self._ready = True

    def _forget(self, error: pynvml.NVMLError) -> None:
        """After a driver reload the library that we hold no longer fits: let go of it, so that the next call loads the one on disk."""
        if error.value not in _DRIVER_GONE or self._inside:
            return
        self._ready = False
        library: ctypes.CDLL | None = pynvml.nvmlLib
        if library is not None:
            pynvml.nvmlLib = None
            pynvml._nvmlGetFunctionPointer_cache.clear()
            _ctypes.dlclose(library._handle)

    def _handle(self, gpu_uuid: str) -> Any:
        """By UUID only: an index may mean another GPU since the last look."""
        try:
            self._open()
        except pynvml.NVMLError as error:
            self._forget(error)
            raise
        return pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid)

    def _module_version(self) -> str:
        """Of the loaded kernel module, "" when it does not say."""
        try:
            found = _MODULE.search((self._proc / "driver/nvidia/version").read_text())
        except OSError:
            return ""
        return found[1] if found else ""

    @staticmethod
    def _library_version() -> str:
        """Of the library in this process, from the name of its file."""
        for line in Path("/proc/self/maps").read_text().splitlines():
            if found := _LIBRARY.search(line):
                return found[1]
        return ""

    # Facts.

    def _node_facts(self) -> NodeFacts:
        cuda = optional(pynvml.nvmlSystemGetCudaDriverVersion)
        numa = len([path for path in (self._sys / "devices/system/node").glob("node[0-9]*") if path.is_dir()])
        return NodeFacts(
            driver_version=str(optional(pynvml.nvmlSystemGetDriverVersion) or ""),
            cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
            kubelet_version=self._kubelet(),
            numa_nodes=numa or None,
        )

    def _kubelet(self) -> str:
        """Asked once: a new kubelet restarts the agent's pod or is seen at its next start."""
        if self._kubelet_version is None:
            self._kubelet_version = ""
            if path := shutil.which("kubelet"):
                try:
                    done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=5, check=False)
                    self._kubelet_version = done.stdout.strip().removeprefix("Kubernetes ")[:40]
                except (OSError, subprocess.TimeoutExpired):
                    self._kubelet_version = ""
        return self._kubelet_version

    def _identity(self, index: int) -> GpuFacts | None:
        """What a GPU with a fault still tells of itself."""
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            return GpuFacts(uuid=str(pynvml.nvmlDeviceGetUUID(handle)), index=index, pci_bus_id=_text(pynvml.nvmlDeviceGetPciInfo(handle).busId))
        except pynvml.NVMLError:
            return None

    def _gpu_facts(self, handle: Any, index: int) -> GpuFacts:
        memory = optional(lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).total))
        limit = optional(lambda: int(pynvml.nvmlDeviceGetPowerManagementLimit(handle)))
        mig = optional(lambda: _mig_enabled(handle))
        pci_bus_id = _text(pynvml.nvmlDeviceGetPciInfo(handle).busId)
        slices = optional(lambda: nvml_mig.read_slices(handle)) if mig else None if mig is None else ()
        return GpuFacts(
            uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
            index=index,
            pci_bus_id=pci_bus_id,
            serial=str(optional(lambda: pynvml.nvmlDeviceGetSerial(handle)) or ""),
            name=str(optional(lambda: pynvml.nvmlDeviceGetName(handle)) or ""),
            memory_bytes=memory,
            power_limit_watts=None if limit is None else limit / 1000,
            numa_node=_numa_node(handle, pci_bus_id, self._sys),
            mig_enabled=mig,
            persistence_mode=persistence_mode(handle),
            sharing=_sharing(handle, bool(mig)),
            slices=slices,
        )


def open_backend(options: dict[str, str]) -> NvmlBackend:
    """Options: `proc` and `sys`, `nvidia_smi` and `reboot` (commands), for an agent in a container that has to reach the host's."""
    return NvmlBackend(
        proc=Path(options.get("proc", "/proc")),
        sys=Path(options.get("sys", "/sys")),
        reset_command=options.get("nvidia_smi", node_tools.RESET_COMMAND),
        reboot_command=options.get("reboot", node_tools.REBOOT_COMMAND),
    )


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _probe(handle: Any) -> None:
    """Ask what every GPU answers; only a fault of the GPU itself raises."""
    calls: tuple[Callable[[], Any], ...] = (
        lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
        lambda: pynvml.nvmlDeviceGetUtilizationRates(handle),
        lambda: pynvml.nvmlDeviceGetMemoryInfo(handle),
        lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
    )
    for call in calls:
        try:
            call()
        except pynvml.NVMLError as error:
            if error.value not in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_NO_PERMISSION):
                raise


def _condition(index: int) -> GpuCondition:
    uuid = ""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = str(pynvml.nvmlDeviceGetUUID(handle))
        _probe(handle)
    except pynvml.NVMLError as error:
        condition, words = _CONDITIONS.get(error.value, (Condition.UNKNOWN, "The GPU does not answer as it should."))
        return GpuCondition(uuid=uuid, index=index, condition=condition, detail=f"{words} NVML: {error}"[:300])
    return GpuCondition(uuid=uuid, index=index, condition=Condition.OK)


def _numa_node(handle: Any, pci_bus_id: str, sys: Path) -> int | None:
    try:
        return int(pynvml.nvmlDeviceGetNumaNodeId(handle))
    except pynvml.NVMLError:
        # sysfs writes the domain with four digits, NVML with eight.
        try:
            node = int((sys / "bus/pci/devices" / pci_bus_id.lower()[-12:] / "numa_node").read_text())
        except (OSError, ValueError):
            return None
        return node if node >= 0 else None


def _mig_enabled(handle: Any) -> bool:
    """False also where the GPU or its driver has no MIG; any other error raises, since slices that are not told of would count as gone."""
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE)
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        return False


def _sharing(handle: Any, mig: bool) -> Sharing | None:
    """MIG by its mode, MPS by its processes; whether the rest is time-sliced only Kubernetes knows."""
    if mig:
        return Sharing.MIG
    processes = optional(lambda: pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3(handle))
    return Sharing.MPS if processes else None
