"""The audit as people see it: acts on what is the console's own, and which entries lie in whose scope."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from django.db.models import CharField, Q, QuerySet
from django.db.models.functions import Cast

from console.access import Access, Right
from fleet.control.audit import record
from fleet.models import AuditEntry, AuditKind


def note_act(*, actor: str, action: str, subject: str, now: datetime, reason: str = "", detail: Mapping[str, object] | None = None) -> AuditEntry:
    """Write an entry about `subject`: the name of a user, the key of a tenant, the prefix of a token."""
    return record(actor=actor, action=action, key=subject, now=now, reason=reason, detail={"subject": subject, **(detail or {})})


def may_read_audit(access: Access) -> bool:
    """Administrators and leads, of the fleet or of a region."""
    return access.may_anywhere(Right.APPROVE)


def visible_entries(access: Access, username: str) -> QuerySet[AuditEntry]:
    """Administrators of the fleet see all; leads of the fleet what was done to its objects; a region's leads and administrators what was done
    to the objects of their regions. Everybody among them sees its own acts, others nothing."""
    entries = AuditEntry.objects.all()
    if not may_read_audit(access):
        return entries.none()
    if access.may(Right.ADMINISTER):
        return entries
    own = Q(actor=username)
    if access.may(Right.APPROVE):
        return entries.filter(own | ~Q(kind__in=("", AuditKind.SENDER)))
    regions = [pk for pk in access.region_ranks if access.may(Right.APPROVE, pk)]
    nodes = access.nodes().filter(site__region__in=regions).annotate(key=Cast("pk", CharField()))
    return entries.filter(
        own
        | Q(kind=AuditKind.REGION, object_key__in=access.regions().filter(pk__in=regions).values("slug"))
        | Q(kind=AuditKind.SITE, object_key__in=access.sites().filter(region__in=regions).values("code"))
        | Q(kind=AuditKind.NODE, object_key__in=nodes.values("key"))
        | Q(kind=AuditKind.GPU, object_key__in=access.gpus().filter(node__site__region__in=regions).values("uuid"))
    )
