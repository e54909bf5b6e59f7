"""`/sites` (the standard list) and `/sites/<code>`: all that is known of one site, right after a reload without the socket."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import path
from django.utils import timezone

from console.access import Access, Right
from console.findings import open_findings
from console.gpu_facts import facts_of, with_everything
from console.guards import operator_page
from console.history import history_context
from console.list_kinds import SITES, node_rows, site_rows
from console.lists import read_list
from console.maintenance import MaintenanceForm
from fleet.health.maintenance import windows_covering
from fleet.models import DataQuality, Disagreement, Gpu, HealthTransition, Node, ObjectKind, Site
from fleet.telemetry.panels import RANGES

NODES_SHOWN = 50
GPUS_SHOWN = 32
ROWS_SHOWN = 50


@operator_page
def site_list(request: HttpRequest, access: Access) -> HttpResponse:
    return render(request, "sites/list.html", {"nav": "sites", "list": read_list(request, SITES, site_rows(access))})


@operator_page
def site_page(request: HttpRequest, access: Access, code: str) -> HttpResponse:
    site = get_object_or_404(site_rows(access), code=code)
    now = timezone.now()
    gpus = with_everything(Gpu.objects.filter(node__site=site).exclude(presence=Gpu.Presence.RETIRED)).order_by("node__host_name", "index", "uuid")[
        : GPUS_SHOWN + 1
    ]
    facts = facts_of(list(gpus), now=now)
    nodes = list(node_rows(access).filter(site=site, retired_at__isnull=True).order_by("host_name")[: NODES_SHOWN + 1])
    context = {
        "nav": "sites",
        "site": site,
        "health": getattr(site, "health", None),
        "nodes": nodes[:NODES_SHOWN],
        "more_nodes": len(nodes) > NODES_SHOWN,
        "gpus": facts[:GPUS_SHOWN],
        "more_gpus": len(facts) > GPUS_SHOWN,
        "newest_sample_at": max((each.values.sampled_at for each in facts if each.values.sampled_at), default=None),
        "findings": open_findings(site=site),
        "transitions": _transitions(site),
        "disagreements": list(Disagreement.objects.filter(site=site, until__isnull=True).order_by("-last_at")[:ROWS_SHOWN]),
        "quality": list(DataQuality.objects.filter(site=site).select_related("sender").order_by("-last_at")[:ROWS_SHOWN]),
        "windows": windows_covering(site=site, now=now),
        "maintenance_form": MaintenanceForm(),
        "scope_kind": ObjectKind.SITE,
        "scope_key": site.code,
        **history_context(request, site, kind=ObjectKind.SITE, key=site.code),
        "may_operate": access.may(Right.OPERATE, site.region_id),
        "chart_ranges": list(RANGES),
        "chart_range": request.GET.get("range") or "3h",
        "now": now,
    }
    return render(request, "sites/page.html", context)


def _transitions(site: Site) -> list[HealthTransition]:
    """Newest first, of the site and of what stands in it; nodes by their names."""
    rows = list(HealthTransition.objects.filter(site=site).order_by("-at", "-pk")[:ROWS_SHOWN])
    names = {str(pk): name for pk, name in Node.objects.filter(site=site).values_list("pk", "host_name")[:1000]}
    for row in rows:
        row.object_label = names.get(row.object_key, row.object_key) if row.kind == ObjectKind.NODE else row.object_key  # type: ignore[attr-defined]
    return rows


urlpatterns = [
    path("sites", site_list, name="sites"),
    path("sites/<str:code>", site_page, name="site"),
]
