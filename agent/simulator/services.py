"""Inference servers and hosts on the simulated silicon: Triton and vLLM counters that follow the GPUs' activity, and a few host figures."""

from __future__ import annotations

import math

import numpy as np

from agent.simulator.config import SimulatorConfig
from agent.simulator.load import Floats, key_of, smooth_noise, uniform
from agent.simulator.physics import Columns, Physics

TRITON_COLUMNS = [
    "requests",
    "inferences",
    "executions",
    "duration_us",
    "queue_us",
    "input_us",
    "infer_us",
    "output_us",
    "pending",
    "other_failures",
    "canceled",
    "median_us",
]
VLLM_COLUMNS = [
    "running",
    "waiting",
    "cache",
    "queries",
    "hits",
    "preemptions",
    "prompt_tokens",
    "generation_tokens",
    "stopped",
    "lengthy",
    "aborted",
    "ttft_sum",
    "token_sum",
    "e2e_sum",
    "queue_sum",
    "tokens",
]
HOST_COLUMNS = ["boot_time", "time", "load1", "memory_total", "memory_available", "filesystem_available", "received", "board_celsius", "cpu"]
TTFT_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560, math.inf)
TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, math.inf)
REQUEST_BUCKETS = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680, math.inf)
HISTOGRAMS = {"ttft": TTFT_BUCKETS, "token": TOKEN_BUCKETS, "e2e": REQUEST_BUCKETS, "queue": REQUEST_BUCKETS}

HOURS_BEFORE = 6.0
"""How long the servers have run when a fleet is first simulated."""


def bucket_column(histogram: str, number: int) -> str:
    return f"vllm.{histogram}_{number}"


