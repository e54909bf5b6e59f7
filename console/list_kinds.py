"""The kinds of standard list: sites, nodes, GPUs, regions. What their rows join, which columns they have, how these sort."""

from __future__ import annotations

from typing import Any

from django.db.models import Case, Count, IntegerField, OuterRef, Q, QuerySet, Subquery, Sum, Value, When
from django.db.models.functions import Coalesce
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from console import formats
from console.access import Access
from console.audit_list import AUDIT
from console.filters import GpuFilter, NodeFilter, RegionFilter, SiteFilter
from console.links import object_url
from console.lists import Column, ListKind
from console.summary import STATE_ORDER
from console.templatetags.masthead import bar, state
from fleet.catalogue import SKUS
from fleet.models import Gpu, HealthState, Node, Region, Site, SiteHealth

STATE_RANKS = {state: rank for rank, state in enumerate(STATE_ORDER)}
state_rank = Case(
    *[When(health__state=value, then=Value(rank)) for value, rank in STATE_RANKS.items()],
    default=Value(STATE_RANKS[HealthState.UNKNOWN]),
    output_field=IntegerField(),
)


def ranked(rows: QuerySet[Any]) -> QuerySet[Any]:
    """With `state_rank`, by which lists of things with health sort."""
    return rows.annotate(state_rank=state_rank)


def site_rows(access: Access) -> QuerySet[Site]:
    return ranked(access.sites().select_related("region__area", "health"))


def node_rows(access: Access) -> QuerySet[Node]:
    gpus = Gpu.objects.filter(node=OuterRef("pk")).exclude(presence=Gpu.Presence.RETIRED).order_by().values("node")
    counts = {
        "gpus_known": Coalesce(Subquery(gpus.annotate(n=Count("pk")).values("n")), 0),
        "gpus_present": Coalesce(Subquery(gpus.filter(presence=Gpu.Presence.PRESENT).annotate(n=Count("pk")).values("n")), 0),
    }
    return ranked(access.nodes().select_related("site__region", "health", "agent_connection")).annotate(**counts)


def gpu_rows(access: Access) -> QuerySet[Gpu]:
    return ranked(access.gpus().select_related("node__site__region", "health", "reading"))


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


def health_state(row: Any) -> str:
    health = getattr(row, "health", None)
    return health.state if health else HealthState.UNKNOWN


def _state(row: Any) -> SafeString:
    return format_html('<span data-field="{}:state">{}</span>', row.pk, state(health_state(row)))


def _why(row: Any) -> SafeString | str:
    health = getattr(row, "health", None)
    if health is None:
        return _("Has never reported.")
    why = health.why if health.state != HealthState.OK else ""
    return format_html('<span data-field="{0}:why" title="{1}">{1}</span>', row.pk, why)


def _since(row: Any) -> SafeString:
    health = getattr(row, "health", None)
    return format_html('<span data-field="{}:since">{}</span>', row.pk, formats.age(health.since if health else None))


def _link(url: str, text: str, css: str = "") -> SafeString:
    return format_html('<a href="{}" class="{}">{}</a>', url, css, text)


def _site_link(site: Site) -> SafeString:
    return _link(object_url("site", site.code), site.code)


def _region_link(region: Region) -> SafeString:
    return _link(object_url("region", region.slug), region.name, "dim")


