"""From facts to a verdict: one of five states, with since and why. Pure: no Django, `now` is in the facts.

A *sign* is one bit of what a GPU's newest readings say. A *condition* is a sign, or another fact, put in words, with what it does to the state.
`settle` turns conditions of the moment into held ones, so that a value that wobbles does not make the state wobble.
Silence ends no condition: what cannot be judged now stays as it was. Times are Unix seconds, sample time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntFlag, StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

NAN = float("nan")
WHY_LENGTH = 300


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
    UNDECIDED = "undecided"  # silent, but too short to say which: the state of before holds


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
    profiling_busy_ratio: float = 0.5  # GPU_UTIL above, with GR_ENGINE_ACTIVE at 0, contradicts
    profiling_idle_ratio: float = 0.001
    flapping_changes: int = 6
    flapping_window_seconds: float = 900.0

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


class Sign(IntFlag):
    """What the newest readings of a GPU say, one bit each."""

    HW_SLOWDOWN = 1
    HW_THERMAL = 2
    POWER_BRAKE = 4
    SW_THERMAL = 8
    MARGIN_LOW = 16
    ECC_DBE = 32
    REMAP_PENDING = 64
    REMAP_FAILURE = 128
    NVLINK_ERRORS = 256
    PCIE_REPLAY = 512


# NVML clock event reasons. 0x1 idle, 0x2 application clocks and 0x4 software power cap are expected (we cap) and left alone.
REASON_HW_SLOWDOWN, REASON_SW_THERMAL, REASON_HW_THERMAL, REASON_POWER_BRAKE = 0x8, 0x20, 0x40, 0x80


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
    signs: Sign = Sign(0)
    judged: Sign = Sign(0)  # the signs that could be judged; the others stay as they were
    agent: AgentWord = AgentWord.NONE
    agent_detail: str = ""
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
    sign_times: Mapping[Sign, float] = field(default_factory=dict)  # when a counted sign was last raised, where that differs from `sampled_at`


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
    mismatch: str = ""  # "kernel module 570.133.20, library 570.158.01" when the agent reports a driver mismatch
    mismatch_at: float = NAN
    profiling_suspects: Sequence[str] = ()
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


def _known(value: float) -> bool:
    return not math.isnan(value)


def _celsius(facts: GpuFacts) -> str:
    if not _known(facts.temperature_celsius):
        return "temperature not reported"
    limit = f" of {facts.slowdown_celsius:.0f} °C limit" if _known(facts.slowdown_celsius) else ""
    return f"{facts.temperature_celsius:.0f} °C{limit}"


def _clock(facts: GpuFacts) -> str:
    return f"SM clock cut to {facts.sm_clock_hertz / 1e6:.0f} MHz" if _known(facts.sm_clock_hertz) else "SM clock cut"


def _cut(text: str) -> str:
    return text if len(text) <= WHY_LENGTH else text[: WHY_LENGTH - 1] + "…"


# --- signs: readings in numpy ----------------------------------------------------------------------------------------------------------------------

Floats = NDArray[np.float64]


def signs_of(
    *, clock_reasons: Floats, margin: Floats, remap_pending: Floats, remap_failure: Floats, before: NDArray[np.int32], thresholds: Thresholds
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Signs that one sample shows, for many GPUs at once: (signs, judged), [g] each.

    `margin` is °C left to the slowdown limit. NaN anywhere: that sign is not judged. `before` are the signs of the tick before (the margin has two thresholds).
    The counted signs (ECC, NVLink, PCIe) need memory and come from `fleet.evaluation`.
    """
    signs = np.zeros(len(clock_reasons), dtype=np.int32)
    judged = np.zeros(len(clock_reasons), dtype=np.int32)
    known = ~np.isnan(clock_reasons)
    reasons = np.where(known, clock_reasons, 0).astype(np.int64)
    for mask, sign in (
        (REASON_HW_SLOWDOWN, Sign.HW_SLOWDOWN),
        (REASON_HW_THERMAL, Sign.HW_THERMAL),
        (REASON_POWER_BRAKE, Sign.POWER_BRAKE),
        (REASON_SW_THERMAL, Sign.SW_THERMAL),
    ):
        signs |= np.where((reasons & mask) != 0, np.int32(sign), np.int32(0))
        judged |= np.where(known, np.int32(sign), np.int32(0))
    was_low = (before & np.int32(Sign.MARGIN_LOW)) != 0
    limit = np.where(was_low, thresholds.margin_recovered_celsius, thresholds.margin_celsius)
    with np.errstate(invalid="ignore"):
        for value, on, sign in (
            (margin, margin <= limit, Sign.MARGIN_LOW),
            (remap_pending, remap_pending > 0, Sign.REMAP_PENDING),
            (remap_failure, remap_failure > 0, Sign.REMAP_FAILURE),
        ):
            signs |= np.where(on, np.int32(sign), np.int32(0))
            judged |= np.where(~np.isnan(value), np.int32(sign), np.int32(0))
    return signs, judged


