"""The words of health: states, severities, what is known of a thing and what was found about it. Pure: no Django.

Times are Unix seconds, sample time; NaN is "no value".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

NAN = float("nan")


class State(StrEnum):
    """Health of a thing. Numbers of the same names travel in frames."""

    OK = "ok"
    DEGRADED = "degraded"
    DOWN = "down"
    UNKNOWN = "unknown"
    MAINTENANCE = "maintenance"


class Severity(StrEnum):
    CRITICAL = "critical"
    MAJOR = "major"
    MINOR = "minor"
    WARNING = "warning"
    INDETERMINATE = "indeterminate"


SEVERITY_RANK = {Severity.CRITICAL: 4, Severity.MAJOR: 3, Severity.MINOR: 2, Severity.WARNING: 1, Severity.INDETERMINATE: 0}


class Contact(StrEnum):
    """What is known of the way to a thing: whether its exporter, its node and its site can be heard. Also the cause word of a verdict."""

    REPORTING = "reporting"
    NEVER = "never_reported"
    LINK_DOWN = "link_down"  # the whole site is silent
    REGION_SILENT = "region_silent"  # more than half of the region fell silent together: our link to it, or its Prometheus
    NODE_DOWN = "node_down"  # exporter and agent silent while other nodes of the site speak
    EXPORTER_DOWN = "exporter_down"  # exporter silent; the agent speaks, or there is none to ask
    UNDECIDED = "silent"  # silent, but too short to say which of the above


class AgentWord(StrEnum):
    """What a node's agent says of one GPU."""

    NONE = ""  # no agent, or no fresh report
    OK = "ok"
    LOST = "lost"
    RESET_REQUIRED = "reset_required"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Every number that health depends on. `of_interval` derives the ages from the scrape interval."""

    interval_seconds: float = 30.0
    heartbeat_seconds: float = 10.0
    stale_intervals: float = 2.0
    unknown_intervals: float = 3.0
    heartbeats_missed: float = 3.0
    confirm_samples: int = 2  # thermal and throttle signs must stand in so many samples
    recover_intervals: float = 3.0  # a condition must be gone for so long before it ends
    margin_celsius: float = 3.0  # nearer to the slowdown limit than this is a finding …
    margin_recovered_celsius: float = 5.0  # … until it is further away than this
    error_window_seconds: float = 1800.0  # a counted error marks the GPU for so long after the last
    rising_window_seconds: float = 300.0
    nvlink_errors: float = 10.0  # rise within the window above
    pcie_replays: float = 60.0
    region_silent_ratio: float = 0.5
    region_silent_sites: int = 3  # fewer sites than this are never "the region"
    flapping_changes: int = 6
    flapping_window_seconds: float = 900.0
    frozen_intervals: float = 6.0  # an energy counter that stands for so long (and for `frozen_least_seconds`) is not read anew
    frozen_least_seconds: float = 60.0
    frozen_intervals_without_energy: float = 20.0  # the same of power, temperature and clock, where no energy is reported

    @property
    def stale_seconds(self) -> float:
        return self.stale_intervals * self.interval_seconds

    @property
    def unknown_seconds(self) -> float:
        return self.unknown_intervals * self.interval_seconds

    @property
    def agent_seconds(self) -> float:
        return self.heartbeats_missed * self.heartbeat_seconds

    @property
    def together_seconds(self) -> float:
        """Last words of things behind one cut differ by no more than this."""
        return 1.5 * max(self.interval_seconds, self.heartbeat_seconds)

    @property
    def frozen_seconds(self) -> float:
        return max(self.frozen_least_seconds, self.frozen_intervals * self.interval_seconds)

    @property
    def frozen_seconds_without_energy(self) -> float:
        return max(self.frozen_least_seconds, self.frozen_intervals_without_energy * self.interval_seconds)

    @property
    def recover_seconds(self) -> float:
        return self.recover_intervals * self.interval_seconds


@dataclass(frozen=True, slots=True)
class Verdict:
    """The state of one object: exactly one, since when, why. `cause` is a machine word."""

    state: State
    cause: str
    why: str
    since: float


@dataclass(frozen=True, slots=True)
class Condition:
    """Something found about an object. `state` is what it makes of the object; OK means a finding that changes no state.

    `samples` newest samples must show it before it counts; after it is gone it must stay gone for `recover_seconds` (None: the default).
    """

    code: str
    severity: Severity
    state: State
    why: str
    since: float
    advised: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    samples: int = 1
    recover_seconds: float | None = None
    count: int = 1
    last_at: float = NAN


@dataclass(frozen=True, slots=True)
class Held:
    """A condition in memory. It is *active* (counts, is a finding) once confirmed; `gone_at` is when its sign went away."""

    condition: Condition
    seen_at: float  # sample time of the newest sample that was judged
    samples: int
    active: bool
    gone_at: float = NAN


@dataclass(frozen=True, slots=True)
class Maintenance:
    """The planned window that covers an object now."""

    since: float
    until: float
    reason: str


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """All that a GPU's verdict depends on. NaN is "no value"."""

    now: float
    sampled_at: float  # newest sample of this GPU
    exporter_at: float  # newest word of its node's exporter
    contact: Contact
    contact_since: float  # last contact when the contact is lost
    gpus_of_node: int
    gpus_fresh: int  # of its node
    signs: int = 0  # bits of `signs.Sign`
    judged: int = 0  # the signs that could be judged; the others stay as they were
    agent: AgentWord = AgentWord.NONE
    agent_detail: str = ""
    agent_cause: str = "agent_unknown"  # why the agent cannot say, as a cause word
    agent_at: float = NAN
    xids: Sequence[Condition] = ()
    maintenance: Maintenance | None = None
    temperature_celsius: float = NAN
    slowdown_celsius: float = NAN
    margin_celsius: float = NAN
    sm_clock_hertz: float = NAN
    power_watts: float = NAN
    ecc_dbe_total: float = NAN
    nvlink_rise: float = NAN
    pcie_rise: float = NAN
    frozen_since: float = NAN  # its node's exporter repeats the readings of that time
    sign_times: Mapping[int, float] = field(default_factory=dict)  # when a counted sign was last raised, where that differs from `sampled_at`


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """All that a node's verdict depends on, beside its GPUs' verdicts (those in `gpus` are of GPUs that are not retired)."""

    now: float
    contact: Contact
    contact_at: float
    exporter_at: float
    exporter_up: float  # Prometheus' `up`: 1, 0 or NaN
    has_agent: bool
    heartbeat_at: float
    agent_silent: bool
    gpus_expected: int
    gpus_fresh: int
    driver_fault: str = ""  # why the agent cannot ask the driver, e.g. "kernel module 570.133.20, library 570.158.01"
    is_mismatch: bool = False
    driver_fault_at: float = NAN
    profiling_suspects: Sequence[str] = ()
    frozen_since: float = NAN  # its exporter repeats the readings of that time
    maintenance: Maintenance | None = None
    only_node: bool = True


