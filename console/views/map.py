"""`/map`: sites on our own outlines, clustered by worst health, with the same as a list beside it."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import path
from django.views.decorators.http import require_safe

from console.access import Access
from console.guards import operator_page
from fleet.models import HealthState


@require_safe
@operator_page
def map_page(request: HttpRequest, access: Access) -> HttpResponse:
    sites = access.sites()
    states = [(state.value, state.label) for state in (HealthState.DOWN, HealthState.UNKNOWN, HealthState.DEGRADED, HealthState.MAINTENANCE, HealthState.OK)]
    return render(
        request, "map/page.html", {"nav": "map", "states": states, "site_count": sites.count(), "unplaced": sites.filter(latitude__isnull=True).count()}
    )


urlpatterns = [path("map", map_page, name="map")]
