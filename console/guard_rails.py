"""Breakers and freezes: which of them a person sees, and the forms that reset and set them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from console.access import Access, Right
from console.maintenance import LocalTimeField
from console.switch_scope import in_sight
from fleet.models import Breaker, Freeze, Node, ObjectKind, Region, Site


def visible_breakers(access: Access) -> QuerySet[Breaker]:
    return in_sight(access, Breaker.objects.all())


def _approved_regions(access: Access) -> QuerySet[Region]:
    held = [region_id for region_id in access.region_ranks if access.may(Right.APPROVE, region_id)]
    return Region.objects.all() if access.may(Right.APPROVE) else Region.objects.filter(pk__in=held)


def resettable(access: Access, found: Sequence[Breaker]) -> set[int]:
    """Ids of those that this person may reset. One statement at most."""
    slugs = set(_approved_regions(access).filter(slug__in=[one.scope_key for one in found]).values_list("slug", flat=True))
    return {one.pk for one in found if access.may(Right.APPROVE) or (one.scope_kind == ObjectKind.REGION and one.scope_key in slugs)}


def endable(access: Access, found: Sequence[Freeze]) -> set[int]:
    """Ids of those that this person may end. Three statements at most."""
    if access.may(Right.APPROVE):
        return {one.pk for one in found}
    regions, keys = _approved_regions(access), [one.scope_key for one in found]
    numbers = [int(one.scope_key) for one in found if one.scope_kind == ObjectKind.NODE]
    within: set[tuple[str, str]] = {(ObjectKind.REGION, slug) for slug in regions.filter(slug__in=keys).values_list("slug", flat=True)}
    within |= {(ObjectKind.SITE, code) for code in Site.objects.filter(region__in=regions, code__in=keys).values_list("code", flat=True)}
    within |= {(ObjectKind.NODE, str(pk)) for pk in Node.objects.filter(site__region__in=regions, pk__in=numbers).values_list("pk", flat=True)}
    return {one.pk for one in found if (one.scope_kind, one.scope_key) in within}


def breaker_region(breaker: Breaker) -> int | None:
    """The region whose leads may reset it; None: only leads of the whole fleet."""
    if breaker.scope_kind != ObjectKind.REGION:
        return None
    return Region.objects.filter(slug=breaker.scope_key).values_list("pk", flat=True).first()


def visible_freezes(access: Access) -> QuerySet[Freeze]:
    return in_sight(access, Freeze.objects.all())


class FreezeForm(forms.Form):
    """Where and when nobody acts, but by break-glass."""

    scope_kind = forms.ChoiceField(
        label=lazy("Scope"),
        choices=[("fleet", lazy("Fleet")), ("area", lazy("Area")), ("region", lazy("Region")), ("site", lazy("Site")), ("node", lazy("Node"))],
    )
    scope_key = forms.CharField(label=lazy("Which"), max_length=80, required=False, help_text=lazy("Slug, site code or node number; empty for the fleet."))
    starts_at = LocalTimeField(label=lazy("Begins"))
    ends_at = LocalTimeField(label=lazy("Ends"))
    reason = forms.CharField(label=lazy("Reason"), max_length=300, widget=forms.TextInput(attrs={"autocomplete": "off"}))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in ("starts_at", "ends_at"):
            self.fields[name].help_text = _("In %(zone)s.") % {"zone": timezone.get_current_timezone_name()}
