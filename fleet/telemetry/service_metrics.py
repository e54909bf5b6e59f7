"""What the metrics of Triton, vLLM and node-exporter mean, and whose they are. Pure.

Units of ours: seconds, bytes, ratios 0..1. Counters keep their running total under a name that ends in `_total`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

MICRO = 1e-6
MAX_NAME = 120
MAX_PART = 270


class Combine(StrEnum):
    """What a field is over the servers, engines and GPUs of one item."""

    SUM = "sum"
    LOWEST = "lowest"
    NEWEST = "newest"  # the same thing, seen by several
    APART = "apart"  # means nothing over more than one


@dataclass(frozen=True)
class ServiceField:
    """One value of a service's item: `metrics` are the names it had over the versions, newest first. Value = number × `scale`.

    `combine` says what it is over several servers; counters add up.

    `where` narrows by labels (lower case); a value of "*" is any text that no other field of the same metric claims.
    """

    name: str
    job: str
    metrics: tuple[str, ...]
    scale: float = 1.0
    counter: bool = False
    maximum: float = math.inf
    where: Mapping[str, str] = field(default_factory=dict)
    combine: Combine = Combine.APART


@dataclass(frozen=True, slots=True)
class Item:
    """What a value is of: a model, device or file system by `name` ("" is the node), which of several by `part` (engine, server, GPU).

    `beside` tells apart series that add up within a part.
    """

    name: str
    part: str = ""
    beside: str = ""


def _counters(job: str, scale: float = 1.0, **names: tuple[str, ...]) -> list[ServiceField]:
    return [ServiceField(name, job, metrics, scale, counter=True, combine=Combine.SUM) for name, metrics in names.items()]


def _by_label(job: str, metric: str, label: str, prefix: str, values: Sequence[str]) -> list[ServiceField]:
    """One counter per value of a label; texts that are not listed share one of their own, their sum."""
    fields = [ServiceField(f"{prefix}_{value}_total", job, (metric,), counter=True, where={label: value}, combine=Combine.SUM) for value in values]
    return [*fields, ServiceField(f"{prefix}_unlisted_total", job, (metric,), counter=True, where={label: "*"}, combine=Combine.SUM)]


def _histogram(job: str, name: str, *metrics: str) -> list[ServiceField]:
    return [
        ServiceField(f"{name}_seconds_total", job, tuple(f"{metric}_sum" for metric in metrics), counter=True, combine=Combine.SUM),
        ServiceField(f"{name}_count_total", job, tuple(f"{metric}_count" for metric in metrics), counter=True, combine=Combine.SUM),
    ]


TRITON_FAILURE_REASONS = ("other", "backend", "canceled", "rejected")
VLLM_FINISH_REASONS = ("stop", "length", "abort", "error")
_QUANTILES = {"0.5": "p50", "0.9": "p90", "0.95": "p95", "0.99": "p99", "0.999": "p999"}

SERVICE_FIELDS: tuple[ServiceField, ...] = (
    # Triton. Durations are running sums of microseconds; the request's holds the queue's.
    *_counters(
        "triton",
        requests_ok_total=("nv_inference_request_success",),
        inferences_total=("nv_inference_count",),
        executions_total=("nv_inference_exec_count",),
    ),
    *_counters(
        "triton",
        MICRO,
        request_seconds_total=("nv_inference_request_duration_us",),
        queue_seconds_total=("nv_inference_queue_duration_us",),
        compute_input_seconds_total=("nv_inference_compute_input_duration_us",),
        compute_infer_seconds_total=("nv_inference_compute_infer_duration_us",),
        compute_output_seconds_total=("nv_inference_compute_output_duration_us",),
    ),
    *_by_label("triton", "nv_inference_request_failure", "reason", "failures", TRITON_FAILURE_REASONS),
    ServiceField("requests_pending", "triton", ("nv_inference_pending_request_count",), combine=Combine.SUM),
    *(
        ServiceField(f"latency_{name}_seconds", "triton", ("nv_inference_request_summary_us",), MICRO, where={"quantile": quantile})
        for quantile, name in _QUANTILES.items()
    ),
    ServiceField("gpu_utilization_ratio", "triton", ("nv_gpu_utilization",), maximum=1.0, combine=Combine.NEWEST),
    ServiceField("gpu_memory_total_bytes", "triton", ("nv_gpu_memory_total_bytes",), combine=Combine.NEWEST),
    ServiceField("gpu_memory_used_bytes", "triton", ("nv_gpu_memory_used_bytes",), combine=Combine.NEWEST),
    ServiceField("gpu_power_watts", "triton", ("nv_gpu_power_usage",), maximum=3000.0, combine=Combine.NEWEST),
    ServiceField("gpu_power_limit_watts", "triton", ("nv_gpu_power_limit",), maximum=3000.0, combine=Combine.NEWEST),
    ServiceField("gpu_energy_joules_total", "triton", ("nv_energy_consumption",), counter=True, combine=Combine.NEWEST),
    ServiceField("cpu_utilization_ratio", "triton", ("nv_cpu_utilization",), maximum=1.0, combine=Combine.NEWEST),
    # vLLM. For some versions the old and the new name are there at once: they are one value.
    ServiceField("requests_running", "vllm", ("vllm:num_requests_running",), combine=Combine.SUM),
    ServiceField("requests_waiting", "vllm", ("vllm:num_requests_waiting",), combine=Combine.SUM),
    ServiceField("kv_cache_usage_ratio", "vllm", ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"), maximum=1.0),
    *_counters(
        "vllm",
        prefix_cache_queries_total=("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        prefix_cache_hits_total=("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        preemptions_total=("vllm:num_preemptions_total",),
        prompt_tokens_total=("vllm:prompt_tokens_total",),
        generation_tokens_total=("vllm:generation_tokens_total",),
    ),
    *_by_label("vllm", "vllm:request_success_total", "finished_reason", "requests", VLLM_FINISH_REASONS),
    *_histogram("vllm", "time_to_first_token", "vllm:time_to_first_token_seconds"),
    *_histogram("vllm", "inter_token", "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    *_histogram("vllm", "request", "vllm:e2e_request_latency_seconds"),
    *_histogram("vllm", "queue", "vllm:request_queue_time_seconds"),
    # node-exporter
    ServiceField("load1", "node", ("node_load1",)),
    ServiceField("boot_time_seconds", "node", ("node_boot_time_seconds",)),
    ServiceField("memory_total_bytes", "node", ("node_memory_MemTotal_bytes",)),
    ServiceField("memory_available_bytes", "node", ("node_memory_MemAvailable_bytes",)),
    ServiceField("filesystem_size_bytes", "node", ("node_filesystem_size_bytes",)),
    ServiceField("filesystem_available_bytes", "node", ("node_filesystem_avail_bytes",)),
    *_counters(
        "node",
        network_receive_bytes_total=("node_network_receive_bytes_total",),
        network_transmit_bytes_total=("node_network_transmit_bytes_total",),
    ),
    # `up` of each job, on the job's item "".
    *(ServiceField("up", job, ("up",), maximum=1.0, combine=Combine.LOWEST) for job in ("dcgm", "node", "triton", "vllm")),
)
JOBS = ("dcgm", "node", "triton", "vllm")
FIELDS_OF_JOB: dict[str, tuple[ServiceField, ...]] = {job: tuple(one for one in SERVICE_FIELDS if one.job == job) for job in JOBS}
FIELD_INDEX: dict[str, dict[str, int]] = {job: {one.name: index for index, one in enumerate(fields)} for job, fields in FIELDS_OF_JOB.items()}
_FIELDS_OF_METRIC: dict[str, list[ServiceField]] = {}
for _one in SERVICE_FIELDS:
    if _one.metrics != ("up",):
        for _name in _one.metrics:
            _FIELDS_OF_METRIC.setdefault(_name, []).append(_one)

_LOCAL_NETWORKS = ("lo", "veth", "cali", "docker", "br-", "cni", "flannel", "tun", "virbr")
_PSEUDO_FILESYSTEMS = frozenset({"tmpfs", "ramfs", "overlay", "squashfs", "proc", "sysfs", "devtmpfs", "nsfs", "fuse.lxcfs"})


def job_of(name: str) -> str | None:
    """Which of our jobs a scrape job's name is: "dcgm-exporter" is dcgm. None for others."""
    lower = name.lower()
    return next((job for job in ("dcgm", "triton", "vllm", "node") if job in lower), None)


