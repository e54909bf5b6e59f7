"""Which switches a person sees, and which scopes it may name: one outside its regions is as one that does not exist."""

from __future__ import annotations

from django.db.models import Q

from console.access import Access
from fleet.control.commands import CommandRefused
from fleet.control.switches import find_switch_scope
from fleet.health.maintenance import Scope
from fleet.models import ObjectKind, Switch
from fleet.models.switch import SwitchQuerySet


def require_in_scope(access: Access, kind: str, key: str) -> Scope:
    """The object that a switch is for. Raises CommandRefused for what does not exist or lies outside the scope (case C36)."""
    scope = find_switch_scope(kind, key)
    if scope.region_id is not None and not access.fleet_rank and scope.region_id not in access.region_ranks:
        raise CommandRefused({"scope_key": f"There is no {kind} {key!r}."})
    return scope


def visible_switches(access: Access) -> SwitchQuerySet:
    """Switches over something that the caller sees; those of wider scopes too, since they hold there as well."""
    if not access.is_operator_side:
        return Switch.objects.none()
    if access.fleet_rank:
        return Switch.objects.all()
    regions = access.regions()
    nodes = [str(pk) for pk in access.nodes().filter(pk__in=_node_ids()).values_list("pk", flat=True)]
    return Switch.objects.filter(
        Q(scope_kind=ObjectKind.FLEET)
        | Q(scope_kind=ObjectKind.AREA, scope_key__in=regions.values("area__slug"))
        | Q(scope_kind=ObjectKind.REGION, scope_key__in=regions.values("slug"))
        | Q(scope_kind=ObjectKind.SITE, scope_key__in=access.sites().values("code"))
        | Q(scope_kind=ObjectKind.NODE, scope_key__in=nodes)
    )


def _node_ids() -> list[int]:
    return [int(key) for key in Switch.objects.filter(scope_kind=ObjectKind.NODE).values_list("scope_key", flat=True).distinct()]