_SIGN_CODES: Mapping[Sign, str] = {
    Sign.HW_SLOWDOWN: "hw_slowdown",
    Sign.HW_THERMAL: "hw_thermal_slowdown",
    Sign.POWER_BRAKE: "hw_power_brake",
    Sign.SW_THERMAL: "sw_thermal_slowdown",
    Sign.MARGIN_LOW: "thermal_margin_low",
    Sign.ECC_DBE: "ecc_double_bit",
    Sign.REMAP_PENDING: "row_remap_pending",
    Sign.REMAP_FAILURE: "row_remap_failure",
    Sign.NVLINK_ERRORS: "nvlink_errors",
    Sign.PCIE_REPLAY: "pcie_replay",
}
SIGN_OF_CODE: Mapping[str, Sign] = {code: sign for sign, code in _SIGN_CODES.items()}


def _sign_condition(sign: Sign, facts: GpuFacts, thresholds: Thresholds) -> Condition:
    """The words and weight of one sign."""
    at = facts.sign_times.get(sign, facts.sampled_at)
    code = _SIGN_CODES[sign]
    confirm = thresholds.confirm_samples
    thermal = {"temperature_celsius": _or_none(facts.temperature_celsius), "slowdown_celsius": _or_none(facts.slowdown_celsius)}
    clocks = {**thermal, "sm_clock_hertz": _or_none(facts.sm_clock_hertz), "power_watts": _or_none(facts.power_watts)}
    match sign:
        case Sign.HW_THERMAL:
            return Condition(
                code,
                Severity.MAJOR,
                State.DEGRADED,
                f"{_clock(facts)} by hardware thermal slowdown, {_celsius(facts)}.",
                at,
                "Check air flow, fans and inlet temperature.",
                clocks,
                samples=confirm,
            )
        case Sign.POWER_BRAKE:
            why = f"{_clock(facts)} by hardware power brake" + (f", drawing {facts.power_watts:.0f} W." if _known(facts.power_watts) else ".")
            return Condition(code, Severity.MAJOR, State.DEGRADED, why, at, "Check power supplies and the power feed.", clocks, samples=confirm)
        case Sign.HW_SLOWDOWN:
            why = f"{_clock(facts)} by hardware slowdown, {_celsius(facts)}."
            return Condition(code, Severity.MAJOR, State.DEGRADED, why, at, "Check cooling and power.", clocks, samples=confirm)
        case Sign.SW_THERMAL:
            why = f"{_clock(facts)} by software thermal slowdown, {_celsius(facts)}."
            return Condition(code, Severity.WARNING, State.OK, why, at, "Watch the temperature.", clocks, samples=confirm)
        case Sign.MARGIN_LOW:
            margin = f"{facts.margin_celsius:.0f} °C below its slowdown limit" if _known(facts.margin_celsius) else "close to its slowdown limit"
            return Condition(
                code, Severity.MINOR, State.DEGRADED, f"{margin[0].upper()}{margin[1:]} ({_celsius(facts)}).", at, "Check cooling.", thermal, samples=confirm
            )
        case Sign.ECC_DBE:
            total = f" ({facts.ecc_dbe_total:.0f} in total)" if _known(facts.ecc_dbe_total) else ""
            return Condition(
                code,
                Severity.MAJOR,
                State.DEGRADED,
                f"Uncorrectable memory errors rose{total}.",
                at,
                "Drain and reset the GPU; then run the field diagnostic.",
                {"ecc_dbe_total": _or_none(facts.ecc_dbe_total)},
            )
        case Sign.REMAP_PENDING:
            return Condition(
                code,
                Severity.MINOR,
                State.DEGRADED,
                "A memory row remap is pending; running work is not blocked.",
                at,
                "Reset the GPU at a quiet time.",
            )
        case Sign.REMAP_FAILURE:
            return Condition(
                code,
                Severity.CRITICAL,
                State.DEGRADED,
                "A memory row could not be remapped: the failure flag is set.",
                at,
                "Drain, run the field diagnostic; replace the GPU if it agrees.",
            )
        case Sign.NVLINK_ERRORS:
            rise = f" by {facts.nvlink_rise:.0f}" if _known(facts.nvlink_rise) else ""
            return Condition(
                code,
                Severity.MAJOR,
                State.DEGRADED,
                f"NVLink errors rose{rise} within {duration(thresholds.rising_window_seconds)}.",
                at,
                "Check the NVLink bridge or board; run the link diagnostic.",
                {"rise": _or_none(facts.nvlink_rise)},
            )
        case Sign.PCIE_REPLAY:
            rise = f" by {facts.pcie_rise:.0f}" if _known(facts.pcie_rise) else ""
            return Condition(
                code,
                Severity.MINOR,
                State.DEGRADED,
                f"PCIe replays rose{rise} within {duration(thresholds.rising_window_seconds)}.",
                at,
                "Check the seating of the GPU and its riser.",
                {"rise": _or_none(facts.pcie_rise)},
            )
    raise ValueError(f"{sign!r} is not one sign")


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


