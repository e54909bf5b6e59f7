"""MIG layouts: which instances may stand where on a board, and which of them are the radio's. Pure: no Django.

A layout is a list of placements on the eight memory positions. PHY is reserved by protected spans of positions: what
stands on them may not be changed, and nothing else may be put there. Refusals say why in words for an operator.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from fleet.catalogue import MigProfile, Sku

POSITIONS = 8
COMPUTE_SLICES = 7


class Purpose(StrEnum):
    PHY = "phy"
    AI = "ai"


@dataclass(frozen=True, order=True)
class Placement:
    """One GPU instance: `profile` by name, from memory position `start` (0-7)."""

    start: int
    profile: str
    purpose: Purpose = Purpose.AI


@dataclass(frozen=True, order=True)
class Span:
    """Memory positions start..start+size-1."""

    start: int
    size: int

    @property
    def stop(self) -> int:
        return self.start + self.size

    def overlaps(self, other: "Span") -> bool:
        return self.start < other.stop and other.start < self.stop

    def __str__(self) -> str:
        return f"position {self.start}" if self.size == 1 else f"positions {self.start}-{self.stop - 1}"


WHOLE = Span(0, POSITIONS)


class Code(StrEnum):
    """Why a layout is impossible or not allowed."""

    NO_MIG = "no_mig"
    UNKNOWN_PROFILE = "unknown_profile"
    WRONG_START = "wrong_start"
    OVERLAP = "overlap"
    TOO_MANY = "too_many"
    TOO_MUCH_COMPUTE = "too_much_compute"
    PROTECTED = "protected"


@dataclass(frozen=True)
class Refusal:
    code: Code
    reason: str


class LayoutRefused(ValueError):
    """The layout cannot be; `refusals` holds every reason, the text joins them."""

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        super().__init__(" ".join(refusal.reason for refusal in refusals))
        self.refusals = tuple(refusals)


def span_of(profile: MigProfile, start: int) -> Span:
    return Span(start, profile.size)


def _starts(profile: MigProfile) -> str:
    if len(profile.placements) == 1:
        return f"only at position {profile.placements[0]}"
    return "at positions " + ", ".join(str(start) for start in profile.placements)


def check_layout(sku: Sku, layout: Sequence[Placement], protected: Iterable[Span] = ()) -> list[Refusal]:
    """Every reason why `layout` cannot stand on this board; empty when it can.

    `protected` are the spans kept for the radio: only placements whose purpose is PHY may lie on them, and PHY may lie nowhere else.
    Without protected spans the purposes are free.
    """
    if not layout:
        return []
    if not sku.mig_capable:
        return [Refusal(Code.NO_MIG, f"{sku.name} has no MIG: it is one whole GPU.")]
    refusals: list[Refusal] = []
    known: list[tuple[Placement, MigProfile]] = []
    for placement in sorted(layout):
        profile = sku.profile(placement.profile)
        if profile is None:
            offered = ", ".join(each.name for each in sku.profiles)
            refusals.append(Refusal(Code.UNKNOWN_PROFILE, f"{sku.name} has no profile {placement.profile!r}; it has {offered}."))
            continue
        if placement.start not in profile.placements:
            refusals.append(Refusal(Code.WRONG_START, f"{profile.name} may start {_starts(profile)}, not at {placement.start}."))
            continue
        known.append((placement, profile))
    refusals += _overlaps(known) + _counts(known) + _protected(known, sorted(protected))
    return refusals


def require_layout(sku: Sku, layout: Sequence[Placement], protected: Iterable[Span] = ()) -> None:
    """Raise `LayoutRefused` with every reason unless `layout` can stand."""
    if refusals := check_layout(sku, layout, protected):
        raise LayoutRefused(refusals)


def _overlaps(known: list[tuple[Placement, MigProfile]]) -> list[Refusal]:
    refusals = []
    for number, (first, first_profile) in enumerate(known):
        for second, second_profile in known[number + 1 :]:
            one, two = span_of(first_profile, first.start), span_of(second_profile, second.start)
            if one.overlaps(two):
                shared = Span(max(one.start, two.start), min(one.stop, two.stop) - max(one.start, two.start))
                takers = f"{first.profile} at {first.start} and {second.profile} at {second.start}"
                refusals.append(Refusal(Code.OVERLAP, f"{takers} both take {shared}."))
    return refusals


def _counts(known: list[tuple[Placement, MigProfile]]) -> list[Refusal]:
    refusals = []
    wanted = Counter(profile.name for _, profile in known)
    for profile in dict.fromkeys(profile for _, profile in known):
        if wanted[profile.name] > profile.max_instances:
            refusals.append(Refusal(Code.TOO_MANY, f"At most {profile.max_instances} of {profile.name} fit on a GPU; {wanted[profile.name]} are asked for."))
    compute = sum(profile.compute_slices for _, profile in known)
    if compute > COMPUTE_SLICES:
        refusals.append(Refusal(Code.TOO_MUCH_COMPUTE, f"The layout takes {compute} compute slices; a GPU has {COMPUTE_SLICES}."))
    return refusals


def _protected(known: list[tuple[Placement, MigProfile]], protected: list[Span]) -> list[Refusal]:
    if not protected:
        return []
    reserved = {position for span in protected for position in range(span.start, span.stop)}
    refusals = []
    for placement, profile in known:
        span = span_of(profile, placement.start)
        taken = set(range(span.start, span.stop))
        what = f"{placement.profile} at {placement.start}"
        if placement.purpose is Purpose.AI and taken & reserved:
            touched = next(each for each in protected if each.overlaps(span))
            refusals.append(Refusal(Code.PROTECTED, f"{what} would take {touched}, which is protected for PHY."))
        elif placement.purpose is Purpose.PHY and not taken <= reserved:
            refusals.append(Refusal(Code.PROTECTED, f"{what} is meant for PHY but lies outside the protected placements."))
    return refusals


def check_change(sku: Sku, current: Sequence[Placement], wanted: Sequence[Placement], protected: Iterable[Span] = ()) -> list[Refusal]:
    """Every reason why a GPU may not go from `current` to `wanted`: what `check_layout` says, and any touch on what stands on a protected span."""
    spans = sorted(protected)
    refusals = check_layout(sku, wanted, spans)
    if any(refusal.code is Code.NO_MIG for refusal in refusals):
        return refusals
    before = {(placement.start, placement.profile) for placement in current}
    after = {(placement.start, placement.profile) for placement in wanted}
    for start, name in sorted(before - after):
        profile = sku.profile(name)
        if profile is not None and (touched := _touched(span_of(profile, start), spans)):
            refusals.append(Refusal(Code.PROTECTED, f"The PHY instance {name} at {start} would go: {touched} is protected."))
    for start, name in sorted(after - before):
        profile = sku.profile(name)
        if profile is not None and (touched := _touched(span_of(profile, start), spans)):
            refusals.append(Refusal(Code.PROTECTED, f"{name} at {start} would change {touched}, which is protected for PHY."))
    return list(dict.fromkeys(refusals))


def _touched(span: Span, protected: list[Span]) -> Span | None:
    return next((each for each in protected if each.overlaps(span)), None)


def default_layout(sku: Sku) -> list[Placement]:
    """The layout of a site that runs the radio: 7 × 1g, positions 0-2 PHY and 3-6 AI. Raises `LayoutRefused` on a board without MIG."""
    if not sku.mig_capable:
        raise LayoutRefused([Refusal(Code.NO_MIG, f"{sku.name} has no MIG: it is one whole GPU.")])
    smallest = next(profile for profile in sku.profiles if profile.size == 1 and not profile.has_media_extensions)
    return [Placement(start, smallest.name, Purpose.PHY if start < 3 else Purpose.AI) for start in smallest.placements]


def protected_spans(sku: Sku, layout: Iterable[Placement]) -> list[Span]:
    """The spans of a layout's PHY placements, to be protected."""
    spans = []
    for placement in sorted(layout):
        profile = sku.profile(placement.profile)
        if placement.purpose is Purpose.PHY and profile is not None:
            spans.append(span_of(profile, placement.start))
    return spans


def default_protection(sku: Sku | None, instances: Iterable[Span] = ()) -> list[Span]:
    """What is kept for the radio on a GPU of a DU node as long as nobody states other placements: those of the default layout.

    Nobody knows where the radio is on a board that is not known or has no MIG, and where an instance stands half inside the default
    placements: then the whole GPU is kept.
    """
    if sku is None or not sku.mig_capable:
        return [WHOLE]
    spans = protected_spans(sku, default_layout(sku))
    reserved = {position for span in spans for position in range(span.start, span.stop)}
    for instance in instances:
        inside = reserved & set(range(instance.start, instance.stop))
        if inside and len(inside) < instance.size:
            return [WHOLE]
    return spans


def what_still_fits(sku: Sku, layout: Sequence[Placement], protected: Iterable[Span] = ()) -> dict[str, list[int]]:
    """Profiles that an AI instance could still take beside `layout`, with the positions they could start at; those that fit nowhere are left out."""
    spans = list(protected)
    fits: dict[str, list[int]] = {}
    for profile in sku.profiles:
        starts = [start for start in profile.placements if not check_layout(sku, [*layout, Placement(start, profile.name)], spans)]
        if starts:
            fits[profile.name] = starts
    return fits
