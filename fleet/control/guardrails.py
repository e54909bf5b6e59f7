"""Guard rails: a plan and the facts about its targets → its class, what may go on, what is refused or skipped, each with the rule that says so. Pure: no Django.

Every number is a field of `Limits`, whose defaults are those of the fleet's safety rules (site: one node at a time; region: 2 % or 10; node: three acts a
day, two of one kind). Nothing here asks who may act: that is the caller's. What belongs to tenants is handed in as values.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum


class RiskClass(IntEnum):
    """How an act is confirmed: 0 not at all; 1 done, with undo; 2 a dialog with count and reason; 3 a phrase, a canary and another person; 4 break-glass only."""

    READ = 0
    REVERSIBLE_ONE = 1
    REVERSIBLE_MANY = 2
    DISRUPTIVE = 3
    PHY = 4


class Reach(StrEnum):
    """What an act touches."""

    NOTHING = "nothing"  # it only reads
    WORKLOADS = "workloads"  # pods outside PHY; PHY pods stay where they are
    DEVICE = "device"  # the GPU or node as a whole, with everything on it


class Rule(StrEnum):
    """Why a target is refused or skipped. Words for people are in `why`."""

    PHY = "phy"
    LAST_PHY_NODE = "last_phy_node"
    NODE_RATE = "node_rate"
    FREEZE = "freeze"
    BREAKER = "breaker"
    NOT_PRESENT = "not_present"
    RETIRED = "retired"
    NO_AGENT = "no_agent"


@dataclass(frozen=True)
class Limits:
    """Numbers of the guard rails; each is a setting."""

    site_disrupted_nodes: int = 1
    region_disrupted_share: float = 0.02
    region_disrupted_nodes: int = 10
    small_region_nodes: int = 20  # below it shares mean nothing
    small_region_disrupted_nodes: int = 1
    node_actions_a_day: int = 3
    node_same_action_a_day: int = 2
    canary_targets: int = 1
    first_wave_share: float = 0.05
    wave_share: float = 0.25
    smallest_wave: int = 5
    failure_share: float = 0.2
    fewest_failures: int = 2
    trip_minutes: int = 10
    region_trip_share: float = 0.05
    region_trip_fewest: int = 10  # absolute counts where shares mean nothing
    fleet_trip_share: float = 0.01
    fleet_trip_fewest: int = 20
    fleet_trip_factor: float = 3.0  # times the usual of the last seven days
    observer_silent_share: float = 0.5
    observer_fewest_sites: int = 4

    def __post_init__(self) -> None:
        shares = ("region_disrupted_share", "first_wave_share", "wave_share", "failure_share", "region_trip_share", "fleet_trip_share", "observer_silent_share")
        for name in shares:
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name}: {getattr(self, name)} is not within 0..1")
        for name in ("site_disrupted_nodes", "region_disrupted_nodes", "small_region_disrupted_nodes", "canary_targets", "smallest_wave", "fewest_failures"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: at least 1")


@dataclass(frozen=True)
class Act:
    """What a command kind does, as far as the rules care. `word` begins the phrase of class 3, e.g. `drain`."""

    kind: str
    word: str
    reach: Reach
    disruptive: bool  # the target's node does no AI work meanwhile
    noun: str = "node"


@dataclass(frozen=True)
class Target:
    """One node or GPU and what the rules must know of it. `key` is unique in a plan."""

    key: str
    node_id: int
    site: str
    region: str
    area: str
    label: str
    gpu_uuid: str = ""
    present: bool = True
    retired: bool = False
    has_agent: bool = True
    reachable: bool = True
    carries_phy: bool = False  # the GPU, or any GPU of the node where the act is on the node
    serves_phy: bool = False  # the node
    actions_today: int = 0
    same_actions_today: int = 0
    acted_on: bool = False  # a disruptive act of ours is in flight on the node
    frozen: str = ""  # the freeze that covers it, in words
    breaker: str = ""  # the open breaker that covers it, in words
    workloads: int = 0
    phy_workloads: int = 0
    tenants: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    """A site or region as a whole: its nodes, those that serve PHY and can be heard, and those disrupted by what is in flight."""

    nodes: int
    phy_nodes: int = 0
    disrupted: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Refusal:
    target: Target
    rule: Rule
    why: str


@dataclass(frozen=True)
class Verdict:
    """What the rules say of a plan. `allowed` in the order in which they are to go; `waves` are sizes that add up to `len(allowed)`."""

    risk: RiskClass
    allowed: tuple[Target, ...]
    refused: tuple[Refusal, ...]
    skipped: tuple[Refusal, ...]
    waves: tuple[int, ...]
    phrase: str
    approvals: int
    unreachable: int
    phy_placements: int
    workloads: int
    tenants: tuple[str, ...]
    budget: tuple[RegionBudget, ...] = field(default=())


@dataclass(frozen=True)
class RegionBudget:
    """Disruption of one region: used by what is in flight, wanted by this plan at once at the most, and the limit."""

    region: str
    nodes: int
    used: int
    wanted: int
    limit: int


def region_limit(nodes: int, limits: Limits) -> int:
    """How many nodes of a region of `nodes` may be disrupted at once: a share or a count, whichever is larger; in a small region a count of its own."""
    if nodes < limits.small_region_nodes:
        return limits.small_region_disrupted_nodes
    return max(math.floor(nodes * limits.region_disrupted_share), limits.region_disrupted_nodes)


def site_limit(nodes: int, limits: Limits) -> int:
    """How many nodes of a site may be disrupted at once: an absolute count, whatever the size. A site's only node may be, when it carries no PHY."""
    return min(limits.site_disrupted_nodes, nodes)