# --- conditions ------------------------------------------------------------------------------------------------------------------------------------


def gpu_conditions(facts: GpuFacts, thresholds: Thresholds) -> tuple[list[Condition], set[str]]:
    """Conditions of this moment, and the codes that this moment cannot judge (they stay as they were)."""
    found: list[Condition] = []
    undecided: set[str] = set()
    signs = facts.signs
    if signs & (Sign.HW_THERMAL | Sign.POWER_BRAKE):
        signs &= ~Sign.HW_SLOWDOWN  # 0x8 comes along with the reason that names the cause
    for sign, code in _SIGN_CODES.items():
        if sign & facts.judged == 0:
            undecided.add(code)
        elif sign & signs:
            found.append(_sign_condition(sign, facts, thresholds))
    found += facts.xids
    found += _presence_conditions(facts, thresholds, undecided)
    return found, undecided


def _presence_conditions(facts: GpuFacts, thresholds: Thresholds, undecided: set[str]) -> list[Condition]:
    """gpu_lost, reset_required, series_missing: is the GPU there at all?"""
    fresh = facts.now - facts.sampled_at <= thresholds.unknown_seconds  # NaN: False
    exporter_speaks = facts.contact is Contact.REPORTING and facts.now - facts.exporter_at <= thresholds.unknown_seconds
    stopped = _known(facts.sampled_at) and not fresh and exporter_speaks and facts.exporter_at > facts.sampled_at + thresholds.together_seconds
    if facts.agent is AgentWord.LOST:
        detail = f": {facts.agent_detail}" if facts.agent_detail else ""
        return [_lost(f"The node's agent reports this GPU lost{detail}.", facts.agent_at, facts)]
    if facts.agent is AgentWord.RESET_REQUIRED:
        undecided.add("gpu_lost")
        return [
            Condition(
                "reset_required",
                Severity.MAJOR,
                State.DOWN,
                "The driver says that this GPU must be reset before it can be used.",
                facts.agent_at,
                "Drain and reset the GPU.",
                {"agent": facts.agent_detail},
            )
        ]
    if stopped and (facts.agent is AgentWord.OK or (facts.gpus_fresh == 0 and facts.gpus_of_node > 1)):
        sees = "though the node's agent still sees the GPU" if facts.agent is AgentWord.OK else "for every GPU of the node while its exporter answers"
        undecided.add("gpu_lost")
        since = clock_time(facts.sampled_at)
        return [
            Condition(
                "series_missing", Severity.MINOR, State.UNKNOWN, f"Its series stopped at {since} {sees}.", facts.sampled_at, "Restart the node's GPU exporter."
            )
        ]
    if stopped:
        others = f" while {facts.gpus_fresh} of {facts.gpus_of_node} GPUs of the node report" if facts.gpus_fresh else " while the node's exporter answers"
        return [_lost(f"Its series stopped at {clock_time(facts.sampled_at)}{others}.", facts.sampled_at, facts)]
    if not fresh:
        undecided |= {"gpu_lost", "series_missing"}
    if facts.agent is not AgentWord.OK:
        undecided.add("reset_required")
        if not fresh:
            undecided.add("gpu_lost")
    return []


