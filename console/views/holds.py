"""`/gpus/<uuid>/hold/<control>` and `/nodes/<id>/hold/<control>`: hold a power cap, a MIG layout or a cordon, with its bounds, until an end or until it is withdrawn."""

from __future__ import annotations

import uuid as uuids
from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import path
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy
from django.views.decorators.http import require_http_methods, require_POST

from console.access import Access, Right
from console.errors import problem_id
from console.guards import operator_page, require
from console.maintenance import LocalTimeField
from fleet import catalogue
from fleet.control import controls
from fleet.control.limits import CORDON, MIG_LAYOUT, POWER_CAP, Field, allowed_layouts, fields_of, limits_of
from fleet.control.signing import SigningUnavailable
from fleet.inventory.mig import Span
from fleet.models import Gpu, Node, ObjectKind, Policy

TITLES = {POWER_CAP: lazy("Power cap"), MIG_LAYOUT: lazy("MIG layout"), CORDON: lazy("Cordon")}


class HoldForm(forms.Form):
    """The control's own fields, then reason and end. What they may be is checked where the control is stored."""

    reason = forms.CharField(label=lazy("Reason"), max_length=300, widget=forms.TextInput(attrs={"autocomplete": "off"}))
    ends_at = LocalTimeField(label=lazy("Ends"), required=False, help_text=lazy("Empty: it holds until somebody ends it."))
    idempotency_key = forms.CharField(max_length=80, widget=forms.HiddenInput)

    def __init__(self, data: Any, *, fields: tuple[Field, ...], layouts: tuple[str, ...]) -> None:
        super().__init__(data, initial={"idempotency_key": uuids.uuid4().hex})
        self.control_fields = [field.name for field in fields if field.kind != "boolean"]
        for field in reversed(fields):
            if field.kind != "boolean":
                self.fields[field.name] = _form_field(field, layouts)
                self.fields = {field.name: self.fields.pop(field.name), **self.fields}

    def parameters(self) -> dict[str, Any]:
        """What was filled in; whole numbers of watts stay whole."""
        given = {name: self.cleaned_data[name] for name in self.control_fields if self.cleaned_data.get(name) not in (None, "")}
        return {name: int(value) if isinstance(value, float) and value.is_integer() else value for name, value in given.items()}


def _form_field(field: Field, layouts: tuple[str, ...]) -> forms.Field:
    help_text = str(field.bounds) if field.bounds else ""
    label = f"{_(field.title)}, {field.unit}" if field.unit else _(field.title)
    if field.kind == "text":
        return forms.ChoiceField(label=label, choices=[(layout, layout.replace(",", " · ")) for layout in layouts], required=True)
    if field.kind == "integer":
        return forms.IntegerField(label=label, help_text=help_text, required=False)
    return forms.FloatField(label=label, help_text=help_text, required=False)


@require_http_methods(["GET", "POST"])
@operator_page
def hold_gpu(request: HttpRequest, access: Access, uuid: str, control: str) -> HttpResponse:
    gpu = get_object_or_404(access.gpus().select_related("node__site").prefetch_related("protected_placements"), uuid=uuid)
    require(access, Right.OPERATE, gpu.node.site.region_id)
    if control not in (POWER_CAP, MIG_LAYOUT):
        raise Http404
    layouts = _layouts(gpu) if control == MIG_LAYOUT else ()
    form = HoldForm(request.POST or None, fields=fields_of(control, controls.limits_of_gpu(gpu)), layouts=layouts)
    refusal = (
        controls.refusal_for(gpu) if control == POWER_CAP else controls.refusal_beside_phy(gpu) or ("" if layouts else _("No other layout fits this GPU."))
    )
    return _hold(request, gpu, control, form, form.parameters if form.is_bound and form.is_valid() else None, refusal)


@require_http_methods(["GET", "POST"])
@operator_page
def hold_node(request: HttpRequest, access: Access, pk: int, control: str) -> HttpResponse:
    node = get_object_or_404(access.nodes().select_related("site"), pk=pk, retired_at__isnull=True)
    require(access, Right.OPERATE, node.site.region_id)
    if control != CORDON:
        raise Http404
    form = HoldForm(request.POST or None, fields=fields_of(control, limits_of("")), layouts=())
    return _hold(request, node, control, form, (lambda: {"cordoned": True}) if form.is_bound and form.is_valid() else None, "")


def _layouts(gpu: Gpu) -> tuple[str, ...]:
    try:
        sku = catalogue.sku(gpu.sku)
    except catalogue.UnknownSku:
        return ()
    spans = [Span(one.start, one.size) for one in gpu.protected_placements.all()]
    return allowed_layouts(sku, layout=controls.layout_of(gpu), protected=spans)


def _hold(request: HttpRequest, target: Gpu | Node, control: str, form: HoldForm, parameters: Any, refusal: str) -> HttpResponse:
    node = target.node if isinstance(target, Gpu) else target
    back = redirect("gpu", uuid=target.uuid) if isinstance(target, Gpu) else redirect("node", pk=target.pk)
    status = 200
    if parameters is not None and not refusal:
        values = form.cleaned_data
        try:
            controls.submit_control(
                control=control,
                target=target,
                parameters=parameters(),
                ends_at=values["ends_at"],
                reason=values["reason"],
                user=request.user,  # type: ignore[arg-type]
                idempotency_key=values["idempotency_key"],
                now=timezone.now(),
                request_id=problem_id(request)[:64],
            )
        except (controls.ControlRefused, controls.KeyReused, SigningUnavailable) as refused:
            for name, why in (refused.errors if isinstance(refused, controls.ControlRefused) else {"": str(refused)}).items():
                form.add_error(name if name in form.fields else None, why)
        else:
            messages.success(request, _("Set. The agent applies it, reads it back and holds it."))
            return back
    if form.is_bound and form.errors:
        status = 422
    elif request.method == "POST" and refusal:
        status = 409
    context = {
        "nav": "nodes",
        "control": control,
        "title": TITLES[control],
        "gpu": target if isinstance(target, Gpu) else None,
        "node": node,
        "site": node.site,
        "form": form,
        "refusal": refusal,
        "now": timezone.now(),
    }
    return render(request, "nodes/hold.html", context, status=status)


@require_POST
@operator_page
def withdraw_from_node(request: HttpRequest, access: Access, pk: int, policy: int) -> HttpResponse:
    """End a control of the node before its time."""
    node = get_object_or_404(access.nodes().select_related("site"), pk=pk)
    held = get_object_or_404(Policy, pk=policy, scope_kind=ObjectKind.NODE, scope_key=str(node.pk))
    require(access, Right.OPERATE, node.site.region_id)
    reason = request.POST.get("reason", "").strip() or _("Ended on the node's page")
    try:
        controls.withdraw(policy=held, user=request.user, reason=reason, now=timezone.now(), request_id=problem_id(request)[:64])  # type: ignore[arg-type]
    except (controls.ControlRefused, SigningUnavailable) as refused:
        messages.error(request, _("It could not be withdrawn: %(why)s") % {"why": refused})
    else:
        messages.success(request, _("Withdrawn. The agent takes it back."))
    return redirect("node", pk=node.pk)


urlpatterns = [
    path("gpus/<str:uuid>/hold/<slug:control>", hold_gpu, name="gpu_hold"),
    path("nodes/<int:pk>/hold/<slug:control>", hold_node, name="node_hold"),
    path("nodes/<int:pk>/controls/<int:policy>/withdraw", withdraw_from_node, name="node_control_withdraw"),
]
