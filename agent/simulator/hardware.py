"""The simulated hardware of a fleet: physics, faults, exporters' text, and the acts that agents ask for. Time is passed in; no input or output but the act log."""

from __future__ import annotations

import math
import uuid
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

from agent.backends.base import ClockReading, ErrorCode, MigReading, PowerReading
from agent.protocol import Condition, GpuCondition, HealthReport, InventoryReport, NodeFacts
from agent.simulator import boards
from agent.simulator.act_log import ActLog
from agent.simulator.cluster import Cluster
from agent.simulator.config import GpuConfig, NodeConfig, ScenarioConfig, SimulatorConfig
from agent.simulator.dcgm_text import dcgm_page
from agent.simulator.driver import MIG_ACTS, Driver
from agent.simulator.exposition import Page
from agent.simulator.node_facts import gpu_facts, workload_facts
from agent.simulator.partitions import HardwareError, Partitions
from agent.simulator.physics import Physics
from agent.simulator.scenarios import Event, Scenario, ScenarioBook
from agent.simulator.service_text import ServicePages
from agent.simulator.services import Services
from agent.simulator.topology import node_topology

REBOOT_SECONDS = 6.0


class Silence(Enum):
    """An exporter that gives no text: it breaks the connection, or takes the question and never answers."""

    BREAK = "break"
    HANG = "hang"


