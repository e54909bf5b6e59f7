"""What a node's agent does on its own, composed for its signed document: what belongs to the operator, and whose pods run there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from django.conf import settings

from agent.protocol import LocalRules, WorkloadRule
from fleet.models import MigSlice, Workload

MOST_NAMESPACES = 500
LONGEST_NAMESPACE = 63


def rules_of(node_ids: Iterable[int]) -> dict[int, LocalRules]:
    """The rules of each node. One query, however many nodes.

    A namespace of the operator never belongs to a tenant, whatever the mapping says. Where one namespace was mapped to two tenants, the first by name has it.
    """
    ids = list(node_ids)
    operators = tuple(sorted(settings.OPERATOR_NAMESPACES))
    accounts = tuple(sorted(settings.OPERATOR_SERVICE_ACCOUNTS))
    owners: dict[int, dict[str, str]] = defaultdict(dict)
    rows = Workload.objects.running().filter(gpu__node_id__in=ids).exclude(tenant_key="").exclude(slice__purpose=MigSlice.Purpose.PHY)
    found = rows.order_by("namespace", "tenant_key").values_list("gpu__node_id", "namespace", "tenant_key").distinct()
    for node_id, namespace, tenant in found:
        if namespace not in operators and len(namespace) <= LONGEST_NAMESPACE:
            owners[node_id].setdefault(namespace, tenant)
    return {
        node_id: LocalRules(
            operator_namespaces=operators,
            operator_service_accounts=accounts,
            workloads=tuple(WorkloadRule(namespace=namespace, tenant=tenant) for namespace, tenant in sorted(owners[node_id].items())[:MOST_NAMESPACES]),
        )
        for node_id in ids
    }
