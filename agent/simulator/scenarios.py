"""Faults that can be played on the simulated fleet, alone or on a timeline: what they are called, whom they hit, when they start and end.

| name | target | what it does |
|---|---|---|
| link_cut | site, node | exporters of all its nodes stop answering, their agents cannot reach the gateway |
| node_down | site, node | exporters and agent of the node are gone; at the end the node boots: new boot id, locks and counters since boot gone |
| exporter_down | site, node | only dcgm-exporter stops answering |
| api_down | site, node | the API server of Kubernetes does not answer the node |
| exporter_frozen | site, node | dcgm-exporter serves the same text again and again (mode `stale`) or never answers (mode `hang`) |
| gpu_lost | any | XID 79 on the gauge for `lead_seconds`, then the GPU's series vanish; NVML says lost; ends with a boot of the node |
| ecc | any | a double-bit error: XID 48, ECC counter, row remap pending; NVML asks for a reset; ends with that reset |
| thermal_throttle | any | the GPU overheats; at its limit it halves its clock and says so (HW thermal slowdown) |
| noisy_neighbour | any | one slice takes its memory and all the memory bandwidth it can; requests beside it take longer |
| power_spike | any | the GPU draws 7 % more than its limit |
| xid | any | an application fault: the XID in `mode` (default 31) on the gauge, nothing else |

A site or node as the target of a GPU's fault means all its GPUs.
"""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass, replace
from typing import Any

from agent.simulator.config import ScenarioConfig, SimulatorConfig
from agent.simulator.fields import ConfigError

NODE_SCENARIOS = ("link_cut", "node_down", "exporter_down", "exporter_frozen", "api_down")
GPU_SCENARIOS = ("gpu_lost", "ecc", "thermal_throttle", "noisy_neighbour", "power_spike", "xid")
SCENARIOS = NODE_SCENARIOS + GPU_SCENARIOS
FROZEN_MODES = ("stale", "hang")


@dataclass(frozen=True)
class Scenario:
    """A fault that is on: `hosts` and `gpus` (UUIDs) are whom it hits. `asked` is False for one of the timeline; `resumes` is its number before a restart."""

    id: int
    name: str
    hosts: tuple[str, ...]
    gpus: tuple[str, ...]
    target: dict[str, str]
    started_at: float
    until: float
    mode: str = ""
    lead_seconds: float = 12.0
    asked: bool = True
    resumes: int | None = None

    def describe(self) -> dict[str, Any]:
        return {"id": self.id, "name": self.name, **self.target, "started_at": self.started_at, "until": self.until, "mode": self.mode}


@dataclass(frozen=True)
class Event:
    """`what`: `start`, `vanish` (a lost GPU's series go), `end`."""

    at: float
    what: str
    scenario: Scenario


