"""A small fleet for tests of health: rows in PostgreSQL, a LiveState over them, and hands to feed it."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import numpy as np

from fleet.health.changes import Changes
from fleet.health.facts import Thresholds
from fleet.health.store import HealthStore
from fleet.models import AgentConnection, AgentIdentity, Gpu, Node, Site
from fleet.telemetry.fields import GPU_FIELD_INDEX, XidChange, XidCount
from fleet.telemetry.live_state import LiveState

INTERVAL = 10.0
THRESHOLDS = Thresholds(interval_seconds=INTERVAL, heartbeat_seconds=10.0)
ENERGY_AT_START = 5e9
START = 1_795_168_800.0  # 2026-11-20T10:00:00Z
HEALTHY: dict[str, float] = {
    "gpu_temperature_celsius": 60.0,
    "power_watts": 400.0,
    "utilization_ratio": 0.5,
    "engine_active_ratio": 0.5,
    "sm_clock_hertz": 1.5e9,
    "clock_event_reasons": 0.0,
    "row_remap_pending": 0.0,
    "row_remap_failure": 0.0,
    "ecc_dbe_total": 0.0,
    "pcie_replay_total": 0.0,
    "nvlink_errors_total": 0.0,
}


def when(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def enrol(node: Node, *, at: float = START) -> None:
    """An agent of this node that has reported."""
    AgentIdentity.objects.create(node=node, public_key=node.pk.to_bytes(32, "big"), enrolled_at=when(at))
    AgentConnection.objects.create(node=node, connected=True, heartbeat_at=when(at), reported_at=when(at))


def fill(live: LiveState) -> LiveState:
    """The inventory of the database as rows of `live`; what is retired becomes inactive."""
    live.add_sites([(s.pk, s.code, s.region.area_id, s.region_id) for s in Site.objects.select_related("region").order_by("pk")])
    live.add_nodes([(n.pk, n.host_name, n.site_id) for n in Node.objects.filter(retired_at=None).order_by("pk")])
    gpus = Gpu.objects.exclude(presence="retired").order_by("pk")
    live.gpu_active[:] = False
    live.add_gpus([(g.pk, g.uuid, g.node_id) for g in gpus])
    return live


class World:
    """One telemetry process' health: `scrape` and `beat` feed it, `tick` evaluates and stores at `now`."""

    def __init__(self, thresholds: Thresholds = THRESHOLDS, *, start: float = START) -> None:
        self.now = start
        self.live = fill(LiveState())
        self.store = HealthStore(thresholds)
        self.store.seed(self.live, self.now)

    def restarted(self) -> "World":
        """Another process that starts now: its last values come from the reading tables, which hold what this one had."""
        other = World(self.store.evaluator.thresholds, start=self.now)
        for uuid, row in self.live.gpu_row_of.items():
            if uuid in other.live.gpu_row_of:
                to = other.live.gpu_row_of[uuid]
                other.live.gpu_values[:, to], other.live.gpu_times[:, to] = self.live.gpu_values[:, row], self.live.gpu_times[:, row]
                other.live.gpu_sampled_at[to] = self.live.gpu_sampled_at[row]
        for name in ("node_up", "node_up_time", "node_heartbeat"):
            getattr(other.live, name)[:] = getattr(self.live, name)
        return other

    def scrape(self, gpus: Iterable[Gpu | str] | None = None, *, at: float | None = None, up: bool = True, **values: float | None) -> None:
        """A scrape of these GPUs (all by default) at `at` (now): healthy values (energy rises) with the given ones over them; None: that series is missing."""
        at = self.now if at is None else at
        uuids = list(self.live.gpu_row_of) if gpus is None else [gpu if isinstance(gpu, str) else gpu.uuid for gpu in gpus]
        rows = [self.live.gpu_row_of[uuid] for uuid in uuids]
        for name, value in {"energy_joules": ENERGY_AT_START + HEALTHY["power_watts"] * (at - START), **HEALTHY, **values}.items():
            if value is not None:
                self.live.gpu_values[GPU_FIELD_INDEX[name], rows] = value
                self.live.gpu_times[GPU_FIELD_INDEX[name], rows] = at
        self.live.gpu_sampled_at[rows] = at
        nodes = np.unique(self.live.gpu_node_row[rows])
        self.live.node_up[nodes], self.live.node_up_time[nodes] = float(up), at

    def beat(self, nodes: Iterable[Node] | None = None, *, at: float | None = None) -> None:
        """A heartbeat of these nodes' agents (all enrolled by default)."""
        chosen = Node.objects.filter(agent_identities__revoked_at=None, agent_identities__isnull=False) if nodes is None else nodes
        for node in chosen:
            self.live.node_heartbeat[self.live.node_row_of_id[node.pk]] = self.now if at is None else at

    def xid(self, gpu: Gpu, new: int, *, old: int | None = 0, at: float | None = None) -> None:
        self.live.note_xid_change(XidChange(self.live.gpu_row_of[gpu.uuid], None, old, new, self.now if at is None else at))

    def xid_count(self, gpu: Gpu, xid: int, new: int, *, old: int | None = None, at: float | None = None) -> None:
        self.live.note_xid_count(XidCount(self.live.gpu_row_of[gpu.uuid], None, xid, old, new, self.now if at is None else at))

    def tick(self) -> Changes:
        self.live.derive()
        return self.store.tick(self.live, self.now)

    def run(self, seconds: float, *, gpus: Iterable[Gpu] | None = None, nodes: Iterable[Node] | None = None, **values: Any) -> Changes:
        """Let time pass, second by second, with a scrape of `gpus` and a heartbeat of `nodes` each interval."""
        changes = Changes()
        end = self.now + seconds
        gpus = None if gpus is None else list(gpus)
        nodes = None if nodes is None else list(nodes)
        while self.now < end:
            if (self.now - START) % INTERVAL == 0:
                if gpus is None or gpus:
                    self.scrape(gpus, **values)
                if nodes is None or nodes:
                    self.beat(nodes)
            changes.extend(self.tick())
            self.now += 1.0
        return changes


def state_of(thing: Any) -> tuple[str, str]:
    """(state, cause) as stored."""
    health = type(thing).objects.select_related("health").get(pk=thing.pk).health
    return health.state, health.cause
