"""The inventory's door for what is seen: telemetry and agents tell, the inventory compares, learns, and keeps what it held.

Identity is the GPU's UUID. No source creates a node; a source that says nothing about a thing changes nothing about it.
Every function is one transaction per call (telemetry: per part of a large batch); the change history names the source.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import pghistory
from django.db import transaction
from django.db.models import F, Func, Q, TextField, Value
from django.db.models.functions import Lower

from agent.protocol import GpuFacts, InventoryReport
from fleet.bulk import update_rows
from fleet.health.findings import close_findings, open_findings
from fleet.inventory import protection
from fleet.inventory.host_names import host_label
from fleet.inventory.mig import Span
from fleet.inventory.reconcile.gpus import MISSING, GpuPass, missing_finding
from fleet.inventory.reconcile.observed import Observed, ObservedGpu, ObservedSlice, ObservedWorkload, Reconciled
from fleet.inventory.reconcile.provenance import Ledger
from fleet.inventory.reconcile.slices import reconcile_slices
from fleet.inventory.reconcile.workloads import reconcile_workloads
from fleet.models import Gpu, Node, ObjectKind, Source, Workload
from fleet.telemetry.fields import SeriesSeen

PART = 1000  # GPUs in one transaction: their nodes stay locked for about a second
_NODE_FACTS = ("driver_version", "cuda_version", "kubelet_version", "numa_nodes", "topology", "last_seen_at", "sources")


def reconcile_telemetry(batch: Sequence[SeriesSeen], now: datetime) -> Reconciled:
    """Take in identities that telemetry saw for the first time or changed: GPUs, slices, workloads, driver versions.

    What a batch does not name is unknown, never gone. A host name that is no node's (an exporter's pod) is no place: known GPUs are
    recognised by UUID all the same, unknown ones are returned as `unplaced`. Late sightings change nothing.
    """
    result = Reconciled()
    by_gpu: dict[str, list[SeriesSeen]] = {}
    for each in sorted(batch, key=lambda each: each.at):
        if each.gpu_uuid:
            by_gpu.setdefault(each.gpu_uuid, []).append(each)
    uuids = list(by_gpu)
    for first in range(0, len(uuids), PART):
        part = [each for uuid in uuids[first : first + PART] for each in by_gpu[uuid]]
        with transaction.atomic(), pghistory.context(source=Source.TELEMETRY.value):
            nodes = _nodes_named({(each.site_code, host_label(each.node_host)) for each in part if each.node_host})
            node_ids = {place: node.pk for place, node in nodes.items()}
            result.add(_apply(_seen_by_telemetry(part, node_ids), _drivers(part, nodes), now))
    return result


def reconcile_agent_report(node_id: int, report: InventoryReport, now: datetime) -> Reconciled:
    """Take in the whole inventory of a node as its agent sees it. The node is the one whose socket the report came by.

    An incomplete report (the driver could not list its GPUs) adds and confirms, and ends nothing.
    """
    with transaction.atomic():
        node = Node.objects.select_for_update().select_related("site").get(pk=node_id)
        with pghistory.context(source=Source.AGENT.value, node=node.host_name):
            return _apply(_seen_by_agent(node_id, report, now), [(node, report)], now)


def mark_missing(gpu_ids: Iterable[int], since: datetime) -> int:
    """Record that these GPUs stopped answering at `since` while their node went on; they stay in the inventory. Returns how many were present before."""
    with transaction.atomic(), pghistory.context(source=Source.TELEMETRY.value):
        gpus = list(
            Gpu.objects.select_for_update(of=("self",)).select_related("node__site").filter(pk__in=list(gpu_ids), presence=Gpu.Presence.PRESENT).order_by("pk")
        )
        for gpu in gpus:
            gpu.presence, gpu.missing_since = Gpu.Presence.MISSING, since
        update_rows(Gpu, ["presence", "missing_since"], gpus)
        on_node: dict[int, list[Gpu]] = {}
        for each in Gpu.objects.filter(node_id__in={gpu.node_id for gpu in gpus}, retired_at__isnull=True):
            on_node.setdefault(each.node_id, []).append(each)
        open_findings([missing_finding(gpu, gpu.node, on_node[gpu.node_id]) for gpu in gpus])
        return len(gpus)


def mark_present(gpu_ids: Iterable[int], at: datetime) -> int:
    """Record that GPUs which were missing (or never seen) answer again. Returns how many that were."""
    absent = (Gpu.Presence.MISSING, Gpu.Presence.EXPECTED)
    with transaction.atomic(), pghistory.context(source=Source.TELEMETRY.value):
        gpus = list(Gpu.objects.select_for_update().filter(pk__in=list(gpu_ids), presence__in=absent).order_by("pk"))
        for gpu in gpus:
            gpu.presence, gpu.missing_since = Gpu.Presence.PRESENT, None
            gpu.first_seen_at = gpu.first_seen_at or at
            gpu.last_seen_at = max(gpu.last_seen_at or at, at)
        update_rows(Gpu, ["presence", "missing_since", "first_seen_at", "last_seen_at"], gpus)
        close_findings(ObjectKind.GPU, [gpu.uuid for gpu in gpus], at=at, because="The GPU is back", codes=[MISSING])
        return len(gpus)


def _apply(seen: Observed, nodes: Sequence[tuple[Node, InventoryReport | str]], now: datetime) -> Reconciled:
    ledger = Ledger(seen.source)
    update_rows(Node, _NODE_FACTS, [node for node, told in nodes if _settle_node(node, told, ledger, now)])
    gpu_pass = GpuPass(seen, ledger, now)
    gpus = gpu_pass.run()
    result = gpu_pass.result
    protection.documents_stale(gpu_pass.documents_stale)
    placed: dict[str, list[Span]] = {uuid: [] for uuid in seen.complete_slices}
    for each in seen.slices:
        if each.gpu_uuid in placed and each.start is not None and each.size is not None:
            placed[each.gpu_uuid].append(Span(each.start, each.size))
    protection.protect([*(gpu.pk for gpu in gpus.values()), *result.moved], elsewhere=result.moved, named=gpu_pass.named, placed=placed)
    slices, changes = reconcile_slices(seen, gpus, gpu_pass.nodes, now)
    result.add(changes)
    on_nodes = {gpu.uuid: gpu for node_id in seen.complete_workload_nodes for gpu in gpu_pass.on_node[node_id]}
    result.add(reconcile_workloads(seen, gpus, slices, on_nodes))
    result.disagreements = ledger.save(now)
    return result


def _settle_node(node: Node, told: InventoryReport | str, ledger: Ledger, now: datetime) -> bool:
    """Bring a node's own facts in: all of them from an agent, the driver's version alone (a text) from telemetry. True when the row is to be written."""
    if isinstance(told, str):
        return ledger.settle(node, "driver_version", told, key=str(node.pk), site_id=node.site_id, at=now)
    for name in ("driver_version", "cuda_version", "kubelet_version", "numa_nodes"):
        ledger.settle(node, name, getattr(told.node, name), key=str(node.pk), site_id=node.site_id, at=now)
    node.last_seen_at = now
    node.topology = told.node.topology or node.topology
    return True


def _nodes_named(places: set[tuple[str, str]]) -> dict[tuple[str, str], Node]:
    """Nodes by (site code, host label). Without a site code the label must be one node's alone in the whole fleet."""
    labels = {label for _, label in places}
    if not labels:
        return {}
    codes = {code for code, _ in places}
    rows = Node.objects.filter(retired_at__isnull=True)
    if "" in codes:
        first_label = Func(Lower(F("host_name")), Value("."), Value(1), function="split_part", output_field=TextField())
        named_so = Q(label__in=labels) | Q(host_name__in=labels)
        if any(":" in label for label in labels):
            named_so |= Q(host_name__contains=":")  # an address has many spellings
        rows = rows.annotate(label=first_label).filter(named_so)
    else:
        rows = rows.filter(site__code__in=codes)
    named: dict[tuple[str, str], Node] = {}
    anywhere: dict[str, list[Node]] = {}
    for node in rows.select_for_update(of=("self",)).select_related("site").order_by("pk"):
        label = host_label(node.host_name)
        named[(node.site.code, label)] = node
        anywhere.setdefault(label, []).append(node)
    for label in labels:
        if len(anywhere.get(label, [])) == 1:
            named[("", label)] = anywhere[label][0]
    return {place: named[place] for place in places if place in named}


