"""What a change of a MIG layout would do, and what became of one. Pure.

The radio's memory positions are protected: what stands on them stays, and nothing is created there, also not where an instance is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agent.backends.base import MigProfile
from agent.protocol import ProtectedSpan, SliceFacts
from agent.protocol.layout import POSITIONS, Instance, LayoutError, format_layout

COMPUTE_SLICES = 7


@dataclass(frozen=True)
class Plan:
    """`missing`: instances wanted on protected positions that nothing stands on: theirs to create who run the radio."""

    remove: tuple[SliceFacts, ...]
    create: tuple[Instance, ...]
    missing: tuple[Instance, ...] = ()

    @property
    def done(self) -> bool:
        return not self.remove and not self.create


def place_of(instance: SliceFacts) -> Instance:
    return Instance(instance.start, instance.profile)


def plan_change(current: Sequence[SliceFacts], wanted: Sequence[Instance], *, protected: Iterable[ProtectedSpan], profiles: Sequence[MigProfile]) -> Plan:
    """What to destroy and what to create. `profiles` are the GPU's own. Raises LayoutError with every reason when the layout cannot or may not be."""
    reserved = {position for span in protected for position in range(span.start, span.start + span.size)}
    spans = _spans(wanted, profiles)
    asked, standing = set(wanted), {place_of(instance) for instance in current}
    problems: list[str] = []
    missing: list[Instance] = []
    for instance in current:
        if place_of(instance) not in asked and (touched := _positions(instance) & reserved):
            problems.append(f"the PHY instance {place_of(instance)} would go: {_words(touched)} protected")
    occupied = set().union(*(_positions(instance) for instance in current)) if current else set()
    create: list[Instance] = []
    for place in sorted(asked - standing):
        touched = spans[place] & reserved
        if not touched:
            create.append(place)
        elif spans[place] <= reserved and not spans[place] & occupied:
            missing.append(place)
        else:
            problems.append(f"{place} would change what is protected for PHY: {_words(touched)} the radio's")
    if problems:
        raise LayoutError("; ".join(problems))
    remove = tuple(instance for instance in current if place_of(instance) not in asked)
    return Plan(remove=remove, create=tuple(create), missing=tuple(missing))


def _spans(wanted: Sequence[Instance], profiles: Sequence[MigProfile]) -> dict[Instance, set[int]]:
    """The positions of each instance. Raises LayoutError unless all of them fit on the GPU together."""
    known = {profile.name: profile for profile in profiles}
    problems: list[str] = []
    spans: dict[Instance, set[int]] = {}
    for instance in wanted:
        profile = known.get(instance.profile)
        if profile is None:
            problems.append(f"this GPU has no profile {instance.profile}; it has {', '.join(sorted(known)) or 'none'}")
        elif instance.start not in profile.starts:
            problems.append(f"{instance.profile} may start at {', '.join(map(str, profile.starts))}, not at {instance.start}")
        else:
            spans[instance] = set(range(instance.start, instance.start + profile.size))
    taken: dict[int, Instance] = {}
    for instance, span in spans.items():
        if other := next((taken[position] for position in sorted(span) if position in taken), None):
            problems.append(f"{other} and {instance} overlap")
        taken |= dict.fromkeys(span, instance)
    for name in sorted({instance.profile for instance in spans}):
        count = sum(instance.profile == name for instance in spans)
        if count > known[name].max_instances:
            problems.append(f"at most {known[name].max_instances} of {name} fit, {count} are asked for")
    if (compute := sum(int(instance.profile[0]) for instance in spans)) > COMPUTE_SLICES:
        problems.append(f"the layout takes {compute} compute slices of {COMPUTE_SLICES}")
    if problems:
        raise LayoutError("; ".join(problems))
    return spans


def _positions(instance: SliceFacts) -> set[int]:
    return set(range(instance.start, min(instance.start + instance.size, POSITIONS)))


def _words(positions: set[int]) -> str:
    if len(positions) == 1:
        return f"position {min(positions)} is"
    return f"positions {min(positions)}-{max(positions)} are"


@dataclass(frozen=True)
class ChangeFacts:
    """A change of layout as it looks `elapsed_seconds` after it began. None: not known.

    `reported_done`: who makes the change says that it is over. `in_use`: PCI address of a GPU that a client held, "" when none did.
    `advertised`: slices of the wanted kind that Kubernetes offers; `plugin_paused`: the device plugin is switched off for the change.
    """

    wanted: int
    found: int | None
    elapsed_seconds: float
    timeout_seconds: float
    reported_done: bool
    in_use: str = ""
    advertised: int | None = None
    plugin_paused: bool | None = None


@dataclass(frozen=True)
class Verdict:
    """`over` False: still under way. `may_retry`: doing the same again can help; else somebody has to act first."""

    over: bool
    success: bool
    code: str
    detail: str
    may_retry: bool


def judge_change(facts: ChangeFacts) -> Verdict:
    """Success is slices that were found; a word of success is not."""
    count = f"{facts.found if facts.found is not None else 'unknown'} of {facts.wanted} slices found"
    if facts.in_use:
        detail = f"GPU {facts.in_use} is in use by another client: {count}. Not tried again while it holds the GPU."
        return Verdict(over=True, success=False, code="in_use", detail=detail, may_retry=False)
    if facts.found is not None and facts.found >= facts.wanted and facts.reported_done:
        return Verdict(over=True, success=True, code="", detail=f"{count}.", may_retry=False)
    if facts.reported_done:
        return Verdict(over=True, success=False, code="mismatch", detail=f"Reported as done, but {count}.", may_retry=True)
    if facts.elapsed_seconds < facts.timeout_seconds:
        return Verdict(over=False, success=False, code="", detail=f"Under way: {count}.", may_retry=False)
    known = [count]
    if facts.advertised is not None:
        known.append(f"{facts.advertised} of {facts.wanted} advertised")
    if facts.plugin_paused:
        known.append("the device plugin is paused")
    detail = (
        f"Not done after {facts.timeout_seconds:.0f} s: {', '.join(known)}. Asking for the same again does not help: see what holds the GPU, then reset it."
    )
    return Verdict(over=True, success=False, code="timeout", detail=detail, may_retry=False)


def describe(instances: Iterable[SliceFacts] | None) -> str:
    """The layout that stands, as text."""
    return format_layout(None if instances is None else (place_of(instance) for instance in instances))
