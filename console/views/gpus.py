"""`/gpus` (the standard list) and `/gpus/<uuid>`: one GPU with its strip, values, faults, and its one control, the clock range."""

from __future__ import annotations

import uuid as uuids
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import path
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy
from django.views.decorators.http import require_POST

from console.access import Access, Right
from console.errors import problem_id
from console.findings import open_findings
from console.gpu_events import events_of
from console.gpu_facts import GPU_FIELDS, facts_of, with_everything
from console.guards import operator_page, require
from console.history import history_context
from console.list_kinds import GPUS, gpu_rows, sku_name
from console.lists import read_list
from console.maintenance import LocalTimeField
from console.models import User
from fleet.catalogue import SKUS
from fleet.control import controls
from fleet.control.observed import controls_of
from fleet.control.signing import SigningUnavailable
from fleet.health.xid import table
from fleet.models import Gpu, ObjectKind, Policy
from fleet.telemetry.panels import RANGES

UNDO_SECONDS = 10
POLICIES_SHOWN = 20
SUGGESTED_LENGTH = timedelta(hours=1)


class ClockRangeForm(forms.Form):
    """Lowest and highest SM clock in whole MHz, with an end. Bounds and the rest are checked where the control is stored."""

    min_mhz = forms.IntegerField(label=lazy("From, MHz"), localize=False)
    max_mhz = forms.IntegerField(label=lazy("To, MHz"), localize=False)
    ends_at = LocalTimeField(label=lazy("Ends"), widget=forms.DateTimeInput(attrs={"type": "datetime-local", "step": "1"}, format="%Y-%m-%dT%H:%M:%S"))
    reason = forms.CharField(label=lazy("Reason"), max_length=300, widget=forms.TextInput(attrs={"autocomplete": "off"}))
    idempotency_key = forms.CharField(max_length=80, widget=forms.HiddenInput)

    def __init__(self, data: Any, *, limits: controls.ClockLimits, now: datetime) -> None:
        initial = {"min_mhz": limits.min_mhz, "max_mhz": limits.max_mhz, "ends_at": now + SUGGESTED_LENGTH, "idempotency_key": uuids.uuid4().hex}
        super().__init__(data, initial=initial)
        self.fields["ends_at"].help_text = _("In %(zone)s; at most %(days)d days ahead. The agent ends it by itself.") % {
            "zone": timezone.get_current_timezone_name(),
            "days": controls.LONGEST.days,
        }
        for name in ("min_mhz", "max_mhz"):
            self.fields[name].widget.attrs.update({"min": limits.min_mhz, "max": limits.max_mhz, "inputmode": "numeric"})
            self.fields[name].widget.attrs["autofocus"] = name == "min_mhz"
            self.fields[name].help_text = _("This model: %(min)d to %(max)d.") % {"min": limits.min_mhz, "max": limits.max_mhz}


@operator_page
def gpu_list(request: HttpRequest, access: Access) -> HttpResponse:
    return render(request, "gpus/list.html", {"nav": "nodes", "list": read_list(request, GPUS, gpu_rows(access))})


@operator_page
def gpu_page(request: HttpRequest, access: Access, uuid: str) -> HttpResponse:
    gpu = _gpu(access, uuid)
    return _render_page(request, access, gpu, ClockRangeForm(None, limits=controls.clock_limits(gpu), now=timezone.now()))


@require_POST
@operator_page
def set_clock_range(request: HttpRequest, access: Access, uuid: str) -> HttpResponse:
    """Class 1: done at once, undone within 10 s by its button, and at its end by the agent."""
    gpu, now = _gpu(access, uuid), timezone.now()
    require(access, Right.OPERATE, gpu.node.site.region_id)
    form = ClockRangeForm(request.POST, limits=controls.clock_limits(gpu), now=now)
    if refusal := controls.refusal_for(gpu):
        form.add_error(None, refusal)
        return _render_page(request, access, gpu, form, status=409)
    if not form.is_valid():
        return _render_page(request, access, gpu, form, status=422)
    try:
        submitted = controls.submit_clock_range(
            gpu=gpu, user=get_object_or_404(User, pk=request.user.pk), now=now, request_id=problem_id(request)[:64], **form.cleaned_data
        )
    except controls.ControlRefused as refused:
        for name, text in refused.errors.items():
            form.add_error(name if name in form.fields else None, text)
        return _render_page(request, access, gpu, form, status=409 if "" in refused.errors else 422)
    except controls.KeyReused as reused:
        form.add_error(None, str(reused))
        return _render_page(request, access, gpu, form, status=409)
    except SigningUnavailable as unavailable:
        form.add_error(None, _("Nothing was set: %(why)s") % {"why": unavailable})
        return _render_page(request, access, gpu, form, status=503)
    request.session["undo"] = {"gpu": gpu.uuid, "policy": submitted.policy.pk, "until": (now + timedelta(seconds=UNDO_SECONDS)).isoformat()}
    return redirect("gpu", uuid=gpu.uuid)


