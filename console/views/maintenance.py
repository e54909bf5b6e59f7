"""Plan and end maintenance windows, from the pages of regions, sites and nodes."""

from __future__ import annotations

from datetime import timedelta

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import path, reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from console.access import Access, Right
from console.errors import problem_id
from console.guards import operator_page, require
from console.maintenance import MaintenanceForm, region_of
from fleet.health.maintenance import MaintenanceRefused, create_window, end_window, extend_window, find_scope
from fleet.models import MaintenanceWindow, ObjectKind

STEP = timedelta(hours=1)
_PAGES = {ObjectKind.REGION: "region", ObjectKind.SITE: "site", ObjectKind.NODE: "node", ObjectKind.GPU: "gpu"}


def _scope(access: Access, kind: str, key: str) -> str:
    """The address of the object's page, if it is in scope and may be operated. Raises `Http404` or `MissingRight`."""
    region_id = region_of(access, kind, key)
    if region_id is None:
        raise Http404
    require(access, Right.OPERATE, region_id)
    return reverse(_PAGES[ObjectKind(kind)], args=[key])


@require_POST
@operator_page
def plan(request: HttpRequest, access: Access) -> HttpResponse:
    kind, key = request.POST.get("scope_kind", ""), request.POST.get("scope_key", "")
    back = _scope(access, kind, key)
    form = MaintenanceForm(request.POST)
    if form.is_valid():
        try:
            create_window(
                scope=find_scope(kind, key), actor=request.user.get_username(), now=timezone.now(), request_id=problem_id(request)[:64], **form.cleaned_data
            )
        except MaintenanceRefused as refused:
            for name, text in refused.errors.items():
                form.add_error(name if name in form.fields else None, text)
        else:
            messages.success(request, _("Maintenance is planned."))
            return redirect(back)
    return render(request, "maintenance/form.html", {"nav": "sites", "form": form, "scope_kind": kind, "scope_key": key, "back": back}, status=422)


@require_POST
@operator_page
def end(request: HttpRequest, access: Access, pk: int) -> HttpResponse:
    """Ends a window now, or calls off one to come."""
    window, back, reason = _window(request, access, pk)
    end_window(
        window=window, reason=reason or _("Ended on its page"), actor=request.user.get_username(), now=timezone.now(), request_id=problem_id(request)[:64]
    )
    messages.success(request, _("The maintenance has ended."))
    return redirect(back)


@require_POST
@operator_page
def extend(request: HttpRequest, access: Access, pk: int) -> HttpResponse:
    """An hour more."""
    window, back, reason = _window(request, access, pk)
    try:
        extend_window(
            window=window,
            ends_at=window.ends_at + STEP,
            reason=reason or _("Extended on its page"),
            actor=request.user.get_username(),
            now=timezone.now(),
            request_id=problem_id(request)[:64],
        )
    except MaintenanceRefused as refused:
        messages.error(request, str(refused))
    else:
        messages.success(request, _("The maintenance goes on an hour longer."))
    return redirect(back)


def _window(request: HttpRequest, access: Access, pk: int) -> tuple[MaintenanceWindow, str, str]:
    window = get_object_or_404(MaintenanceWindow, pk=pk)
    return window, _scope(access, window.scope_kind, window.scope_key), request.POST.get("reason", "").strip()[:300]


urlpatterns = [
    path("maintenance/plan", plan, name="maintenance_plan"),
    path("maintenance/<int:pk>/end", end, name="maintenance_end"),
    path("maintenance/<int:pk>/extend", extend, name="maintenance_extend"),
]
