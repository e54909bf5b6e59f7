"""Nodes and GPUs as targets of an import, and the table of all targets."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db.models import Q

from fleet.bulk import update_rows
from fleet.catalogue import SKUS, UNKNOWN, Sku
from fleet.health.findings import close_findings
from fleet.inventory import protection
from fleet.inventory.host_names import host_label
from fleet.inventory.importing.check import CheckedRow, check_protection
from fleet.inventory.importing.columns import GPUS, NODES, Value, parse_spans, write_spans
from fleet.inventory.importing.targets import CREATED_AT_ONCE, Advance, SiteTarget, Target, Values, parts
from fleet.inventory.mig import Span
from fleet.inventory.protection import PLACEMENTS
from fleet.inventory.reconcile.gpus import UNEXPECTED
from fleet.inventory.reconcile.layouts import cut_instances, layout_problems
from fleet.inventory.reconcile.observed import pci_address
from fleet.inventory.reconcile.provenance import close_disagreements
from fleet.models import Gpu, MigSlice, Node, ObjectKind, ProtectedPlacement, Site, Source

PROTECTED = "protected"  # in a job's result: GPUs that got the default protection by the import


class NodeTarget(Target):
    kind = NODES
    model = Node
    _fields = ("host_name", "role", "expected_gpus", "exporter_address", "triton_address", "vllm_address", "node_exporter_address")

    def __init__(self, region_ids: Iterable[int] | None, now: datetime) -> None:
        super().__init__(region_ids, now)
        self.sites: dict[str, Site] = {}
        self.protected: list[str] = []

    @staticmethod
    def key_of(values: Values) -> str:
        return f"{values['site']}/{host_label(str(values['host_name']))}"

    def load(self, rows: Sequence[Values], *, lock: bool) -> None:
        self.sites = sites_by_code({str(row["site"]) for row in rows if row.get("site")})
        self.held = nodes_by_key([site.pk for site in self.sites.values()], lock=lock)

    def regions_of(self, key: str, values: Values) -> set[int | None]:
        held = self.held.get(key)
        return ({held.site.region_id} if held is not None else set()) | region_of_site(values, self.sites)

    def check(self, row: CheckedRow) -> None:
        check_site(self, row, self.sites)

    def current(self, held: Node) -> dict[str, Value]:
        return {"site": held.site.code} | {name: getattr(held, name) for name in self._fields}

    def create(self, rows: Sequence[Values], advance: Advance) -> None:
        for part in parts(rows, CREATED_AT_ONCE):
            nodes = []
            for values in part:
                complete = self.complete(values)
                nodes.append(Node(site=self.sites[str(values["site"])], **{name: complete[name] for name in self._fields}))
            Node.objects.bulk_create(nodes)
            advance(len(part))

    def update(self, changes: Sequence[tuple[str, Values]], advance: Advance) -> None:
        for part in parts(changes):
            for key, values in part:
                for name in self._fields:
                    if name in values:
                        setattr(self.held[key], name, values[name])
            update_rows(Node, self._fields, [self.held[key] for key, _ in part])
            became_du = [self.held[key].pk for key, values in part if values.get("role") == Node.Role.DU]
            gpus = list(Gpu.objects.filter(node_id__in=became_du).values_list("pk", flat=True))
            self.protected += protection.protect(gpus, elsewhere=gpus)
            advance(len(part))

    def made(self) -> dict[str, Any]:
        return {PROTECTED: self.protected} if self.protected else {}

    def unmake(self, made: Mapping[str, Any]) -> None:
        protection.take_back(made.get(PROTECTED, []))

    def users(self, keys: Sequence[str]) -> dict[str, str]:
        used: dict[str, str] = {}
        for part in parts(keys):
            ids = {self.held[key].pk: key for key in part}
            seen = Node.objects.filter(pk__in=ids)
            for why, rows in (
                ("has GPUs by now.", seen.filter(gpus__isnull=False)),
                ("has an agent by now.", seen.filter(Q(agent_identities__isnull=False) | Q(agent_connection__isnull=False))),
            ):
                used.update({ids[pk]: why for pk in rows.values_list("pk", flat=True).distinct()})
        return used


class GpuTarget(Target):
    kind = GPUS
    model = Gpu
    _fields = ("node", "sku", "index", "pci_bus_id", "serial", "mig_enabled")

    def __init__(self, region_ids: Iterable[int] | None, now: datetime) -> None:
        super().__init__(region_ids, now)
        self.sites: dict[str, Site] = {}
        self.nodes: dict[str, Node] = {}
        self.spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.slices: dict[int, list[MigSlice]] = defaultdict(list)  # live ones, for the check
        self.protected: list[str] = []

    @staticmethod
    def key_of(values: Values) -> str:
        return str(values["uuid"])

    def load(self, rows: Sequence[Values], *, lock: bool) -> None:
        self.sites = sites_by_code({str(row["site"]) for row in rows if row.get("site")})
        self.nodes = nodes_by_key([site.pk for site in self.sites.values()], lock=False)
        uuids = sorted({str(row["uuid"]) for row in rows if row.get("uuid")})
        for part in parts(uuids):
            gpus = Gpu.objects.filter(uuid__in=part).order_by("pk").select_related("node__site")
            self.held.update({gpu.uuid: gpu for gpu in (gpus.select_for_update(of=("self",)) if lock else gpus)})
        for part in parts([gpu.pk for gpu in self.held.values()]):
            for gpu_id, start, size in ProtectedPlacement.objects.filter(gpu_id__in=part).values_list("gpu_id", "start", "size"):
                self.spans[gpu_id].append((start, size))
            if not lock:
                for each in MigSlice.objects.filter(gpu_id__in=part, ended_at__isnull=True):
                    self.slices[each.gpu_id].append(each)

    def complete(self, values: Values) -> dict[str, Value]:
        complete = super().complete(values)
        if complete[PLACEMENTS] is None:
            del complete[PLACEMENTS]
        return complete

    def regions_of(self, key: str, values: Values) -> set[int | None]:
        held = self.held.get(key)
        return ({held.node.site.region_id} if held is not None else set()) | region_of_site(values, self.sites)

    def check(self, row: CheckedRow) -> None:
        if row.values.get(PLACEMENTS) is None:
            row.values.pop(PLACEMENTS, None)  # an empty cell states nothing; only `none` takes protection away
        held = self.held.get(row.key)
        if held is not None and not self.may_change(held.node.site.region_id):
            row.refuse("uuid", "is not yours to use.")
            return
        check_site(self, row, self.sites)
        code, host = row.values.get("site"), row.values.get("node")
        if isinstance(code, str) and isinstance(host, str) and code in self.sites:
            node = self.nodes.get(f"{code}/{host_label(host)}")
            if node is None:
                row.refuse("node", f"the site {code} has no node {host!r}; import it first.")
            else:
                row.values["node"] = node.host_name
        key = row.values.get("sku")
        if not isinstance(key, str):
            return
        sku, stated = SKUS[key], _stated(row.values)
        if stated is not None and (problem := check_protection(sku, stated)):
            row.refuse(PLACEMENTS, problem)
        if row.values.get("mig_enabled") and not sku.mig_capable:
            row.refuse("mig_enabled", f"{sku.name} has no MIG.")
        if held is not None and not row.errors:
            self._check_layout(row, held, sku, stated)

    def _check_layout(self, row: CheckedRow, held: Gpu, sku: Sku, stated: list[Span] | None) -> None:
        """The GPU's instances, as they were seen, can be on the stated board and fit what is stated to be PHY's: what a row changes of either."""
        slices = self.slices[held.pk]
        before = [Span(start, size) for start, size in self.spans[held.pk]]
        if sku.key != held.sku:
            for reason in layout_problems(sku, slices, ()):
                row.refuse("sku", f"does not fit the instances that were seen: {reason}")
        if stated is not None and sorted(stated) != sorted(before):
            for reason in cut_instances(slices, stated):
                row.refuse(PLACEMENTS, reason)

    def current(self, held: Gpu) -> dict[str, Value]:
        return {
            "uuid": held.uuid,
            "site": held.node.site.code,
            "node": held.node.host_name,
            "sku": held.sku,
            "index": held.index,
            "pci_bus_id": pci_address(held.pci_bus_id),
            "serial": held.serial,
            "mig_enabled": held.mig_enabled,
            PLACEMENTS: write_spans(self.spans[held.pk]),
        }

    def observed(self, held: Gpu, field: str) -> bool:
        if field == "index":
            return held.last_seen_at is not None
        attribute = {"node": "node_id", "site": "node_id"}.get(field, field)
        return held.sources.get(attribute) in (Source.AGENT, Source.TELEMETRY)

    def _assign(self, gpu: Gpu, values: Values) -> None:
        if "node" in values or "site" in values:
            held = {} if gpu.node_id is None else {"site": gpu.node.site.code, "node": gpu.node.host_name}
            place = held | dict(values)
            gpu.node = self.nodes[f"{place['site']}/{host_label(str(place['node']))}"]
            gpu.sources["node_id"] = Source.IMPORT
        for name in self._fields[1:]:
            if name in values:
                setattr(gpu, name, values[name])
                if name != "index":
                    gpu.sources[name] = Source.IMPORT

    def create(self, rows: Sequence[Values], advance: Advance) -> None:
        for part in parts(rows, CREATED_AT_ONCE):
            gpus: list[Gpu] = []
            stated: dict[str, list[Span]] = {}
            for values in part:
                gpu = Gpu(uuid=str(values["uuid"]))
                complete = self.complete(values)
                self._assign(gpu, complete)
                gpus.append(gpu)
                if (spans := _stated(complete)) is not None:
                    stated[gpu.uuid] = spans
                    protection.note_stated(gpu, spans)
            Gpu.objects.bulk_create(gpus)
            protection.write_placements({gpu.pk: stated[gpu.uuid] for gpu in gpus if stated.get(gpu.uuid)})
            protection.protect(gpu.pk for gpu in gpus if gpu.uuid not in stated)
            advance(len(part))

    def update(self, changes: Sequence[tuple[str, Values]], advance: Advance) -> None:
        for part in parts(changes):
            stated: dict[int, list[Span]] = {}
            moved, named = [], []
            stale = {self.held[key].node_id for key, _ in part}
            for key, values in part:
                gpu = self.held[key]
                node_id, sku = gpu.node_id, gpu.sku
                self._assign(gpu, values)
                if (spans := _stated(values)) is not None:
                    stated[gpu.pk] = spans
                    protection.note_stated(gpu, spans)
                elif gpu.node_id != node_id:
                    moved.append(gpu.pk)
                if sku == UNKNOWN and gpu.sku != UNKNOWN:
                    named.append(gpu.pk)
            gpus = [self.held[key] for key, _ in part]
            update_rows(Gpu, [*self._fields, "sources"], gpus)
            protection.write_placements(stated)
            self.protected += protection.protect([gpu.pk for gpu in gpus], elsewhere=moved, named=named)
            protection.documents_stale(stale | {gpu.node_id for gpu in gpus})
            advance(len(part))
            close_disagreements(ObjectKind.GPU, [key for key, _ in part], self.now)

    def delete(self, keys: Sequence[str], advance: Advance) -> None:
        protection.documents_stale(self.held[key].node_id for key in keys)
        super().delete(keys, advance)

    def made(self) -> dict[str, Any]:
        return {PROTECTED: self.protected} if self.protected else {}

    def unmake(self, made: Mapping[str, Any]) -> None:
        protection.take_back(made.get(PROTECTED, []))

    def users(self, keys: Sequence[str]) -> dict[str, str]:
        return {key: "has been seen by now." for key in keys if self.held[key].first_seen_at is not None}


def _stated(values: Values) -> list[Span] | None:
    """The placements for PHY that a row states, None when it states none."""
    text = values.get(PLACEMENTS)
    return [Span(start, size) for start, size in parse_spans(text)] if isinstance(text, str) else None


def sites_by_code(codes: set[str]) -> dict[str, Site]:
    found: dict[str, Site] = {}
    for part in parts(sorted(codes)):
        found.update({site.code: site for site in Site.objects.filter(code__in=part)})
    return found


def nodes_by_key(site_ids: Sequence[int], *, lock: bool) -> dict[str, Node]:
    """Nodes that are not retired, by site code and host label."""
    found: dict[str, Node] = {}
    for part in parts(site_ids):
        nodes = Node.objects.filter(site_id__in=part, retired_at__isnull=True).select_related("site").order_by("pk")
        found.update({f"{node.site.code}/{host_label(node.host_name)}": node for node in (nodes.select_for_update(of=("self",)) if lock else nodes)})
    return found


def region_of_site(values: Values, sites: Mapping[str, Site]) -> set[int | None]:
    """The region of the row's site; None when there is no such site; nothing when the row names none."""
    code = values.get("site")
    return {sites[str(code)].region_id if code in sites else None} if code else set()


def check_site(target: Target, row: CheckedRow, sites: Mapping[str, Site]) -> None:
    """The row's site exists and may be changed; what lies outside the scope does not exist for its sender."""
    code = row.values.get("site")
    if isinstance(code, str) and (code not in sites or not target.may_change(sites[code].region_id)):
        row.refuse("site", f"{code!r} does not exist.")


TARGETS: dict[str, type[Target]] = {target.kind.name: target for target in (SiteTarget, NodeTarget, GpuTarget)}


def close_unexpected(uuids: Sequence[str], at: datetime) -> None:
    """GPUs that an import lists are no longer unexpected."""
    close_findings(ObjectKind.GPU, uuids, at=at, because="Listed by an import", codes=[UNEXPECTED])
