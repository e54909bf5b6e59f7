"""GPUs seen by a source: known ones are recognised by UUID, new ones are recorded, absent ones are missing, swapped ones are retired."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime

from django.db.models import F, Func, JSONField, QuerySet, Value
from django.db.models.functions import Concat, Greatest

from fleet.bulk import update_rows
from fleet.catalogue import UNKNOWN, sku_for_model
from fleet.health.findings import Found, close_findings, close_findings_of_gpus, open_findings
from fleet.inventory.protection import PLACEMENTS
from fleet.inventory.reconcile.observed import LATE, Observed, ObservedGpu, Reconciled, pci_address
from fleet.inventory.reconcile.provenance import Ledger, close_disagreements
from fleet.models import AgentConnection, Disagreement, Finding, Gpu, MigSlice, Node, ObjectKind, ProtectedPlacement, Source, Workload

_WRITTEN = (
    "node",
    "sku",
    "index",
    "pci_bus_id",
    "serial",
    "mig_enabled",
    "presence",
    "power_limit_watts",
    "first_seen_at",
    "last_seen_at",
    "missing_since",
    "retired_at",
    "replaced_by",
    "sources",
)
UNEXPECTED, MISSING = "unexpected_gpu", "gpu_missing"


class GpuPass:
    """One pass over the GPUs of some nodes. Loads and locks them; `run` changes rows in memory and writes them once. Holds no state afterwards."""

    def __init__(self, seen: Observed, ledger: Ledger, now: datetime) -> None:
        self.seen, self.ledger, self.now = seen, ledger, now
        self.result = Reconciled()
        node_ids = {gpu.node_id for gpu in seen.gpus if gpu.node_id is not None} | set(seen.complete_nodes)
        uuids = {gpu.uuid for gpu in seen.gpus}
        locked = Gpu.objects.select_for_update().order_by("pk")
        rows = {gpu.pk: gpu for gpu in locked.filter(uuid__in=uuids)}
        rows.update({gpu.pk: gpu for gpu in locked.filter(node_id__in=node_ids).exclude(pk__in=rows)})
        self.by_uuid = {gpu.uuid: gpu for gpu in rows.values()}
        self.nodes = {node.pk: node for node in Node.objects.select_related("site").filter(pk__in=node_ids | {gpu.node_id for gpu in rows.values()})}
        self.on_node: dict[int, list[Gpu]] = defaultdict(list)
        for gpu in rows.values():
            self.on_node[gpu.node_id].append(gpu)
        self.dirty: dict[str, Gpu] = {}
        self.new: dict[str, Gpu] = {}
        self.arrived: dict[str, ObservedGpu] = {}  # new on its node, or back: they may stand in another's slot
        self.found: list[Found] = []
        self.retired: dict[str, datetime] = {}
        self.not_missing: list[Gpu] = []
        self.named: list[int] = []  # GPUs whose model was not known before
        self.documents_stale: set[int] = set()  # nodes that have other GPUs by now
        self.claims = self._claims()

    def run(self) -> dict[str, Gpu]:
        """Do it; returns all GPUs that the source saw and the inventory now holds, by UUID."""
        accepted = {each.uuid: each for each in sorted(self.seen.gpus, key=lambda each: each.at) if self._take(each)}
        self._replaced()
        for node_id, at in self.seen.complete_nodes.items():
            self._absent(node_id, at)
        self._free_indexes(accepted)
        self._unexpected()
        self._write()
        return {uuid: self.by_uuid[uuid] for uuid in accepted}

    def _where(self, node_id: int) -> str:
        node = self.nodes[node_id]
        return f"{node.host_name} ({node.site.code})"

    def _take(self, each: ObservedGpu) -> bool:
        """Bring one sighting in; False when it is about a GPU that we cannot place, or is too late to matter."""
        gpu = self.by_uuid.get(each.uuid)
        if gpu is None:
            return self._create(each)
        if gpu.retired_at is not None and each.at <= gpu.retired_at:
            return False
        if gpu.last_seen_at is not None and each.at < gpu.last_seen_at - LATE:
            return False
        site_id = self.nodes[gpu.node_id].site_id
        if not self._settle_node(gpu, each):
            return False
        sku = sku_for_model(each.model_name) if each.model_name else None
        if gpu.sku == UNKNOWN and sku is not None:
            gpu.sku, gpu.sources["sku"] = sku.key, self.seen.source
            self.named.append(gpu.pk)
        elif each.model_name and gpu.sku != UNKNOWN:
            if sku is not None:
                self.ledger.settle(gpu, "sku", sku.key, key=gpu.uuid, site_id=site_id, at=each.at)
            else:
                holder = self.ledger.holder(gpu, "sku")
                self.ledger.dispute(ObjectKind.GPU, gpu.uuid, "sku", site_id=site_id, held_source=holder, held=gpu.sku, seen=each.model_name, at=each.at)
        pci = pci_address(each.pci_bus_id)
        settle = self.ledger.settle
        settle(gpu, "pci_bus_id", pci, key=gpu.uuid, site_id=site_id, at=each.at, same=pci_address(gpu.pci_bus_id) == pci)
        settle(gpu, "serial", each.serial, key=gpu.uuid, site_id=site_id, at=each.at)
        if each.mig_enabled is not None and "mig_enabled" not in gpu.sources:
            gpu.mig_enabled, gpu.sources["mig_enabled"] = each.mig_enabled, self.seen.source
        settle(gpu, "mig_enabled", each.mig_enabled, key=gpu.uuid, site_id=site_id, at=each.at)
        settle(gpu, "power_limit_watts", each.power_limit_watts, key=gpu.uuid, site_id=site_id, at=each.at)
        if each.index is not None:
            gpu.index = each.index
        if gpu.presence in (Gpu.Presence.MISSING, Gpu.Presence.RETIRED):
            self.result.returned.append(gpu.pk)
            self.arrived[gpu.uuid] = each
            self.not_missing.append(gpu)
            self.documents_stale.add(gpu.node_id)
        gpu.presence, gpu.missing_since, gpu.retired_at, gpu.replaced_by = Gpu.Presence.PRESENT, None, None, None
        gpu.first_seen_at = gpu.first_seen_at or each.at
        gpu.last_seen_at = max(gpu.last_seen_at or each.at, each.at)
        self.dirty[gpu.uuid] = gpu
        return True

    def _create(self, each: ObservedGpu) -> bool:
        if each.node_id is None or each.node_id not in self.nodes:
            self.result.unplaced.append(each.uuid)
            return False
        sku = sku_for_model(each.model_name)
        gpu = Gpu(
            uuid=each.uuid,
            node_id=each.node_id,
            sku=sku.key if sku else UNKNOWN,
            index=each.index,
            pci_bus_id=pci_address(each.pci_bus_id),
            serial=each.serial,
            mig_enabled=bool(each.mig_enabled),
            power_limit_watts=each.power_limit_watts,
            presence=Gpu.Presence.PRESENT,
            first_seen_at=each.at,
            last_seen_at=each.at,
        )
        told = {"pci_bus_id": gpu.pci_bus_id, "serial": gpu.serial, "sku": sku, "power_limit_watts": each.power_limit_watts, "node_id": each.node_id}
        gpu.sources = {name: self.seen.source for name, value in told.items() if value}
        if each.mig_enabled is not None:
            gpu.sources["mig_enabled"] = self.seen.source
        self.new[gpu.uuid] = self.by_uuid[gpu.uuid] = gpu
        self.on_node[each.node_id].append(gpu)
        self.arrived[gpu.uuid] = each
        return True

    def _settle_node(self, gpu: Gpu, each: ObservedGpu) -> bool:
        """Follow a GPU to another node when the one who said where it is says so, and, among agents, when the old node's agent no longer has it.

        False when another node's agent has it: what this one says of it is disputed, and none of it is taken.
        """
        if each.node_id is None:
            return True
        before = gpu.node_id
        words = (self._where(before), self._where(each.node_id))
        if each.node_id != before and self.seen.source == Source.AGENT and gpu.uuid in self.claims.get(before, ()):
            site_id = self.nodes[before].site_id
            self.ledger.dispute(ObjectKind.GPU, gpu.uuid, "node_id", site_id=site_id, held_source=Source.AGENT, held=words[0], seen=words[1], at=each.at)
            return False
        if gpu.retired_at is not None and each.node_id != before:
            gpu.sources["node_id"] = self.seen.source  # a retired GPU stands nowhere: wherever it shows up is its place
        self.ledger.settle(gpu, "node_id", each.node_id, key=gpu.uuid, site_id=self.nodes[before].site_id, at=each.at, words=words)
        if gpu.node_id != before:
            self._moved(gpu, before, each)
        return True

    def _moved(self, gpu: Gpu, before: int, each: ObservedGpu) -> None:
        self.on_node[before].remove(gpu)
        self.on_node[gpu.node_id].append(gpu)
        self.result.moved.append(gpu.pk)
        self.documents_stale |= {before, gpu.node_id}
        self.arrived[gpu.uuid] = each

    def _claims(self) -> dict[int, list[str]]:
        """UUIDs that the last reports of the agents list from whose nodes this agent's GPUs would move."""
        if self.seen.source != Source.AGENT:
            return {}
        left = {gpu.node_id for each in self.seen.gpus if (gpu := self.by_uuid.get(each.uuid)) is not None and each.node_id not in (None, gpu.node_id)}
        return _listed_by(AgentConnection.objects.filter(node_id__in=left)) if left else {}

    def _replaced(self) -> None:
        """A GPU that stands in another's slot has replaced it: the old one is retired, its findings end, its protected placements stay with the slot."""
        seen_now = {each.uuid for each in self.seen.gpus}
        for uuid, each in self.arrived.items():
            gpu = self.by_uuid[uuid]
            if not gpu.pci_bus_id:
                continue
            for other in self.on_node[gpu.node_id]:
                if other is gpu or other.retired_at is not None or other.uuid in seen_now or pci_address(other.pci_bus_id) != gpu.pci_bus_id:
                    continue
                if other.first_seen_at is None:  # imported and never seen: the list is wrong, not the hardware
                    self.ledger.dispute(
                        ObjectKind.GPU,
                        other.uuid,
                        "uuid",
                        site_id=self.nodes[gpu.node_id].site_id,
                        held_source=Source.IMPORT,
                        held=other.uuid,
                        seen=uuid,
                        at=each.at,
                    )
                    continue
                if other.last_seen_at is not None and other.last_seen_at > each.at:
                    continue
                other.presence, other.retired_at, other.missing_since = Gpu.Presence.RETIRED, each.at, None
                other.replaced_by = gpu
                self.dirty[other.uuid] = other
                self.retired[other.uuid] = each.at
                self.result.replaced.append(other.pk)

    def _absent(self, node_id: int, at: datetime) -> None:
        """A complete list lacks a GPU that was there: it moved to where another agent has it, or it is missing."""
        listed = {each.uuid for each in self.seen.gpus if each.node_id == node_id}
        absent = [
            gpu
            for gpu in self.on_node[node_id]
            if gpu.uuid not in listed and gpu.presence == Gpu.Presence.PRESENT and (gpu.last_seen_at is None or gpu.last_seen_at <= at + LATE)
        ]
        if not absent:
            return
        disputes = Disagreement.objects.filter(until__isnull=True, kind=ObjectKind.GPU, object_key__in=[gpu.uuid for gpu in absent], field="node_id")
        told = list(disputes.values_list("object_key", "seen_value"))
        disputed = {uuid for uuid, _ in told}
        others = self._claimants({place for _, place in told}, node_id) if told and self.ledger.source == Source.AGENT else {}
        settled = []
        for gpu in absent:
            if gpu.uuid not in disputed:
                gpu.presence, gpu.missing_since = Gpu.Presence.MISSING, at
                self.dirty[gpu.uuid] = gpu
                self.result.missing.append(gpu.pk)
            elif (other := next((other for other, uuids in others.items() if gpu.uuid in uuids), None)) is not None:
                # Two nodes' agents had the GPU and this one lets go: the other one has it.
                gpu.node_id, gpu.sources["node_id"] = other, Source.AGENT
                gpu.last_seen_at = max(gpu.last_seen_at or at, at)
                self._moved(gpu, node_id, ObservedGpu(uuid=gpu.uuid, node_id=other, at=at))
                self.dirty[gpu.uuid] = gpu
                settled.append(gpu.uuid)
        close_disagreements(ObjectKind.GPU, settled, self.now, fields=["node_id"])

    def _claimants(self, places: set[str], node_id: int) -> dict[int, list[str]]:
        """UUIDs that the last reports list of the other nodes that disagreements name in words."""
        words = Concat("host_name", Value(" ("), "site__code", Value(")"))
        rows = Node.objects.annotate(words=words).filter(words__in=places).exclude(pk=node_id).select_related("site")
        self.nodes.update({node.pk: node for node in rows})
        return _listed_by(AgentConnection.objects.filter(node_id__in=[node.pk for node in rows]).order_by("node_id"))

    def _free_indexes(self, accepted: Iterable[str]) -> None:
        """An index that one GPU has now is no longer another's: whose it was is not known any more."""
        taken = {(self.by_uuid[uuid].node_id, self.by_uuid[uuid].index) for uuid in accepted}
        seen_now = set(accepted)
        for node_id, gpus in self.on_node.items():
            for gpu in gpus:
                if gpu.uuid not in seen_now and gpu.index is not None and (node_id, gpu.index) in taken:
                    gpu.index = None
                    self.dirty[gpu.uuid] = gpu

    def _unexpected(self) -> None:
        """A GPU that nobody listed: found, unless it replaced one or the node still expects one."""
        replacers = {gpu.replaced_by.uuid for gpu in self.dirty.values() if gpu.uuid in self.retired and gpu.replaced_by is not None}
        for gpu in self.new.values():
            node = self.nodes[gpu.node_id]
            there = sum(1 for each in self.on_node[gpu.node_id] if each.retired_at is None)
            if gpu.uuid in replacers or (node.expected_gpus is not None and there <= node.expected_gpus):
                continue
            self.found.append(
                Found(
                    kind=ObjectKind.GPU,
                    object_key=gpu.uuid,
                    site_id=node.site_id,
                    code=UNEXPECTED,
                    severity=Finding.Severity.WARNING,
                    summary=f"A GPU that the inventory did not list reports from {self._where(gpu.node_id)}.",
                    advised_action="Add it to the inventory by import, or find out who put it there.",
                    evidence={
                        "source": self.seen.source,
                        "index": gpu.index,
                        "pci_bus_id": gpu.pci_bus_id,
                        "sku": gpu.sku,
                        "expected_gpus": node.expected_gpus,
                        "present": there,
                    },
                    at=gpu.first_seen_at or self.now,
                )
            )

    def _write(self) -> None:
        Gpu.objects.bulk_create(self.new.values(), batch_size=2000)
        self.result.created = [gpu.pk for gpu in self.new.values()]
        for gpu in self.dirty.values():
            if gpu.replaced_by is not None:
                gpu.replaced_by_id = gpu.replaced_by.pk  # assigned before the new one had a key
        update_rows(Gpu, _WRITTEN, list(self.dirty.values()))
        self._end_of_retired()
        open_findings([*self.found, *self._missing_findings()])
        if self.not_missing:
            close_findings(ObjectKind.GPU, [gpu.uuid for gpu in self.not_missing], at=self.now, because="The GPU is back", codes=[MISSING])

    def _missing_findings(self) -> list[Found]:
        found = []
        for gpu in self.dirty.values():
            if gpu.pk in self.result.missing:
                found.append(missing_finding(gpu, self.nodes[gpu.node_id], [each for each in self.on_node[gpu.node_id] if each.retired_at is None]))
        return found

    def _end_of_retired(self) -> None:
        if not self.retired:
            return
        slots = {gpu.uuid: gpu for gpu in self.dirty.values() if gpu.uuid in self.retired}
        together: dict[datetime, list[str]] = defaultdict(list)
        for uuid, at in self.retired.items():
            together[at].append(uuid)
        for at, uuids in together.items():
            close_findings_of_gpus(uuids, at=at, because="GPU replaced")
            gone = Workload.objects.running().filter(gpu__uuid__in=uuids)
            self.result.workloads_ended += gone.update(ended_at=Greatest(F("started_at"), at))
            self.result.slices_ended += MigSlice.objects.filter(gpu__uuid__in=uuids, ended_at__isnull=True).update(ended_at=Greatest(F("created_at"), at))
        close_disagreements(ObjectKind.GPU, list(self.retired), self.now)
        kept = list(ProtectedPlacement.objects.filter(gpu__uuid__in=self.retired).select_related("gpu"))
        ProtectedPlacement.objects.bulk_create(
            [ProtectedPlacement(gpu=slots[each.gpu.uuid].replaced_by, start=each.start, size=each.size) for each in kept], ignore_conflicts=True
        )
        stated: dict[str, Gpu] = {}
        for new, old in [(slots[each.gpu.uuid].replaced_by, each.gpu) for each in kept if PLACEMENTS in each.gpu.sources]:
            if new is not None and new.sku == old.sku:
                new.sources[PLACEMENTS] = old.sources[PLACEMENTS]
                stated[new.uuid] = new
        update_rows(Gpu, ["sources"], list(stated.values()))
        self.documents_stale |= {slots[uuid].node_id for uuid in self.retired}


