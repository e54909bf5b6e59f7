"""`/nodes` (the standard list) and `/nodes/<id>`: conditions, GPUs, workloads, versions, topology, the agent's contact."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import path
from django.utils import timezone

from console.access import Access, Right
from console.findings import open_findings
from console.gpu_facts import facts_of, with_everything
from console.guards import operator_page
from console.history import history_context
from console.list_kinds import NODES, node_rows
from console.lists import read_list
from console.maintenance import MaintenanceForm
from fleet.control.observed import controls_of_node
from fleet.health.maintenance import windows_covering
from fleet.models import AgentIdentity, DesiredDocument, EnrolmentToken, Gpu, HealthTransition, KeyChangeRequest, Node, ObjectKind, ServiceReading

ROWS_SHOWN = 50


@operator_page
def node_list(request: HttpRequest, access: Access) -> HttpResponse:
    return render(request, "nodes/list.html", {"nav": "nodes", "list": read_list(request, NODES, node_rows(access))})


@operator_page
def node_page(request: HttpRequest, access: Access, pk: int) -> HttpResponse:
    node = get_object_or_404(node_rows(access).select_related("site__region__area", "health", "agent_connection"), pk=pk)
    now, key, site = timezone.now(), str(pk), node.site
    facts = facts_of(list(with_everything(Gpu.objects.filter(node=node).exclude(presence=Gpu.Presence.RETIRED)).order_by("index", "uuid")), now=now)
    context = {
        "nav": "nodes",
        "node": node,
        "site": site,
        "health": getattr(node, "health", None),
        "gpus": facts,
        "gpus_expected": max(node.expected_gpus or 0, len(facts)),
        "workloads": [(each, workload) for each in facts for workload in each.workloads],
        "findings": open_findings(kind=ObjectKind.NODE, object_key=key),
        "gpu_findings": open_findings(kind=ObjectKind.GPU, object_key__in=[each.gpu.uuid for each in facts]) if facts else [],
        "transitions": list(HealthTransition.objects.filter(kind=ObjectKind.NODE, object_key=key).order_by("-at")[:ROWS_SHOWN]),
        "topology": topology_rows(node),
        "connection": getattr(node, "agent_connection", None),
        "identity": AgentIdentity.objects.filter(node=node, revoked_at__isnull=True).first(),
        "open_token": EnrolmentToken.objects.filter(node=node, used_at__isnull=True, expires_at__gt=now).order_by("-expires_at").first(),
        "key_change": KeyChangeRequest.objects.filter(node=node, decided_at__isnull=True).first(),
        "document": DesiredDocument.objects.filter(node=node).order_by("-version").only("version", "created_at").first(),
        "services": list(ServiceReading.objects.filter(node=node).order_by("job", "item")),
        "controls": controls_of_node(node, now=now),
        "windows": windows_covering(site=site, node=node, now=now),
        "maintenance_form": MaintenanceForm(),
        "scope_kind": ObjectKind.NODE,
        "scope_key": key,
        **history_context(request, node, kind=ObjectKind.NODE, key=key),
        "may_operate": access.may(Right.OPERATE, site.region_id),
        "now": now,
    }
    return render(request, "nodes/page.html", context)


def topology_rows(node: Node) -> list[dict[str, Any]]:
    """The matrix of `nvidia-smi topo -m` as rows of (device, NUMA node, words); empty when the node has reported none."""
    topology = node.topology if isinstance(node.topology, dict) else {}
    devices = [str(name) for name in topology.get("devices", [])]
    links, numa, nics = topology.get("links", {}), topology.get("numa", {}), topology.get("nics", {})
    return [
        {
            "device": device,
            "name": nics.get(device, ""),
            "numa": numa.get(device),
            "cells": ["X" if other == device else str(links.get(device, {}).get(other, "")) for other in devices],
        }
        for device in devices
    ]


urlpatterns = [
    path("nodes", node_list, name="nodes"),
    path("nodes/<int:pk>", node_page, name="node"),
]
