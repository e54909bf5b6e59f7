"""Which switches, freezes and breakers a person sees, and which scopes it may name: one outside its regions is as one that does not exist."""

from __future__ import annotations

from typing import Any, TypeVar

from django.db.models import Q, QuerySet

from console.access import Access
from fleet.control.commands import CommandRefused
from fleet.control.switches import find_switch_scope
from fleet.health.maintenance import Scope
from fleet.models import ObjectKind, Switch
from fleet.models.switch import SwitchQuerySet

Scoped = TypeVar("Scoped", bound=QuerySet[Any])


def require_in_scope(access: Access, kind: str, key: str) -> Scope:
    """The object that a switch is for. Raises CommandRefused for what does not exist or lies outside the scope (case C36)."""
    scope = find_switch_scope(kind, key)
    if scope.region_id is not None and not access.fleet_rank and scope.region_id not in access.region_ranks:
        raise CommandRefused({"scope_key": f"There is no {kind} {key!r}."})
    return scope


def in_sight(access: Access, rows: Scoped) -> Scoped:
    """Those of switches, freezes or breakers that hold over something that the caller sees: those of wider scopes too. Two statements at most, and the caller's own."""
    if not access.is_operator_side:
        return rows.none()
    if access.fleet_rank:
        return rows
    regions = access.regions()
    named = [int(key) for key in rows.filter(scope_kind=ObjectKind.NODE).values_list("scope_key", flat=True).distinct()]
    nodes = [str(pk) for pk in access.nodes().filter(pk__in=named).values_list("pk", flat=True)]
    return rows.filter(
        Q(scope_kind=ObjectKind.FLEET)
        | Q(scope_kind=ObjectKind.AREA, scope_key__in=regions.values("area__slug"))
        | Q(scope_kind=ObjectKind.REGION, scope_key__in=regions.values("slug"))
        | Q(scope_kind=ObjectKind.SITE, scope_key__in=access.sites().values("code"))
        | Q(scope_kind=ObjectKind.NODE, scope_key__in=nodes)
    )


def visible_switches(access: Access) -> SwitchQuerySet:
    return in_sight(access, Switch.objects.all())