class Services:
    """Rows: `models` are (node row, model) of Triton, `engines` node rows of vLLM, hosts are the configuration's nodes."""

    def __init__(self, config: SimulatorConfig, physics: Physics) -> None:
        self.physics = physics
        self.models = [(row, model) for row, node in enumerate(config.nodes) for model in node.triton_models]
        self.engines = [row for row, node in enumerate(config.nodes) if node.vllm_model]
        buckets = [f"{name}_{number}" for name, bounds in HISTOGRAMS.items() for number in range(len(bounds))]
        self.columns = Columns(
            {
                "triton": (len(self.models), TRITON_COLUMNS),
                "vllm": (len(self.engines), VLLM_COLUMNS + buckets),
                "host": (len(config.nodes), HOST_COLUMNS),
            }
        )
        self._model_node = np.array([row for row, _ in self.models], dtype=np.int64)
        self._engine_node = np.array(self.engines, dtype=np.int64)
        names = [f"{config.nodes[row].host_name}/{model.name}" for row, model in self.models]
        self._model_keys = np.array([key_of(config.seed, name) for name in names], dtype=np.uint64)
        self._host_keys = np.array([key_of(config.seed, node.host_name) for node in config.nodes], dtype=np.uint64)
        self.take_parts()
        self.boot_times: Floats = np.zeros(len(config.nodes))
        self.step(HOURS_BEFORE * 3600)

    def take_parts(self) -> None:
        """Which parts of the silicon serve inference: again whenever slices or workloads changed."""
        physics = self.physics
        node_of_gpu = np.array(physics.node_row_of_gpu, dtype=np.int64)
        self._part_node = node_of_gpu[physics.part_gpu] if len(physics.parts) else np.zeros(0, dtype=np.int64)
        phy = np.array([part.slice is not None and part.slice.purpose == "phy" for part in physics.parts], dtype=bool)
        self._serving = (physics.load.busy & ~phy).astype(np.float64)
        self._parts_serving = np.maximum(np.bincount(self._part_node, weights=self._serving, minlength=len(physics.nodes)), 1)

    def restart(self, node_rows: list[int], now: float) -> None:
        """The hosts booted: servers' counters start again."""
        self.boot_times[node_rows] = now
        for group, rows in (("triton", self._model_node), ("vllm", self._engine_node)):
            gone = np.isin(rows, node_rows)
            for name in self.columns.names(group):
                self.columns[name][gone] = 0

    def step(self, seconds: float | None = None) -> None:
        """One step of the servers, after the same step of the silicon; `seconds` if it is to count for another time."""
        activity = self._activity()
        slow = self._slowness()
        seconds = self.physics.step_seconds if seconds is None else seconds
        self._step_triton(activity[self._model_node], slow[self._model_node], seconds)
        if self.engines:
            self._step_vllm(activity[self._engine_node], slow[self._engine_node], seconds)
        self._write_hosts(activity, seconds)

    def _activity(self) -> Floats:
        """Mean activity 0..1 of the parts that serve inference, per node."""
        weights = self.physics.columns["part.active"] * self._serving
        return np.bincount(self._part_node, weights=weights, minlength=len(self._parts_serving)) / self._parts_serving

    def _slowness(self) -> Floats:
        """How many times longer a request takes than at full clock without neighbours, per node."""
        physics, nodes = self.physics, len(self._parts_serving)
        speed = (physics.max_mhz / physics.columns["gpu.sm_mhz"])[physics.part_gpu]
        slowest: Floats = np.ones(nodes)
        np.maximum.at(slowest, self._part_node, np.where(self._serving > 0, speed, 1.0))
        noisy = np.bincount(self._part_node, weights=physics.faults.noisy.astype(np.float64), minlength=nodes)
        return slowest * np.where(noisy > 0, 3.0, 1.0)

    def _step_triton(self, activity: Floats, slow: Floats, seconds: float) -> None:
        c, keys = self.columns, self._model_keys
        rate = activity * (8 + 60 * uniform(keys, 1))
        batch = 1 + np.floor(7 * uniform(keys, 2))
        infer = (9000 + 30000 * uniform(keys, 3)) * slow
        queue = 400 + infer * 0.25 * activity**3 * slow
        done = rate * seconds
        c["triton.requests"] += done
        c["triton.inferences"] += done * batch
        c["triton.executions"] += done * 0.7
        c["triton.queue_us"] += done * queue
        c["triton.input_us"] += done * 260
        c["triton.infer_us"] += done * infer
        c["triton.output_us"] += done * 580
        c["triton.duration_us"] += done * (queue + infer + 260 + 580)
        c["triton.pending"] = np.floor(rate * queue / 1e6 * (1.5 + smooth_noise(keys, self.physics.time, 15, 4)))
        c["triton.other_failures"] += done * 0.0008 * slow**2
        c["triton.canceled"] += done * 0.0002
        c["triton.median_us"] = queue + infer + 840

    def _step_vllm(self, activity: Floats, slow: Floats, seconds: float) -> None:
        c = self.columns
        rate = activity * 2.2
        done = rate * seconds
        tokens = done * 267
        medians = {"ttft": (0.11 + 0.25 * activity**4) * slow, "token": 0.019 * slow, "e2e": 3.2 * slow, "queue": 0.03 + 0.3 * activity**6 * slow}
        counts = {"ttft": done, "token": tokens, "e2e": done, "queue": done}
        for name, bounds in HISTOGRAMS.items():
            median = np.broadcast_to(np.asarray(medians[name], dtype=np.float64), done.shape)
            for number, bound in enumerate(bounds):
                share = np.ones_like(done) if math.isinf(bound) else 1 / (1 + (median / bound) ** 3)
                c[bucket_column(name, number)] += counts[name] * share
            c[f"vllm.{name}_sum"] += counts[name] * median * 1.21
        c["vllm.running"] = np.floor(rate * 3.2 * slow * 1.2)
        c["vllm.waiting"] = np.floor(np.maximum(rate * slow - 2.0, 0) * 4)
        c["vllm.cache"] = np.clip(0.15 + 0.75 * activity, 0, 0.99)
        c["vllm.prompt_tokens"] += done * 1102
        c["vllm.queries"] += done * 1017
        c["vllm.hits"] += done * 400
        c["vllm.generation_tokens"] += tokens
        c["vllm.tokens"] += tokens
        c["vllm.preemptions"] += done * 0.005 * np.maximum(activity - 0.7, 0)
        c["vllm.stopped"] += done * 0.9445
        c["vllm.lengthy"] += done * 0.0486
        c["vllm.aborted"] += done * 0.0069

    def _write_hosts(self, activity: Floats, seconds: float) -> None:
        c, keys, now = self.columns, self._host_keys, self.physics.time
        cpu = np.clip(0.06 + 0.45 * activity + 0.03 * smooth_noise(keys, now, 30, 5), 0.01, 1)
        memory = np.where(uniform(keys, 6) < 0.5, 540_958_208_000.0, 1_081_916_416_000.0)
        c["host.boot_time"], c["host.time"], c["host.cpu"] = self.boot_times, now, cpu
        c["host.load1"] = np.round(cpu * 64, 2)
        c["host.memory_total"] = memory
        c["host.memory_available"] = np.rint(memory * (0.86 - 0.4 * activity))
        c["host.filesystem_available"] = np.rint((4 + 4 * uniform(keys, 7)) * 1e11)
        c["host.received"] += (2e6 + 6e8 * activity) * seconds
        c["host.board_celsius"] = np.round((32 + 24 * cpu + 2 * smooth_noise(keys, now, 120, 8)) * 8) / 8
