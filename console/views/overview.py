"""`/`: the fleet at a glance for operators, their own workloads for tenants' users."""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import NoReverseMatch, path, reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from console.access import Access
from console.guards import signed_in_page
from console.summary import Scope, finding_groups, health_counts, incomplete, maintenance_now, newest_findings, power_by_area, silent_sites, worst_regions
from console.tenant_summary import tenant_summary

REGIONS, FINDINGS, GROUPS, SILENT, WINDOWS, WORKLOADS = 8, 8, 6, 8, 5, 100


@require_safe
@signed_in_page
def overview(request: HttpRequest, access: Access) -> HttpResponse:
    if not access.is_operator_side:
        now = timezone.now()
        return render(request, "overview/tenant.html", {"nav": "overview", "summary": tenant_summary(access, limit=WORKLOADS), "now": now})
    facts = _facts(access)
    template = "overview/page.html" if facts["counts"].sites else "overview/first_run.html"
    return render(request, template, {"nav": "overview", "steps": _first_steps(), **facts})


@require_safe
@signed_in_page
def overview_panels(request: HttpRequest, access: Access) -> HttpResponse:
    if not access.is_operator_side:
        raise Http404
    return render(request, "overview/_panels.html", _facts(access))


def _facts(access: Access) -> dict[str, Any]:
    scope = Scope(access)
    now = timezone.now()
    groups, open_total = finding_groups(scope, GROUPS)
    silent, silent_total = silent_sites(scope, SILENT)
    return {
        "counts": health_counts(scope),
        "incomplete": incomplete(scope, now=now),
        "regions": worst_regions(scope, REGIONS),
        "groups": groups,
        "findings": newest_findings(scope, FINDINGS),
        "findings_total": open_total,
        "silent": silent,
        "silent_total": silent_total,
        "power": power_by_area(scope),
        "windows": maintenance_now(scope, now=now, limit=WINDOWS),
        "now": now,
    }


def _first_steps() -> dict[str, str]:
    """Where the first steps are done, of those pages that exist."""
    found = {}
    for key, name in (("import", "jobs"), ("senders", "settings_senders"), ("agents", "settings_agents"), ("users", "settings_users")):
        try:
            found[key] = reverse(name)
        except NoReverseMatch:
            continue
    return found


urlpatterns = [
    path("", overview, name="overview"),
    path("overview/panels", overview_panels, name="overview_panels"),
]
