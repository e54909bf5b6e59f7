"""Builders of what sources see, for the inventory's tests."""

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

from agent.protocol import GpuFacts, InventoryReport, NodeFacts, SliceFacts, WorkloadFacts
from fleet.telemetry.fields import SeriesSeen, series_seen

CASES = Path(__file__).parent.parent / "cases"
FIXTURES = Path(__file__).parent.parent / "fixtures"
_LINE = re.compile(r"^[A-Za-z_:][\w:]*\{(.*)\} \S+$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def case(folder: str, name: str) -> Any:
    return json.loads((CASES / folder / name).read_text())


def series_of_text(text: str, *, site: str, node: str | None = None, at: datetime, honor_labels: bool = True) -> list[SeriesSeen]:
    """Identities in an exposition text, as the telemetry process hands them on. `node` None: what `Hostname` says."""
    seen = {}
    for line in text.splitlines():
        if found := _LINE.match(line):
            labels = dict(_LABEL.findall(found[1]))
            host = labels.get("Hostname", "") if node is None else node
            each = series_seen(labels, site_code=site, node_host=host, honor_labels=honor_labels, at=at.timestamp())
            seen[(each.gpu_uuid, each.gpu_instance_id)] = each
    return list(seen.values())


def series(gpu_uuid: str, at: datetime, **fields: Any) -> SeriesSeen:
    values: dict[str, Any] = {
        "site_code": "",
        "node_host": "",
        "index": 0,
        "pci_bus_id": "",
        "model_name": "NVIDIA H100 80GB HBM3",
        "driver_version": "",
        "gpu_instance_id": None,
        "profile": "",
        "namespace": "",
        "pod": "",
        "container": "",
    }
    return SeriesSeen(gpu_uuid=gpu_uuid, at=at.timestamp(), **(values | fields))


def report(at: datetime, *gpus: GpuFacts, complete: bool = True, workloads: list[WorkloadFacts] | None = None, **node: Any) -> InventoryReport:
    return InventoryReport(
        at=at.timestamp(),
        node=NodeFacts(**node),
        gpus=gpus,
        complete=complete,
        gpu_count=len(gpus),
        workloads=None if workloads is None else tuple(workloads),
    )


def gpu_facts(uuid: str, index: int = 0, pci_bus_id: str = "00000000:19:00.0", **fields: Any) -> GpuFacts:
    return GpuFacts(uuid=uuid, index=index, pci_bus_id=pci_bus_id, **({"name": "NVIDIA H100 80GB HBM3"} | fields))


def slice_facts(instance: int, profile: str, start: int, size: int, mig_uuid: str = "") -> SliceFacts:
    return SliceFacts(gpu_instance_id=instance, compute_instance_id=0, profile=profile, start=start, size=size, mig_uuid=mig_uuid)