def _drivers(part: Sequence[SeriesSeen], nodes: dict[tuple[str, str], Node]) -> list[tuple[Node, str]]:
    """The newest driver version that each node's series name."""
    told = {(each.site_code, host_label(each.node_host)): each.driver_version for each in part if each.node_host and each.driver_version}
    return [(nodes[place], version) for place, version in told.items() if place in nodes]


def _at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, tz=UTC)


def _seen_by_telemetry(part: Sequence[SeriesSeen], node_ids: dict[tuple[str, str], int]) -> Observed:
    """`part` is in the order of time. Of each GPU, slice and workload the newest word counts."""
    seen = Observed(source=Source.TELEMETRY)
    gpus: dict[str, SeriesSeen] = {}
    slices: dict[tuple[str, int], SeriesSeen] = {}
    newest: dict[tuple[str, int | None], float] = {}
    for each in part:
        gpus[each.gpu_uuid] = each
        if each.gpu_instance_id is not None:
            slices[(each.gpu_uuid, each.gpu_instance_id)] = each
        newest[(each.gpu_uuid, each.gpu_instance_id)] = each.at
    on_slices = {uuid for uuid, _ in slices}
    for uuid, each in gpus.items():
        seen.gpus.append(
            ObservedGpu(
                uuid=uuid,
                node_id=node_ids.get((each.site_code, host_label(each.node_host))) if each.node_host else None,
                at=_at(each.at),
                index=each.index,
                pci_bus_id=each.pci_bus_id,
                model_name=each.model_name,
                mig_enabled=True if uuid in on_slices else None,
            )
        )
    for (uuid, instance), each in slices.items():
        if each.profile:
            seen.slices.append(ObservedSlice(gpu_uuid=uuid, gpu_instance_id=instance, profile=each.profile, at=_at(each.at)))
    for each in part:
        place = (each.gpu_uuid, each.gpu_instance_id)
        if each.at < newest[place] or (each.gpu_instance_id is None and each.gpu_uuid in on_slices):
            continue
        seen.complete_workloads[place] = _at(each.at)
        sharing = Workload.Sharing(each.sharing) if each.sharing else None
        if sharing is not None:
            seen.all_sharers.add(place)
        if each.pod:
            workload = ObservedWorkload(each.gpu_uuid, each.gpu_instance_id, each.namespace, each.pod, each.container, _at(each.at), sharing)
            if workload not in seen.workloads[-4:]:
                seen.workloads.append(workload)
    return seen