@require_POST
@operator_page
def withdraw_control(request: HttpRequest, access: Access, uuid: str, pk: int) -> HttpResponse:
    """Undo, or end a control before its time."""
    gpu = _gpu(access, uuid)
    policy = get_object_or_404(Policy, pk=pk, scope_kind=ObjectKind.GPU, scope_key=gpu.uuid)
    require(access, Right.OPERATE, gpu.node.site.region_id)
    reason = request.POST.get("reason", "").strip() or _("Ended on the GPU's page")
    try:
        controls.withdraw(
            policy=policy, user=get_object_or_404(User, pk=request.user.pk), reason=reason, now=timezone.now(), request_id=problem_id(request)[:64]
        )
    except (controls.ControlRefused, SigningUnavailable) as refused:
        messages.error(request, _("It could not be withdrawn: %(why)s") % {"why": refused})
    else:
        messages.success(request, _("Withdrawn. The agent puts the clock back."))
    request.session.pop("undo", None)
    return redirect("gpu", uuid=gpu.uuid)


def _gpu(access: Access, uuid: str) -> Gpu:
    return get_object_or_404(with_everything(access.gpus()), uuid=uuid)


def _render_page(request: HttpRequest, access: Access, gpu: Gpu, form: ClockRangeForm, *, status: int = 200) -> HttpResponse:
    now, node, site = timezone.now(), gpu.node, gpu.node.site
    facts = facts_of([gpu], now=now)[0]
    policies = list(
        Policy.objects.filter(scope_kind=ObjectKind.GPU, scope_key=gpu.uuid)
        .select_related("created_by", "withdrawn_by")
        .order_by("-created_at")[:POLICIES_SHOWN]
    )
    health = getattr(gpu, "health", None)
    context = {
        "nav": "nodes",
        "gpu": gpu,
        "node": node,
        "site": site,
        "sku": SKUS.get(gpu.sku),
        "sku_name": sku_name(gpu.sku),
        "health": health,
        "facts": facts,
        "v": facts.values.gpu,
        "keys": {name: f"{gpu.uuid}:{name}" for name in GPU_FIELDS},
        "counters": [(name, facts.values.gpu.get(name)) for name in GPU_FIELDS],
        "findings": open_findings(kind=ObjectKind.GPU, object_key=gpu.uuid),
        "last_xid": table().rule(health.last_xid) if health and health.last_xid is not None else None,
        "events": events_of(gpu, policies, now=now),
        "controls": controls_of([gpu], now=now).get(gpu.uuid, []),
        "refusal": controls.refusal_for(gpu),
        "limits": controls.clock_limits(gpu),
        "form": form,
        "undo": _undo(request, gpu, now),
        "chart_ranges": list(RANGES),
        "chart_range": request.GET.get("range") or "3h",
        "replaced_by": gpu.replaced_by,
        **history_context(request, gpu, kind=ObjectKind.GPU, key=gpu.uuid),
        "may_operate": access.may(Right.OPERATE, site.region_id),
        "now": now,
    }
    return render(request, "gpus/page.html", context, status=status)


def _undo(request: HttpRequest, gpu: Gpu, now: datetime) -> dict[str, Any] | None:
    """The act on this GPU that the session can still take back with one click, and for how many seconds."""
    kept = request.session.get("undo")
    if not kept or kept.get("gpu") != gpu.uuid:
        return None
    left = (datetime.fromisoformat(kept["until"]) - now).total_seconds()
    if left <= 0:
        del request.session["undo"]
        return None
    return {"policy": kept["policy"], "seconds": round(left)}


urlpatterns = [
    path("gpus", gpu_list, name="gpus"),
    path("gpus/<str:uuid>", gpu_page, name="gpu"),
    path("gpus/<str:uuid>/clock-range", set_clock_range, name="gpu_clock_range"),
    path("gpus/<str:uuid>/controls/<int:pk>/withdraw", withdraw_control, name="gpu_control_withdraw"),
]
