"""What the metrics of exporters mean: fields, units, valid ranges, blanks, identities. Pure: no Django, no clock, no I/O.

Names are those of DCGM before 4.6 first, then the names since 4.6/4.7 (the old ones stay as aliases there). Units of ours: hertz, celsius, watts,
joules, bytes, ratios 0..1.
"""

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

# Prometheus writes this NaN when a series has ended; any other NaN is "no value".
STALE_NAN_BITS = 0x7FF0000000000002
COMPUTE_SLICES = 7
MIB = 2.0**20


class DcgmType(StrEnum):
    """DCGM's own type of a field: it decides which numbers are blanks."""

    INT64 = "int64"
    INT32 = "int32"
    FP64 = "fp64"


# Half-open [from, to) ranges of DCGM's blanks (blank, not found, not supported, not permitted), as a float64 of Prometheus holds them.
BLANK_RANGES: dict[DcgmType, tuple[float, float]] = {
    DcgmType.INT64: (9.2233720368547e18, math.inf),
    DcgmType.INT32: (2147483632.0, 2147483648.0),
    DcgmType.FP64: (140737488355328.0, 140737488355332.0),
}


class Level(StrEnum):
    """Whose value a field is when the GPU is sliced."""

    GPU = "gpu"  # of the device; exporters repeat it on every slice's line: taken once
    WHOLE = "whole"  # of a GPU that is not sliced; on a slice's line it means nothing
    INSTANCE = "instance"  # of the slice on a slice's line, of the device otherwise


@dataclass(frozen=True)
class Metric:
    """One name under which a field is exported. Value in our unit = number × `scale`."""

    name: str
    scale: float
    type: DcgmType


@dataclass(frozen=True)
class Field:
    """One column of the last values. `minimum`..`maximum` (inclusive, our unit) is what a true reading can be."""

    name: str
    level: Level
    metrics: tuple[Metric, ...]
    maximum: float
    minimum: float = 0.0
    counter: bool = False


def _field(name: str, level: Level, *names: str, maximum: float, scale: float = 1.0, type: DcgmType = DcgmType.INT64, **rest: float | bool) -> Field:
    """A field whose names share one unit; "NAME*FACTOR" or "NAME*FACTOR:fp64" gives a name another scale and type."""
    metrics = []
    for text in names:
        text, _, its_type = text.partition(":")
        metric, _, factor = text.partition("*")
        metrics.append(Metric(metric, float(factor) if factor else scale, DcgmType(its_type) if its_type else type))
    return Field(name, level, tuple(metrics), maximum, minimum=float(rest.get("minimum", 0.0)), counter=bool(rest.get("counter", False)))


_G, _W, _I = Level.GPU, Level.WHOLE, Level.INSTANCE
_BIG = 2.0**62
_FP = DcgmType.FP64
# Several NVLink error counters exist; each is a number of its own and their sum is the field.
NVLINK_ERROR_METRICS = (
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
)
_NVLINK_ERROR_NEW = tuple(name.replace("_COUNT_TOTAL", "_TOTAL") for name in NVLINK_ERROR_METRICS)

