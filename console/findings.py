"""Open findings as pages show them: newest first, the worse before the lesser, nodes by their host names."""

from __future__ import annotations

from typing import Any

from django.db.models import Case, IntegerField, Value, When

from fleet.models import Finding, Node, ObjectKind

SHOWN = 50
_RANKS = {Finding.Severity.CRITICAL: 0, Finding.Severity.MAJOR: 1, Finding.Severity.MINOR: 2, Finding.Severity.WARNING: 3, Finding.Severity.INDETERMINATE: 4}


def open_findings(*, limit: int = SHOWN, **about: Any) -> list[Finding]:
    """Those that match the given fields of `Finding`. Two statements."""
    rank = Case(*[When(severity=severity, then=Value(number)) for severity, number in _RANKS.items()], default=Value(9), output_field=IntegerField())
    rows: list[Finding] = list(Finding.objects.open().filter(**about).select_related("site").annotate(rank=rank).order_by("rank", "-since", "pk")[:limit])
    ids = {int(row.object_key) for row in rows if row.kind == ObjectKind.NODE and row.object_key.isdecimal()}
    names = dict(Node.objects.filter(pk__in=ids).values_list("pk", "host_name")) if rows else {}
    for row in rows:
        row.object_label = names.get(int(row.object_key), row.object_key) if row.kind == ObjectKind.NODE and row.object_key.isdecimal() else row.object_key  # type: ignore[attr-defined]
    return rows