def _listed_by(connections: QuerySet[AgentConnection]) -> dict[int, list[str]]:
    """UUIDs of the GPUs in the last report of each of these agents, by node."""
    uuids = Func("report", template="jsonb_path_query_array(%(expressions)s, '$.inventory.gpus[*].uuid')", output_field=JSONField())
    return dict(connections.annotate(uuids=uuids).values_list("node_id", "uuids"))


def missing_finding(gpu: Gpu, node: Node, on_node: list[Gpu]) -> Found:
    """What is shown about a GPU that its node no longer has. `on_node` are the node's GPUs that are not retired."""
    if gpu.missing_since is None:
        raise ValueError(f"{gpu.uuid} is not missing")
    present = sum(1 for each in on_node if each.presence == Gpu.Presence.PRESENT)
    expected = max(node.expected_gpus or 0, len(on_node))
    last_seen = f" Last seen {gpu.last_seen_at:%Y-%m-%d %H:%M:%S} UTC." if gpu.last_seen_at else ""
    return Found(
        kind=ObjectKind.GPU,
        object_key=gpu.uuid,
        site_id=node.site_id,
        code=MISSING,
        severity=Finding.Severity.MAJOR,
        summary=f"{node.host_name} has {present} of {expected} GPUs; this one is gone.{last_seen}",
        advised_action="Look for XID 79 in the node's log; restart the node, and check the board's seating if it stays away.",
        evidence={
            "expected": expected,
            "present": present,
            "pci_bus_id": gpu.pci_bus_id,
            "last_seen_at": gpu.last_seen_at.isoformat() if gpu.last_seen_at else None,
        },
        at=gpu.missing_since,
    )
