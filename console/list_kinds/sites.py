"""The list of sites."""

from __future__ import annotations

from django.db.models import QuerySet
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as lazy

from console import formats
from console.access import Access
from console.filters import SiteFilter
from console.links import object_url
from console.list_kinds.cells import n_of_m, ranked, region_link, since_cell, site_link, state_cell, why_cell
from console.lists import Column, ListKind
from fleet.models import Site


def site_rows(access: Access) -> QuerySet[Site]:
    return ranked(access.sites().select_related("region__area", "health"))


def _site_use(row: Site) -> SafeString:
    health = getattr(row, "health", None)
    return format_html('<span data-field="{}:use" data-format="percent">{}</span>', row.pk, formats.percent(health.gpu_utilization_ratio if health else None))


def _site_power(row: Site) -> SafeString:
    health = getattr(row, "health", None)
    return format_html('<span data-field="{}:power" data-format="watts">{}</span>', row.pk, formats.watts(health.power_watts if health else None))


def _contact(row: Site) -> SafeString:
    health = getattr(row, "health", None)
    return formats.age(health.last_contact_at if health else None)


SITES = ListKind(
    name="sites",
    title=lazy("Sites"),
    filter_class=SiteFilter,
    default_order="state",
    url_of=lambda row: object_url("site", row.code),
    key_of=lambda row: row.code,
    quick_hint=lazy("Code or name"),
    area_of=lambda row: row.region.area_id,
    suggest={"region": "region"},
    columns=(
        Column("code", lazy("Site"), lambda row: site_link(row), ("code",), card="main"),
        Column("state", lazy("State"), state_cell, ("state_rank", "health__since"), card="side"),
        Column("name", lazy("Name"), lambda row: row.name, ("name",)),
        Column("region", lazy("Region"), lambda row: region_link(row.region), ("region__slug", "code")),
        Column("since", lazy("For"), since_cell, ("health__since",)),
        Column("why", lazy("Why"), why_cell, ("health__cause",), card="clip"),
        Column(
            "gpus",
            lazy("GPUs reporting"),
            lambda row: n_of_m(row.health.gpus_reporting, row.health.gpus_expected) if hasattr(row, "health") else formats.not_reported(),
            ("health__gpus_reporting",),
            numeric=True,
        ),
        Column("use", lazy("GPU use"), _site_use, ("health__gpu_utilization_ratio",), numeric=True),
        Column("power", lazy("Power"), _site_power, ("health__power_watts",), numeric=True),
        Column("contact", lazy("Last contact"), _contact, ("health__last_contact_at",), shown=False, card="low"),
        Column("kind", lazy("Kind"), lambda row: row.get_kind_display(), ("kind",), shown=False, card="low"),
        Column("area", lazy("Area"), lambda row: row.region.area.name, ("region__area__slug", "code"), shown=False, card="low"),
        Column("feed", lazy("Power feed"), lambda row: row.power_feed or formats.not_reported(), ("power_feed",), shown=False, card="low"),
        Column("zone", lazy("Time zone"), lambda row: str(row.time_zone), ("time_zone",), shown=False, card="low"),
    ),
)
