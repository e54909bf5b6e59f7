"""The kinds of standard list: what their rows join, which columns they have, how these sort. One file each."""

from console.audit_list import AUDIT
from console.list_kinds.cells import STATE_RANKS, health_state, ranked
from console.list_kinds.gpus import GPUS, gpu_rows, sku_name
from console.list_kinds.nodes import NODES, node_rows
from console.list_kinds.regions import REGIONS, region_rows, sites_unknown
from console.list_kinds.sites import SITES, site_rows

KINDS = {kind.name: kind for kind in (SITES, NODES, GPUS, REGIONS, AUDIT)}

__all__ = [
    "AUDIT",
    "GPUS",
    "KINDS",
    "NODES",
    "REGIONS",
    "SITES",
    "STATE_RANKS",
    "gpu_rows",
    "health_state",
    "node_rows",
    "ranked",
    "region_rows",
    "site_rows",
    "sites_unknown",
    "sku_name",
]
