"""What the metrics of Triton, vLLM and node-exporter mean, and what follows from two scrapes of them. Pure.

Units of ours: seconds, bytes, ratios 0..1. Counters keep their running total under a name that ends in `_total`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fleet.telemetry.fields import whole_number

MICRO = 1e-6


@dataclass(frozen=True)
class ServiceField:
    """One value of a service's item: `metrics` are the names it had over the versions, newest first. Value = number × `scale`.

    `where` narrows by labels (lower case); a value of "*" is any text that no other field of the same metric claims.
    """

    name: str
    job: str
    metrics: tuple[str, ...]
    scale: float = 1.0
    counter: bool = False
    maximum: float = math.inf
    where: Mapping[str, str] = field(default_factory=dict)


def _counters(job: str, scale: float = 1.0, **names: tuple[str, ...]) -> list[ServiceField]:
    return [ServiceField(name, job, metrics, scale, counter=True) for name, metrics in names.items()]


def _by_label(job: str, metric: str, label: str, prefix: str, values: Sequence[str]) -> list[ServiceField]:
    """One counter per value of a label; texts that are not listed share one of their own."""
    fields = [ServiceField(f"{prefix}_{value}_total", job, (metric,), counter=True, where={label: value}) for value in values]
    return [*fields, ServiceField(f"{prefix}_unlisted_total", job, (metric,), counter=True, where={label: "*"})]


def _histogram(job: str, name: str, *metrics: str) -> list[ServiceField]:
    return [
        ServiceField(f"{name}_seconds_total", job, tuple(f"{metric}_sum" for metric in metrics), counter=True),
        ServiceField(f"{name}_count_total", job, tuple(f"{metric}_count" for metric in metrics), counter=True),
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
    ServiceField("requests_pending", "triton", ("nv_inference_pending_request_count",)),
    *(
        ServiceField(f"latency_{name}_seconds", "triton", ("nv_inference_request_summary_us",), MICRO, where={"quantile": quantile})
        for quantile, name in _QUANTILES.items()
    ),
    ServiceField("gpu_utilization_ratio", "triton", ("nv_gpu_utilization",), maximum=1.0),
    ServiceField("gpu_memory_total_bytes", "triton", ("nv_gpu_memory_total_bytes",)),
    ServiceField("gpu_memory_used_bytes", "triton", ("nv_gpu_memory_used_bytes",)),
    ServiceField("gpu_power_watts", "triton", ("nv_gpu_power_usage",), maximum=3000.0),
    ServiceField("gpu_power_limit_watts", "triton", ("nv_gpu_power_limit",), maximum=3000.0),
    ServiceField("gpu_energy_joules_total", "triton", ("nv_energy_consumption",), counter=True),
    ServiceField("cpu_utilization_ratio", "triton", ("nv_cpu_utilization",), maximum=1.0),
    # vLLM. For some versions the old and the new name are there at once: they are one value.
    ServiceField("requests_running", "vllm", ("vllm:num_requests_running",)),
    ServiceField("requests_waiting", "vllm", ("vllm:num_requests_waiting",)),
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
    *(ServiceField("up", job, ("up",), maximum=1.0) for job in ("dcgm", "node", "triton", "vllm")),
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


def find_field(labels: Mapping[str, str]) -> tuple[ServiceField, str] | None:
    """(field, item) of a series by its labels, or None when it is none of ours. The item names a model, device or file system; "" is the node."""
    for one in _FIELDS_OF_METRIC.get(labels.get("__name__", ""), ()):
        if all(value == "*" or labels.get(label, "").lower() == value for label, value in one.where.items()):
            item = _item_of(one.job, labels)
            return None if item is None else (one, item)
    return None


def _item_of(job: str, labels: Mapping[str, str]) -> str | None:
    if job == "vllm":
        return f"{labels.get('model_name', '')}#{labels.get('engine') or '0'}"
    if job == "triton":
        if "model" in labels:
            return f"{labels['model']}:{labels.get('version', '')}"
        return labels.get("gpu_uuid", "")
    device = labels.get("device", "")
    if "mountpoint" in labels:
        return None if labels.get("fstype", "") in _PSEUDO_FILESYSTEMS else labels["mountpoint"]
    return None if device.startswith(_LOCAL_NETWORKS) else device


@dataclass(frozen=True)
class Scrape:
    """The values of one item at one time. A field that was not reported is absent."""

    at: float
    values: Mapping[str, float]


def _increase(last: Scrape, previous: Scrape | None, name: str) -> float | None:
    """How much a counter grew between two scrapes; None without both, or when it restarted in between."""
    if previous is None or name not in last.values or name not in previous.values:
        return None
    grown = last.values[name] - previous.values[name]
    return grown if grown >= 0 else None


def _ratio(over: float | None, under: float | None) -> float | None:
    return over / under if over is not None and under else None


def derive(job: str, last: Scrape, previous: Scrape | None) -> dict[str, float | None]:
    """Rates, means and ratios between two scrapes of one item. None: no traffic in between, or not known."""
    seconds = last.at - previous.at if previous is not None else None

    def increase(name: str) -> float | None:
        return _increase(last, previous, name)

    def per_second(name: str) -> float | None:
        return _ratio(increase(name), seconds)

    if job == "triton" and "requests_ok_total" in last.values:
        failures = _sum(increase(f"failures_{reason}_total") for reason in (*TRITON_FAILURE_REASONS, "unlisted"))
        good = increase("requests_ok_total")
        return {
            "requests_per_second": per_second("requests_ok_total"),
            "mean_latency_seconds": _ratio(increase("request_seconds_total"), good),
            "mean_queue_seconds": _ratio(increase("queue_seconds_total"), good),
            "mean_batch": _ratio(increase("inferences_total"), increase("executions_total")),
            "failures": failures,
            "success_ratio": _ratio(good, _sum((good, failures))) if failures is not None else None,
        }
    if job == "vllm":
        return {
            "mean_time_to_first_token_seconds": _ratio(increase("time_to_first_token_seconds_total"), increase("time_to_first_token_count_total")),
            "mean_inter_token_seconds": _ratio(increase("inter_token_seconds_total"), increase("inter_token_count_total")),
            "mean_latency_seconds": _ratio(increase("request_seconds_total"), increase("request_count_total")),
            "mean_queue_seconds": _ratio(increase("queue_seconds_total"), increase("queue_count_total")),
            "generation_tokens_per_second": per_second("generation_tokens_total"),
            "requests_per_second": _ratio(_sum(increase(f"requests_{reason}_total") for reason in (*VLLM_FINISH_REASONS, "unlisted")), seconds),
            "prefix_hit_ratio": _ratio(last.values.get("prefix_cache_hits_total"), last.values.get("prefix_cache_queries_total")),
        }
    if job == "node" and "network_receive_bytes_total" in last.values:
        return {
            "network_receive_bytes_per_second": per_second("network_receive_bytes_total"),
            "network_transmit_bytes_per_second": per_second("network_transmit_bytes_total"),
        }
    return {}


def _sum(values: Iterable[float | None]) -> float | None:
    """The sum of what is known; None when nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def combine_engines(engines: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """One vLLM model over its engines: requests and counters add up; a cache's usage is per engine and left out."""
    total: dict[str, float] = {}
    for values in engines:
        for name, value in values.items():
            if name.endswith("_total") or name in ("requests_running", "requests_waiting"):
                total[name] = total.get(name, 0.0) + value
    if total.get("prefix_cache_queries_total"):
        total["prefix_hit_ratio"] = total.get("prefix_cache_hits_total", 0.0) / total["prefix_cache_queries_total"]
    return total


def engine_of(item: str) -> int | None:
    """The engine in a vLLM item's name."""
    return whole_number(item.rpartition("#")[2])