def _lost(why: str, since: float, facts: GpuFacts) -> Condition:
    return Condition(
        "gpu_lost",
        Severity.CRITICAL,
        State.DOWN,
        why,
        since,
        "Restart the node (bare metal); if the GPU stays away, contact support.",
        {"last_sample_at": _or_none(facts.sampled_at), "gpus_fresh": facts.gpus_fresh, "gpus_of_node": facts.gpus_of_node},
    )


def node_conditions(facts: NodeFacts, thresholds: Thresholds) -> tuple[list[Condition], set[str]]:
    """Conditions of a node itself (its GPUs have their own), and what cannot be judged."""
    found: list[Condition] = []
    undecided: set[str] = set()
    speaks = facts.contact is Contact.REPORTING
    if facts.contact is Contact.UNDECIDED:
        undecided |= {"exporter_down", "node_down"}
    elif facts.contact in (Contact.LINK_DOWN, Contact.REGION_SILENT, Contact.NEVER):
        undecided |= {"exporter_down", "node_down"}
    if facts.contact is Contact.EXPORTER_DOWN:
        agent = f"its agent spoke at {clock_time(facts.heartbeat_at)}" if facts.has_agent else "no agent is enrolled that could say whether the node lives"
        answer = "Prometheus cannot scrape it" if facts.exporter_up == 0 else "its series stopped"
        found.append(
            Condition(
                "exporter_down",
                Severity.MAJOR,
                State.DEGRADED if facts.has_agent else State.UNKNOWN,
                f"GPU exporter silent since {clock_time(facts.exporter_at)} ({answer}); {agent}.",
                facts.exporter_at,
                "Restart the GPU exporter on the node.",
                {"up": _or_none(facts.exporter_up), "exporter_at": _or_none(facts.exporter_at), "heartbeat_at": _or_none(facts.heartbeat_at)},
                recover_seconds=0,
            )
        )
    if facts.contact is Contact.NODE_DOWN:
        found.append(
            Condition(
                "node_down",
                Severity.CRITICAL,
                State.DOWN,
                f"Exporter and agent silent since {clock_time(facts.contact_at)} while other nodes of the site report.",
                facts.contact_at,
                "Check the node's power and management controller.",
                {"exporter_at": _or_none(facts.exporter_at), "heartbeat_at": _or_none(facts.heartbeat_at)},
                recover_seconds=0,
            )
        )
    if facts.agent_silent and speaks:
        found.append(
            Condition(
                "agent_silent",
                Severity.MINOR,
                State.DEGRADED,
                f"The node's agent is silent since {clock_time(facts.heartbeat_at)}; telemetry still comes. The node cannot be controlled.",
                facts.heartbeat_at if _known(facts.heartbeat_at) else facts.now,
                "Check the agent's service on the node.",
                {"heartbeat_at": _or_none(facts.heartbeat_at)},
                recover_seconds=0,
            )
        )
    elif facts.has_agent and facts.now - facts.heartbeat_at > thresholds.agent_seconds:
        undecided.add("agent_silent")
    if facts.mismatch:
        found.append(
            Condition(
                "driver_mismatch",
                Severity.CRITICAL,
                State.DEGRADED,
                f"The driver cannot be asked: {facts.mismatch}. Its {facts.gpus_expected} GPUs are unknown.",
                facts.mismatch_at,
                "Reload the driver or reboot the node.",
                {"versions": facts.mismatch},
                recover_seconds=0,
            )
        )
    counts = {"present": facts.gpus_fresh, "expected": facts.gpus_expected}
    if not speaks or facts.gpus_fresh == 0:
        undecided.add("gpu_count")
    elif facts.gpus_fresh < facts.gpus_expected:
        why = f"{facts.gpus_fresh} of {facts.gpus_expected} expected GPUs report."
        found.append(Condition("gpu_count", Severity.MAJOR, State.DEGRADED, why, facts.exporter_at, "Look for a lost GPU.", counts))
    elif facts.gpus_fresh > facts.gpus_expected:
        why = f"{facts.gpus_fresh} GPUs report, {facts.gpus_expected} are expected."
        found.append(Condition("gpu_count", Severity.WARNING, State.OK, why, facts.exporter_at, "Correct the expected count in the inventory.", counts))
    if facts.profiling_suspects:
        listed = ", ".join(facts.profiling_suspects[:3]) + (" …" if len(facts.profiling_suspects) > 3 else "")
        found.append(
            Condition(
                "profiling_suspect",
                Severity.WARNING,
                State.OK,
                f"GR_ENGINE_ACTIVE reads 0 on {len(facts.profiling_suspects)} busy GPUs ({listed}): profiling values are not used.",
                facts.exporter_at,
                "Restart the GPU exporter or its host engine.",
                {"metric": "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gpus": list(facts.profiling_suspects)},
                samples=thresholds.confirm_samples,
            )
        )
    elif not speaks:
        undecided.add("profiling_suspect")
    return found, undecided