def _seen_by_agent(node_id: int, report: InventoryReport, now: datetime) -> Observed:
    at = min(_at(report.at), now)
    seen = Observed(source=Source.AGENT)
    for gpu in report.gpus:
        seen.gpus.append(_gpu_of_agent(node_id, gpu, at))
        if gpu.slices is None:
            continue
        seen.complete_slices[gpu.uuid] = at
        seen.slices += [
            ObservedSlice(
                gpu_uuid=gpu.uuid,
                gpu_instance_id=each.gpu_instance_id,
                profile=each.profile,
                at=at,
                compute_instance_id=each.compute_instance_id,
                start=each.start,
                size=each.size,
                mig_uuid=each.mig_uuid,
            )
            for each in gpu.slices
        ]
    if report.complete:
        seen.complete_nodes[node_id] = at
    if report.workloads is not None:
        seen.complete_workload_nodes[node_id] = at
        seen.workloads = [
            ObservedWorkload(each.gpu_uuid, each.gpu_instance_id, each.namespace, each.pod, each.container, at, Workload.Sharing(each.sharing.value))
            for each in report.workloads
        ]
    return seen


def _gpu_of_agent(node_id: int, gpu: GpuFacts, at: datetime) -> ObservedGpu:
    return ObservedGpu(
        uuid=gpu.uuid,
        node_id=node_id,
        at=at,
        index=gpu.index,
        pci_bus_id=gpu.pci_bus_id,
        serial=gpu.serial,
        model_name=gpu.name,
        mig_enabled=gpu.mig_enabled,
        power_limit_watts=gpu.power_limit_watts,
    )
