"""What a tenant's user sees at `/`: their own workloads, and nothing that tells where they stand or who else is there."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Count, Q

from console.access import Access
from fleet.models import HealthState, Workload
from tenants.models import Tenant


@dataclass(frozen=True)
class TenantLine:
    """Running workloads of one tenant; `touched` of them run on a GPU that is not ok."""

    name: str
    workloads: int
    pods: int
    namespaces: int
    touched: int


@dataclass(frozen=True)
class TenantSummary:
    tenants: list[TenantLine]
    workloads: list[Workload]
    total: int


def tenant_summary(access: Access, *, limit: int) -> TenantSummary:
    """Three queries."""
    running = access.workloads().filter(ended_at__isnull=True)
    not_ok = Q(gpu__health__isnull=True) | ~Q(gpu__health__state__in=[HealthState.OK, HealthState.MAINTENANCE])
    rows = running.values("tenant_key").annotate(
        workloads=Count("pk"), pods=Count("pod", distinct=True), namespaces=Count("namespace", distinct=True), touched=Count("pk", filter=not_ok)
    )
    found = {row["tenant_key"]: row for row in rows}
    lines = []
    for key, name in Tenant.objects.filter(key__in=access.tenant_keys).values_list("key", "name"):
        numbers = [found[key][word] if key in found else 0 for word in ("workloads", "pods", "namespaces", "touched")]
        lines.append(TenantLine(name, *numbers))
    workloads = list(running.select_related("slice", "gpu__health").order_by("namespace", "pod", "container", "pk")[:limit])
    return TenantSummary(tenants=lines, workloads=workloads, total=sum(line.workloads for line in lines))
