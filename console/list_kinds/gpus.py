"""The list of GPUs."""

from __future__ import annotations

from django.db.models import QuerySet
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from console import formats
from console.access import Access
from console.filters import GpuFilter
from console.links import object_url
from console.list_kinds.cells import link, ranked, site_link, state_cell, text_cell, why_cell
from console.lists import Column, ListKind
from console.templatetags.masthead import bar
from fleet.catalogue import SKUS
from fleet.models import Gpu


def gpu_rows(access: Access) -> QuerySet[Gpu]:
    return ranked(access.gpus().select_related("node__site__region", "health", "reading"))


def _reading(row: Gpu, name: str) -> float | None:
    reading = getattr(row, "reading", None)
    return getattr(reading, name) if reading else None


def _gpu_name(row: Gpu) -> SafeString:
    return format_html('<a href="{}" class="mono" title="{}">{}</a>', object_url("gpu", row.uuid), row.uuid, formats.short_uuid(row.uuid))


def _gpu_use(row: Gpu) -> SafeString:
    ratio = _reading(row, "utilization_ratio")
    if formats.is_missing(ratio):
        return formats.not_reported()
    return format_html('<span class="level"><span>{}</span>{}</span>', formats.percent(ratio), bar(ratio))


def sku_name(key: str) -> str:
    """The catalogue's name of a board; its key when the catalogue does not have it."""
    sku = SKUS.get(key)
    return sku.name if sku else key


GPUS = ListKind(
    name="gpus",
    title=lazy("GPUs"),
    filter_class=GpuFilter,
    default_order="state",
    url_of=lambda row: object_url("gpu", row.uuid),
    key_of=lambda row: row.uuid,
    quick_hint=lazy("UUID, serial number, host name or site code"),
    suggest={"region": "region", "site": "site"},
    columns=(
        Column("uuid", lazy("GPU"), _gpu_name, ("uuid",), card="main"),
        Column("state", lazy("State"), state_cell, ("state_rank", "health__since"), card="side"),
        Column("node", lazy("Node"), lambda row: link(object_url("node", row.node_id), row.node.host_name), ("node__host_name", "index")),
        Column("site", lazy("Site"), lambda row: site_link(row.node.site), ("node__site__code", "node__host_name")),
        Column("index", lazy("Index"), lambda row: formats.number(row.index), ("index",), numeric=True, shown=False, card="low"),
        Column("sku", lazy("Model"), lambda row: sku_name(row.sku), ("sku",)),
        Column("why", lazy("Why"), why_cell, ("health__cause",), card="clip"),
        Column("use", lazy("Use"), _gpu_use, ("reading__utilization_ratio",), numeric=True),
        Column(
            "temperature",
            lazy("Temperature"),
            lambda row: formats.celsius(_reading(row, "gpu_temperature_celsius")),
            ("reading__gpu_temperature_celsius",),
            numeric=True,
        ),
        Column("power", lazy("Power"), lambda row: formats.watts(_reading(row, "power_watts")), ("reading__power_watts",), numeric=True),
        Column("clock", lazy("SM clock"), lambda row: formats.megahertz(_reading(row, "sm_clock_hertz")), ("reading__sm_clock_hertz",), numeric=True),
        Column(
            "measured",
            lazy("Measured"),
            lambda row: formats.age(row.reading.sampled_at if hasattr(row, "reading") else None),
            ("reading__sampled_at",),
            card="low",
        ),
        Column("mig", lazy("MIG"), lambda row: _("on") if row.mig_enabled else _("off"), ("mig_enabled",), shown=False, card="low"),
        Column("presence", lazy("Presence"), lambda row: row.get_presence_display(), ("presence",), shown=False, card="low"),
        Column(
            "xid",
            lazy("Last XID"),
            lambda row: str(row.health.last_xid) if hasattr(row, "health") and row.health.last_xid is not None else "",
            ("health__last_xid",),
            numeric=True,
            shown=False,
            card="low",
        ),
        Column("serial", lazy("Serial number"), lambda row: text_cell(row.serial), ("serial",), shown=False, card="low"),
    ),
)