@dataclass(frozen=True, slots=True)
class SiteFacts:
    """All that a site's verdict depends on, beside its nodes' and GPUs' verdicts."""

    now: float
    contact: Contact
    contact_at: float
    nodes: int
    gpus_expected: int
    gpus_reporting: int
    region_silent_sites: int = 0
    region_sites: int = 0
    maintenance: Maintenance | None = None


@dataclass(frozen=True, slots=True)
class Child:
    """A part of a node or site, for the roll-up: what people call it and its verdict."""

    name: str
    verdict: Verdict


# --- words -----------------------------------------------------------------------------------------------------------------------------------------


def clock_time(at: float) -> str:
    """Unix seconds as `2026-11-20 10:00:00 UTC`; "never" for NaN."""
    return "never" if math.isnan(at) else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def duration(seconds: float) -> str:
    """A span in the two largest units: `45 s`, `3 min 20 s`, `2 h 5 min`, `4 d 1 h`."""
    whole = max(0, round(seconds))
    for size, name, small, small_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // small
            return f"{whole // size} {name} {rest} {small_name}" if rest else f"{whole // size} {name}"
    return f"{whole} s"


def is_known(value: float) -> bool:
    """False for NaN, which is "no value"."""
    return not math.isnan(value)


def or_none(value: float) -> float | None:
    """NaN as None, for JSON."""
    return None if math.isnan(value) else value