def is_service_metric(metric_name: str) -> bool:
    return metric_name in _FIELDS_OF_METRIC


def find_field(labels: Mapping[str, str]) -> tuple[ServiceField, Item] | None:
    """(field, item) of a series by its labels, or None when it is none of ours."""
    for one in _FIELDS_OF_METRIC.get(labels.get("__name__", ""), ()):
        if all(value == "*" or labels.get(label, "").lower() == value for label, value in one.where.items()):
            item = _item_of(one, labels)
            return None if item is None else (one, item)
    return None


def server_of(labels: Mapping[str, str]) -> str:
    """Which of a node's servers a series is of: its pod and its address, as far as Prometheus says."""
    return _joined(labels.get("pod", ""), labels.get("instance", ""))


def _joined(*texts: str) -> str:
    return ", ".join(text for text in texts if text)


def _item_of(one: ServiceField, labels: Mapping[str, str]) -> Item | None:
    beside = _joined(*(labels.get(label, "") for label, value in one.where.items() if value == "*"))
    if one.job == "vllm":
        return Item(labels.get("model_name", ""), _joined(f"engine {labels.get('engine') or '0'}", server_of(labels)), beside)
    gpu = labels.get("gpu_uuid", "")
    if one.job == "triton":
        if "model" in labels:
            return Item(f"{labels['model']}:{labels.get('version', '')}", _joined(server_of(labels), gpu), beside)
        return Item(gpu, server_of(labels))
    device = labels.get("device", "")
    if "mountpoint" in labels:
        return None if labels.get("fstype", "") in _PSEUDO_FILESYSTEMS else Item(labels["mountpoint"])
    return None if device.startswith(_LOCAL_NETWORKS) else Item(device)
