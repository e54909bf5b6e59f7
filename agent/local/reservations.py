"""VRAM reservations: who uses more than it reserved, and when that has lasted long enough. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    WITHIN = "within"
    OVER = "over"
    UNKNOWN = "unknown"  # nobody can say how much is used: neither fine nor a reason to evict
    NONE = "none"  # nothing is reserved


class Step(StrEnum):
    NOTHING = "nothing"
    WARN = "warn"
    WAIT = "wait"
    EVICT = "evict"


@dataclass(frozen=True)
class Standstill:
    """Since when (Unix seconds) a pod has been over on a device, None when it is not; and what to do now."""

    since: float | None
    step: Step


def _checked(name: str, value: float | None) -> float | None:
    if value is not None and not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name}: {value} is not an amount of bytes")
    return value


def memory_verdict(used_bytes: float | None, reserved_bytes: int | None, *, over_ratio: float) -> Verdict:
    """More than `over_ratio` times the reservation is over; exactly as much is not. Raises ValueError for NaN and below zero."""
    used, reserved = _checked("used_bytes", used_bytes), _checked("reserved_bytes", reserved_bytes)
    if reserved is None:
        return Verdict.NONE
    if used is None:
        return Verdict.UNKNOWN
    return Verdict.OVER if used > reserved * over_ratio else Verdict.WITHIN


def eats_margin(used_bytes: float | None, total_bytes: float | None, *, margin_bytes: int) -> bool | None:
    """Whether less than the system's margin of a GPU's memory is left; None when nobody can say."""
    used, total = _checked("used_bytes", used_bytes), _checked("total_bytes", total_bytes)
    if used is None or total is None:
        return None
    return total - used < margin_bytes


def fits(reserved_bytes: list[int], total_bytes: float | None, *, margin_bytes: int) -> bool | None:
    """Whether the reservations on a GPU and the margin fit into its memory; None when its size is not known."""
    total = _checked("total_bytes", total_bytes)
    return None if total is None else sum(reserved_bytes) + margin_bytes <= total


def next_step(verdict: Verdict, since: float | None, *, grace_seconds: float, now: float) -> Standstill:
    """Warn when it begins, evict when it is still so after the grace, judged by a reading of then. What is not known neither begins nor ends it."""
    if verdict is Verdict.UNKNOWN:
        return Standstill(since, Step.NOTHING if since is None else Step.WAIT)
    if verdict is not Verdict.OVER:
        return Standstill(None, Step.NOTHING)
    if since is None or now < since:
        return Standstill(now, Step.WARN)
    return Standstill(since, Step.EVICT if now - since >= grace_seconds else Step.WAIT)
