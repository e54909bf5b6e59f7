"""The simulated silicon of a whole fleet in numpy columns: clocks, power, heat, memory, counters, advanced on a fixed grid of time.

Time is passed in. State moves only in whole steps of `step_seconds`, so that who asks, and how often, changes nothing.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from agent.simulator import boards
from agent.simulator.config import GpuConfig, NodeConfig, SimulatorConfig, SliceConfig
from agent.simulator.load import Floats, Load, LocalTime, key_of, smooth_noise, uniform

IDLE, POWER_CAP, HW_SLOWDOWN, HW_THERMAL = 0x1, 0x4, 0x8, 0x40
CLOCK_STEP_MHZ = 15
GPU_COLUMNS = [
    "sm_mhz",
    "max_sm_mhz",
    "memory_mhz",
    "celsius",
    "memory_celsius",
    "margin_celsius",
    "watts",
    "limit_watts",
    "energy_mj",
    "utilization",
    "copy_utilization",
    "pcie_tx",
    "pcie_rx",
    "pcie_replay",
    "nvlink",
    "nvlink_errors",
    "xid",
    "reasons",
    "ecc_sbe",
    "ecc_dbe",
    "remapped_correctable",
    "remapped_uncorrectable",
    "remap_pending",
    "remap_failure",
]
PART_COLUMNS = ["active", "sm_active", "tensor", "dram", "used_mib", "free_mib", "reserved_mib"]
LONGEST_CATCH_UP_STEPS = 600
POWER_SECONDS, HEAT_SECONDS, FAULT_HEAT_SECONDS = 3.0, 40.0, 8.0


@dataclass(frozen=True)
class Part:
    """What a workload runs on; `slice` is None for a whole GPU."""

    gpu_row: int
    slice: SliceConfig | None
    memory_mib: int
    share: float


class Columns:
    """Named columns of several row counts in one flat array, so that an exporter gathers a whole page with one index array."""

    def __init__(self, groups: dict[str, tuple[int, list[str]]]) -> None:
        self._starts: dict[str, int] = {}
        total = 0
        for group, (rows, names) in groups.items():
            for name in names:
                self._starts[f"{group}.{name}"] = total
                total += rows
        self.flat: Floats = np.zeros(total)
        self._rows = {f"{group}.{name}": rows for group, (rows, names) in groups.items() for name in names}

    def __getitem__(self, name: str) -> Floats:
        start = self._starts[name]
        return self.flat[start : start + self._rows[name]]

    def __setitem__(self, name: str, values: npt.ArrayLike) -> None:
        self[name][:] = values

    def names(self, group: str) -> list[str]:
        return [name for name in self._starts if name.startswith(f"{group}.")]

    def place(self, name: str, row: int) -> int:
        """Position of one value in `flat`."""
        return self._starts[name] + row


@dataclass
class Faults:
    """What scenarios do to the silicon: one flag per GPU, or per part."""

    overheating: npt.NDArray[np.bool_]
    power_spike: npt.NDArray[np.bool_]
    noisy: npt.NDArray[np.bool_]


class Physics:
    def __init__(self, config: SimulatorConfig, now: float) -> None:
        self.step_seconds = config.step_seconds
        self.nodes = config.nodes
        self._seed = config.seed
        self.gpus: list[tuple[NodeConfig, GpuConfig, boards.Board]] = []
        self.parts: list[Part] = []
        self.parts_of_gpu: list[list[int]] = []
        self.row_of_gpu: dict[str, int] = {}
        self.node_row_of_gpu: list[int] = []
        for node_number, node in enumerate(config.nodes):
            for gpu_number, gpu in enumerate(node.gpus):
                self._add_gpu(node, gpu, node_number, f"nodes[{node_number}].gpus[{gpu_number}]")
        self._build()
        self.time = self._grid(now) - 120 * self.step_seconds
        self._settle()
        self.advance(now)

    def _add_gpu(self, node: NodeConfig, gpu: GpuConfig, node_row: int, path: str) -> None:
        board = boards.board_of(gpu.sku, f"{path}.sku")
        row = len(self.gpus)
        self.gpus.append((node, gpu, board))
        self.row_of_gpu[gpu.uuid] = row
        self.node_row_of_gpu.append(node_row)
        self._add_parts(row, gpu, board, path)

    def _add_parts(self, row: int, gpu: GpuConfig, board: boards.Board, path: str) -> None:
        first = len(self.parts)
        for number, part in enumerate(gpu.mig or ()):
            size = boards.profile_size(board, part.profile, f"{path}.mig[{number}].profile")
            memory = boards.slice_memory_mib(board, size)
            self.parts.append(Part(row, part, memory, boards.compute_slices(part.profile) / boards.COMPUTE_SLICES))
        if not gpu.mig:
            self.parts.append(Part(row, None, board.memory_mib - board.reserved_mib, 1.0))
        self.parts_of_gpu.append(list(range(first, len(self.parts))))

    def _build(self) -> None:
        gpu_count = len(self.gpus)
        self._build_parts()

        def figure(name: str) -> Floats:
            return np.array([getattr(board, name) for _, _, board in self.gpus], dtype=np.float64)

        self.max_mhz, self.idle_mhz = figure("max_sm_mhz"), figure("idle_sm_mhz")
        self._idle_watts, self.board_watts = figure("idle_watts"), figure("limit_watts")
        self._heat, self._slowdown = figure("celsius_per_watt"), figure("slowdown_celsius")
        self._nvlink, self._hbm = figure("nvlink"), figure("hbm")
        self.keys = np.array([key_of(self._seed, gpu.uuid) for _, gpu, _ in self.gpus], dtype=np.uint64)
        self._local = LocalTime([node.time_zone for node, _, _ in self.gpus])
        self.lock_low, self.lock_high = np.zeros(gpu_count), np.full(gpu_count, math.inf)
        self.throttling = np.zeros(gpu_count, dtype=bool)
        self.celsius, self.watts = np.zeros(gpu_count), np.zeros(gpu_count)
        self.energy_mj, self.nvlink = np.zeros(gpu_count), np.zeros(gpu_count)
        flags = [np.zeros(count, dtype=bool) for count in (gpu_count, gpu_count, len(self.parts))]
        self.faults = Faults(*flags)
        self._start_counters()

    def _build_parts(self) -> None:
        """Everything that has a row per part; the GPUs' columns are new too, and empty."""
        self.columns = Columns({"gpu": (len(self.gpus), GPU_COLUMNS), "part": (len(self.parts), PART_COLUMNS)})
        self.part_gpu = np.array([part.gpu_row for part in self.parts], dtype=np.int64)
        self._part_share = np.array([part.share for part in self.parts])
        self._part_memory = np.array([part.memory_mib for part in self.parts], dtype=np.float64)
        zones = [self.gpus[part.gpu_row][0].time_zone for part in self.parts]
        names = [f"{self.gpus[part.gpu_row][1].uuid}/{part.slice.gpu_instance_id if part.slice else ''}" for part in self.parts]
        self.load = Load(self._seed, names, [_character(part, self.gpus[part.gpu_row][1]) for part in self.parts], zones)

    def repartition(self, gpus: Mapping[str, GpuConfig]) -> None:
        """Takes up other slices or workloads on `gpus` (by UUID). Rows of parts and places in `columns` mean something else afterwards; GPUs keep theirs."""
        kept = {name: self.columns[name].copy() for name in self.columns.names("gpu")}
        self.gpus = [(node, gpus.get(gpu.uuid, gpu), board) for node, gpu, board in self.gpus]
        self.parts.clear()
        self.parts_of_gpu.clear()
        for row, (_, gpu, board) in enumerate(self.gpus):
            self._add_parts(row, gpu, board, gpu.uuid)
        self._build_parts()
        for name, values in kept.items():
            self.columns[name] = values
        self.faults.noisy = np.zeros(len(self.parts), dtype=bool)
        demand = self._demand()
        self.settle_clocks(demand)
        self._write(demand)

    def _start_counters(self) -> None:
        """Where counters of a fleet that has run for a while stand: days of energy, a few corrected errors."""
        days = 1 + 40 * uniform(self.keys, 11)
        self.energy_mj = days * 86400 * (self._idle_watts + 0.35 * (self.board_watts - self._idle_watts)) * 1000
        self.nvlink = np.floor(self._nvlink * days * 2000)
        self.columns["gpu.ecc_sbe"] = np.floor(4 * uniform(self.keys, 12) ** 4)
        self.columns["gpu.remapped_correctable"] = np.floor(2.2 * uniform(self.keys, 13) ** 6)
        self.columns["gpu.max_sm_mhz"] = self.max_mhz
        self.columns["gpu.memory_mhz"] = [board.memory_mhz for _, _, board in self.gpus]
        self.columns["gpu.limit_watts"] = self.board_watts

    def _grid(self, now: float) -> float:
        return math.floor(now / self.step_seconds) * self.step_seconds

    def advance(self, now: float) -> None:
        """Steps up to the grid time at or before `now`."""
        for _ in self.steps(now):
            pass

    def steps(self, now: float) -> Iterator[float]:
        """Steps like `advance`, and yields the time of each. After a long gap the counters are carried over it and only the end is stepped."""
        missing = round((self._grid(now) - self.time) / self.step_seconds)
        if missing > LONGEST_CATCH_UP_STEPS:
            skipped = (missing - LONGEST_CATCH_UP_STEPS) * self.step_seconds
            self.energy_mj += self.watts * skipped * 1000
            self.time += skipped
            missing = LONGEST_CATCH_UP_STEPS
        for _ in range(missing):
            self.time += self.step_seconds
            self._step()
            yield self.time

    def _settle(self) -> None:
        """The steady state at `time`, without history."""
        demand = self._demand()
        self.settle_clocks(demand)
        self.watts = self._watts_wanted(self._activity(demand))
        self.celsius = self._ambient() + self._heat * self.watts
        self._write(demand)

    def _step(self) -> None:
        demand = self._demand()
        self.settle_clocks(demand)
        wanted = self._watts_wanted(self._activity(demand))
        self.watts += (wanted - self.watts) * (1 - math.exp(-self.step_seconds / POWER_SECONDS))
        hot = self.faults.overheating
        steady = np.where(hot, self._slowdown + 5, self._ambient() + self._heat * self.watts)
        pace = np.where(hot, FAULT_HEAT_SECONDS, HEAT_SECONDS)
        self.celsius += (steady - self.celsius) * (1 - np.exp(-self.step_seconds / pace))
        self.throttling = (self.celsius >= self._slowdown) | (self.throttling & (self.celsius > self._slowdown - 4))
        self.energy_mj += self.watts * self.step_seconds * 1000
        self.nvlink += self._nvlink * self._gpu_sum(demand) * 40 * self.step_seconds
        self._write(demand)

    def _demand(self) -> Floats:
        demand = self.load.demand(self.time)
        return np.where(self.faults.noisy, 0.985, demand)

    def _gpu_sum(self, parts: Floats) -> Floats:
        return np.bincount(self.part_gpu, weights=parts * self._part_share, minlength=len(self.gpus)).astype(np.float64)

    def _activity(self, demand: Floats) -> Floats:
        """What share of the time each part is active: the same work takes longer at a lower clock."""
        slower = (self.max_mhz / self.columns["gpu.sm_mhz"])[self.part_gpu] ** 0.7
        active: Floats = np.minimum(demand * slower, np.maximum(demand, 0.995))
        return active

    def settle_clocks(self, demand: Floats | None = None) -> None:
        """Sets SM clocks and clock event reasons for the present load, locks and temperatures: what a lock or an unlock changes at once."""
        gpu_demand = self._gpu_sum(self._demand() if demand is None else demand)
        busy = gpu_demand > 0.005
        dynamic = (self.board_watts - self._idle_watts) * gpu_demand * 1.03
        room = np.sqrt(np.minimum(1.0, (self.columns["gpu.limit_watts"] - self._idle_watts) / np.maximum(dynamic, 1e-9)))
        target = np.where(busy, self.max_mhz * room, self.idle_mhz)
        target = np.clip(target, self.lock_low, self.lock_high)
        target = np.where(self.throttling, np.minimum(target, self.max_mhz * 0.48), target)
        rounded = np.maximum(np.floor(target / CLOCK_STEP_MHZ) * CLOCK_STEP_MHZ, 210)
        self.columns["gpu.sm_mhz"] = np.where(target == self.max_mhz, self.max_mhz, rounded)
        free = (self.lock_low == 0) & ~busy
        capped = (busy & (room < 1) & (self.max_mhz * room < self.lock_high)) | self.faults.power_spike
        self.columns["gpu.reasons"] = np.where(self.throttling, HW_THERMAL | HW_SLOWDOWN, 0) + np.where(free, IDLE, 0) + np.where(capped, POWER_CAP, 0)

    def _watts_wanted(self, active: Floats) -> Floats:
        speed = self.columns["gpu.sm_mhz"] / self.max_mhz
        work = self._gpu_sum(active) * (0.94 + 0.1 * uniform(self.keys, 14))
        limit = self.columns["gpu.limit_watts"]
        wanted = self._idle_watts + (self.board_watts - self._idle_watts) * work * speed**2
        wanted *= 1 + 0.012 * smooth_noise(self.keys, self.time, 11, 15)
        wanted = np.minimum(wanted, limit * 1.01)
        return np.where(self.faults.power_spike, limit * 1.07, wanted)

    def _ambient(self) -> Floats:
        day = np.cos((self._local.hours(self.time) - 15) / 24 * 2 * np.pi)
        ambient: Floats = 27 + 6 * uniform(self.keys, 16) + 2.5 * day
        return ambient

    def _write(self, demand: Floats) -> None:
        """Fills the columns that exporters and agents read."""
        c, now = self.columns, self.time
        active = self._activity(demand)
        dram = np.where(self.faults.noisy, 0.97, np.minimum(active * self.load.dram_share, 1))
        crowd = self._gpu_sum(dram)
        c["part.active"] = active
        c["part.sm_active"] = active * 0.82
        c["part.tensor"] = active * self.load.tensor_share
        c["part.dram"] = dram
        held = np.where(self.load.busy, self.load.memory(now) * self._part_memory, 12)
        held = np.rint(np.where(self.faults.noisy, 0.975 * self._part_memory, np.minimum(held, self._part_memory)))
        c["part.used_mib"], c["part.free_mib"], c["part.reserved_mib"] = held, self._part_memory - held, np.rint(self._part_memory * 0.0059)
        work = self._gpu_sum(active)
        c["gpu.celsius"] = np.rint(self.celsius)
        c["gpu.memory_celsius"] = np.rint(self.celsius + 9 + 6 * crowd)
        c["gpu.margin_celsius"] = self._slowdown - c["gpu.celsius"]
        c["gpu.watts"] = np.round(self.watts, 3)
        c["gpu.energy_mj"] = self.energy_mj
        c["gpu.utilization"] = np.rint(100 * np.minimum(work * 1.03, 1))
        c["gpu.copy_utilization"] = np.rint(100 * crowd)
        c["gpu.pcie_tx"] = np.rint(work * 1.9e9 * (1 + 0.2 * smooth_noise(self.keys, now, 20, 17)))
        c["gpu.pcie_rx"] = np.rint(work * 0.8e9 * (1 + 0.2 * smooth_noise(self.keys, now, 20, 18)))
        c["gpu.pcie_replay"] = np.floor(uniform(self.keys, 19) ** 8 * (now / 86400 - 20000))
        c["gpu.nvlink"] = self.nvlink

    def restart_gpus(self, rows: list[int]) -> None:
        """A reboot or a driver reload: locks and power limits are gone, counters since driver load start at 0, the last XID is forgotten."""
        index = np.array(rows, dtype=np.int64)
        self.lock_low[index], self.lock_high[index] = 0, math.inf
        self.columns["gpu.limit_watts"][index] = self.board_watts[index]
        self.energy_mj[index], self.nvlink[index] = 0, 0
        for name in ("xid", "ecc_sbe", "ecc_dbe", "remap_pending"):
            self.columns[f"gpu.{name}"][index] = 0
        self.settle_clocks()

    def save(self, path: Path, **others: Floats) -> None:
        """Writes what the closed forms do not know, so that a restarted process goes on where this one was; `others` likewise."""
        partial = path.with_suffix(".partial.npz")
        with partial.open("wb") as file:
            np.savez(file, allow_pickle=False, time=np.array(self.time), keys=self.keys, **self._state(), **others)
        partial.replace(path)

    def restore(self, path: Path, **others: Floats) -> bool:
        """Takes a saved state up, `others` too. False when there is none for this fleet: the seed's own start holds then."""
        try:
            with path.open("rb") as file, np.load(file) as saved:
                loaded = {name: saved[name] for name in saved.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile):
            return False
        state = self._state() | others
        if not np.array_equal(loaded.get("keys", np.zeros(0)), self.keys) or any(loaded.get(name, self.keys).shape != state[name].shape for name in state):
            return False
        for name, values in state.items():
            values[:] = loaded[name]
        self.time = float(loaded["time"])
        return True

    def _state(self) -> dict[str, Floats]:
        kept = {name: self.columns[f"gpu.{name}"] for name in ("xid", "ecc_sbe", "ecc_dbe", "remapped_uncorrectable", "remap_pending", "remap_failure")}
        return {"celsius": self.celsius, "watts": self.watts, "energy_mj": self.energy_mj, "nvlink": self.nvlink, **kept}


def _character(part: Part, gpu: GpuConfig) -> str:
    workload = part.slice.workload if part.slice else gpu.workload
    if workload is None:
        return "none"
    if part.slice is not None and part.slice.purpose == "phy":
        return "phy"
    return "language" if workload.container == "vllm" else "service"