def site_conditions(facts: SiteFacts) -> tuple[list[Condition], set[str]]:
    """`out_of_contact`, the only condition of a site itself."""
    if facts.contact is Contact.UNDECIDED:
        return [], {"out_of_contact"}
    if facts.contact not in (Contact.LINK_DOWN, Contact.REGION_SILENT):
        return [], set()
    found = Condition(
        "out_of_contact",
        Severity.MAJOR,
        State.UNKNOWN,
        _silence(facts),
        facts.contact_at,
        "" if facts.contact is Contact.REGION_SILENT else "Check the site's link and power.",
        {"cause": facts.contact.value, "last_contact_at": _or_none(facts.contact_at)},
        recover_seconds=0,
    )
    return [found], set()


def _silence(facts: SiteFacts) -> str:
    since = clock_time(facts.contact_at)
    if facts.contact is Contact.REGION_SILENT:
        return f"{facts.region_silent_sites} of {facts.region_sites} sites of the region fell silent together: our link to the region, or its Prometheus. Last contact {since}."
    reach = "link or node" if facts.nodes <= 1 else "link"
    return f"Site out of contact since {since} ({reach}): neither exporters nor agents are heard."


# --- hysteresis ------------------------------------------------------------------------------------------------------------------------------------


def settle(
    held: Mapping[str, Held], found: Iterable[Condition], undecided: Collection[str], *, sampled_at: float, now: float, thresholds: Thresholds
) -> tuple[dict[str, Held], float]:
    """The held conditions after this moment, and when to look again at the latest (inf: only when facts change).

    A condition counts once `samples` different samples showed it; one that is gone stays for its recovery time. What is undecided stays untouched.
    """
    after: dict[str, Held] = {}
    wake_at = math.inf
    for condition in found:
        old = held.get(condition.code)
        if old is None:
            samples = 1
            since = condition.since
        else:
            samples = old.samples + (1 if sampled_at > old.seen_at else 0)
            since = min(old.condition.since, condition.since) if _known(old.condition.since) else condition.since
        active = (old is not None and old.active) or samples >= condition.samples
        after[condition.code] = Held(_with_since(condition, since), sampled_at if _known(sampled_at) else now, samples, active)
        if not active:
            wake_at = now
    for code, old in held.items():
        if code in after:
            continue
        if code in undecided:
            after[code] = old
            continue
        if not old.active:
            continue
        gone_at = old.gone_at if _known(old.gone_at) else (sampled_at if _known(sampled_at) else now)
        recover = thresholds.recover_seconds if old.condition.recover_seconds is None else old.condition.recover_seconds
        if now - gone_at >= recover:
            continue
        after[code] = Held(old.condition, old.seen_at, old.samples, True, gone_at)
        wake_at = min(wake_at, gone_at + recover)
    return after, wake_at


def _with_since(condition: Condition, since: float) -> Condition:
    if condition.since == since:
        return condition
    return Condition(
        condition.code,
        condition.severity,
        condition.state,
        condition.why,
        since,
        condition.advised,
        condition.evidence,
        condition.samples,
        condition.recover_seconds,
        condition.count,
        condition.last_at,
    )