def judge(
    act: Act,
    targets: Sequence[Target],
    *,
    sites: Mapping[str, Place],
    regions: Mapping[str, Place],
    limits: Limits,
    break_glass: bool = False,
) -> Verdict:
    """What may be done of a plan. With `break_glass` (two approvers, checked by the caller) PHY, freezes, rates and breakers do not refuse; presence still does."""
    refused: list[Refusal] = []
    skipped: list[Refusal] = []
    allowed: list[Target] = []
    phy_nodes_taken: Counter[str] = Counter()
    seen: set[str] = set()
    for target in targets:
        if target.key in seen:
            continue
        seen.add(target.key)
        found = _absence(target)
        if found is not None:
            skipped.append(found)
            continue
        found = None if break_glass else _refusal(act, target, limits)
        if found is None and act.reach is Reach.DEVICE and act.noun == "node" and target.serves_phy:
            left = sites[target.site].phy_nodes - len(sites[target.site].disrupted) - phy_nodes_taken[target.site]
            if left <= 1:
                found = Refusal(target, Rule.LAST_PHY_NODE, f"{target.label} is the last node that serves PHY at {target.site}.")
            else:
                phy_nodes_taken[target.site] += 1
        if found is None:
            allowed.append(target)
        else:
            refused.append(found)
    reaches_phy = [target for target in allowed if act.reach is Reach.DEVICE and target.carries_phy]
    allowed = _in_order(allowed)
    risk = _risk(act, allowed, refused, reaches_phy=bool(reaches_phy))
    count = len(allowed)
    tenants = sorted({tenant for target in allowed for tenant in target.tenants}) if act.reach is not Reach.NOTHING else []
    return Verdict(
        risk=risk,
        allowed=tuple(allowed),
        refused=tuple(refused),
        skipped=tuple(skipped),
        waves=plan_waves(count, canary=risk >= RiskClass.DISRUPTIVE, limits=limits),
        phrase=f"{act.word} {count} {act.noun if count == 1 else act.noun + 's'}" if risk >= RiskClass.DISRUPTIVE else "",
        approvals={RiskClass.DISRUPTIVE: 1, RiskClass.PHY: 2}.get(risk, 0),
        unreachable=sum(not target.reachable for target in allowed),
        phy_placements=sum(target.phy_workloads for target in reaches_phy) or len(reaches_phy),
        workloads=sum(target.workloads for target in allowed) if act.reach is not Reach.NOTHING else 0,
        tenants=tuple(tenants),
        budget=_budget(act, allowed, regions, limits),
    )


def _absence(target: Target) -> Refusal | None:
    if target.retired:
        return Refusal(target, Rule.RETIRED, f"{target.label} is retired.")
    if not target.present:
        return Refusal(target, Rule.NOT_PRESENT, f"target not present: {target.label}.")
    if not target.has_agent:
        return Refusal(target, Rule.NO_AGENT, f"{target.label} has no enrolled agent.")
    return None


def _refusal(act: Act, target: Target, limits: Limits) -> Refusal | None:
    if act.reach is Reach.NOTHING:
        return None
    if act.reach is Reach.DEVICE and target.carries_phy:
        return Refusal(target, Rule.PHY, f"{target.label} carries PHY: {act.word} would reach it. Only break-glass with two approvers may.")
    if target.frozen:
        return Refusal(target, Rule.FREEZE, f"{target.label} is in a freeze: {target.frozen}.")
    if target.breaker:
        return Refusal(target, Rule.BREAKER, f"A breaker is open over {target.label}: {target.breaker}.")
    if act.disruptive and target.actions_today >= limits.node_actions_a_day:
        return Refusal(
            target, Rule.NODE_RATE, f"{target.label} had {target.actions_today} disruptive acts within 24 h; {limits.node_actions_a_day} are the limit."
        )
    if act.disruptive and target.same_actions_today >= limits.node_same_action_a_day:
        return Refusal(
            target,
            Rule.NODE_RATE,
            f"{target.label} had {act.kind} {target.same_actions_today} times within 24 h; {limits.node_same_action_a_day} are the limit.",
        )
    return None


