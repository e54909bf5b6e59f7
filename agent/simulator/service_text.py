"""What Triton, vLLM and node-exporter print for a node."""

from __future__ import annotations

import math

import numpy as np

from agent.simulator.config import GpuConfig, NodeConfig
from agent.simulator.exposition import Page, PageBuilder, labels_text
from agent.simulator.load import Floats
from agent.simulator.physics import Physics
from agent.simulator.services import HISTOGRAMS, Services

_TRITON_COUNTERS = (
    ("nv_inference_request_success", "Number of successful inference requests, all batch sizes", "requests"),
    ("nv_inference_count", "Number of inferences performed (does not include cached requests)", "inferences"),
    ("nv_inference_exec_count", "Number of model executions performed (does not include cached requests)", "executions"),
    ("nv_inference_request_duration_us", "Cumulative inference request duration in microseconds (includes cached requests)", "duration_us"),
    ("nv_inference_queue_duration_us", "Cumulative inference queuing duration in microseconds (includes cached requests)", "queue_us"),
    ("nv_inference_compute_input_duration_us", "Cumulative compute input duration in microseconds (does not include cached requests)", "input_us"),
    ("nv_inference_compute_infer_duration_us", "Cumulative compute inference duration in microseconds (does not include cached requests)", "infer_us"),
    ("nv_inference_compute_output_duration_us", "Cumulative inference compute output duration in microseconds (does not include cached requests)", "output_us"),
)
_FAILURES = (("OTHER", "other_failures"), ("BACKEND", ""), ("CANCELED", "canceled"), ("REJECTED", ""))
# Quantiles of a request's time over its median, as a log-normal of width 0.55 has them.
_QUANTILES = (("0.5", 1.0), ("0.9", 2.02), ("0.95", 2.47), ("0.99", 3.59), ("0.999", 5.47))
_MIB = 1024 * 1024


