"""Frozen exporters: what stands still, for how long, on which GPUs; a backlog, a gap or a restart is no proof."""

import time
from typing import Any

import numpy as np
import pytest

from fleet.health.facts import Thresholds
from fleet.health.frozen import FrozenWatch
from fleet.telemetry.fields import GPU_FIELD_INDEX
from fleet.telemetry.live_state import LiveState

T0 = 1_795_168_800.0
TH = Thresholds(interval_seconds=10, heartbeat_seconds=10)
READINGS: dict[str, float] = {"energy_joules": 5e9, "power_watts": 92.5, "gpu_temperature_celsius": 31.0, "sm_clock_hertz": 2.1e8}


class Node:
    """A node of two GPUs, or as many nodes of as many as said, and the watch over them."""

    def __init__(self, *, gpus: int = 2, nodes: int = 1, thresholds: Thresholds = TH) -> None:
        self.live = LiveState()
        self.live.add_sites([(1, "S1", 1, 1)])
        self.live.add_nodes([(n + 1, f"node-{n}", 1) for n in range(nodes)])
        self.live.add_gpus([(n + 1, f"GPU-{n}", n // gpus + 1) for n in range(nodes * gpus)])
        self.watch = FrozenWatch(thresholds)
        self.now = T0

    def scrape(self, rows: Any = slice(None), *, at: float | None = None, **values: float | None) -> None:
        at = self.now if at is None else at
        for name, value in {**READINGS, **values}.items():
            if value is not None:
                self.live.gpu_values[GPU_FIELD_INDEX[name], rows] = value
                self.live.gpu_times[GPU_FIELD_INDEX[name], rows] = at
        self.live.gpu_sampled_at[rows] = at

    def tick(self) -> None:
        with np.errstate(invalid="ignore"):
            fresh = self.now - self.live.gpu_sampled_at <= self.watch.thresholds.unknown_seconds
        exporter_fresh = np.bincount(self.live.gpu_node_row[fresh], minlength=len(self.live.node_host)) > 0
        self.watch.update(self.live, now=self.now, gpu_fresh=fresh & self.live.gpu_active, exporter_fresh=exporter_fresh)

    def run(self, seconds: float, rows: Any = slice(None), *, moving: str = "", by: float = 1.0, **values: float | None) -> None:
        """Second by second with a scrape each ten; `moving` grows by `by` each time."""
        end = self.now + seconds
        while self.now < end:
            if (self.now - T0) % 10 == 0:
                self.scrape(rows, **(values | ({moving: READINGS[moving] + by * (self.now - T0)} if moving else {})))
            self.tick()
            self.now += 1

    @property
    def since(self) -> float | None:
        value = float(self.watch.node_since[0])
        return None if np.isnan(value) else value


def test_energy_that_stands_for_six_intervals_is_a_frozen_exporter() -> None:
    node = Node()
    node.run(30, moving="energy_joules")
    node.run(50, energy_joules=READINGS["energy_joules"] + 20)
    assert node.since is None
    node.run(1, energy_joules=READINGS["energy_joules"] + 20)
    assert node.since == T0 + 20


def test_the_hold_is_never_shorter_than_a_minute() -> None:
    assert Thresholds(interval_seconds=2).frozen_seconds == 60
    assert Thresholds(interval_seconds=30).frozen_seconds == 180
    assert Thresholds(interval_seconds=30).frozen_seconds_without_energy == 600


def test_an_idle_gpu_whose_energy_moves_is_not_frozen() -> None:
    node = Node()
    node.run(600, moving="energy_joules", by=70.0)
    assert node.since is None


@pytest.mark.parametrize("moving", ["power_watts", "gpu_temperature_celsius", "sm_clock_hertz"])
def test_energy_that_stands_while_another_reading_moves_is_a_bad_counter_not_a_frozen_exporter(moving: str) -> None:
    node = Node()
    node.run(300, moving=moving)
    assert node.since is None


def test_without_energy_the_others_must_stand_for_twenty_intervals() -> None:
    node = Node()
    node.run(200, energy_joules=None)
    assert node.since is None
    node.run(1, energy_joules=None)
    assert node.since == T0


def test_an_energy_counter_of_zero_is_not_reported() -> None:
    node = Node()
    node.run(190, energy_joules=0.0)
    assert node.since is None
    node.run(20, energy_joules=0.0)
    assert node.since == T0


@pytest.mark.parametrize("values", [dict.fromkeys(READINGS), {"power_watts": 0.0}, {"energy_joules": None, "power_watts": None}])
def test_a_gpu_that_reports_nothing_or_draws_no_power_is_not_frozen(values: dict[str, Any]) -> None:
    node = Node()
    node.run(600, **values)
    assert node.since is None


def test_a_silent_gpu_is_silent_and_its_neighbour_decides() -> None:
    node = Node()
    node.run(10)
    node.run(100, [0])
    assert node.since == T0
    node = Node()
    node.run(100)
    frozen = node.since
    node.run(300, [])
    assert frozen == node.since == T0


def test_one_gpu_that_moves_says_that_the_exporter_lives_though_it_draws_no_power() -> None:
    node = Node()
    for turn in range(40):
        node.scrape([0])
        node.scrape([1], energy_joules=None, power_watts=0.0, gpu_temperature_celsius=30.0 + turn % 2)
        node.tick()
        node.now += 10
    assert node.since is None


def test_it_ends_with_the_first_change_of_one_gpu() -> None:
    node = Node()
    node.run(100)
    assert node.since == T0
    node.scrape([1], energy_joules=READINGS["energy_joules"] + 400)
    node.tick()
    assert node.since is None
    node.run(30, moving="energy_joules")
    assert node.since is None


def test_a_backlog_and_a_gap_are_no_proof() -> None:
    node = Node()
    node.scrape()
    node.tick()
    for late in range(10, 100, 10):
        node.now = T0 + 100 + late / 100
        node.scrape(at=T0 + late)
        node.tick()
    assert node.since is None
    node.now = T0 + 3600
    node.run(30)
    assert node.since is None


def test_a_restart_starts_the_hold_anew_and_a_known_finding_stays_until_something_moves() -> None:
    node = Node()
    node.run(50)
    node.watch = FrozenWatch(TH)
    node.run(60)
    assert node.since is None
    node.run(20)
    assert node.since == T0 + 50
    node.watch = FrozenWatch(TH)
    node.watch.seed(0, T0 + 40)
    node.run(20)
    assert node.since == T0 + 40
    node.watch = FrozenWatch(TH)
    node.watch.seed(0, T0 + 40)
    node.tick()
    node.scrape(energy_joules=READINGS["energy_joules"] + 400)
    node.tick()
    assert node.since is None


def test_thirty_thousand_gpus_cost_a_few_milliseconds() -> None:
    node = Node(gpus=5, nodes=6000)
    seconds = []
    for _ in range(12):
        node.scrape()
        began = time.process_time()
        node.tick()
        seconds.append(time.process_time() - began)
        node.now += 10
    assert not np.isnan(node.watch.node_since).any()
    # 4 ms on an idle core; the bound leaves room for slow machines.
    assert min(seconds) < 0.05