class ScenarioBook:
    """Who is hit by what at present, and what comes. Time is passed in; events come out in order."""

    def __init__(self, config: SimulatorConfig, *, first_number: int = 1) -> None:
        self._config = config
        self._numbers = itertools.count(first_number)
        self._order = itertools.count()
        self._heap: list[tuple[float, int, Event | ScenarioConfig]] = []
        self.active: dict[int, Scenario] = {}

    def check(self, config: ScenarioConfig, path: str = "") -> None:
        """Raises `ConfigError` that names the field when the fault or its target does not exist."""
        prefix = f"{path}." if path else ""
        if config.name not in SCENARIOS:
            raise ConfigError(f"{prefix}name: {config.name!r} is none of {', '.join(SCENARIOS)}")
        if config.name in NODE_SCENARIOS and config.gpu:
            raise ConfigError(f"{prefix}gpu: {config.name} hits a site or a node")
        if config.name == "exporter_frozen" and config.mode not in ("", *FROZEN_MODES):
            raise ConfigError(f"{prefix}mode: {config.mode!r} is none of {', '.join(FROZEN_MODES)}")
        if config.name == "xid" and not (config.mode or "31").isdigit():
            raise ConfigError(f"{prefix}mode: {config.mode!r} is not an XID")
        if config.mode and config.name not in ("exporter_frozen", "xid"):
            raise ConfigError(f"{prefix}mode: {config.name} has no modes")
        hosts, gpus = self._targets(config)
        if not hosts or (config.name in GPU_SCENARIOS and not gpus):
            field, value = next((field, value) for field, value in _target(config).items() if value)
            raise ConfigError(f"{prefix}{field}: there is no {field} {value!r} in this fleet")

    def _targets(self, config: ScenarioConfig) -> tuple[tuple[str, ...], tuple[str, ...]]:
        nodes = [
            node
            for node in self._config.nodes
            if node.site == config.site or node.host_name == config.node or (config.gpu and any(gpu.uuid == config.gpu for gpu in node.gpus))
        ]
        gpus = [gpu.uuid for node in nodes for gpu in node.gpus if not config.gpu or gpu.uuid == config.gpu]
        return tuple(node.host_name for node in nodes), tuple(gpus) if config.name in GPU_SCENARIOS else ()

    def schedule(self, config: ScenarioConfig, origin: float) -> None:
        """Plays a fault at `origin + at_seconds`, and again each `every_seconds`."""
        heapq.heappush(self._heap, (origin + config.at_seconds, next(self._order), replace(config, at_seconds=origin + config.at_seconds)))

    def start(self, config: ScenarioConfig, at: float, *, until: float | None = None, asked: bool = True, resumes: int | None = None) -> Scenario:
        """A fault that starts now. Its `start` event comes out of `due` first."""
        hosts, gpus = self._targets(config)
        scenario = Scenario(
            id=next(self._numbers),
            name=config.name,
            hosts=hosts,
            gpus=gpus,
            target={field: value for field, value in _target(config).items() if value},
            started_at=at,
            until=at + config.duration_seconds if until is None else until,
            mode=config.mode or {"exporter_frozen": "stale", "xid": "31"}.get(config.name, ""),
            lead_seconds=config.lead_seconds,
            asked=asked,
            resumes=resumes,
        )
        self.active[scenario.id] = scenario
        self._push(Event(at, "start", scenario))
        if scenario.name == "gpu_lost":
            self._push(Event(at + scenario.lead_seconds, "vanish", scenario))
        self._push(Event(scenario.until, "end", scenario))
        return scenario

    def stop(self, scenario_id: int, at: float) -> Scenario | None:
        """Ends a fault now; None when none with this number is on."""
        scenario = self.active.get(scenario_id)
        if scenario is not None:
            self._push(Event(at, "end", scenario))
        return scenario

    def _push(self, event: Event) -> None:
        heapq.heappush(self._heap, (event.at, next(self._order), event))

    def due(self, now: float) -> Event | None:
        """The next event at or before `now`, or None. A fault that ended early gives no second end."""
        while self._heap and self._heap[0][0] <= now:
            at, _, entry = heapq.heappop(self._heap)
            if isinstance(entry, ScenarioConfig):
                self.start(entry, at, asked=False)
                if entry.every_seconds is not None:
                    self.schedule(replace(entry, at_seconds=entry.every_seconds), at)
            elif entry.scenario.id in self.active:
                if entry.what == "end":
                    del self.active[entry.scenario.id]
                return entry
        return None

    def hit_hosts(self, *names: str) -> set[str]:
        return {host for scenario in self.active.values() if scenario.name in names for host in scenario.hosts}

    def hit_gpus(self, name: str) -> set[str]:
        return {uuid for scenario in self.active.values() if scenario.name == name for uuid in scenario.gpus}


def _target(config: ScenarioConfig) -> dict[str, str]:
    return {"site": config.site, "node": config.node, "gpu": config.gpu}


MILD_STEP_SECONDS = 60.0
MILD_ORDER = (
    "thermal_throttle",
    "xid",
    "power_spike",
    "noisy_neighbour",
    "link_cut",
    "ecc",
    "exporter_down",
    "gpu_lost",
    "exporter_frozen",
    "node_down",
)


def mild_timeline(config: SimulatorConfig) -> tuple[ScenarioConfig, ...]:
    """A few small faults at a time, for ever, so that a wall is never all green. The same seed gives the same play.

    Nothing falls silent in the first four minutes. Only every tenth site of the configuration is ever hit: the others are free for drills.
    """
    nodes = [node for number, node in enumerate(config.nodes) if number % 10 == 7] or list(config.nodes[-1:])
    chance = random.Random(f"{config.seed}/mild")
    chance.shuffle(nodes)
    nodes = nodes[:20]
    round_seconds = max(MILD_STEP_SECONDS * len(nodes), 480.0)
    played = []
    for number, node in enumerate(nodes):
        name = MILD_ORDER[number % len(MILD_ORDER)]
        gpu = chance.choice(node.gpus).uuid if name in GPU_SCENARIOS and node.gpus else ""
        played.append(
            ScenarioConfig(
                name=name if gpu or name in NODE_SCENARIOS else "exporter_down",
                node="" if gpu or name == "link_cut" else node.host_name,
                site=node.site if name == "link_cut" else "",
                gpu=gpu,
                at_seconds=20 + MILD_STEP_SECONDS * number,
                duration_seconds=float(chance.randrange(150, 420)),
                every_seconds=round_seconds,
            )
        )
    return tuple(played)
