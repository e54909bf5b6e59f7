"""The simulated fleet as an inventory file: what somebody who owned these sites would import."""

from __future__ import annotations

from typing import Any

from agent.simulator.config import NodeConfig, PortsConfig
from agent.simulator.fleet_plan import FleetPlan

Row = dict[str, Any]


def place_names(plan: FleetPlan) -> dict[str, dict[str, str]]:
    """Names of areas and regions by slug: an import knows them by their slugs alone."""
    return {"areas": {area.slug: area.name for area in plan.areas}, "regions": {region.slug: region.name for region in plan.regions}}


def inventory_rows(plan: FleetPlan, ports: PortsConfig) -> dict[str, list[Row]]:
    """Rows of sites, nodes and GPUs, in the columns that the import takes."""
    sites: list[Row] = []
    nodes: list[Row] = []
    gpus: list[Row] = []
    for area in plan.areas:
        for region in area.regions:
            for site in region.sites:
                sites.append(
                    {
                        "code": site.code,
                        "name": site.name,
                        "kind": site.kind,
                        "area": area.slug,
                        "region": region.slug,
                        "latitude": site.latitude,
                        "longitude": site.longitude,
                        "time_zone": site.time_zone,
                        "power_feed": site.power_feed,
                        "power_feed_watts": site.power_feed_watts,
                        "expected_nodes": len(site.nodes),
                    }
                )
                nodes += [_node_row(node, ports) for node in site.nodes]
                gpus += [row for node in site.nodes for row in _gpu_rows(node)]
    return {"sites": sites, "nodes": nodes, "gpus": gpus}


def _node_row(node: NodeConfig, ports: PortsConfig) -> Row:
    columns = {"dcgm": "exporter_address", "triton": "triton_address", "vllm": "vllm_address", "node": "node_exporter_address"}
    return {
        "site": node.site,
        "host_name": node.host_name,
        "role": node.role,
        "expected_gpus": len(node.gpus),
        **{column: f"{node.address}:{ports.of(exporter)}" if exporter in node.exporters else "" for exporter, column in columns.items()},
    }


def _gpu_rows(node: NodeConfig) -> list[Row]:
    return [
        {
            "uuid": gpu.uuid,
            "site": node.site,
            "node": node.host_name,
            "sku": gpu.sku,
            "index": gpu.index,
            "pci_bus_id": gpu.pci_bus_id,
            "serial": gpu.serial,
            "mig_enabled": gpu.mig is not None,
            "protected_placements": " ".join(f"{part.start}:1" for part in gpu.mig or () if part.purpose == "phy") or "none",
        }
        for gpu in node.gpus
    ]
