"""`/guard-rails`: breakers that hold acts back and their reset, freezes, and every limit in force."""

from __future__ import annotations

from dataclasses import asdict

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import path
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from console.access import Access, Right
from console.errors import problem_id
from console.guard_rails import FreezeForm, breaker_region, endable, resettable, visible_breakers, visible_freezes
from console.guards import operator_page, require, require_anywhere
from console.switch_scope import require_in_scope
from fleet.control import breakers, freezes
from fleet.control.commands import CommandRefused
from fleet.control.guardrail_settings import limits_of_settings

SHOWN = 50


@operator_page
def guard_rails(request: HttpRequest, access: Access) -> HttpResponse:
    """GET: what holds acts back now. POST: a new freeze."""
    now = timezone.now()
    form = FreezeForm(request.POST if request.method == "POST" else None, initial={"scope_kind": "fleet", "starts_at": now})
    if request.method == "POST":
        require_anywhere(access, Right.APPROVE)
        if form.is_valid() and _freeze(request, access, form):
            return redirect("guard_rails")
    found, frozen = visible_breakers(access), visible_freezes(access)
    tripped = list(found.filter(reset_at__isnull=True).order_by("-tripped_at")[:SHOWN])
    waiting, mine = breakers.waiting_counts(tripped), resettable(access, tripped)
    ahead = list(frozen.filter(ended_at__isnull=True, ends_at__gt=now).order_by("starts_at")[:SHOWN])
    ours = endable(access, ahead)
    context = {
        "nav": "commands",
        "open_ones": [(one, waiting[one.pk], one.pk in mine) for one in tripped],
        "past": list(found.filter(reset_at__isnull=False).order_by("-reset_at")[:SHOWN]),
        "freezes": [(one, one.pk in ours) for one in ahead],
        "form": form,
        "may_approve": access.may_anywhere(Right.APPROVE),
        "limits": asdict(limits_of_settings()),
        "now": now,
    }
    return render(request, "guard_rails/page.html", context, status=400 if form.errors else 200)


@require_POST
@operator_page
def reset_breaker(request: HttpRequest, access: Access, pk: int) -> HttpResponse:
    breaker = get_object_or_404(visible_breakers(access), pk=pk)
    require(access, Right.APPROVE, breaker_region(breaker))
    try:
        breakers.reset(
            breaker_id=pk,
            reason=request.POST.get("reason", ""),
            backlog=request.POST.get("backlog", ""),
            user=request.user,  # type: ignore[arg-type]
            now=timezone.now(),
            request_id=problem_id(request),
        )
    except CommandRefused as refused:
        messages.error(request, str(refused))
    else:
        messages.success(request, _("Reset. Acts of its scope go on."))
    return redirect("guard_rails")


@require_POST
@operator_page
def end_freeze(request: HttpRequest, access: Access, pk: int) -> HttpResponse:
    found = get_object_or_404(visible_freezes(access), pk=pk)
    try:
        require(access, Right.APPROVE, require_in_scope(access, found.scope_kind, found.scope_key).region_id)
        freezes.end(
            freeze_id=pk,
            reason=request.POST.get("reason", ""),
            user=request.user,  # type: ignore[arg-type]
            now=timezone.now(),
            request_id=problem_id(request),
        )
    except CommandRefused as refused:
        messages.error(request, str(refused))
    else:
        messages.success(request, _("The freeze has ended."))
    return redirect("guard_rails")


def _freeze(request: HttpRequest, access: Access, form: FreezeForm) -> bool:
    values = form.cleaned_data
    try:
        require(access, Right.APPROVE, require_in_scope(access, values["scope_kind"], values["scope_key"]).region_id)
        freezes.freeze(user=request.user, now=timezone.now(), request_id=problem_id(request), **values)  # type: ignore[arg-type]
    except CommandRefused as refused:
        for field, why in refused.errors.items():
            form.add_error(field if field in form.fields else None, why)
        return False
    messages.success(request, _("Frozen. Commands under way wait before their next target; only break-glass acts."))
    return True


urlpatterns = [
    path("guard-rails", guard_rails, name="guard_rails"),
    path("guard-rails/breakers/<int:pk>/reset", reset_breaker, name="breaker_reset"),
    path("guard-rails/freezes/<int:pk>/end", end_freeze, name="freeze_end"),
]
