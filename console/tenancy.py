"""Whose a workload is: the namespace mapping of `tenants`, written where `fleet` shows it. The narrower mapping (one site's) wins."""

from collections.abc import Iterable

from django.db import connection, transaction

from fleet.inventory.protection import documents_stale
from fleet.models import Gpu

# Every running workload whose tenant is not what the mapping says, by hash joins over small tables; `{scope}` narrows it.
_ASSIGN = """
UPDATE fleet_workload AS held SET tenant_key = wanted.tenant_key
FROM (
    SELECT w.id, COALESCE(here.key, everywhere.key, '') AS tenant_key
    FROM fleet_workload w
    JOIN fleet_gpu g ON g.id = w.gpu_id
    JOIN fleet_node n ON n.id = g.node_id
    LEFT JOIN (
        SELECT m.namespace, m.site_id, t.key FROM tenants_namespacemapping m JOIN tenants_tenant t ON t.id = m.tenant_id WHERE m.site_id IS NOT NULL
    ) AS here ON here.namespace = w.namespace AND here.site_id = n.site_id
    LEFT JOIN (
        SELECT m.namespace, t.key FROM tenants_namespacemapping m JOIN tenants_tenant t ON t.id = m.tenant_id WHERE m.site_id IS NULL
    ) AS everywhere ON everywhere.namespace = w.namespace
    WHERE w.ended_at IS NULL AND {scope}
) AS wanted
WHERE wanted.id = held.id AND held.tenant_key <> wanted.tenant_key
RETURNING held.gpu_id
"""


def assign_tenants() -> int:
    """Bring every running workload in line with the mapping; returns how many changed hands."""
    return _assign("TRUE", [])


def assign_new_workloads() -> int:
    """Find the tenant of running workloads that nobody has yet; returns how many got one."""
    return _assign("w.tenant_key = ''", [])


def assign_namespaces(namespaces: Iterable[str]) -> int:
    """The same for the workloads of these namespaces, at once: called in the transaction that changes their mapping."""
    return _assign("w.namespace = ANY(%s)", [sorted(set(namespaces))])


def _assign(scope: str, parameters: list[list[str]]) -> int:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_ASSIGN.format(scope=scope), parameters)
        gpus = [gpu_id for (gpu_id,) in cursor.fetchall()]
        if gpus:  # agents are told whose pods run on their node
            documents_stale(Gpu.objects.filter(pk__in=set(gpus)).order_by().values_list("node_id", flat=True).distinct())
        return len(gpus)
