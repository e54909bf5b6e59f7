"""Readings → signs (numpy, all GPUs at once), and signs → conditions in words (one GPU). Pure: no Django.

A *sign* is one bit of what a GPU's newest readings say; a *condition* is a sign or another fact put in words, with its weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntFlag
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet.health.facts import Condition, GpuFacts, Severity, State, Thresholds, duration, is_known, or_none

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
def codes_beside(judged: int) -> frozenset[str]:
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


def sign_conditions(facts: GpuFacts, thresholds: Thresholds) -> list[Condition]:
    """The signs of a GPU, in words."""
    found: list[Condition] = []
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
    return found
