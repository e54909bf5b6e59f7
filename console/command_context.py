"""What a command's preview says of tenants: facts that `fleet` does not have, handed to it as values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import Count

from fleet.control.action_facts import Wanted
from fleet.models import MigSlice, Workload
from tenants.models import Tenant

MOST = 50


def context_of(wanted: Sequence[Wanted]) -> dict[str, Any]:
    """`{"tenants": [{key, name, workloads}], "more": n}` of the workloads on these targets outside PHY, the most touched first. Two statements."""
    gpus = [one.gpu_uuid for one in wanted if one.gpu_uuid]
    rows = Workload.objects.running().exclude(slice__purpose=MigSlice.Purpose.PHY).exclude(tenant_key="")
    rows = rows.filter(gpu__uuid__in=gpus) if gpus else rows.filter(gpu__node_id__in=[one.node_id for one in wanted])
    counts = list(rows.order_by().values_list("tenant_key").annotate(count=Count("pk")).order_by("-count", "tenant_key"))
    names = dict(Tenant.objects.filter(key__in=[key for key, _ in counts[:MOST]]).values_list("key", "name"))
    return {"tenants": [{"key": key, "name": names.get(key, key), "workloads": count} for key, count in counts[:MOST]], "more": max(0, len(counts) - MOST)}
