"""The strip of a GPU: what stands on its eight memory positions, in drawing order. Values in, spans out; nothing is read here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext as _

from fleet.catalogue import SKUS
from fleet.inventory.mig import POSITIONS, Placement, Purpose, Span, what_still_fits
from fleet.models import Gpu, MigSlice, ProtectedPlacement, Workload


@dataclass(frozen=True)
class StripSpan:
    """Positions start..start+size-1. `kind`: phy, ai, free, none (nothing can stand there alone) or whole (a GPU without MIG)."""

    start: int
    size: int
    kind: str
    slice: MigSlice | None = None
    workloads: Sequence[Workload] = ()
    values: Mapping[str, float | None] = field(default_factory=dict)
    fits: Sequence[str] = ()

    @property
    def last(self) -> int:
        return self.start + self.size - 1

    @property
    def positions(self) -> str:
        return str(self.start) if self.size == 1 else f"{self.start}–{self.last}"

    @property
    def busy_ratio(self) -> float | None:
        value = self.values.get("engine_active_ratio")
        return self.values.get("utilization_ratio") if value is None else value

    @property
    def memory_used_bytes(self) -> float | None:
        return self.values.get("memory_used_bytes")

    @property
    def memory_total_bytes(self) -> float | None:
        """Used + free + reserved, when all that is needed is reported."""
        used, free = self.values.get("memory_used_bytes"), self.values.get("memory_free_bytes")
        return None if used is None or free is None else used + free + (self.values.get("memory_reserved_bytes") or 0.0)


@dataclass(frozen=True)
class Strip:
    spans: Sequence[StripSpan]
    unplaced: Sequence[StripSpan]  # slices whose placement nobody has told yet
    protected_positions: int
    ai_positions: int
    free_positions: int

    @property
    def summary(self) -> str:
        if len(self.spans) == 1 and self.spans[0].kind == "whole":
            return _("one whole GPU, without MIG")
        return _("memory positions 0-7 · %(phy)d protected, %(ai)d for AI, %(free)d free") % {
            "phy": self.protected_positions,
            "ai": self.ai_positions,
            "free": self.free_positions,
        }


def draw_strip(
    gpu: Gpu,
    slices: Iterable[MigSlice],
    protected: Iterable[ProtectedPlacement],
    workloads: Iterable[Workload],
    values: Mapping[str, float | None],
    slice_values: Mapping[int, Mapping[str, float | None]],
) -> Strip:
    """`slices` and `workloads` are the live ones; `values` are the GPU's, `slice_values` by GPU instance id."""
    live, by_slice = list(slices), _by_slice(workloads)
    if not gpu.mig_enabled and not live:
        phy = any(True for _span in protected)
        whole = StripSpan(0, POSITIONS, "whole", None, by_slice.get(None, []), values)
        return Strip([whole], [], POSITIONS if phy else 0, 0, 0)
    spans_protected = [Span(row.start, row.size) for row in protected]
    reserved = {position for span in spans_protected for position in range(span.start, span.stop)}
    placed = [
        StripSpan(
            row.start,
            row.size,
            "phy" if row.purpose == MigSlice.Purpose.PHY or row.start in reserved else "ai",
            row,
            by_slice.get(row.pk, []),
            slice_values.get(row.gpu_instance_id, {}),
        )
        for row in live
        if row.start is not None and row.size is not None
    ]
    unplaced = [
        StripSpan(-1, 1, row.purpose, row, by_slice.get(row.pk, []), slice_values.get(row.gpu_instance_id, {}))
        for row in live
        if row.start is None or row.size is None
    ]
    taken = {position for span in placed for position in range(span.start, span.start + span.size)}
    spans = sorted([*placed, *_gaps(gpu, live, spans_protected, taken, reserved)], key=lambda span: span.start)
    ai = sum(span.size for span in spans if span.kind == "ai")
    return Strip(spans, unplaced, len(reserved), ai, sum(span.size for span in spans if span.kind == "free"))


def _by_slice(workloads: Iterable[Workload]) -> dict[int | None, list[Workload]]:
    grouped: dict[int | None, list[Workload]] = {}
    for workload in workloads:
        grouped.setdefault(workload.slice_id, []).append(workload)
    return grouped


def _gaps(gpu: Gpu, live: Iterable[MigSlice], protected: list[Span], taken: set[int], reserved: set[int]) -> list[StripSpan]:
    """Runs of positions that nothing stands on: reserved for PHY, free with what fits there, or out of reach of any profile."""
    sku = SKUS.get(gpu.sku)
    fits: dict[int, list[str]] = {}
    if sku is not None and sku.mig_capable:
        layout = [Placement(row.start, row.profile, Purpose(row.purpose)) for row in live if row.start is not None and sku.profile(row.profile)]
        for name, starts in what_still_fits(sku, layout, protected).items():
            for start in starts:
                fits.setdefault(start, []).append(name)
    gaps: list[StripSpan] = []
    for position in range(POSITIONS):
        if position in taken:
            continue
        kind = "phy" if position in reserved else "free" if fits.get(position) or not sku else "none"
        last = gaps[-1] if gaps else None
        if last is not None and last.kind == kind and last.start + last.size == position and kind != "free":
            gaps[-1] = StripSpan(last.start, last.size + 1, kind)
        else:
            gaps.append(StripSpan(position, 1, kind, fits=fits.get(position, [])))
    return gaps


def as_values(row: Any, fields: Iterable[str]) -> dict[str, float | None]:
    """The named columns of a reading row; all None when there is no row."""
    return {name: getattr(row, name, None) for name in fields}
