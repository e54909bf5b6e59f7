"""What dcgm-exporter prints for a node: its families in its order, GPU values repeated on each slice line, profiling and memory per instance."""

from __future__ import annotations

from typing import NamedTuple

from agent.simulator.boards import Board, xid_text
from agent.simulator.config import GpuConfig, NodeConfig, WorkloadConfig
from agent.simulator.exposition import Page, PageBuilder, labels_text
from agent.simulator.physics import Part, Physics


class Family(NamedTuple):
    """`level`: `gpu` repeats the GPU's value on every line, `whole` exists only without slices, `instance` is per slice (or whole GPU)."""

    name: str
    help: str
    kind: str
    column: str
    number_format: str
    level: str = "gpu"
    needs: str = ""


# dcgm-exporter's default counters, in the order of its default list.
DEFAULT_FAMILIES = (
    Family("DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz).", "gauge", "sm_mhz", "%d"),
    Family("DCGM_FI_DEV_MEM_CLOCK", "Memory clock frequency (in MHz).", "gauge", "memory_mhz", "%d"),
    Family("DCGM_FI_DEV_MEMORY_TEMP", "Memory temperature (in C).", "gauge", "memory_celsius", "%d", needs="hbm"),
    Family("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", "gauge", "celsius", "%d"),
    Family("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", "gauge", "watts", "%.6f"),
    Family("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "Total energy consumption since boot (in mJ).", "counter", "energy_mj", "%d"),
    Family("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "Total number of PCIe retries.", "counter", "pcie_replay", "%d"),
    Family("DCGM_FI_DEV_XID_ERRORS", "Value of the last XID error encountered.", "gauge", "xid", "%d"),
    Family(
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "Number of remapped rows for uncorrectable errors", "counter", "remapped_uncorrectable", "%d", needs="hbm"
    ),
    Family("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "Number of remapped rows for correctable errors", "counter", "remapped_correctable", "%d", needs="hbm"),
    Family("DCGM_FI_DEV_ROW_REMAP_FAILURE", "Whether remapping of rows has failed", "gauge", "remap_failure", "%d", needs="hbm"),
    Family("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", "gauge", "utilization", "%d", "whole"),
    Family("DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilization (in %).", "gauge", "copy_utilization", "%d", "whole"),
    Family("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).", "gauge", "free_mib", "%d", "instance"),
    Family("DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).", "gauge", "used_mib", "%d", "instance"),
    Family("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Ratio of time the graphics engine is active.", "gauge", "active", "%.6f", "instance"),
    Family(
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "Ratio of cycles the device memory interface is active sending or receiving data.",
        "gauge",
        "dram",
        "%.6f",
        "instance",
    ),
    Family("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Ratio of cycles the tensor (HMMA) pipe is active.", "gauge", "tensor", "%.6f", "instance"),
    Family("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "Total number of NVLink bandwidth counters for all lanes", "counter", "nvlink", "%d", "whole", needs="nvlink"),
    Family("DCGM_FI_PROF_PCIE_TX_BYTES", "Number of bytes of active PCIe tx data including both header and payload.", "counter", "pcie_tx", "%d", "whole"),
    Family("DCGM_FI_PROF_PCIE_RX_BYTES", "Number of bytes of active PCIe rx data including both header and payload.", "counter", "pcie_rx", "%d", "whole"),
)

# Counters that the default list leaves out and that an operator of such a fleet switches on.
ADDED_FAMILIES = (
    Family("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "Current clock throttle reasons (bitmask).", "gauge", "reasons", "%d"),
    Family("DCGM_FI_DEV_GPU_TEMP_LIMIT", "Thermal margin to the slow-down temperature (in C).", "gauge", "margin_celsius", "%d"),
    Family("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "Enforced power limit (in W).", "gauge", "limit_watts", "%.6f"),
    Family("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "Total number of single-bit volatile ECC errors.", "counter", "ecc_sbe", "%d"),
    Family("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "Total number of double-bit volatile ECC errors.", "counter", "ecc_dbe", "%d"),
    Family("DCGM_FI_DEV_ROW_REMAP_PENDING", "Whether a row remap waits for a reset", "gauge", "remap_pending", "%d", needs="hbm"),
    Family("DCGM_FI_DEV_FB_RESERVED", "Framebuffer memory reserved (in MiB).", "gauge", "reserved_mib", "%d", "instance"),
    Family("DCGM_FI_PROF_SM_ACTIVE", "Ratio of cycles an SM has at least one warp assigned.", "gauge", "sm_active", "%.6f", "instance"),
    Family(
        "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        "Total number of NVLink flow-control CRC errors.",
        "counter",
        "nvlink_errors",
        "%d",
        "whole",
        needs="nvlink",
    ),
)


def dcgm_page(physics: Physics, node: NodeConfig, *, lost: frozenset[str] = frozenset(), added: bool = True) -> Page:
    """The page of a node. GPUs in `lost` (UUIDs) have no series. The XID labels hold the codes of this moment: build anew when one changes."""
    builder = PageBuilder()
    present = [gpu for gpu in node.gpus if gpu.uuid not in lost]
    for family in DEFAULT_FAMILIES + (ADDED_FAMILIES if added else ()):
        lines = [line for gpu in present for line in _family_lines(physics, node, gpu, family)]
        if lines:
            builder.family(family.name, family.help, family.kind)
            for labels, place in lines:
                builder.series(family.name, labels, family.number_format, place)
    return builder.page()


def _family_lines(physics: Physics, node: NodeConfig, gpu: GpuConfig, family: Family) -> list[tuple[str, int]]:
    row = physics.row_of_gpu[gpu.uuid]
    board = physics.gpus[row][2]
    if (family.needs == "hbm" and not board.hbm) or (family.needs == "nvlink" and not board.nvlink):
        return []
    sliced = bool(gpu.mig)
    if family.level == "whole" and sliced:
        return []
    columns, lines = physics.columns, []
    xid = int(columns["gpu.xid"][row]) if family.column == "xid" else None
    for part_row in physics.parts_of_gpu[row]:
        labels = _labels(node, gpu, board, physics.parts[part_row], xid)
        place = columns.place(f"part.{family.column}", part_row) if family.level == "instance" else columns.place(f"gpu.{family.column}", row)
        lines.append((labels, place))
    return lines


def _labels(node: NodeConfig, gpu: GpuConfig, board: Board, part: Part, xid: int | None) -> str:
    pairs = {
        "gpu": str(gpu.index),
        "UUID": gpu.uuid,
        "pci_bus_id": gpu.pci_bus_id,
        "device": f"nvidia{gpu.index}",
        "modelName": board.model_name,
    }
    workload: WorkloadConfig | None = gpu.workload
    if part.slice is not None:
        pairs |= {"GPU_I_PROFILE": part.slice.profile, "GPU_I_ID": str(part.slice.gpu_instance_id)}
        workload = part.slice.workload
    pairs |= {"Hostname": node.host_name, "DCGM_FI_DRIVER_VERSION": node.driver_version}
    if workload is not None:
        pairs |= {"container": workload.container, "namespace": workload.namespace, "pod": workload.pod}
    if xid is not None:
        pairs |= {"err_code": str(xid), "err_msg": xid_text(xid)}
    return labels_text(pairs)
