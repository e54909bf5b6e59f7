"""The list of regions, with counts of their sites."""

from __future__ import annotations

from typing import Any

from django.db.models import Count, OuterRef, Q, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from console import formats
from console.access import Access
from console.filters import RegionFilter
from console.links import object_url
from console.list_kinds.cells import link, n_of_m
from console.lists import Column, ListKind
from fleet.models import HealthState, Region, Site, SiteHealth


def region_rows(access: Access) -> QuerySet[Region]:
    """With counts of sites by state, GPUs, power. Every total has its n of m."""
    by_region = SiteHealth.objects.filter(site__region=OuterRef("pk")).order_by().values("site__region")
    sites = Site.objects.filter(region=OuterRef("pk")).order_by().values("region").annotate(n=Count("pk")).values("n")
    counted = {
        f"sites_{value}": Coalesce(Subquery(by_region.annotate(n=Count("pk", filter=Q(state=value))).values("n")), 0)
        for value in (HealthState.OK, HealthState.DEGRADED, HealthState.DOWN, HealthState.MAINTENANCE)
    }
    sums: dict[str, Any] = {name: Subquery(by_region.annotate(n=Sum(name)).values("n")) for name in ("gpus_reporting", "gpus_expected", "power_watts")}
    sums["power_sites"] = Coalesce(Subquery(by_region.annotate(n=Count("power_watts")).values("n")), 0)
    return access.regions().select_related("area").annotate(site_count=Coalesce(Subquery(sites), 0), **counted, **sums)


def sites_unknown(row: Any) -> int:
    """Sites of a region without fresh data: those that say so and those that never reported."""
    return int(row.site_count - row.sites_ok - row.sites_degraded - row.sites_down - row.sites_maintenance)


def _site_counts(row: Any) -> SafeString:
    """Sites by state; only the states that occur, OK last and quiet."""
    counts = [
        ("down", row.sites_down),
        ("degraded", row.sites_degraded),
        ("unknown", sites_unknown(row)),
        ("maintenance", row.sites_maintenance),
        ("ok", row.sites_ok),
    ]
    parts = [format_html('<a href="{}?region={}&amp;state={}">{}</a>', reverse("sites"), row.slug, value, _counted(value, n)) for value, n in counts if n]
    return SafeString('<span class="counts">' + "".join(parts) + "</span>")


def _counted(value: str, n: int) -> SafeString:
    return format_html(
        '<svg class="mark mark-{0}" viewBox="0 0 12 12" role="img" aria-label="{1}"><use href="#mark-{0}"></use></svg>{2}',
        value,
        _(HealthState(value).label),
        formats.number(n),
    )


def _region_power(row: Any) -> SafeString | str:
    if not row.power_sites:
        return formats.not_reported()
    return format_html(
        '{} <span class="faint">{}</span>',
        formats.watts(row.power_watts),
        _("%(n)s of %(m)s sites") % {"n": formats.number(row.power_sites), "m": formats.number(row.site_count)},
    )


REGIONS = ListKind(
    name="regions",
    title=lazy("Regions"),
    filter_class=RegionFilter,
    default_order="name",
    url_of=lambda row: object_url("region", row.slug),
    key_of=lambda row: row.slug,
    quick_hint=lazy("Name"),
    columns=(
        Column("name", lazy("Region"), lambda row: link(object_url("region", row.slug), row.name), ("name",), card="main"),
        Column("area", lazy("Area"), lambda row: row.area.name, ("area__slug", "slug")),
        Column("kind", lazy("Kind"), lambda row: row.get_kind_display(), ("kind", "slug"), card="low"),
        Column("health", lazy("Sites by state"), _site_counts),
        Column("down", lazy("Down"), lambda row: formats.number(row.sites_down), ("sites_down",), numeric=True, shown=False, card="low"),
        Column("sites", lazy("Sites"), lambda row: formats.number(row.site_count), ("site_count",), numeric=True),
        Column("gpus", lazy("GPUs reporting"), lambda row: n_of_m(row.gpus_reporting, row.gpus_expected), ("gpus_reporting",), numeric=True),
        Column("power", lazy("Power"), _region_power, ("power_watts",), numeric=True),
    ),
)
