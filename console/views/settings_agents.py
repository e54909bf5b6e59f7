"""`/settings/agents`: one-time tokens that enrol nodes, in bulk, and decisions on nodes that ask for another key."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib import messages
from django.db.models import Exists, OuterRef, Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import path
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from agent.protocol import fingerprint_of
from console.access import Access, Right
from console.errors import problem_id
from console.guards import operator_page, require
from console.models import User
from console.setting_forms import EnrolmentForm
from fleet.agents import enrolment
from fleet.control.signing import SigningUnavailable
from fleet.models import AgentIdentity, KeyChangeRequest, Node

MOST = 1000
DECIDED_SHOWN = 20


@never_cache
@operator_page
def agents(request: HttpRequest, access: Access) -> HttpResponse:
    form = EnrolmentForm(request.POST or None, initial={"sites": request.GET.get("site", "")[:40]})
    if request.method == "POST" and form.is_valid():
        nodes = _nodes(access, form)
        if not form.errors:
            for region_id in {node.site.region_id for node in nodes}:
                require(access, Right.OPERATE, region_id)
            try:
                issued = enrolment.issue_bundles(
                    nodes=nodes,
                    user=get_object_or_404(User, pk=request.user.pk),
                    now=timezone.now(),
                    valid_for=timedelta(days=form.cleaned_data["valid_days"]),
                    request_id=problem_id(request)[:64],
                )
            except SigningUnavailable as unavailable:
                form.add_error(None, str(unavailable))
            else:
                return _page(request, access, EnrolmentForm(), issued=issued, status=201)
    return _page(request, access, form, status=422 if form.errors else 200)


def _nodes(access: Access, form: EnrolmentForm) -> list[Node]:
    """The nodes that the form names, in scope; what it names and is not there becomes an error of its field."""
    sites, hosts = form.cleaned_data["sites"], form.cleaned_data["hosts"]
    known_sites = set(access.sites().filter(code__in=sites).values_list("code", flat=True))
    alive = access.nodes().filter(retired_at__isnull=True)
    known_hosts = set(alive.filter(host_name__in=hosts).values_list("host_name", flat=True))
    for name, missing in (("sites", sorted(set(sites) - known_sites)), ("hosts", sorted(set(hosts) - known_hosts))):
        if missing:
            form.add_error(name, _("Not found: %(names)s.") % {"names": ", ".join(missing[:20])})
    enrolled = Exists(AgentIdentity.objects.filter(node=OuterRef("pk"), revoked_at__isnull=True))
    wanted = alive.filter(Q(host_name__in=hosts) | Q(site__code__in=sites) & ~enrolled)
    nodes = list(wanted.select_related("site").order_by("site__code", "host_name")[: MOST + 1])
    if len(nodes) > MOST:
        form.add_error(None, _("More than 1,000 nodes: name fewer sites at a time."))
    if not nodes and not form.errors:
        form.add_error("sites", _("All their nodes are enrolled already. Name a host to issue a token all the same."))
    return nodes


@require_POST
@operator_page
def decide(request: HttpRequest, access: Access, pk: int) -> HttpResponse:
    asked = get_object_or_404(KeyChangeRequest.objects.select_related("node__site"), pk=pk, node__in=access.nodes())
    require(access, Right.OPERATE, asked.node.site.region_id)
    reason, approve = request.POST.get("reason", "").strip()[:300], request.POST.get("decision") == "approve"
    if not reason or request.POST.get("decision") not in ("approve", "refuse"):
        messages.error(request, _("Say why: it stands in the audit."))
        return redirect("settings_agents")
    try:
        enrolment.decide_key_change(
            request=asked,
            approve=approve,
            user=get_object_or_404(User, pk=request.user.pk),
            reason=reason,
            now=timezone.now(),
            request_id=problem_id(request)[:64],
        )
    except enrolment.EnrolmentRefused as refused:
        messages.error(request, str(refused))
    else:
        messages.success(request, _("The new key speaks for the node.") if approve else _("Refused: the old key still speaks for the node."))
    return redirect("settings_agents")


@require_POST
@operator_page
def revoke(request: HttpRequest, access: Access, pk: int) -> HttpResponse:
    """Take a node's key away: its socket ends within seconds."""
    node = get_object_or_404(access.nodes().select_related("site"), pk=pk)
    require(access, Right.OPERATE, node.site.region_id)
    reason = request.POST.get("reason", "").strip()[:300]
    if not reason:
        messages.error(request, _("Say why: it stands in the audit."))
    elif enrolment.revoke_agent(
        node=node, user=get_object_or_404(User, pk=request.user.pk), reason=reason, now=timezone.now(), request_id=problem_id(request)[:64]
    ):
        messages.success(request, _("The key is taken away. Issue a token to enrol the node again."))
    return redirect("node", pk=pk)


def _page(request: HttpRequest, access: Access, form: EnrolmentForm, *, issued: list[enrolment.IssuedBundle] | None = None, status: int = 200) -> HttpResponse:
    asked = KeyChangeRequest.objects.filter(node__in=access.nodes()).select_related("node__site", "decided_by")
    context: dict[str, Any] = {
        "nav": "settings",
        "tab": "agents",
        "form": form,
        "issued": issued,
        "waiting": [(row, fingerprint_of(bytes(row.public_key))) for row in asked.filter(decided_at__isnull=True).order_by("requested_at")[:MOST]],
        "decided": list(asked.filter(decided_at__isnull=False).order_by("-decided_at")[:DECIDED_SHOWN]),
        "may_operate": access.may_anywhere(Right.OPERATE),
        "now": timezone.now(),
    }
    return render(request, "settings/agents.html", context, status=status)


urlpatterns = [
    path("settings/agents", agents, name="settings_agents"),
    path("settings/agents/key-changes/<int:pk>", decide, name="settings_agents_decide"),
    path("nodes/<int:pk>/agent/revoke", revoke, name="node_agent_revoke"),
]