def _n_of_m(n: int | None, m: int | None) -> SafeString | str:
    if m is None:
        return formats.not_reported()
    text = _("%(n)s of %(m)s") % {"n": formats.number(n or 0), "m": formats.number(m)}
    return text if (n or 0) >= m else format_html('<span class="strong">{}</span>', text)


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
        Column("code", lazy("Site"), lambda row: _site_link(row), ("code",), card="main"),
        Column("state", lazy("State"), _state, ("state_rank", "health__since"), card="side"),
        Column("name", lazy("Name"), lambda row: row.name, ("name",)),
        Column("region", lazy("Region"), lambda row: _region_link(row.region), ("region__slug", "code")),
        Column("since", lazy("For"), _since, ("health__since",)),
        Column("why", lazy("Why"), _why, ("health__cause",), card="clip"),
        Column(
            "gpus",
            lazy("GPUs reporting"),
            lambda row: _n_of_m(row.health.gpus_reporting, row.health.gpus_expected) if hasattr(row, "health") else formats.not_reported(),
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


def _agent(row: Node) -> SafeString | str:
    connection = getattr(row, "agent_connection", None)
    if connection is None:
        return format_html('<span class="not-reported">{}</span>', _("never connected"))
    return _("connected") if connection.connected else format_html('{} <span class="faint">{}</span>', _("away"), formats.age(connection.disconnected_at))


def _text(value: str) -> SafeString | str:
    return value or formats.not_reported()


NODES = ListKind(
    name="nodes",
    title=lazy("Nodes"),
    filter_class=NodeFilter,
    default_order="state",
    url_of=lambda row: object_url("node", row.pk),
    key_of=lambda row: row.host_name,
    quick_hint=lazy("Host name or site code"),
    suggest={"region": "region", "site": "site"},
    columns=(
        Column("host_name", lazy("Node"), lambda row: _link(object_url("node", row.pk), row.host_name), ("host_name",), card="main"),
        Column("state", lazy("State"), _state, ("state_rank", "health__since"), card="side"),
        Column("site", lazy("Site"), lambda row: _site_link(row.site), ("site__code", "host_name")),
        Column("region", lazy("Region"), lambda row: _region_link(row.site.region), ("site__region__slug", "host_name"), card="low"),
        Column("role", lazy("Role"), lambda row: row.get_role_display(), ("role",)),
        Column("since", lazy("For"), _since, ("health__since",), card="low"),
        Column("why", lazy("Why"), _why, ("health__cause",), card="clip"),
        Column("gpus", lazy("GPUs present"), lambda row: _n_of_m(row.gpus_present, max(row.gpus_known, row.expected_gpus or 0)), numeric=True),
        Column("driver", lazy("Driver"), lambda row: _text(row.driver_version), ("driver_version",)),
        Column("agent", lazy("Agent"), _agent, ("agent_connection__connected",)),
        Column("agent_version", lazy("Agent version"), lambda row: _text(row.agent_version), ("agent_version",), shown=False, card="low"),
        Column("cuda", lazy("CUDA"), lambda row: _text(row.cuda_version), ("cuda_version",), shown=False, card="low"),
        Column("kubelet", lazy("Kubelet"), lambda row: _text(row.kubelet_version), ("kubelet_version",), shown=False, card="low"),
        Column("seen", lazy("Last seen"), lambda row: formats.age(row.last_seen_at), ("last_seen_at",), shown=False, card="low"),
    ),
)


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
        Column("state", lazy("State"), _state, ("state_rank", "health__since"), card="side"),
        Column("node", lazy("Node"), lambda row: _link(object_url("node", row.node_id), row.node.host_name), ("node__host_name", "index")),
        Column("site", lazy("Site"), lambda row: _site_link(row.node.site), ("node__site__code", "node__host_name")),
        Column("index", lazy("Index"), lambda row: formats.number(row.index), ("index",), numeric=True, shown=False, card="low"),
        Column("sku", lazy("Model"), lambda row: sku_name(row.sku), ("sku",)),
        Column("why", lazy("Why"), _why, ("health__cause",), card="clip"),
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
        Column("serial", lazy("Serial number"), lambda row: _text(row.serial), ("serial",), shown=False, card="low"),
    ),
)


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
        Column("name", lazy("Region"), lambda row: _link(object_url("region", row.slug), row.name), ("name",), card="main"),
        Column("area", lazy("Area"), lambda row: row.area.name, ("area__slug", "slug")),
        Column("kind", lazy("Kind"), lambda row: row.get_kind_display(), ("kind", "slug"), card="low"),
        Column("health", lazy("Sites by state"), _site_counts),
        Column("down", lazy("Down"), lambda row: formats.number(row.sites_down), ("sites_down",), numeric=True, shown=False, card="low"),
        Column("sites", lazy("Sites"), lambda row: formats.number(row.site_count), ("site_count",), numeric=True),
        Column("gpus", lazy("GPUs reporting"), lambda row: _n_of_m(row.gpus_reporting, row.gpus_expected), ("gpus_reporting",), numeric=True),
        Column("power", lazy("Power"), _region_power, ("power_watts",), numeric=True),
    ),
)

KINDS = {kind.name: kind for kind in (SITES, NODES, GPUS, REGIONS, AUDIT)}
