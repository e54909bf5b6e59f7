"""`/switches`: what is killed and what automation is off, where it stands, and arming and releasing in three clicks."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import path
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from console.access import Access, Right
from console.command_forms import ReasonForm, SwitchForm
from console.errors import problem_id
from console.guards import operator_page, require
from console.switch_scope import require_in_scope, visible_switches
from fleet.control import switches
from fleet.control.commands import CommandRefused
from fleet.control.signing import SigningUnavailable

SHOWN = 50


@operator_page
def switch_page(request: HttpRequest, access: Access) -> HttpResponse:
    """GET: what is in force, and the form with its counts. POST: arm."""
    now = timezone.now()
    form = SwitchForm(request.POST if request.method == "POST" else None, initial=_asked(request))
    if request.method == "POST" and form.is_valid():
        values = dict(form.cleaned_data)
        try:
            _require_over(access, values["scope_kind"], values["scope_key"])
            armed = switches.arm(user=request.user, now=now, request_id=problem_id(request), **values)  # type: ignore[arg-type]
        except (CommandRefused, SigningUnavailable) as refused:
            for field, why in (refused.errors if isinstance(refused, CommandRefused) else {"": str(refused)}).items():
                form.add_error(field if field in form.fields else None, why)
        else:
            messages.success(request, _("Armed. Agents apply it as they hear of it; who is away applies it on return."))
            return redirect("switch", pk=armed.pk)
    found = visible_switches(access).select_related("armed_by", "released_by")
    in_force = [(switch, switches.standing(switch)) for switch in found.in_force(now).order_by("-armed_at")[:SHOWN]]
    context = {
        "nav": "switches",
        "in_force": in_force,
        "past": list(found.filter(armed=False).order_by("-released_at")[:SHOWN]),
        "form": form,
        "reached": _reached(access, form, request),
        "may_operate": access.may_anywhere(Right.OPERATE),
        "release_form": ReasonForm(auto_id="release_%s"),
        "now": now,
    }
    return render(request, "switches/_standing.html" if _is_renewal(request) else "switches/page.html", context, status=400 if form.errors else 200)


@operator_page
def one_switch(request: HttpRequest, access: Access, pk: uuid.UUID) -> HttpResponse:
    switch = get_object_or_404(visible_switches(access).select_related("armed_by", "released_by"), pk=pk)
    answers = (
        switch.answers.filter(node__in=access.nodes()).select_related("node__site").exclude(state="applied", remaining=0).order_by("-remaining", "node_id")
    )
    context = {
        "nav": "switches",
        "switch": switch,
        "standing": switches.standing(switch),
        "answers": list(answers[:SHOWN]),
        "in_force": switch.armed and (switch.ends_at is None or switch.ends_at > timezone.now()),
        "may_operate": _may_over(access, switch.scope_kind, switch.scope_key),
        "release_form": ReasonForm(),
        "now": timezone.now(),
    }
    return render(request, "switches/_one.html" if _is_renewal(request) else "switches/one.html", context)


@require_POST
@operator_page
def release(request: HttpRequest, access: Access, pk: uuid.UUID) -> HttpResponse:
    switch = get_object_or_404(visible_switches(access), pk=pk)
    try:
        _require_over(access, switch.scope_kind, switch.scope_key)
        switches.release(
            switch_id=pk,
            reason=request.POST.get("reason", ""),
            user=request.user,  # type: ignore[arg-type]
            now=timezone.now(),
            request_id=problem_id(request),
        )
    except (CommandRefused, SigningUnavailable) as refused:
        messages.error(request, str(refused))
    else:
        messages.success(request, _("Released. Agents open again as they hear of it."))
    return redirect("switch", pk=pk)


def _asked(request: HttpRequest) -> dict[str, Any]:
    return {"kind": "kill", "scope_kind": "fleet"} | {
        name: request.GET[name] for name in ("kind", "scope_kind", "scope_key", "tenant", "model") if name in request.GET
    }


def _reached(access: Access, form: SwitchForm, request: HttpRequest) -> switches.Reached | None:
    """Counts of what the form's scope holds now; None while it names nothing that the person sees."""
    asked = form.data if form.is_bound else _asked(request)
    kind, key = str(asked.get("scope_kind", "")), str(asked.get("scope_key", ""))
    try:
        require_in_scope(access, kind, key)
    except CommandRefused:
        return None
    return switches.reached(scope_kind=kind, scope_key=key, tenant=str(asked.get("tenant", "")))


def _may_over(access: Access, kind: str, key: str) -> bool:
    try:
        scope = switches.find_switch_scope(kind, key)
    except CommandRefused:
        return access.may(Right.OPERATE)
    return access.may(Right.OPERATE, scope.region_id)


def _require_over(access: Access, kind: str, key: str) -> None:
    require(access, Right.OPERATE, require_in_scope(access, kind, key).region_id)


def _is_renewal(request: HttpRequest) -> bool:
    return request.headers.get("HX-Request") == "true" and not request.headers.get("HX-Boosted")


urlpatterns = [
    path("switches", switch_page, name="switches"),
    path("switches/<uuid:pk>", one_switch, name="switch"),
    path("switches/<uuid:pk>/release", release, name="switch_release"),
]
