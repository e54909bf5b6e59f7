"""Findings: what was found about an object, open until it ends. One open finding per object and code."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import F, Q
from django.db.models.functions import Greatest

from fleet.models import Finding, ObjectKind


@dataclass(frozen=True)
class Found:
    """One finding to open, or to confirm when it is open already."""

    kind: ObjectKind
    object_key: str
    site_id: int | None
    code: str
    severity: Finding.Severity
    summary: str
    at: datetime
    advised_action: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)


def open_findings(found: Sequence[Found]) -> list[Finding]:
    """Open those that are not open yet; of the others raise `last_at` and `count`, and keep since and evidence. Returns the new ones."""
    if not found:
        return []
    wanted = {(each.kind, each.object_key, each.code): each for each in found}
    held = {
        (row.kind, row.object_key, row.code): row
        for row in Finding.objects.open().filter(
            code__in={each.code for each in found}, kind__in={each.kind for each in found}, object_key__in={each.object_key for each in found}
        )
    }
    again = [held[key] for key in wanted if key in held]
    for row in again:
        row.last_at = max(row.last_at, wanted[(ObjectKind(row.kind), row.object_key, row.code)].at)
        row.count += 1
    Finding.objects.bulk_update(again, ["last_at", "count"], batch_size=1000)
    new = [
        Finding(
            kind=each.kind,
            object_key=each.object_key,
            site_id=each.site_id,
            code=each.code,
            severity=each.severity,
            summary=each.summary[:300],
            advised_action=each.advised_action[:300],
            evidence=each.evidence,
            since=each.at,
            last_at=each.at,
        )
        for key, each in wanted.items()
        if key not in held
    ]
    return Finding.objects.bulk_create(new, batch_size=1000)


def close_findings(kind: ObjectKind, object_keys: Iterable[str], *, at: datetime, because: str, codes: Iterable[str] | None = None) -> int:
    """End the open findings about these objects (all codes unless some are given); returns how many ended."""
    rows = Finding.objects.open().filter(kind=kind, object_key__in=list(object_keys))
    if codes is not None:
        rows = rows.filter(code__in=list(codes))
    return rows.update(until=Greatest(F("since"), at), ended_because=because)


def close_findings_of_gpus(uuids: Sequence[str], *, at: datetime, because: str) -> int:
    """End everything open about these GPUs and their slices."""
    if not uuids:
        return 0
    about = Q(kind=ObjectKind.GPU, object_key__in=list(uuids))
    for uuid in uuids:
        about |= Q(kind=ObjectKind.SLICE, object_key__startswith=f"{uuid}/")
    return Finding.objects.open().filter(about).update(until=Greatest(F("since"), at), ended_because=because)