class ServicePages:
    """Builds and renders the pages that need more than one flat array."""

    def __init__(self, physics: Physics, services: Services) -> None:
        self.physics, self.services = physics, services
        self._pages: dict[tuple[str, str], Page] = {}
        self._models_of_node: dict[int, list[int]] = {}
        for number, (node_row, _) in enumerate(services.models):
            self._models_of_node.setdefault(node_row, []).append(number)
        self._engine_of_node = {node_row: number for number, node_row in enumerate(services.engines)}

    def triton(self, node: NodeConfig, node_row: int) -> str:
        return self._cached("triton", node, node_row).render(self.services.columns.flat) + self._triton_tail(node, node_row)

    def vllm(self, node: NodeConfig, node_row: int) -> str:
        return self._cached("vllm", node, node_row).render(self.services.columns.flat)

    def node(self, node: NodeConfig, node_row: int) -> str:
        return self._cached("node", node, node_row).render(self.services.columns.flat)

    def _cached(self, exporter: str, node: NodeConfig, node_row: int) -> Page:
        key = (exporter, node.host_name)
        if key not in self._pages:
            build = {"triton": self._triton_page, "vllm": self._vllm_page, "node": self._node_page}[exporter]
            self._pages[key] = build(node, node_row)
        return self._pages[key]

    def _triton_page(self, node: NodeConfig, node_row: int) -> Page:
        builder, columns, models = PageBuilder(), self.services.columns, self._models_of_node.get(node_row, [])

        def labels(number: int, **extra: str) -> str:
            model = self.services.models[number][1]
            return labels_text({"model": model.name, **extra, "version": model.version})

        for name, help_text, column in _TRITON_COUNTERS:
            builder.family(name, help_text, "counter")
            for number in models:
                builder.series(name, labels(number), "%d", columns.place(f"triton.{column}", number))
        builder.family("nv_inference_pending_request_count", "Instantaneous number of pending requests awaiting execution per-model.", "gauge")
        for number in models:
            builder.series("nv_inference_pending_request_count", labels(number), "%d", columns.place("triton.pending", number))
        builder.family("nv_inference_request_failure", "Number of failed inference requests, all batch sizes", "counter")
        for number in models:
            for reason, column in _FAILURES:
                if column:
                    builder.series("nv_inference_request_failure", labels(number, reason=reason), "%d", columns.place(f"triton.{column}", number))
                else:
                    builder.constant("nv_inference_request_failure", labels(number, reason=reason), "0")
        return builder.page()

    def _triton_tail(self, node: NodeConfig, node_row: int) -> str:
        """The summary and the GPU and CPU gauges: few lines, with values that are not one column's."""
        c, lines = self.services.columns, []
        name = "nv_inference_request_summary_us"
        lines += [f"# HELP {name} Summary of inference request duration in microseconds (includes cached requests)", f"# TYPE {name} summary"]
        for number in self._models_of_node.get(node_row, []):
            model = self.services.models[number][1]
            labels = labels_text({"model": model.name, "version": model.version})
            lines.append(f"{name}_count{{{labels}}} {c['triton.requests'][number]:.0f}")
            lines.append(f"{name}_sum{{{labels}}} {c['triton.duration_us'][number]:.0f}")
            lines += [f'{name}{{{labels},quantile="{quantile}"}} {c["triton.median_us"][number] * factor:.0f}' for quantile, factor in _QUANTILES]
        whole = [gpu for gpu in node.gpus if not gpu.mig]
        if whole:
            p = self.physics
            rows = [p.row_of_gpu[gpu.uuid] for gpu in whole]
            parts = [p.parts_of_gpu[row][0] for row in rows]
            lines += _gpu_gauge("nv_gpu_utilization", "GPU utilization rate [0.0 - 1.0)", whole, p.columns["gpu.utilization"][rows] / 100, "%.6f")
            total = np.array([p.gpus[row][2].memory_mib for row in rows]) * _MIB
            lines += _gpu_gauge("nv_gpu_memory_total_bytes", "GPU total memory, in bytes", whole, total, "%d")
            lines += _gpu_gauge("nv_gpu_memory_used_bytes", "GPU used memory, in bytes", whole, p.columns["part.used_mib"][parts] * _MIB, "%d")
            lines += _gpu_gauge("nv_gpu_power_usage", "GPU power usage in watts", whole, p.columns["gpu.watts"][rows], "%.6f")
            lines += _gpu_gauge("nv_gpu_power_limit", "GPU power management limit in watts", whole, p.columns["gpu.limit_watts"][rows], "%.6f")
            help_text = "GPU energy consumption in joules since the Triton Server started"
            lines += _gpu_gauge("nv_energy_consumption", help_text, whole, p.columns["gpu.energy_mj"][rows] / 1000, "%.6f", kind="counter")
        lines += ["# HELP nv_cpu_utilization CPU utilization rate [0.0 - 1.0]", "# TYPE nv_cpu_utilization gauge"]
        lines.append(f"nv_cpu_utilization {c['host.cpu'][node_row]:.3f}")
        return "\n".join(lines) + "\n"

    def _vllm_page(self, node: NodeConfig, node_row: int) -> Page:
        builder, columns = PageBuilder(), self.services.columns
        row = self._engine_of_node[node_row]
        engine = {"engine": "0", "model_name": node.vllm_model}

        def plain(name: str, help_text: str, kind: str, column: str, number_format: str = "%.1f") -> None:
            builder.family(f"vllm:{name}", help_text, kind)
            builder.series(f"vllm:{name}", labels_text(engine), number_format, columns.place(f"vllm.{column}", row))

        def counter(name: str, help_text: str, column: str) -> None:
            plain(f"{name}_total", help_text, "counter", column, "%d.0")
            builder.family(f"vllm:{name}_created", help_text, "gauge")
            builder.series(f"vllm:{name}_created", labels_text(engine), "%.13e", columns.place("host.boot_time", node_row))

        plain("num_requests_running", "Number of requests in model execution batches.", "gauge", "running")
        plain("num_requests_waiting", "Number of requests waiting to be processed.", "gauge", "waiting")
        plain("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", "gauge", "cache", "%.4f")
        counter("prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.", "queries")
        counter("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", "hits")
        counter("num_preemptions", "Cumulative number of preemption from the engine.", "preemptions")
        counter("prompt_tokens", "Number of prefill tokens processed.", "prompt_tokens")
        counter("generation_tokens", "Number of generation tokens processed.", "generation_tokens")
        builder.family("vllm:request_success_total", "Count of successfully processed requests.", "counter")
        for reason, column in (("stop", "stopped"), ("length", "lengthy"), ("abort", "aborted")):
            labels = labels_text({"engine": "0", "finished_reason": reason, "model_name": node.vllm_model})
            builder.series("vllm:request_success_total", labels, "%d.0", columns.place(f"vllm.{column}", row))
        for name, help_text, key in (
            ("time_to_first_token_seconds", "Histogram of time to first token in seconds.", "ttft"),
            ("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", "token"),
            ("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", "e2e"),
            ("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", "queue"),
        ):
            builder.family(f"vllm:{name}", help_text, "histogram")
            bounds = HISTOGRAMS[key]
            for number, bound in enumerate(bounds):
                text = "+Inf" if math.isinf(bound) else repr(float(bound))
                labels = labels_text({"engine": "0", "le": text, "model_name": node.vllm_model})
                builder.series(f"vllm:{name}_bucket", labels, "%d.0", columns.place(f"vllm.{key}_{number}", row))
            builder.series(f"vllm:{name}_count", labels_text(engine), "%d.0", columns.place(f"vllm.{key}_{len(bounds) - 1}", row))
            builder.series(f"vllm:{name}_sum", labels_text(engine), "%.4f", columns.place(f"vllm.{key}_sum", row))
        return builder.page()

    def _node_page(self, node: NodeConfig, node_row: int) -> Page:
        builder, columns = PageBuilder(), self.services.columns

        def gauge(name: str, help_text: str, column: str, labels: str = "", number_format: str = "%.9e", kind: str = "gauge") -> None:
            builder.family(name, help_text, kind)
            builder.series(name, labels, number_format, columns.place(f"host.{column}", node_row))

        gauge("node_boot_time_seconds", "Node boot time, in unixtime.", "boot_time", number_format="%.12e")
        gauge("node_time_seconds", "System time in seconds since epoch (1970).", "time", number_format="%.12e")
        gauge("node_load1", "1m load average.", "load1", number_format="%.2f")
        gauge("node_memory_MemTotal_bytes", "Memory information field MemTotal_bytes.", "memory_total", number_format="%.12e")
        gauge("node_memory_MemAvailable_bytes", "Memory information field MemAvailable_bytes.", "memory_available", number_format="%.12e")
        uname = {"domainname": "(none)", "machine": "x86_64", "nodename": node.host_name, "release": "6.8.0-60-generic", "sysname": "Linux"}
        builder.family("node_uname_info", "Labeled system information as provided by the uname system call.", "gauge")
        builder.constant("node_uname_info", labels_text({**uname, "version": "#63-Ubuntu SMP"}), "1")
        disk = labels_text({"device": "/dev/nvme0n1p2", "fstype": "ext4", "mountpoint": "/"})
        gauge("node_filesystem_avail_bytes", "Filesystem space available to non-root users in bytes.", "filesystem_available", disk)
        gauge("node_network_receive_bytes_total", "Network device statistic receive_bytes.", "received", 'device="bond0"', "%.12e", "counter")
        chip = labels_text({"chip": "pci0000:00_0000:00_18_3", "sensor": "temp1"})
        gauge("node_hwmon_temp_celsius", "Hardware monitor for temperature (input)", "board_celsius", chip, "%.3f")
        builder.family("node_scrape_collector_success", "node_exporter: Whether a collector succeeded.", "gauge")
        builder.constant("node_scrape_collector_success", 'collector="hwmon"', "1")
        return builder.page()


def _gpu_gauge(name: str, help_text: str, gpus: list[GpuConfig], values: Floats, number_format: str, *, kind: str = "gauge") -> list[str]:
    lines = [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
    return lines + [f'{name}{{gpu_uuid="{gpu.uuid}"}} {number_format % value}' for gpu, value in zip(gpus, values.tolist(), strict=True)]
