"""Shapes that the evaluation works on: what it is told beside telemetry, what it remembers of objects, what it shows of sites. Pure: no Django."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fleet.health.changes import Kind
from fleet.health.facts import AgentWord, Condition, Held, Maintenance, Severity, State, Thresholds, Verdict, duration

Floats = NDArray[np.float64]
MOST_A_TICK = 5000
T = TypeVar("T", bound=np.generic)

STATES: tuple[State, ...] = (State.OK, State.DEGRADED, State.DOWN, State.UNKNOWN, State.MAINTENANCE)  # in the order of their numbers in frames
STATE_NUMBER: Mapping[State, int] = {state: number for number, state in enumerate(STATES)}


@dataclass(frozen=True, slots=True)
class Reported:
    """What a node's agent said of one GPU when it was not ok."""

    word: AgentWord
    detail: str
    since: float


@dataclass(frozen=True, slots=True)
class DriverFault:
    """Why a node's agent cannot ask the driver."""

    text: str
    is_mismatch: bool
    since: float


def _empty() -> Floats:
    return np.empty(0)


def _no_flags() -> NDArray[np.bool_]:
    return np.empty(0, dtype=np.bool_)


@dataclass
class Roster:
    """What the inventory, maintenance and the agents' reports say, by row of `LiveState`. Rows beyond the arrays have the defaults."""

    slowdown_celsius: Floats = field(default_factory=_empty)  # [g] NaN: not known
    expected_gpus: Floats = field(default_factory=_empty)  # [n] NaN: not said
    has_agent: NDArray[np.bool_] = field(default_factory=_no_flags)  # [n] an agent is enrolled
    reports_health: NDArray[np.bool_] = field(default_factory=_no_flags)  # [n] its agent ever sent a health report
    boot_id: dict[int, str] = field(default_factory=dict)  # node row
    reported: dict[int, Reported] = field(default_factory=dict)  # GPU row
    driver_fault: dict[int, DriverFault] = field(default_factory=dict)  # node row
    gpu_maintenance: dict[int, Maintenance] = field(default_factory=dict)
    node_maintenance: dict[int, Maintenance] = field(default_factory=dict)
    site_maintenance: dict[int, Maintenance] = field(default_factory=dict)
    region_slug: dict[int, str] = field(default_factory=dict)
    cleared: list[tuple[Kind, str, str]] = field(default_factory=list)  # (kind, key, code) that an operator ended; the evaluation empties it


@dataclass
class SiteCells:
    """What the live pages show of each site, [m] rows of `LiveState`. NaN is "none"; `state` and `flags` as in frames."""

    state: NDArray[np.uint8]
    flags: NDArray[np.uint8]
    since: Floats
    gpus_reporting: NDArray[np.int64]
    gpus_expected: NDArray[np.int64]
    nodes_reporting: NDArray[np.int64]
    utilization_ratio: Floats
    power_watts: Floats
    contact: Floats
    silent_since: Floats  # NaN while in contact


@dataclass
class Objects:
    """Memory of all objects of one kind, by row. `bits` -1: never judged."""

    kind: Kind
    bits: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    wake_at: Floats = field(default_factory=_empty)
    unconfirmed_at: Floats = field(default_factory=_empty)  # a condition waits for a sample newer than this; NaN: none does
    state: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, dtype=np.uint8))
    since: Floats = field(default_factory=_empty)
    active: NDArray[np.bool_] = field(default_factory=_no_flags)  # at the last tick
    verdict: list[Verdict | None] = field(default_factory=list)
    held: dict[int, dict[str, Held]] = field(default_factory=dict)
    moved_at: dict[int, list[float]] = field(default_factory=dict)  # times of the last transitions

    def grow(self, count: int) -> None:
        self.bits = padded(self.bits, count, -1)
        self.wake_at = padded(self.wake_at, count, np.inf)
        self.unconfirmed_at = padded(self.unconfirmed_at, count, np.nan)
        self.state = padded(self.state, count, STATE_NUMBER[State.UNKNOWN])
        self.since = padded(self.since, count, np.nan)
        self.active = padded(self.active, count, False)
        self.verdict += [None] * (count - len(self.verdict))

    def take_due(self, bits: NDArray[np.int64], sampled_at: Floats, may: NDArray[np.bool_], now: float) -> list[int]:
        """Rows to judge now, of those that may be judged: other bits than the last time, a hold that ran out, or the sample that a condition waited for.

        At most `MOST_A_TICK`; the others stay due, so that a wide outage does not stop the live pages.
        """
        with np.errstate(invalid="ignore"):
            due = may & ((bits != self.bits) | (self.wake_at <= now) | (sampled_at > self.unconfirmed_at))
        rows = np.flatnonzero(due)[:MOST_A_TICK]
        self.bits[rows] = bits[rows]
        return [int(row) for row in rows]

    def judge_again(self, rows: Iterable[int]) -> None:
        """These rows are due whatever their bits."""
        self.bits[list(rows)] = -1

    def set_verdict(self, row: int, verdict: Verdict | None) -> None:
        self.verdict[row] = verdict
        self.state[row] = STATE_NUMBER[State.UNKNOWN if verdict is None else verdict.state]
        self.since[row] = np.nan if verdict is None else verdict.since

    def forget(self, row: int) -> None:
        """The object left the inventory."""
        self.set_verdict(row, None)
        self.bits[row], self.wake_at[row], self.unconfirmed_at[row] = -1, np.inf, np.nan
        self.held.pop(row, None)
        self.moved_at.pop(row, None)

    def note_transition(self, row: int, now: float, thresholds: Thresholds) -> None:
        moved = self.moved_at.setdefault(row, [])
        moved.append(now)
        del moved[: -2 * thresholds.flapping_changes]

    def flapping(self, row: int, now: float, thresholds: Thresholds) -> tuple[Condition, ...]:
        """The condition `flapping` of an object whose state changed too often of late."""
        moved = [at for at in self.moved_at.get(row, ()) if now - at < thresholds.flapping_window_seconds]
        if len(moved) < thresholds.flapping_changes:
            return ()
        why = f"Changed its state {len(moved)} times within {duration(thresholds.flapping_window_seconds)}."
        return (Condition("flapping", Severity.WARNING, State.OK, why, moved[0], evidence={"changes": len(moved)}, recover_seconds=0),)


def padded(values: NDArray[T], count: int, fill: float | int | bool) -> NDArray[T]:
    """`values` with at least `count` rows, the new ones filled."""
    missing = count - len(values)
    return values if missing <= 0 else np.concatenate([values, np.full(missing, fill, dtype=values.dtype)])
