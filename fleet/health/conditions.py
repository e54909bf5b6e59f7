"""What is wrong, in words: readings → signs (numpy, all GPUs at once) and facts → conditions (one object). Pure: no Django.

A *sign* is one bit of what a GPU's newest readings say; a *condition* (`fleet.health.verdict`) is a sign or another fact put in words, with its weight.
Each function that yields conditions also yields the codes that the moment cannot judge: those stay as they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntFlag
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet.health.facts import (
    AgentWord,
    Condition,
    Contact,
    GpuFacts,
    NodeFacts,
    Severity,
    SiteFacts,
    State,
    Thresholds,
    clock_time,
    duration,
    is_known,
    or_none,
)

Floats = NDArray[np.float64]
Bits = NDArray[np.int32]


class Sign(IntFlag):
    """What the newest readings of a GPU say, one bit each."""

    HW_SLOWDOWN = 1
    HW_THERMAL = 2
    POWER_BRAKE = 4
    SW_THERMAL = 8
    MARGIN_LOW = 16
    REMAP_PENDING = 32
    REMAP_FAILURE = 64
    ECC_DBE = 128
    NVLINK_ERRORS = 256
    PCIE_REPLAY = 512


NO_SIGN = Sign(0)
# Signs of counters that rose: they stand for a window after the last rise, so they need no further hold.
COUNTED = Sign.ECC_DBE | Sign.NVLINK_ERRORS | Sign.PCIE_REPLAY

# NVML clock event reasons. 0x1 idle, 0x2 application clocks and 0x4 software power cap are expected (we cap) and left alone.
REASONS: tuple[tuple[int, Sign], ...] = ((0x8, Sign.HW_SLOWDOWN), (0x20, Sign.SW_THERMAL), (0x40, Sign.HW_THERMAL), (0x80, Sign.POWER_BRAKE))


def signs_of(*, clock_reasons: Floats, margin: Floats, remap_pending: Floats, remap_failure: Floats, before: Bits, thresholds: Thresholds) -> tuple[Bits, Bits]:
    """Signs that one sample shows: (signs, judged), [g] each, for arguments of [g].

    `margin` is °C left to the slowdown limit; NaN anywhere: that sign is not judged. `before` are the signs of the tick before, since the
    margin has one threshold to come and another to go. The counted signs need memory and come from `fleet.health.evaluation`.
    """
    known = ~np.isnan(clock_reasons)
    reasons = np.where(known, clock_reasons, 0).astype(np.int64)
    signs = np.zeros(len(clock_reasons), dtype=np.int32)
    judged = np.zeros(len(clock_reasons), dtype=np.int32)
    for mask, sign in REASONS:
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


@dataclass(frozen=True)
class _Rule:
    code: str
    severity: Severity
    state: State
    advised: str
    wobbles: bool = False  # must stand in several samples


_RULES: Mapping[Sign, _Rule] = {
    Sign.HW_THERMAL: _Rule("hw_thermal_slowdown", Severity.MAJOR, State.DEGRADED, "Check air flow, fans and inlet temperature.", wobbles=True),
    Sign.POWER_BRAKE: _Rule("hw_power_brake", Severity.MAJOR, State.DEGRADED, "Check power supplies and the power feed.", wobbles=True),
    Sign.HW_SLOWDOWN: _Rule("hw_slowdown", Severity.MAJOR, State.DEGRADED, "Check cooling and power.", wobbles=True),
    Sign.SW_THERMAL: _Rule("sw_thermal_slowdown", Severity.WARNING, State.OK, "Watch the temperature.", wobbles=True),
    Sign.MARGIN_LOW: _Rule("thermal_margin_low", Severity.MINOR, State.DEGRADED, "Check cooling.", wobbles=True),
    Sign.REMAP_PENDING: _Rule("row_remap_pending", Severity.MINOR, State.DEGRADED, "Reset the GPU at a quiet time."),
    Sign.REMAP_FAILURE: _Rule("row_remap_failure", Severity.CRITICAL, State.DEGRADED, "Drain, run the field diagnostic; replace the GPU if it agrees."),
    Sign.ECC_DBE: _Rule("ecc_double_bit", Severity.MAJOR, State.DEGRADED, "Drain and reset the GPU; then run the field diagnostic."),
    Sign.NVLINK_ERRORS: _Rule("nvlink_errors", Severity.MAJOR, State.DEGRADED, "Check the NVLink bridge or board; run the link diagnostic."),
    Sign.PCIE_REPLAY: _Rule("pcie_replay", Severity.MINOR, State.DEGRADED, "Check the seating of the GPU and its riser."),
}
SIGN_OF_CODE: Mapping[str, Sign] = {rule.code: sign for sign, rule in _RULES.items()}


@cache
def _codes_beside(judged: int) -> frozenset[str]:
    """Codes of the signs that are not among the judged ones."""
    return frozenset(rule.code for sign, rule in _RULES.items() if not sign & judged)


def _celsius(facts: GpuFacts) -> str:
    if not is_known(facts.temperature_celsius):
        return "temperature not reported"
    limit = f" of {facts.slowdown_celsius:.0f} °C limit" if is_known(facts.slowdown_celsius) else ""
    return f"{facts.temperature_celsius:.0f} °C{limit}"


def _rose(what: str, rise: float, thresholds: Thresholds) -> str:
    by = f" by {rise:.0f}" if is_known(rise) else ""
    return f"{what} rose{by} within {duration(thresholds.rising_window_seconds)}."


def _why(sign: Sign, facts: GpuFacts, thresholds: Thresholds) -> str:
    """The sentence of one sign, with its numbers."""
    clock = f"SM clock cut to {facts.sm_clock_hertz / 1e6:.0f} MHz" if is_known(facts.sm_clock_hertz) else "SM clock cut"
    match sign:
        case Sign.HW_THERMAL:
            return f"{clock} by hardware thermal slowdown, {_celsius(facts)}."
        case Sign.POWER_BRAKE:
            return f"{clock} by hardware power brake" + (f", drawing {facts.power_watts:.0f} W." if is_known(facts.power_watts) else ".")
        case Sign.HW_SLOWDOWN:
            return f"{clock} by hardware slowdown, {_celsius(facts)}."
        case Sign.SW_THERMAL:
            return f"{clock} by software thermal slowdown, {_celsius(facts)}."
        case Sign.MARGIN_LOW:
            margin = f"{facts.margin_celsius:.0f} °C" if is_known(facts.margin_celsius) else "Little"
            return f"{margin} left to the slowdown limit, {_celsius(facts)}."
        case Sign.REMAP_PENDING:
            return "A memory row remap is pending; running work is not blocked."
        case Sign.REMAP_FAILURE:
            return "A memory row could not be remapped: the failure flag is set."
        case Sign.ECC_DBE:
            return "Uncorrectable memory errors rose" + (f" ({facts.ecc_dbe_total:.0f} in total)." if is_known(facts.ecc_dbe_total) else ".")
        case Sign.NVLINK_ERRORS:
            return _rose("NVLink errors", facts.nvlink_rise, thresholds)
        case Sign.PCIE_REPLAY:
            return _rose("PCIe replays", facts.pcie_rise, thresholds)
    raise ValueError(f"{sign!r} is not one sign")


def _evidence(sign: Sign, facts: GpuFacts) -> dict[str, Any]:
    if sign & (Sign.REMAP_PENDING | Sign.REMAP_FAILURE):
        return {}
    if sign is Sign.ECC_DBE:
        return {"ecc_dbe_total": or_none(facts.ecc_dbe_total)}
    if sign is Sign.NVLINK_ERRORS:
        return {"rise": or_none(facts.nvlink_rise)}
    if sign is Sign.PCIE_REPLAY:
        return {"rise": or_none(facts.pcie_rise)}
    names = ("temperature_celsius", "slowdown_celsius", "margin_celsius", "sm_clock_hertz", "power_watts")
    return {name: or_none(getattr(facts, name)) for name in names}


def gpu_conditions(facts: GpuFacts, thresholds: Thresholds) -> tuple[list[Condition], set[str]]:
    """Conditions of a GPU at this moment, and the codes that it cannot judge."""
    found: list[Condition] = []
    undecided = set(_codes_beside(facts.judged))
    signs = facts.signs & facts.judged
    if signs:
        if signs & int(Sign.HW_THERMAL | Sign.POWER_BRAKE):
            signs &= ~int(Sign.HW_SLOWDOWN)  # 0x8 comes along with the reason that names the cause
        for sign, rule in _RULES.items():
            if not sign & signs:
                continue
            found.append(
                Condition(
                    code=rule.code,
                    severity=rule.severity,
                    state=rule.state,
                    why=_why(sign, facts, thresholds),
                    since=facts.sign_times.get(int(sign), facts.sampled_at),
                    advised=rule.advised,
                    evidence=_evidence(sign, facts),
                    samples=thresholds.confirm_samples if rule.wobbles else 1,
                    recover_seconds=0 if sign & COUNTED else None,
                )
            )
    found += facts.xids
    found += _presence(facts, thresholds, undecided)
    return found, undecided


_LOST = Condition(
    code="gpu_lost",
    severity=Severity.CRITICAL,
    state=State.DOWN,
    why="",
    since=float("nan"),
    advised="Restart the node (bare metal); if the GPU stays away, contact support.",
)
_RESET_REQUIRED = Condition(
    code="reset_required",
    severity=Severity.MAJOR,
    state=State.DOWN,
    why="The driver says that this GPU must be reset before it can be used.",
    since=float("nan"),
    advised="Drain and reset the GPU.",
)
_SERIES_MISSING = Condition(
    code="series_missing",
    severity=Severity.MINOR,
    state=State.UNKNOWN,
    why="",
    since=float("nan"),
    advised="Restart the node's GPU exporter.",
    recover_seconds=0,
)


def _presence(facts: GpuFacts, thresholds: Thresholds, undecided: set[str]) -> list[Condition]:
    """gpu_lost, reset_required, series_missing: is the GPU there at all? Adds to `undecided` what cannot be said."""
    fresh = facts.now - facts.sampled_at <= thresholds.unknown_seconds  # NaN: False
    exporter_speaks = facts.contact is Contact.REPORTING and facts.now - facts.exporter_at <= thresholds.unknown_seconds
    stopped = not fresh and exporter_speaks and facts.exporter_at > facts.sampled_at + thresholds.together_seconds  # never sampled: False
    evidence = {"last_sample_at": or_none(facts.sampled_at), "gpus_fresh": facts.gpus_fresh, "gpus_of_node": facts.gpus_of_node}
    if facts.agent is not AgentWord.OK and facts.agent is not AgentWord.RESET_REQUIRED:
        undecided.add("reset_required")
    if not fresh:
        undecided |= {"gpu_lost", "series_missing"} if not stopped else {"gpu_lost"}
    if facts.agent is AgentWord.LOST:
        detail = f": {facts.agent_detail}" if facts.agent_detail else ""
        return [replace(_LOST, why=f"The node's agent reports this GPU lost{detail}.", since=facts.agent_at, evidence=evidence)]
    if facts.agent is AgentWord.RESET_REQUIRED:
        return [replace(_RESET_REQUIRED, since=facts.agent_at, evidence={"detail": facts.agent_detail})]
    if not stopped:
        return []
    when = clock_time(facts.sampled_at)
    if facts.agent is AgentWord.OK:
        return [replace(_SERIES_MISSING, why=f"Its series stopped at {when} though the node's agent still sees the GPU.", since=facts.sampled_at)]
    if facts.gpus_fresh == 0 and facts.gpus_of_node > 1:
        return [replace(_SERIES_MISSING, why=f"The series of all GPUs of the node stopped at {when} while its exporter answers.", since=facts.sampled_at)]
    others = f"{facts.gpus_fresh} of {facts.gpus_of_node} GPUs of the node report" if facts.gpus_fresh else "the node's exporter answers"
    return [replace(_LOST, why=f"Its series stopped at {when} while {others}.", since=facts.sampled_at, evidence=evidence)]


def _since(at: float) -> str:
    return f"silent since {clock_time(at)}" if is_known(at) else "not heard yet"


def node_conditions(facts: NodeFacts, thresholds: Thresholds) -> tuple[list[Condition], set[str]]:
    """Conditions of a node itself (its GPUs have their own), and the codes that the moment cannot judge."""
    found: list[Condition] = []
    undecided: set[str] = set()
    speaks = facts.contact is Contact.REPORTING
    ages = {"exporter_at": or_none(facts.exporter_at), "heartbeat_at": or_none(facts.heartbeat_at), "up": or_none(facts.exporter_up)}
    if facts.contact is Contact.EXPORTER_DOWN:
        stopped = "its series stopped" if is_known(facts.exporter_at) else "nothing came from it yet"
        answer = "Prometheus cannot scrape it" if facts.exporter_up == 0 else stopped
        agent = f"its agent spoke at {clock_time(facts.heartbeat_at)}" if facts.has_agent else "no agent is enrolled that could say whether the node lives"
        found.append(
            Condition(
                code="exporter_down",
                severity=Severity.MAJOR,
                state=State.DEGRADED if facts.has_agent else State.UNKNOWN,
                why=f"GPU exporter {_since(facts.exporter_at)} ({answer}); {agent}.",
                since=facts.exporter_at if is_known(facts.exporter_at) else facts.now,
                advised="Restart the GPU exporter on the node.",
                evidence=ages,
                recover_seconds=0,
            )
        )
    elif facts.contact is Contact.NODE_DOWN:
        found.append(
            Condition(
                code="node_down",
                severity=Severity.CRITICAL,
                state=State.DOWN,
                why=f"Exporter and agent silent since {clock_time(facts.contact_at)} while other nodes of the site report.",
                since=facts.contact_at,
                advised="Check the node's power and management controller.",
                evidence=ages,
                recover_seconds=0,
            )
        )
    elif not speaks:
        undecided |= {"exporter_down", "node_down"}
    if is_known(facts.frozen_since) and speaks:
        found.append(
            Condition(
                code="exporter_frozen",
                severity=Severity.MAJOR,
                state=State.DEGRADED,
                why=f"GPU exporter answers, yet its readings have not changed since {clock_time(facts.frozen_since)}: it repeats old ones.",
                since=facts.frozen_since,
                advised="Restart dcgm-exporter on the node.",
                evidence={"readings_stand_since": facts.frozen_since, "gpus": facts.gpus_fresh},
                recover_seconds=0,
            )
        )
    elif not speaks:
        undecided.add("exporter_frozen")
    if facts.agent_silent and speaks:
        found.append(
            Condition(
                code="agent_silent",
                severity=Severity.MINOR,
                state=State.DEGRADED,
                why=f"The node's agent {_since(facts.heartbeat_at)}; telemetry still comes. The node cannot be controlled.",
                since=facts.heartbeat_at if is_known(facts.heartbeat_at) else facts.now,
                advised="Check the agent's service on the node.",
                evidence=ages,
                recover_seconds=0,
            )
        )
    elif facts.has_agent and not facts.now - facts.heartbeat_at <= thresholds.agent_seconds:
        undecided.add("agent_silent")
    if facts.driver_fault:
        found.append(
            Condition(
                code="driver_mismatch" if facts.is_mismatch else "driver_error",
                severity=Severity.CRITICAL,
                state=State.DEGRADED,
                why=f"The driver cannot be asked: {facts.driver_fault}. The node's {facts.gpus_expected} GPUs are unknown.",
                since=facts.driver_fault_at,
                advised="Reload the driver or reboot the node." if facts.is_mismatch else "Look at the driver's log on the node.",
                evidence={"detail": facts.driver_fault},
                recover_seconds=0,
            )
        )
    found += _gpu_count(facts, undecided, speaks)
    if facts.profiling_suspects:
        listed = ", ".join(facts.profiling_suspects[:2]) + (" …" if len(facts.profiling_suspects) > 2 else "")
        found.append(
            Condition(
                code="profiling_suspect",
                severity=Severity.WARNING,
                state=State.OK,
                why=f"GR_ENGINE_ACTIVE reads 0 on {len(facts.profiling_suspects)} busy GPUs ({listed}): profiling values are not used.",
                since=facts.exporter_at,
                advised="Restart the GPU exporter or its host engine.",
                evidence={"metric": "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gpus": list(facts.profiling_suspects)},
                samples=thresholds.confirm_samples,
            )
        )
    elif not speaks:
        undecided.add("profiling_suspect")
    return found, undecided


def _gpu_count(facts: NodeFacts, undecided: set[str], speaks: bool) -> list[Condition]:
    if not speaks or facts.gpus_fresh == 0 or facts.gpus_expected == 0:
        undecided.add("gpu_count")
        return []
    if facts.gpus_fresh == facts.gpus_expected:
        return []
    few = facts.gpus_fresh < facts.gpus_expected
    return [
        Condition(
            code="gpu_count",
            severity=Severity.MAJOR if few else Severity.WARNING,
            state=State.DEGRADED if few else State.OK,
            why=f"{facts.gpus_fresh} of {facts.gpus_expected} expected GPUs report."
            if few
            else f"{facts.gpus_fresh} GPUs report, {facts.gpus_expected} are expected.",
            since=facts.exporter_at,
            advised="Look for a lost GPU." if few else "Correct the expected count in the inventory.",
            evidence={"present": facts.gpus_fresh, "expected": facts.gpus_expected},
        )
    ]


def site_conditions(facts: SiteFacts) -> tuple[list[Condition], set[str]]:
    """`out_of_contact`, the only condition of a site itself."""
    if facts.contact is Contact.UNDECIDED:
        return [], {"out_of_contact"}
    if facts.contact not in (Contact.LINK_DOWN, Contact.REGION_SILENT):
        return [], set()
    since = clock_time(facts.contact_at)
    if facts.contact is Contact.REGION_SILENT:
        many = f"{facts.region_silent_sites} of {facts.region_sites} sites of the region"
        why, advised = f"{many} fell silent together: our link to the region, or its Prometheus. Last contact {since}.", ""
    else:
        reach = "link or node" if facts.nodes <= 1 else "link"
        why, advised = f"Site out of contact since {since} ({reach}): neither exporters nor agents are heard.", "Check the site's link and power."
    return [
        Condition(
            code="out_of_contact",
            severity=Severity.MAJOR,
            state=State.UNKNOWN,
            why=why,
            since=facts.contact_at,
            advised=advised,
            evidence={"cause": facts.contact.value, "last_contact_at": or_none(facts.contact_at)},
            recover_seconds=0,
        )
    ], set()
