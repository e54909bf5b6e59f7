"""The admission decision: may this request go to its model now? Pure; `agent/door.py` answers front ends with it.

The order is: a kill switch, URLLC, the depth of the model's queue. Priority and URLLC count only as the signed document grants them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from agent.protocol import AdmissionRules, Grant, Switch

# 5QIs of delay-critical resources (3GPP TS 23.501, table 5.7.4-1), and the names and number of the slice type URLLC (SST 2).
URLLC_5QI = frozenset(range(82, 91))
URLLC_SLICE_TYPES = frozenset({"urllc", "2"})


class Reason(StrEnum):
    URLLC = "urllc"
    ROOM = "room"
    UNKNOWN_DEPTH = "depth_unknown"
    KILL = "kill_switch"
    BUSY = "low_priority"
    FULL = "queue_full"
    NO_RULES = "no_rules"


@dataclass(frozen=True)
class Ask:
    """What a front end says of one request. The tenant is its credential's, not its word."""

    tenant: str
    model: str
    priority: int
    five_qi: int | None = None
    slice_type: str = ""

    @property
    def claims_urllc(self) -> bool:
        return self.five_qi in URLLC_5QI or self.slice_type.lower() in URLLC_SLICE_TYPES


@dataclass(frozen=True)
class Decision:
    allowed: bool
    reason: Reason


def decide(ask: Ask, *, grant: Grant | None, kills: tuple[Switch, ...], depth: int | None, rules: AdmissionRules, now: float) -> Decision:
    """`depth` None: nobody knows how many requests wait. Then only what is not low passes, since what is low can come again later."""
    if any(kill.active(now) and kill.tenant in ("", ask.tenant) and kill.model in ("", ask.model) for kill in kills):
        return Decision(False, Reason.KILL)
    if ask.claims_urllc and grant is not None and grant.urllc:
        return Decision(True, Reason.URLLC)
    priority = min(ask.priority, grant.priority if grant is not None else 0)
    low = priority < rules.low_below
    if depth is None:
        return Decision(not low, Reason.UNKNOWN_DEPTH)
    if depth >= rules.capacity:
        return Decision(False, Reason.FULL)
    if low and depth >= rules.low_refused_from:
        return Decision(False, Reason.BUSY)
    return Decision(True, Reason.ROOM)


class Gate:
    """What the door goes by at this moment. Replaced whole, never changed, so that it may be read while another thread replaces it."""

    def __init__(self, rules: AdmissionRules | None, kills: tuple[Switch, ...] = ()) -> None:
        self.rules = rules
        self.kills = kills
        self._tenants = {front_end.digest: front_end.tenant for front_end in rules.front_ends} if rules else {}
        self._grants = {(grant.tenant, grant.model): grant for grant in rules.grants} if rules else {}

    def tenant_of(self, digest: str) -> str | None:
        return self._tenants.get(digest)

    def decide(self, ask: Ask, depth_of: Callable[[str], int | None], now: float) -> Decision:
        if self.rules is None:
            return Decision(False, Reason.NO_RULES)
        grant = self._grants.get((ask.tenant, ask.model))
        return decide(ask, grant=grant, kills=self.kills, depth=depth_of(ask.model), rules=self.rules, now=now)