def _risk(act: Act, allowed: Collection[Target], refused: Collection[Refusal], *, reaches_phy: bool) -> RiskClass:
    """A plan whose targets are all refused because of PHY is class 4 all the same: that is what it would be."""
    if act.reach is Reach.NOTHING:
        return RiskClass.READ
    if reaches_phy or (not allowed and any(one.rule in (Rule.PHY, Rule.LAST_PHY_NODE) for one in refused)):
        return RiskClass.PHY
    if act.reach is Reach.DEVICE and act.disruptive:
        return RiskClass.DISRUPTIVE
    many = len(allowed) > 1
    if act.disruptive:
        return RiskClass.DISRUPTIVE if many else RiskClass.REVERSIBLE_ONE
    return RiskClass.REVERSIBLE_MANY if many else RiskClass.REVERSIBLE_ONE


def _in_order(targets: Iterable[Target]) -> list[Target]:
    """Round robin over regions and sites, the reachable first: a wave touches many places a little, and none of them much."""
    by_site: dict[tuple[str, str], list[Target]] = defaultdict(list)
    for target in sorted(targets, key=lambda one: (not one.reachable, one.key)):
        by_site[(target.region, target.site)].append(target)
    found: list[tuple[bool, int, int, str, Target]] = []
    in_region: Counter[str] = Counter()
    for (region, _), group in sorted(by_site.items()):
        place = in_region[region]
        in_region[region] += 1
        found += [(not target.reachable, number, place, target.key, target) for number, target in enumerate(group)]
    return [target for *_, target in sorted(found, key=lambda row: row[:4])]


def plan_waves(count: int, *, canary: bool, limits: Limits) -> tuple[int, ...]:
    """Sizes of waves for so many targets: a canary, then a small one, then equal shares. They add up to `count`; no size is 0."""
    sizes: list[int] = []
    left = count
    wanted = [limits.canary_targets, max(limits.smallest_wave, math.ceil(count * limits.first_wave_share))] if canary else []
    share = max(limits.smallest_wave, math.ceil(count * limits.wave_share)) if canary else count
    while left > 0:
        size = min(left, wanted.pop(0) if wanted else share)
        sizes.append(size)
        left -= size
    return tuple(sizes)


def _budget(act: Act, allowed: Iterable[Target], regions: Mapping[str, Place], limits: Limits) -> tuple[RegionBudget, ...]:
    if not act.disruptive:
        return ()
    nodes: dict[str, set[int]] = defaultdict(set)
    for target in allowed:
        nodes[target.region].add(target.node_id)
    found = []
    for region, wanted in sorted(nodes.items()):
        place = regions[region]
        limit = region_limit(place.nodes, limits)
        room = max(0, limit - len(place.disrupted))
        found.append(RegionBudget(region=region, nodes=place.nodes, used=len(place.disrupted), wanted=min(len(wanted), room), limit=limit))
    return tuple(found)


def admit(
    act: Act, waiting: Sequence[Target], *, sites: Mapping[str, Place], regions: Mapping[str, Place], limits: Limits
) -> tuple[list[Target], dict[str, str]]:
    """Which of the waiting targets may begin now, given what is in flight; and for the others (by key) what they wait for.

    Whatever the order of `waiting`, afterwards no site has more than its limit of disrupted nodes and no region more than its own. A node that something
    else acts on has to be over with that first. One that was drained and is still cordoned counts already: what comes next on it takes no more room.
    """
    if not act.disruptive:
        return list(waiting), {}
    at_site = {name: set(place.disrupted) for name, place in sites.items()}
    at_region = {name: set(place.disrupted) for name, place in regions.items()}
    begin: list[Target] = []
    held: dict[str, str] = {}
    mine: set[int] = set()
    for target in waiting:
        here, around = at_site[target.site], at_region[target.region]
        if target.acted_on and target.node_id not in mine:
            held[target.key] = f"{target.label} is being acted on already."
            continue
        if target.node_id not in here:
            site_most = site_limit(sites[target.site].nodes, limits)
            if len(here) >= site_most:
                held[target.key] = f"{target.site} has {len(here)} of at most {site_most} nodes in a disruptive state."
                continue
            most = region_limit(regions[target.region].nodes, limits)
            if len(around) >= most:
                held[target.key] = f"{target.region} has {len(around)} of at most {most} nodes in a disruptive state."
                continue
        here.add(target.node_id)
        around.add(target.node_id)
        mine.add(target.node_id)
        begin.append(target)
    return begin, held


def pauses(*, done: int, failed: int, canary: bool, limits: Limits, share: float | None = None) -> str:
    """Why a run has to pause by itself, "" when not. A canary may not fail at all. Unreachable targets are in neither count: silence is no failure."""
    if canary and failed:
        return "The canary failed."
    most = limits.failure_share if share is None else share
    total = done + failed
    if failed >= limits.fewest_failures and failed > most * total:
        return f"{failed} of {total} targets failed, more than {most:.0%}."
    return ""