def active_conditions(held: Mapping[str, Held]) -> list[Condition]:
    """The held conditions that count, worst first."""
    conditions = [entry.condition for entry in held.values() if entry.active]
    return sorted(conditions, key=lambda condition: (-_STATE_RANK[condition.state], -SEVERITY_RANK[condition.severity], condition.since, condition.code))


# A known fault outranks the lack of data (silence repairs nothing); the lack of data outranks a mere degradation.
_STATE_RANK = {State.DOWN: 3, State.UNKNOWN: 2, State.DEGRADED: 1, State.OK: 0, State.MAINTENANCE: 0}


# --- verdicts --------------------------------------------------------------------------------------------------------------------------------------


def gpu_verdict(facts: GpuFacts, conditions: Sequence[Condition], before: Verdict | None, thresholds: Thresholds) -> Verdict:
    """The state of a GPU, given its active conditions worst first."""
    if facts.maintenance:
        return _maintenance(facts.maintenance)
    worst = conditions[0] if conditions else None
    if worst is not None and worst.state is State.DOWN:
        return _of(worst)
    fresh = facts.now - facts.sampled_at <= thresholds.unknown_seconds
    if not fresh:
        if facts.contact is Contact.UNDECIDED or (facts.contact is Contact.REPORTING and not (worst and worst.state is State.UNKNOWN)):
            if before is not None and _known(facts.sampled_at):
                return before
        if not _known(facts.sampled_at):
            return _never(before, facts.now)
        if worst is not None and worst.state is State.UNKNOWN:
            return _of(worst)
        return Verdict(State.UNKNOWN, _silent_cause(facts.contact), _cut(_gpu_silence(facts)), facts.sampled_at)
    if facts.agent is AgentWord.UNKNOWN:
        detail = facts.agent_detail or "it cannot ask the driver"
        return Verdict(State.UNKNOWN, "driver_mismatch", _cut(f"The node's agent cannot say how this GPU is: {detail}."), facts.agent_at)
    if worst is not None and worst.state is not State.OK:
        return _of(worst)
    return Verdict(State.OK, "ok", "Reports, and nothing is found.", facts.sampled_at)


def _gpu_silence(facts: GpuFacts) -> str:
    since = clock_time(facts.sampled_at)
    match facts.contact:
        case Contact.LINK_DOWN:
            return f"No data since {since}: the site is out of contact."
        case Contact.REGION_SILENT:
            return f"No data since {since}: most of the region is silent."
        case Contact.NODE_DOWN:
            return f"No data since {since}: its node is down."
        case Contact.EXPORTER_DOWN:
            return f"No data since {since}: its node's GPU exporter is silent."
    return f"No data since {since}."


def _silent_cause(contact: Contact) -> str:
    return "series_missing" if contact in (Contact.REPORTING, Contact.UNDECIDED, Contact.NEVER) else contact.value


def _never(before: Verdict | None, now: float) -> Verdict:
    return Verdict(State.UNKNOWN, "never_reported", "Has never reported.", before.since if before is not None and before.cause == "never_reported" else now)


def _maintenance(window: Maintenance) -> Verdict:
    return Verdict(State.MAINTENANCE, "maintenance", _cut(f"Planned maintenance until {clock_time(window.until)}: {window.reason}"), window.since)


def _of(condition: Condition) -> Verdict:
    return Verdict(condition.state, condition.code, _cut(condition.why), condition.since)


