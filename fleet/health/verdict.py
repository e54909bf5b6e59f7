"""From facts to a verdict: one of five states, with since and why. Pure: no Django, `now` is in the facts.

A *condition* is something found about an object, in words, with what it does to the state (`fleet.health.conditions` finds them).
`settle` turns conditions of the moment into held ones, so that a value that wobbles does not make the state wobble.
Silence ends no condition: what cannot be judged now stays as it was. Times are Unix seconds, sample time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from fleet.health.facts import (
    SEVERITY_RANK,
    AgentWord,
    Child,
    Condition,
    Contact,
    GpuFacts,
    Held,
    Maintenance,
    NodeFacts,
    SiteFacts,
    State,
    Thresholds,
    Verdict,
    clock_time,
    is_known,
)

WHY_LENGTH = 300


def _cut(text: str) -> str:
    return text if len(text) <= WHY_LENGTH else text[: WHY_LENGTH - 1] + "…"


# --- hysteresis ------------------------------------------------------------------------------------------------------------------------------------


def settle(
    held: Mapping[str, Held], found: Iterable[Condition], undecided: Collection[str], *, sampled_at: float, now: float, thresholds: Thresholds
) -> tuple[dict[str, Held], float]:
    """The held conditions after this moment, and when to look again at the latest (inf: only when facts change, or a new sample confirms).

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
            since = min(old.condition.since, condition.since) if is_known(old.condition.since) else condition.since
        active = (old is not None and old.active) or samples >= condition.samples
        after[condition.code] = Held(
            condition if condition.since == since else replace(condition, since=since), sampled_at if is_known(sampled_at) else now, samples, active
        )
    for code, old in held.items():
        if code in after:
            continue
        if code in undecided:
            after[code] = old
            continue
        if not old.active:
            continue
        gone_at = old.gone_at if is_known(old.gone_at) else (sampled_at if is_known(sampled_at) else now)
        recover = thresholds.recover_seconds if old.condition.recover_seconds is None else old.condition.recover_seconds
        if now - gone_at >= recover:
            continue
        after[code] = Held(old.condition, old.seen_at, old.samples, True, gone_at)
        wake_at = min(wake_at, gone_at + recover)
    return after, wake_at


def active_conditions(held: Mapping[str, Held]) -> list[Condition]:
    """The held conditions that count, worst first; of equals those that name their cause (an XID tells more than that the GPU is lost)."""
    conditions = [entry.condition for entry in held.values() if entry.active]
    if len(conditions) < 2:
        return conditions
    return sorted(conditions, key=lambda each: (-_STATE_RANK[each.state], -SEVERITY_RANK[each.severity], "xid" not in each.evidence, each.since, each.code))


# A known fault outranks the lack of data (silence repairs nothing); the lack of data outranks a mere degradation.
WORST_FIRST = (State.DOWN, State.UNKNOWN, State.DEGRADED, State.MAINTENANCE, State.OK)
_STATE_RANK = {state: rank for rank, state in enumerate(reversed(WORST_FIRST))}


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
        if not is_known(facts.sampled_at):
            return _never(before, facts.now)
        if worst is not None and worst.state is State.UNKNOWN:
            return _of(worst)
        return Verdict(State.UNKNOWN, _silent_cause(facts.contact), _cut(_gpu_silence(facts)), facts.sampled_at)
    if facts.agent is AgentWord.UNKNOWN:
        detail = facts.agent_detail or "it cannot ask the driver"
        return Verdict(State.UNKNOWN, facts.agent_cause, _cut(f"The node's agent cannot say how this GPU is: {detail}."), facts.agent_at)
    if is_known(facts.frozen_since):
        why = f"No new data since {clock_time(facts.frozen_since)}: its node's GPU exporter repeats the readings of that time."
        return Verdict(State.UNKNOWN, "exporter_frozen", why, facts.frozen_since)
    if worst is not None and worst.state is not State.OK:
        return _of(worst)
    why = f"Reports; noted: {worst.why}" if worst is not None else "Reports, and nothing is found."
    return Verdict(State.OK, "ok", _cut(why), facts.sampled_at)


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
    return f"No data since {since}; too early to say whether GPU, exporter, node or link is at fault."


def _silent_cause(contact: Contact) -> str:
    return Contact.UNDECIDED.value if contact in (Contact.REPORTING, Contact.NEVER) else contact.value


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
    if facts.contact is Contact.UNDECIDED:
        why = f"Silent since {clock_time(facts.contact_at)}; too early to say whether node or link is at fault."
        return Verdict(State.UNKNOWN, facts.contact.value, why, facts.contact_at)
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
    if facts.contact is Contact.UNDECIDED and before is not None and before.state is not State.MAINTENANCE:
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


_NODE_CAUSES = frozenset({"node_down", "exporter_down", "exporter_frozen", "driver_mismatch", "region_silent"})


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
    if everything and worst.verdict.cause in ("exporter_down", "exporter_frozen", "series_missing"):
        state = State.DEGRADED
    count = f"{len(same)} of {len(judged)} {noun}s {worst.verdict.state.value}: " if len(judged) > 1 else ""
    since = max(child.verdict.since for child in same) if state is not State.DEGRADED else min(child.verdict.since for child in bad)
    return Verdict(state, worst.verdict.cause, _cut(f"{count}{worst.name}: {worst.verdict.why}"), since)


def follow(before: Verdict | None, after: Verdict, now: float) -> Verdict:
    """`after` as the successor of `before`: an unchanged state keeps its since, a new one never begins before the old one did."""
    if before is None:
        return after if is_known(after.since) else replace(after, since=now)
    if before.state is after.state:
        return replace(after, since=before.since)
    since = now if before.state is State.MAINTENANCE or not is_known(after.since) else after.since
    return replace(after, since=max(before.since, since))
