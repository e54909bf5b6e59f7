"""Planned windows on pages: which ones touch an object, the form that plans one, and whether a person may."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import forms
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from console.access import Access
from fleet.models import MaintenanceWindow, ObjectKind, Region


def windows_over_region(region: Region, *, now: datetime) -> list[MaintenanceWindow]:
    """Windows in force or to come over a region, its area or the fleet, the next to begin first. One statement beside the region's area."""
    scopes = Q(scope_kind=ObjectKind.REGION, scope_key=region.slug) | Q(scope_kind=ObjectKind.AREA, scope_key=region.area.slug) | Q(scope_kind=ObjectKind.FLEET)
    return list(MaintenanceWindow.objects.not_over(now).filter(scopes).order_by("starts_at", "pk"))


def region_of(access: Access, kind: str, key: str) -> int | None:
    """The region that a scope lies in, when the scope is a region, site, node or GPU within `access`; None when there is no such thing there."""
    if kind == ObjectKind.REGION:
        return access.regions().filter(slug=key).values_list("pk", flat=True).first()
    if kind == ObjectKind.SITE:
        return access.sites().filter(code=key).values_list("region_id", flat=True).first()
    if kind == ObjectKind.NODE and key.isascii() and key.isdecimal() and len(key) < 19:
        return access.nodes().filter(pk=int(key)).values_list("site__region_id", flat=True).first()
    if kind == ObjectKind.GPU:
        return access.gpus().filter(uuid=key).values_list("node__site__region_id", flat=True).first()
    return None


class LocalTimeField(forms.DateTimeField):
    """A time in the signed-in person's zone, by the browser's own picker."""

    widget = forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M")


class MaintenanceForm(forms.Form):
    starts_at = LocalTimeField(label=lazy("Begins"))
    ends_at = LocalTimeField(label=lazy("Ends"))
    reason = forms.CharField(
        label=lazy("Reason"),
        max_length=300,
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
        help_text=lazy("For example a ticket. It stands in the history."),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        zone = timezone.get_current_timezone_name()
        for name in ("starts_at", "ends_at"):
            self.fields[name].help_text = _("In %(zone)s.") % {"zone": zone}