class Hardware:
    def __init__(self, config: SimulatorConfig, log: ActLog, now: float, timeline: tuple[ScenarioConfig, ...] = ()) -> None:
        self.config, self.log = config, log
        self.now = now
        self.physics = Physics(config, now)
        self.services = Services(config, self.physics)
        numbers = [record["scenario"] for record in log.records if record["kind"] == "scenario"]
        self.book = ScenarioBook(config, first_number=max(numbers, default=0) + 1)
        self.version = 0
        self.partitions = Partitions(config)
        self.driver = Driver(config, self.physics, self.partitions)
        self.cluster = Cluster(config, log, self.partitions)
        self._resets: dict[str, int] = {}
        self._nodes = list(config.nodes)
        self._pages = ServicePages(self.physics, self.services)
        self._node_rows = {node.host_name: row for row, node in enumerate(config.nodes)}
        self._boots = dict.fromkeys(self._node_rows, 0)
        self._dcgm_pages: dict[str, Page] = {}
        self._frozen_texts: dict[str, str] = {}
        self._vanished: set[str] = set()
        for number, entry in enumerate(timeline):
            self.book.check(entry, f"timeline[{number}]")
            self.book.schedule(entry, now)
        self._remember(now)
        self.log.append("start", now, seed=config.seed, nodes=len(config.nodes))

    @property
    def checkpoint(self) -> Path:
        return self.log.path.with_suffix(".state.npz")

    def _remember(self, now: float) -> None:
        """Takes up what the act log tells: boots, what agents set, faults that still run; and the last saved state of the counters."""
        first = self.log.records[0]["at"] if self.log.records else now
        uptimes = (3600 * (20 + 9000 * (row * 0.618 % 1)) for row in range(len(self.config.nodes)))
        self.services.boot_times[:] = [math.floor(first - uptime) for uptime in uptimes]
        for record in list(self.log.records):
            if record["kind"] == "boot" and record["node"] in self._boots:
                self._boots[record["node"]] += 1
                gpus = [gpu.uuid for gpu in self.node(record["node"]).gpus]
                self.driver.forget(gpus)
                self.partitions.boot(gpus)
                self.cluster.boot(record["node"], record["at"])
                self.services.boot_times[self._node_rows[record["node"]]] = record["at"]
            elif record["kind"] == "reset":
                self._after_reset(record)
            elif record["kind"] in ("pod", "budget") or (record["kind"] == "act" and not record["gpu"]):
                self.cluster.play(record)
            elif record["kind"] == "act" and record["result"] == "ok" and record["gpu"] in self.physics.row_of_gpu:
                self.driver.play(record)
        self.repartition()
        if self.physics.restore(self.checkpoint, services=self.services.columns.flat):
            self._step_to(now)
        self._resume_scenarios(now)
        self._play_due(now)
        self.services.step(0)
        self.physics.settle_clocks()

    def _resume_scenarios(self, now: float) -> None:
        """Faults that were asked for and still run; those of the timeline start with it again."""
        records = list(self.log.records)
        over = {record["scenario"] for record in records if record["kind"] == "scenario_end"} | {record.get("resumes") for record in records}
        for record in records:
            if record["kind"] == "scenario" and record["scenario"] not in over and record["until"] > now and record["asked"]:
                entry = ScenarioConfig(name=record["name"], mode=record["mode"], lead_seconds=0, **record["target"])
                self.book.start(entry, now, until=record["until"], resumes=record["scenario"])

    def save(self) -> None:
        self.physics.save(self.checkpoint, services=self.services.columns.flat)

    def node(self, host_name: str) -> NodeConfig:
        row = self._node_rows.get(host_name)
        if row is None:
            raise HardwareError(ErrorCode.NOT_PRESENT, f"node: there is no node {host_name!r}")
        return self._nodes[row]

    def repartition(self) -> None:
        """Brings silicon, servers and pages in line with the partitions, when those changed."""
        gpus = self.partitions.gpus
        rows = [row for row, node in enumerate(self._nodes) if any(gpus[gpu.uuid] is not gpu for gpu in node.gpus)]
        if not rows:
            return
        for row in rows:
            node = self._nodes[row]
            self._nodes[row] = replace(node, gpus=tuple(gpus[gpu.uuid] for gpu in node.gpus))
        self.physics.repartition({gpu.uuid: gpu for row in rows for gpu in self._nodes[row].gpus})
        self.services.take_parts()
        self._mark_noisy()
        self._dcgm_pages.clear()

    def advance(self, now: float) -> None:
        """Plays everything up to `now`: each fault at its own time. Going back is ignored."""
        if now <= self.now:
            return
        while (event := self.book.due(now)) is not None:
            self._step_to(event.at)
            self._apply(event)
        self._step_to(now)
        self.now = now
        if self.cluster.settle(now, self.down_hosts()):
            self.repartition()
            self.physics.settle_clocks()

    def _step_to(self, now: float) -> None:
        for _ in self.physics.steps(now):
            self.services.step()

    def start_scenario(self, entry: ScenarioConfig, now: float) -> Scenario:
        """Starts a fault now. Raises `ConfigError` naming the field when it cannot."""
        self.book.check(entry)
        self.advance(now)
        scenario = self.book.start(entry, now)
        self._play_due(now)
        return scenario

    def stop_scenario(self, scenario_id: int, now: float) -> Scenario | None:
        self.advance(now)
        scenario = self.book.stop(scenario_id, now)
        self._play_due(now)
        return scenario

    def _play_due(self, now: float) -> None:
        while (event := self.book.due(now)) is not None:
            self._apply(event)

    def _apply(self, event: Event) -> None:
        scenario = event.scenario
        rows = [self.physics.row_of_gpu[gpu] for gpu in scenario.gpus]
        if event.what == "start":
            self._begin(scenario, rows)
        elif event.what == "end":
            self.log.append("scenario_end", event.at, scenario=scenario.id, name=scenario.name, target=scenario.target)
            if scenario.name in ("node_down", "gpu_lost"):
                for host in scenario.hosts:
                    self._boot(host, event.at)
            elif scenario.name == "ecc":
                for gpu in scenario.gpus:
                    self._after_reset(self.log.append("reset", event.at, gpu=gpu))
                self.repartition()
                self.physics.restart_gpus(rows)
        self._spread(event)

    def _begin(self, scenario: Scenario, rows: list[int]) -> None:
        columns = self.physics.columns
        fields = {"scenario": scenario.id, "name": scenario.name, "target": scenario.target, "until": scenario.until, "mode": scenario.mode}
        fields |= {"asked": scenario.asked, "resumes": scenario.resumes}
        self.log.append("scenario", scenario.started_at, **fields)
        codes = {"gpu_lost": 79, "ecc": 48, "xid": int(scenario.mode or 0) if scenario.name == "xid" else 0}
        if code := codes.get(scenario.name):
            columns["gpu.xid"][rows] = code
        if scenario.name == "ecc":
            fresh = [row for row in rows if columns["gpu.remap_pending"][row] == 0]
            columns["gpu.ecc_dbe"][fresh] += 1
            columns["gpu.remapped_uncorrectable"][fresh] += 1
            columns["gpu.remap_pending"][fresh] = 1

    def _boot(self, host: str, at: float) -> None:
        self._boots[host] += 1
        self.log.append("boot", at, node=host)
        gpus = [gpu.uuid for gpu in self.node(host).gpus]
        self.partitions.boot(gpus)
        self.cluster.boot(host, at)
        self.repartition()
        self.physics.restart_gpus([self.physics.row_of_gpu[gpu] for gpu in gpus])
        self.services.restart([self._node_rows[host]], at)

    def _spread(self, event: Event) -> None:
        """Brings flags, vanished series and pages in line with the faults that are on."""
        physics, book = self.physics, self.book
        for name, flags in (("thermal_throttle", physics.faults.overheating), ("power_spike", physics.faults.power_spike)):
            flags[:] = False
            flags[[physics.row_of_gpu[gpu] for gpu in book.hit_gpus(name)]] = True
        self._mark_noisy()
        if event.what == "vanish":
            self._vanished |= set(event.scenario.gpus)
        self._vanished &= book.hit_gpus("gpu_lost")
        frozen = book.hit_hosts("exporter_frozen")
        self._frozen_texts = {host: text for host, text in self._frozen_texts.items() if host in frozen}
        for host in event.scenario.hosts:
            self._dcgm_pages.pop(host, None)
        physics.settle_clocks()
        self.version += 1

    def _mark_noisy(self) -> None:
        noisy = self.physics.faults.noisy
        noisy[:] = False
        noisy[[self._noisy_part(gpu) for gpu in self.book.hit_gpus("noisy_neighbour")]] = True

    def _noisy_part(self, gpu: str) -> int:
        """The last part of the GPU that has a tenant's workload: never a PHY slice unless there is no other."""
        physics = self.physics
        rows = physics.parts_of_gpu[physics.row_of_gpu[gpu]]
        tenants = [row for row in rows if physics.load.busy[row] and not _is_phy(physics, row)]
        return (tenants or rows)[-1]

    def cut_hosts(self) -> set[str]:
        """Nodes whose agents cannot reach the gateway."""
        return self.book.hit_hosts("link_cut", "node_down")

    def down_hosts(self) -> set[str]:
        return self.book.hit_hosts("node_down")

    def exposition(self, host: str, exporter: str, now: float) -> str | Silence:
        """What the node's exporter answers at `now`."""
        self.advance(now)
        node, row = self.node(host), self._node_rows[host]
        if host in self.cut_hosts() or (exporter == "dcgm" and host in self.book.hit_hosts("exporter_down")):
            return Silence.BREAK
        if exporter == "triton":
            return self._pages.triton(node, row)
        if exporter == "vllm":
            return self._pages.vllm(node, row)
        if exporter == "node":
            return self._pages.node(node, row)
        frozen = [scenario for scenario in self.book.active.values() if scenario.name == "exporter_frozen" and host in scenario.hosts]
        if not frozen:
            return self._dcgm_text(node)
        if frozen[-1].mode == "hang":
            return Silence.HANG
        return self._frozen_texts.setdefault(host, self._dcgm_text(node))

    def _dcgm_text(self, node: NodeConfig) -> str:
        page = self._dcgm_pages.get(node.host_name)
        if page is None:
            lost = frozenset(gpu.uuid for gpu in node.gpus) & self._vanished
            page = self._dcgm_pages[node.host_name] = dcgm_page(self.physics, node, lost=frozenset(lost))
        return page.render(self.physics.columns.flat)

    def boot_id(self, host: str) -> str:
        self._reachable(host)
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{self.config.seed}/{host}/boot/{self._boots[host]}"))

    def _reachable(self, host: str) -> NodeConfig:
        node = self.node(host)
        if host in self.down_hosts():
            raise HardwareError(ErrorCode.UNAVAILABLE, f"node {host} is down")
        return node

    def _gpu(self, host: str, gpu_uuid: str) -> tuple[GpuConfig, int]:
        """The GPU and its row. Raises `HardwareError` as NVML would."""
        node = self._reachable(host)
        gpu = next((gpu for gpu in node.gpus if gpu.uuid == gpu_uuid), None)
        if gpu is None:
            raise HardwareError(ErrorCode.NOT_PRESENT, f"gpu: node {host} has no GPU {gpu_uuid!r}")
        condition = self._condition(gpu)
        if condition is Condition.LOST:
            raise HardwareError(ErrorCode.GPU_LOST, "GPU is lost")
        return gpu, self.physics.row_of_gpu[gpu_uuid]

    def _condition(self, gpu: GpuConfig) -> Condition:
        if gpu.uuid in self.book.hit_gpus("gpu_lost"):
            return Condition.LOST
        return Condition.RESET_REQUIRED if gpu.uuid in self.book.hit_gpus("ecc") else Condition.OK

    def set_clock_range(self, host: str, gpu_uuid: str, min_mhz: int, max_mhz: int, now: float) -> None:
        """Locks the SM clock."""
        self.act(host, gpu_uuid, "set_clock_range", {"min_mhz": min_mhz, "max_mhz": max_mhz}, now)

    def reset_clock_range(self, host: str, gpu_uuid: str, now: float) -> None:
        self.act(host, gpu_uuid, "reset_clock_range", {}, now)

    def act(self, host: str, gpu_uuid: str, name: str, arguments: dict[str, Any], now: float) -> dict[str, Any]:
        """Does what an agent asks of the driver (`agent.simulator.driver`). Logged whether it succeeds or not; returns the record. Raises HardwareError."""
        self.advance(now)
        try:
            self._gpu(host, gpu_uuid)
            more = self.driver.check(gpu_uuid, name, arguments, len(self.log.records) + 1)
        except HardwareError as error:
            self.log.append("act", now, node=host, gpu=gpu_uuid, act=name, arguments=arguments, result=error.code.value)
            raise
        record = self.log.append("act", now, node=host, gpu=gpu_uuid, act=name, arguments=arguments, result="ok", **more)
        self.driver.play(record)
        if name in MIG_ACTS:
            self.repartition()
        self.physics.settle_clocks()
        return record

    def reset_gpu(self, host: str, gpu_uuid: str, now: float) -> None:
        """Resets one GPU, as `nvidia-smi --gpu-reset` does: refused while something runs on it. Logged whether it succeeds or not."""
        self.advance(now)
        more: dict[str, Any] = {"phy": False}
        try:
            gpu, row = self._gpu(host, gpu_uuid)
            more["phy"] = gpu.carries_phy
            if self.cluster.holds(host, gpu_uuid):
                raise HardwareError(ErrorCode.IN_USE, "GPU is currently in use by one or more other processes.")
        except HardwareError as error:
            self.log.append("act", now, node=host, gpu=gpu_uuid, act="reset_gpu", arguments={}, **more, result=error.code.value)
            raise
        self.log.append("act", now, node=host, gpu=gpu_uuid, act="reset_gpu", arguments={}, **more, result="ok")
        self._after_reset(self.log.append("reset", now, gpu=gpu_uuid))
        for scenario in [found for found in self.book.active.values() if found.name == "ecc" and found.gpus == (gpu_uuid,)]:
            self.book.stop(scenario.id, now)
        self.physics.restart_gpus([row])
        self.repartition()
        self._play_due(now)

    def _after_reset(self, record: dict[str, Any]) -> None:
        """Locks, limits and instances that agents made are gone; the radio's are put back by those who run it."""
        gpu_uuid = record["gpu"]
        self._resets[gpu_uuid] = self._resets.get(gpu_uuid, 0) + 1
        if gpu_uuid in self.physics.row_of_gpu:
            self.driver.forget([gpu_uuid])
            self.partitions.boot([gpu_uuid])
            node, _, _ = self.physics.gpus[self.physics.row_of_gpu[gpu_uuid]]
            self.cluster.boot(node.host_name, record["at"])

    def reset_evidence(self, host: str, gpu_uuid: str) -> str:
        """Changes with every reset of the GPU and every boot of its node."""
        self._gpu(host, gpu_uuid)
        return f"{self._boots[host]}.{self._resets.get(gpu_uuid, 0)}"

    def reboot(self, host: str, now: float) -> None:
        """The node goes down at once and boots some seconds later."""
        self.advance(now)
        node = self._reachable(host)
        phy = any(self.partitions.gpus[gpu.uuid].carries_phy for gpu in node.gpus)
        self.log.append("act", now, node=host, gpu="", act="reboot", arguments={}, phy=phy, result="ok")
        self.start_scenario(ScenarioConfig(name="node_down", node=host, duration_seconds=REBOOT_SECONDS), now)

    def check_api(self, host: str) -> None:
        """Raises HardwareError while the API server cannot be asked from this node."""
        self._reachable(host)
        if host in self.book.hit_hosts("api_down"):
            raise HardwareError(ErrorCode.UNAVAILABLE, f"node {host}: the API server does not answer")

    def read_clocks(self, host: str, gpu_uuid: str, now: float) -> ClockReading:
        self.advance(now)
        self._gpu(host, gpu_uuid)
        return self.driver.read_clocks(gpu_uuid)

    def read_power(self, host: str, gpu_uuid: str, now: float) -> PowerReading:
        self.advance(now)
        self._gpu(host, gpu_uuid)
        return self.driver.read_power(gpu_uuid)

    def read_mig(self, host: str, gpu_uuid: str, now: float) -> MigReading:
        self.advance(now)
        self._gpu(host, gpu_uuid)
        return self.driver.read_mig(gpu_uuid)

    def inventory(self, host: str, now: float) -> InventoryReport:
        self.advance(now)
        node = self._reachable(host)
        answering = [gpu for gpu in node.gpus if self._condition(gpu) is not Condition.LOST]
        facts = NodeFacts(
            driver_version=node.driver_version,
            cuda_version=node.cuda_version,
            kubelet_version=node.kubelet_version,
            numa_nodes=2 if len(node.gpus) > 2 else 1,
            topology=node_topology([(gpu.index, boards.BOARDS[gpu.sku].nvlink) for gpu in answering]),
        )
        limits = {gpu.uuid: float(self.physics.columns["gpu.limit_watts"][self.physics.row_of_gpu[gpu.uuid]]) for gpu in answering}
        gpus = tuple(gpu_facts(gpu, len(node.gpus), power_limit_watts=limits[gpu.uuid]) for gpu in answering)
        workloads = tuple(found for gpu in answering for found in workload_facts(gpu))
        return InventoryReport(at=now, node=facts, gpus=gpus, complete=True, gpu_count=len(node.gpus), workloads=workloads)

    def health(self, host: str, now: float) -> HealthReport:
        self.advance(now)
        node = self._reachable(host)
        details = {Condition.LOST: "GPU is lost", Condition.RESET_REQUIRED: "double-bit ECC error: the GPU must be reset"}
        conditions = [(gpu, self._condition(gpu)) for gpu in node.gpus]
        return HealthReport(at=now, gpus=tuple(GpuCondition(gpu.uuid, gpu.index, condition, details.get(condition, "")) for gpu, condition in conditions))


def _is_phy(physics: Physics, part_row: int) -> bool:
    part = physics.parts[part_row].slice
    return part is not None and part.purpose == "phy"
