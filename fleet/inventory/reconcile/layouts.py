"""MIG layouts that cannot be on their board: held as they were told, and said so, since one of the two is wrong."""

from collections.abc import Iterable, Mapping
from datetime import datetime

from fleet.catalogue import SKUS, UNKNOWN, Sku
from fleet.health.findings import Found, close_findings, open_findings
from fleet.inventory.mig import Placement, Purpose, Span, check_layout
from fleet.models import Finding, Gpu, MigSlice, Node, ObjectKind

IMPOSSIBLE = "mig_impossible"


def judge_layouts(
    told: Mapping[str, datetime],
    gpus: Mapping[str, Gpu],
    nodes: Mapping[int, Node],
    live: Iterable[MigSlice],
    protected: Mapping[int, Iterable[int]],
    now: datetime,
) -> None:
    """Open a finding for each of these GPUs (UUID: when its slices were told) whose live slices cannot be, with every reason, and end it where they can.

    `protected` are positions kept for PHY by GPU. A board that the catalogue does not know is not judged, nor a slice whose place is not known.
    """
    slices: dict[int, list[MigSlice]] = {}
    for row in live:
        slices.setdefault(row.gpu_id, []).append(row)
    found, fine = [], []
    for uuid, at in told.items():
        gpu = gpus[uuid]
        sku, here = SKUS.get(gpu.sku), slices.get(gpu.pk, [])
        if sku is None or sku.key == UNKNOWN:
            continue
        reasons = layout_problems(sku, here, [Span(position, 1) for position in protected.get(gpu.pk, ())])
        if not reasons:
            fine.append(uuid)
            continue
        layout = ", ".join(str(row) if row.start is not None else row.profile for row in sorted(here, key=lambda row: (row.start is None, row.start or 0)))
        found.append(
            Found(
                kind=ObjectKind.GPU,
                object_key=uuid,
                site_id=nodes[gpu.node_id].site_id,
                code=IMPOSSIBLE,
                severity=Finding.Severity.MAJOR,
                summary=f"The MIG layout {layout} cannot be. {' '.join(reasons)}",
                advised_action="Compare with `nvidia-smi mig -lgi` on the node; correct the model or the protected placements by import, or partition the GPU again.",
                evidence={"sku": sku.key, "layout": layout, "reasons": reasons},
                at=at,
            )
        )
    open_findings(found)
    if fine:
        close_findings(ObjectKind.GPU, fine, at=now, because="The layout is possible", codes=[IMPOSSIBLE])


def layout_problems(sku: Sku, slices: Iterable[MigSlice], protected: Iterable[Span]) -> list[str]:
    """Every reason why these slices cannot be on this board as they are held; empty when they can, or when nobody knows where they stand."""
    rows = list(slices)
    # Where the board has no MIG at all, a slice is impossible wherever it stands.
    layout = [Placement(row.start or 0, row.profile, Purpose(row.purpose)) for row in rows if row.start is not None or not sku.mig_capable]
    reasons = [refusal.reason for refusal in check_layout(sku, layout, protected)]
    for row in rows:
        profile = sku.profile(row.profile)
        if profile is not None and row.size is not None and row.size != profile.size:
            reasons.append(f"{row.profile} takes {profile.size} positions, not {row.size}.")
    return reasons


def cut_instances(slices: Iterable[MigSlice], protected: Iterable[Span]) -> list[str]:
    """Why these protected spans cannot be kept: instances that stand half inside them."""
    reserved = {position for span in protected for position in range(span.start, span.stop)}
    reasons = []
    for row in slices:
        if row.start is None or row.size is None:
            continue
        inside = reserved & set(range(row.start, row.start + row.size))
        if inside and len(inside) < row.size:
            reasons.append(f"would cut through the instance {row.profile} at {row.start}, which takes {Span(row.start, row.size)}.")
    return reasons
