"""`/regions` and `/regions/<slug>`: health, capacity and power of a region, its sites, its maintenance."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import path
from django.utils import timezone

from console.access import Access, Right
from console.findings import open_findings
from console.guards import operator_page
from console.history import history_context
from console.list_kinds import REGIONS, region_rows, sites_unknown
from console.lists import read_list
from console.maintenance import MaintenanceForm, windows_over_region
from fleet.models import DataQuality, ObjectKind, Sender, SiteHealth

SHOWN = 50


@operator_page
def region_list(request: HttpRequest, access: Access) -> HttpResponse:
    return render(request, "regions/list.html", {"nav": "regions", "list": read_list(request, REGIONS, region_rows(access))})


@operator_page
def region_page(request: HttpRequest, access: Access, slug: str) -> HttpResponse:
    region = get_object_or_404(region_rows(access), slug=slug)
    now = timezone.now()
    troubled = SiteHealth.objects.filter(site__region=region).exclude(state="ok").select_related("site").order_by("since", "site__code")[: SHOWN + 1]
    context = {
        "nav": "regions",
        "region": region,
        "unknown": sites_unknown(region),
        "troubled": list(troubled),
        "findings": open_findings(site__region=region),
        "windows": windows_over_region(region, now=now),
        "senders": list(Sender.objects.filter(regions=region, revoked_at__isnull=True).order_by("name")),
        "quality": list(DataQuality.objects.filter(site__region=region).select_related("sender", "site").order_by("-last_at")[:SHOWN]),
        "maintenance_form": MaintenanceForm(),
        "scope_kind": ObjectKind.REGION,
        "scope_key": region.slug,
        **history_context(request, region, kind=ObjectKind.REGION, key=region.slug),
        "may_operate": access.may(Right.OPERATE, region.pk),
        "now": now,
    }
    return render(request, "regions/page.html", context)


urlpatterns = [
    path("regions", region_list, name="regions"),
    path("regions/<slug:slug>", region_page, name="region"),
]
