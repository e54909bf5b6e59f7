"""Slices of the AI placements by priority: who waits, what is free, who gives way. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Holder:
    """A pod on AI placements. PHY is never one. `leaving`: it is going already, and its devices will be free."""

    uid: str
    priority: int
    started_at: float
    devices: int = 1
    leaving: bool = False


@dataclass(frozen=True)
class Waiting:
    """A pod that waits for a slice which the document grants."""

    uid: str
    priority: int
    since: float


def gives_way(waiting: Iterable[Waiting], holders: Iterable[Holder], *, free: int, evicts_above: int) -> tuple[Holder, ...]:
    """Who has to go now. What is free, or will be, is used first, for the highest priority and the longest wait.

    Only a priority above `evicts_above` may evict, only the lowest priority, never an equal or a higher one; of several lowest the newest goes.
    """
    found = list(holders)
    free += sum(holder.devices for holder in found if holder.leaving)
    staying = sorted((holder for holder in found if not holder.leaving), key=lambda holder: (holder.priority, -holder.started_at, holder.uid))
    going: list[Holder] = []
    for wait in sorted(waiting, key=lambda wait: (-wait.priority, wait.since, wait.uid)):
        if free > 0:
            free -= 1
        elif wait.priority > evicts_above and staying and staying[0].priority < wait.priority:
            going.append(staying.pop(0))
            free += going[-1].devices - 1
    return tuple(going)