def node_verdict(facts: NodeFacts, conditions: Sequence[Condition], gpus: Sequence[Child], before: Verdict | None) -> Verdict:
    """The state of a node from its own active conditions and its GPUs' verdicts."""
    if facts.maintenance:
        return _maintenance(facts.maintenance)
    if facts.contact is Contact.NEVER:
        return _never(before, facts.now)
    if facts.contact is Contact.UNDECIDED and before is not None:
        return before
    if facts.contact in (Contact.LINK_DOWN, Contact.REGION_SILENT):
        place = "the site is out of contact" if facts.contact is Contact.LINK_DOWN else "most of the region is silent"
        if facts.contact is Contact.LINK_DOWN and facts.only_node:
            place = "site out of contact (link or node)"
        return Verdict(State.UNKNOWN, facts.contact.value, f"Silent since {clock_time(facts.contact_at)}: {place}.", facts.contact_at)
    own = conditions[0] if conditions and conditions[0].state is not State.OK else None
    if own is not None and own.state in (State.DOWN, State.UNKNOWN):
        return _of(own)
    rolled = _roll_up(gpus, "GPU", facts.contact_at)
    if rolled is not None and (own is None or rolled.state is State.DOWN):
        return rolled
    if own is not None:
        # A missing GPU names itself better than the count does.
        return rolled if rolled is not None and own.code == "gpu_count" else _of(own)
    return Verdict(State.OK, "ok", f"{facts.gpus_fresh} of {facts.gpus_expected} GPUs report, and nothing is found.", facts.contact_at)


def site_verdict(facts: SiteFacts, conditions: Sequence[Condition], nodes: Sequence[Child], gpus: Sequence[Child], before: Verdict | None) -> Verdict:
    """The state of a site from its contact, its nodes and its GPUs. Parts in maintenance are left out unless all are."""
    if facts.maintenance:
        return _maintenance(facts.maintenance)
    if facts.contact is Contact.NEVER:
        return _never(before, facts.now)
    if facts.contact is Contact.UNDECIDED and before is not None:
        return before
    own = conditions[0] if conditions else None
    if own is not None:
        return Verdict(
            State.UNKNOWN, facts.contact.value if facts.contact in (Contact.LINK_DOWN, Contact.REGION_SILENT) else own.code, _cut(own.why), own.since
        )
    if nodes and all(child.verdict.state is State.MAINTENANCE for child in nodes):
        first = nodes[0].verdict
        return Verdict(State.MAINTENANCE, "maintenance", _cut(f"All nodes are in planned maintenance. {first.why}"), min(c.verdict.since for c in nodes))
    rolled = _roll_up(gpus, "GPU", facts.contact_at)
    if rolled is not None and rolled.state is State.DOWN:
        return rolled
    by_node = _roll_up(nodes, "node", facts.contact_at)
    if by_node is not None and (by_node.state is State.DOWN or by_node.cause in _NODE_CAUSES or rolled is None):
        return by_node
    if rolled is not None:
        return rolled
    return Verdict(State.OK, "ok", f"{facts.gpus_reporting} of {facts.gpus_expected} GPUs report, and nothing is found.", facts.contact_at)


_NODE_CAUSES = frozenset({"node_down", "exporter_down", "driver_mismatch", "region_silent"})


def _roll_up(children: Sequence[Child], noun: str, at: float) -> Verdict | None:
    """What the parts make of the whole: all down is down, all unknown is unknown, any not ok is degraded; None when all are ok or in maintenance."""
    judged = [child for child in children if child.verdict.state is not State.MAINTENANCE]
    bad = [child for child in judged if child.verdict.state is not State.OK]
    if not bad:
        return None
    worst = min(bad, key=lambda child: (-_STATE_RANK[child.verdict.state], child.verdict.since))
    same = [child for child in bad if child.verdict.state is worst.verdict.state]
    everything = len(same) == len(judged)
    state = worst.verdict.state if everything and worst.verdict.state in (State.DOWN, State.UNKNOWN) else State.DEGRADED
    if everything and worst.verdict.cause in ("exporter_down", "series_missing"):
        state = State.DEGRADED
    count = f"{len(same)} of {len(judged)} {noun}s {worst.verdict.state.value}: " if len(judged) > 1 else ""
    since = max(child.verdict.since for child in same) if state is not State.DEGRADED else min(child.verdict.since for child in bad)
    return Verdict(state, worst.verdict.cause, _cut(f"{count}{worst.name}: {worst.verdict.why}"), since)


def follow(before: Verdict | None, after: Verdict) -> Verdict:
    """`after` as the successor of `before`: an unchanged state keeps its since, and a new one never begins before the old one did."""
    if before is None:
        return after
    if before.state is after.state:
        return Verdict(after.state, after.cause, after.why, before.since)
    return Verdict(after.state, after.cause, after.why, max(before.since, after.since) if _known(after.since) else before.since)
