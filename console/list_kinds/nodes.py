"""The list of nodes."""

from __future__ import annotations

from django.db.models import Count, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from console import formats
from console.access import Access
from console.filters import NodeFilter
from console.links import object_url
from console.list_kinds.cells import link, n_of_m, ranked, region_link, since_cell, site_link, state_cell, text_cell, why_cell
from console.lists import Column, ListKind
from fleet.models import Gpu, Node


def node_rows(access: Access) -> QuerySet[Node]:
    gpus = Gpu.objects.filter(node=OuterRef("pk")).exclude(presence=Gpu.Presence.RETIRED).order_by().values("node")
    counts = {
        "gpus_known": Coalesce(Subquery(gpus.annotate(n=Count("pk")).values("n")), 0),
        "gpus_present": Coalesce(Subquery(gpus.filter(presence=Gpu.Presence.PRESENT).annotate(n=Count("pk")).values("n")), 0),
    }
    return ranked(access.nodes().select_related("site__region", "health", "agent_connection")).annotate(**counts)


def _agent(row: Node) -> SafeString | str:
    connection = getattr(row, "agent_connection", None)
    if connection is None:
        return format_html('<span class="not-reported">{}</span>', _("never connected"))
    return _("connected") if connection.connected else format_html('{} <span class="faint">{}</span>', _("away"), formats.age(connection.disconnected_at))


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
        Column("host_name", lazy("Node"), lambda row: link(object_url("node", row.pk), row.host_name), ("host_name",), card="main"),
        Column("state", lazy("State"), state_cell, ("state_rank", "health__since"), card="side"),
        Column("site", lazy("Site"), lambda row: site_link(row.site), ("site__code", "host_name")),
        Column("region", lazy("Region"), lambda row: region_link(row.site.region), ("site__region__slug", "host_name"), card="low"),
        Column("role", lazy("Role"), lambda row: row.get_role_display(), ("role",)),
        Column("since", lazy("For"), since_cell, ("health__since",), card="low"),
        Column("why", lazy("Why"), why_cell, ("health__cause",), card="clip"),
        Column("gpus", lazy("GPUs present"), lambda row: n_of_m(row.gpus_present, max(row.gpus_known, row.expected_gpus or 0)), numeric=True),
        Column("driver", lazy("Driver"), lambda row: text_cell(row.driver_version), ("driver_version",)),
        Column("agent", lazy("Agent"), _agent, ("agent_connection__connected",)),
        Column("agent_version", lazy("Agent version"), lambda row: text_cell(row.agent_version), ("agent_version",), shown=False, card="low"),
        Column("cuda", lazy("CUDA"), lambda row: text_cell(row.cuda_version), ("cuda_version",), shown=False, card="low"),
        Column("kubelet", lazy("Kubelet"), lambda row: text_cell(row.kubelet_version), ("kubelet_version",), shown=False, card="low"),
        Column("seen", lazy("Last seen"), lambda row: formats.age(row.last_seen_at), ("last_seen_at",), shown=False, card="low"),
    ),
)