# The order of GPU_FIELDS is the row order of LiveState.gpu_values; names are the columns of fleet.models.GpuReading.
FIELDS: tuple[Field, ...] = (
    _field("sm_clock_hertz", _G, "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_SM_CLOCK_HERTZ*1", scale=1e6, maximum=5e9),
    _field("memory_clock_hertz", _G, "DCGM_FI_DEV_MEM_CLOCK", "DCGM_FI_DEV_MEMORY_CLOCK_HERTZ*1", scale=1e6, maximum=2e10),
    _field("gpu_temperature_celsius", _G, "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS", minimum=-40.0, maximum=150.0),
    _field(
        "memory_temperature_celsius",
        _G,
        "DCGM_FI_DEV_MEMORY_TEMP",
        "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS",
        type=DcgmType.INT64,
        minimum=-40.0,
        maximum=150.0,
    ),
    _field(
        "temperature_margin_celsius",
        _G,
        "DCGM_FI_DEV_GPU_TEMP_LIMIT",
        "DCGM_FI_DEV_GPU_TEMP_MARGIN_CELSIUS",
        minimum=-100.0,
        maximum=150.0,
    ),
    _field("power_watts", _G, "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS", type=_FP, maximum=3000.0),
    _field("power_limit_watts", _G, "DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS", type=_FP, maximum=3000.0),
    _field(
        "energy_joules",
        _G,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL*1",
        scale=1e-3,
        maximum=1e13,
        counter=True,
    ),
    # Since 4.6 GPU_UTIL_RATIO was the percent under a new name, since 4.7 it is a ratio: see RATIO_OR_PERCENT.
    _field("utilization_ratio", _W, "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO*1:fp64", scale=0.01, maximum=1.0),
    _field("memory_copy_ratio", _W, "DCGM_FI_DEV_MEM_COPY_UTIL", "DCGM_FI_DEV_MEMORY_UTIL_RATIO*1:fp64", scale=0.01, maximum=1.0),
    _field("engine_active_ratio", _I, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", type=_FP, maximum=1.0),
    _field("sm_active_ratio", _I, "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_UTIL_RATIO", type=_FP, maximum=1.0),
    _field("tensor_active_ratio", _I, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_TENSOR_UTIL_RATIO", type=_FP, maximum=1.0),
    _field("dram_active_ratio", _I, "DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_PROF_DRAM_UTIL_RATIO", type=_FP, maximum=1.0),
    _field("memory_used_bytes", _I, "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_USED_BYTES*1", scale=MIB, maximum=2.0**42),
    _field("memory_free_bytes", _I, "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_FREE_BYTES*1", scale=MIB, maximum=2.0**42),
    _field("memory_reserved_bytes", _I, "DCGM_FI_DEV_FB_RESERVED", "DCGM_FI_DEV_FB_RESERVED_BYTES*1", scale=MIB, maximum=2.0**42),
    _field("pcie_tx_bytes_per_second", _G, "DCGM_FI_PROF_PCIE_TX_BYTES", maximum=1e13),
    _field("pcie_rx_bytes_per_second", _G, "DCGM_FI_PROF_PCIE_RX_BYTES", maximum=1e13),
    _field("pcie_replay_total", _G, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "DCGM_FI_DEV_PCIE_REPLAY_TOTAL", maximum=_BIG, counter=True),
    _field("nvlink_bandwidth_total", _G, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "DCGM_FI_DEV_NVLINK_THROUGHPUT_TOTAL", maximum=_BIG, counter=True),
    _field("nvlink_errors_total", _G, *NVLINK_ERROR_METRICS, *_NVLINK_ERROR_NEW, maximum=_BIG, counter=True),
    _field("xid", _G, "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR", maximum=65535.0),
    _field("clock_event_reasons", _G, "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", maximum=_BIG),
    _field("ecc_sbe_total", _G, "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", maximum=_BIG, counter=True),
    _field("ecc_dbe_total", _G, "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", maximum=_BIG, counter=True),
    _field(
        "remapped_rows_correctable",
        _G,
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        "DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL",
        maximum=_BIG,
        counter=True,
    ),
    _field(
        "remapped_rows_uncorrectable",
        _G,
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL",
        maximum=_BIG,
        counter=True,
    ),
    _field("row_remap_pending", _G, "DCGM_FI_DEV_ROW_REMAP_PENDING", maximum=1.0),
    _field("row_remap_failure", _G, "DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_DEV_ROW_REMAP_FAILED", maximum=1.0),
)
GPU_FIELDS: tuple[Field, ...] = FIELDS
SLICE_FIELDS: tuple[Field, ...] = tuple(field for field in FIELDS if field.level is Level.INSTANCE)
GPU_FIELD_INDEX: dict[str, int] = {field.name: index for index, field in enumerate(GPU_FIELDS)}
SLICE_FIELD_INDEX: dict[str, int] = {field.name: index for index, field in enumerate(SLICE_FIELDS)}
FIELD_OF_METRIC: dict[str, tuple[Field, Metric]] = {metric.name: (field, metric) for field in FIELDS for metric in field.metrics}

# A count of XIDs by code in the exporter's last window (a gauge in truth, although typed counter).
XID_COUNT_METRIC = "DCGM_EXP_XID_ERRORS_COUNT"
# What the driver says a GPU needs: 0 nothing, others as in `fleet/catalogue/xid.yaml`.
RECOVERY_METRICS = frozenset({"DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION", "DCGM_FI_DEV_GPU_RECOVERY_ACTION"})
MAX_RECOVERY_ACTION = 255.0
# Exported as a ratio by some DCGM versions and as a percent by others: a value over 1 shows that the series is a percent.
RATIO_OR_PERCENT = frozenset({"DCGM_FI_DEV_GPU_UTIL_RATIO"})


class Refusal(StrEnum):
    """Why a sample was not taken. `DataQuality.reason` holds these words."""

    BLANK = "blank"
    OUT_OF_RANGE = "out_of_range"
    NOT_A_NUMBER = "not_a_number"
    FOREIGN_SITE = "foreign_site"
    UNKNOWN_SITE = "unknown_site"
    UNKNOWN_NODE = "unknown_node"
    UNKNOWN_GPU = "unknown_gpu"
    TOO_OLD = "too_old"
    FUTURE = "future"
    HISTOGRAM = "histogram"
    UNKNOWN_METRIC = "unknown_metric"
    NO_IDENTITY = "no_identity"
    TOO_MANY_SERIES = "too_many_series"
    NAME_TOO_LONG = "name_too_long"
    INCOMPLETE_PULL = "incomplete_pull"  # not a refusal: answers of a pull that lacked something
    SERIES_MISSING = "series_missing"  # not a refusal: series that came and no longer come; its count is a state


FUTURE_TOLERANCE_SECONDS = 60.0


@dataclass(frozen=True)
class Sample:
    """One number of one series, as any door yields it. `at` is the sample's own time (Unix seconds)."""

    labels: Mapping[str, str]
    value: float
    at: float


@dataclass(frozen=True, slots=True)
class SeriesSeen:
    """Who a GPU (or a slice of it) says it is: handed to inventory when first seen or changed. Empty text: the series did not say.

    An empty `pod` says that no workload runs there now.
    """

    site_code: str
    node_host: str
    gpu_uuid: str
    index: int | None
    pci_bus_id: str
    model_name: str
    driver_version: str
    gpu_instance_id: int | None
    profile: str
    namespace: str
    pod: str
    container: str
    at: float
    sharing: str = ""  # a word of `Workload.Sharing` where all that run at the place are known; "" where this may be one of several


@dataclass(frozen=True)
class XidChange:
    """The XID gauge of a GPU changed. `old` is None at first sight (when it happened is then unknown).

    `gpu_instance_id` is set when exactly one slice showed it. A change to 0 means that something restarted: neither an event nor a recovery.
    """

    gpu_row: int
    gpu_instance_id: int | None
    old: int | None
    new: int
    at: float


@dataclass(frozen=True)
class XidCount:
    """How often `xid` happened on a GPU within the exporter's window. `old` is None at first sight; a fall is only the window moving on."""

    gpu_row: int
    gpu_instance_id: int | None
    xid: int
    old: int | None
    new: int
    at: float


def is_blank(value: float, dcgm_type: DcgmType) -> bool:
    """True for DCGM's "no value" numbers. The field's own type decides: 2147483640 is a fine count of bytes."""
    low, high = BLANK_RANGES[dcgm_type]
    return low <= value < high or value == math.inf


def compute_slices(profile: str) -> int:
    """Compute slices of a MIG profile: 3 for "3g.40gb" and "1c.3g.40gb". 0 when the name does not say."""
    found = re.search(r"(?:^|\.)(\d)g\.", profile)
    return int(found.group(1)) if found else 0


_WORKLOAD_LABELS = ("namespace", "pod", "container")
_OLD_WORKLOAD_LABELS = ("pod_namespace", "pod_name", "container_name")  # of dcgm-exporter before 2.4, and with --use-old-namespace


def workload_of(labels: Mapping[str, str], *, honor_labels: bool) -> tuple[str, str, str]:
    """(namespace, pod, container) of the workload that a series names; empty texts when there is none.

    Prometheus renames to `exported_*` what collides with the target's own labels: `exported_*` wins. Without it pod, namespace and container are the
    workload's only where Prometheus honours the target's labels; otherwise they are the exporter's own. Targets have no labels of the old names.
    """
    for names, own in ((_WORKLOAD_LABELS, honor_labels), (_OLD_WORKLOAD_LABELS, True)):
        exported = tuple(f"exported_{name}" for name in names)
        if exported[1] in labels:
            found = exported
        elif own and labels.get(names[1]):
            found = names
        else:
            continue
        if labels[found[1]]:
            namespace, pod, container = (labels.get(name, "") for name in found)
            return namespace, pod, container
    return "", "", ""


# Labels that relabelling brings from the node (gpu-feature-discovery's nvidia.com/gpu.sharing-strategy), and the exporter's own on shared GPUs.
SHARING_LABELS = ("nvidia_com_gpu_sharing_strategy", "gpu_sharing_strategy", "vgpu")


def sharing_of(labels: Mapping[str, str]) -> str:
    """How the GPU of a series is shared between pods, as a word of `Workload.Sharing`; "" where the labels do not say."""
    strategy = next((labels[name].lower() for name in SHARING_LABELS[:2] if labels.get(name)), "")
    if strategy == "mps":
        return "mps"
    return "time_sliced" if strategy == "time-slicing" or labels.get("vgpu") else ""


def whole_number(text: str) -> int | None:
    """A label's number, or None."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def clean_text(text: str, limit: int) -> str:
    """A label's text as a database can hold it. Equal texts are one object: a fleet's identities share most of theirs."""
    return sys.intern(text.replace("\x00", "")[:limit])


def series_seen(labels: Mapping[str, str], *, site_code: str, node_host: str, honor_labels: bool, at: float) -> SeriesSeen:
    """The identity in a GPU series' labels. The site and the node are the caller's to decide."""
    namespace, pod, container = workload_of(labels, honor_labels=honor_labels)
    gpu_uuid = labels.get("UUID") or labels.get("uuid") or labels.get("gpu_uuid") or ""
    instance = whole_number(labels.get("GPU_I_ID", ""))
    return SeriesSeen(
        site_code=clean_text(site_code, 40),
        node_host=clean_text(node_host, 253),
        gpu_uuid=sys.intern(gpu_uuid) if len(gpu_uuid) <= 64 and "\x00" not in gpu_uuid else "",
        index=_small(whole_number(labels.get("gpu", ""))),
        pci_bus_id=clean_text(labels.get("pci_bus_id", ""), 20),
        model_name=clean_text(labels.get("modelName") or labels.get("model_name") or "", 80),
        driver_version=clean_text(labels.get("DCGM_FI_DRIVER_VERSION", ""), 40),
        gpu_instance_id=_small(instance),
        profile=clean_text(labels.get("GPU_I_PROFILE", ""), 20),
        namespace=clean_text(namespace, 253),
        pod=clean_text(pod, 253),
        container=clean_text(container, 253),
        at=at,
        sharing=sharing_of(labels),
    )


def _small(number: int | None) -> int | None:
    """A number that fits a smallint."""
    return number if number is not None and number < 32768 else None
