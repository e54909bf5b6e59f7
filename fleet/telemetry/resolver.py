"""What a series is, read from its labels once: whose cell its samples go to, or why it is not taken. Pure: no Django, no clock, no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fleet.inventory.host_names import host_label, host_of_address
from fleet.telemetry.fields import RECOVERY_METRICS, SHARING_LABELS, XID_COUNT_METRIC, Refusal, SeriesSeen, clean_text, series_seen, whole_number
from fleet.telemetry.live_state import LiveState
from fleet.telemetry.series_table import METRICS, NVLINK_PART_OF, Kind, SeriesTable
from fleet.telemetry.service_metrics import FIELD_INDEX, FIELDS_OF_JOB, JOBS, MAX_NAME, MAX_PART, Item, find_field, is_service_metric, job_of, server_of
from fleet.telemetry.service_state import ServiceState
from fleet.telemetry.sightings import Sightings, identity_of

Labels = Mapping[str, str]
_IDENTITY_LABELS = (
    *("site", "node", "Hostname", "hostname", "UUID", "uuid", "gpu_uuid", "gpu", "pci_bus_id", "modelName", "model_name", "DCGM_FI_DRIVER_VERSION"),
    *("GPU_I_ID", "GPU_I_PROFILE", "exported_pod", "exported_namespace", "exported_container"),
    *("pod", "namespace", "container", "pod_name", "pod_namespace", "container_name"),
    *("exported_pod_name", "exported_pod_namespace", "exported_container_name"),
    *SHARING_LABELS,
)
_MAX_IDENTITIES = 5_000
# Bounds against a sender that invents labels: far above what a fleet of 30,000 sites has.
MAX_SERIES = 3_000_000
MAX_ITEMS = 500_000
MAX_INSTANCE = 127


@dataclass(frozen=True)
class SenderScope:
    """Who sends, what it may write for (None: the whole fleet), and whether pod/namespace/container are the workload's."""

    id: int
    name: str
    region_ids: frozenset[int] | None
    honor_labels: bool = False

    def may_write(self, region_id: int) -> bool:
        return self.region_ids is None or region_id in self.region_ids


class NotTaken(Exception):
    """Why a series is not taken; `until_known` names what may appear in the inventory and change that."""

    def __init__(self, reason: Refusal, until_known: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.until_known = until_known


class Resolver:
    def __init__(self, state: LiveState, services: ServiceState, table: SeriesTable, sightings: Sightings) -> None:
        self._state = state
        self._services = services
        self._table = table
        self._sightings = sightings
        self._identities: dict[tuple[object, ...], tuple[SeriesSeen, int]] = {}
        widest = max(len(fields) for fields in FIELDS_OF_JOB.values())
        self.service_scale: NDArray[np.float64] = np.ones((len(JOBS), widest))
        self.service_maximum: NDArray[np.float64] = np.full((len(JOBS), widest), np.inf)
        for job_index, job in enumerate(JOBS):
            for index, field in enumerate(FIELDS_OF_JOB[job]):
                self.service_scale[job_index, index] = field.scale
                self.service_maximum[job_index, index] = field.maximum

    def resolve(self, labels: Labels, digest: int, sender: SenderScope, *, at: float) -> int:
        """The slot of a series that is not known yet. `at`: its sample's time."""
        name = labels.get("__name__", "")
        try:
            if len(self._table) >= MAX_SERIES or len(self._services) >= MAX_ITEMS:
                raise NotTaken(Refusal.TOO_MANY_SERIES)
            if name in METRICS.index or name == XID_COUNT_METRIC or name in RECOVERY_METRICS:
                return self._gpu_series(name, labels, digest, sender, at)
            if name == "up":
                return self._up_series(labels, digest, sender)
            if is_service_metric(name):
                return self._service_series(labels, digest, sender)
            raise NotTaken(Refusal.UNKNOWN_METRIC)
        except NotTaken as refusal:
            return self._table.ignore(sender.id, digest, refusal.reason, until_known=refusal.until_known)

    def seen(self, labels: Labels, sender: SenderScope, *, at: float) -> SeriesSeen:
        """The identity in a GPU series' labels, at the place that they name."""
        return replace(self._identity(labels, sender)[0], at=at)

    def _identity(self, labels: Labels, sender: SenderScope) -> tuple[SeriesSeen, int]:
        """(identity without a time, its digest). The series of one scrape share a few: those are remembered."""
        key = (sender.honor_labels, *map(labels.get, _IDENTITY_LABELS))
        known = self._identities.get(key)
        if known is None:
            host = labels.get("node") or labels.get("Hostname") or labels.get("hostname") or ""
            seen = series_seen(labels, site_code=labels.get("site", ""), node_host=host, honor_labels=sender.honor_labels, at=0.0)
            known = seen, identity_of(seen)
            if len(self._identities) >= _MAX_IDENTITIES:
                self._identities.clear()
            self._identities[key] = known
        return known

    def _gpu_series(self, name: str, labels: Labels, digest: int, sender: SenderScope, at: float) -> int:
        state, table = self._state, self._table
        seen, identity = self._identity(labels, sender)
        if not seen.gpu_uuid:
            raise NotTaken(Refusal.NO_IDENTITY)
        row = state.gpu_row_of.get(seen.gpu_uuid)
        if row is None or not state.gpu_active[row]:
            self._check_place(seen, sender)
            self._sightings.note_unknown(replace(seen, at=at))
            raise NotTaken(Refusal.UNKNOWN_GPU, f"gpu:{seen.gpu_uuid}")
        if not sender.may_write(int(state.site_region[state.gpu_site_row[row]])):
            raise NotTaken(Refusal.FOREIGN_SITE)
        named = state.site_row_of_code.get(seen.site_code)
        if named is not None and not sender.may_write(int(state.site_region[named])):
            raise NotTaken(Refusal.FOREIGN_SITE)
        slice_row = -1
        if seen.gpu_instance_id is not None:
            if seen.gpu_instance_id > MAX_INSTANCE:
                raise NotTaken(Refusal.NO_IDENTITY)
            slice_row = state.slice_row(row, seen.gpu_instance_id, seen.profile)
        if name == XID_COUNT_METRIC:
            xid = whole_number(labels.get("xid", ""))
            if xid is None:
                raise NotTaken(Refusal.NO_IDENTITY)
            return table.add(sender.id, digest, Kind.XID_COUNT, row=row, column=xid, slice_row=slice_row)
        if name in RECOVERY_METRICS:
            return table.add(sender.id, digest, Kind.RECOVERY, row=row, slice_row=slice_row)
        if name in NVLINK_PART_OF:
            return table.add(sender.id, digest, Kind.NVLINK_PART, row=row, column=NVLINK_PART_OF[name], slice_row=slice_row)
        metric = METRICS.index[name]
        if slice_row >= 0 and METRICS.whole_only[metric]:
            return table.ignore(sender.id, digest, None)
        if slice_row >= 0 and METRICS.slice_field[metric] >= 0:
            return table.add(sender.id, digest, Kind.SLICE, row=slice_row, metric=metric, slice_row=slice_row, identity=identity)
        return table.add(sender.id, digest, Kind.GPU, row=row, metric=metric, slice_row=slice_row, identity=identity)

    def _check_place(self, seen: SeriesSeen, sender: SenderScope) -> None:
        """An unknown GPU must at least stand at a place that the sender may write for."""
        if seen.site_code:
            self._site(seen.site_code, sender)
        elif self._node_anywhere(seen.node_host, sender) is None:
            raise NotTaken(Refusal.UNKNOWN_SITE, f"host:{host_label(seen.node_host)}")

    def _site(self, code: str, sender: SenderScope) -> int:
        row = self._state.site_row_of_code.get(code)
        if row is None or not self._state.site_active[row]:
            raise NotTaken(Refusal.UNKNOWN_SITE, f"site:{code}")
        if not sender.may_write(int(self._state.site_region[row])):
            raise NotTaken(Refusal.FOREIGN_SITE)
        return row

    def _node(self, labels: Labels, sender: SenderScope) -> int:
        """Row of the node that a series of an exporter is about."""
        state = self._state
        hosts = [labels[name] for name in ("node", "Hostname", "hostname", "nodename") if labels.get(name)]
        if labels.get("instance"):
            hosts.append(host_of_address(labels["instance"]))
        code = labels.get("site", "")
        if code:
            site_row = self._site(code, sender)
            for host in hosts:
                row = state.node_row_of_host.get((site_row, host_label(host)))
                if row is not None and state.node_active[row]:
                    return row
        else:
            for host in hosts:
                found = self._node_anywhere(host, sender)
                if found is not None:
                    return found
        raise NotTaken(Refusal.UNKNOWN_NODE, f"host:{host_label(hosts[0])}" if hosts else "")

    def _node_anywhere(self, host: str, sender: SenderScope) -> int | None:
        """The one node of that name among the sender's, if there is one."""
        state = self._state
        rows = [
            row
            for row in state.node_rows_of_host.get(host_label(host), ())
            if state.node_active[row] and sender.may_write(int(state.site_region[state.node_site_row[row]]))
        ]
        return rows[0] if len(rows) == 1 else None

    def _up_series(self, labels: Labels, digest: int, sender: SenderScope) -> int:
        job = job_of(labels.get("job", ""))
        if job is None:
            raise NotTaken(Refusal.UNKNOWN_METRIC)
        node_row = self._node(labels, sender)
        if job == "dcgm":
            return self._table.add(sender.id, digest, Kind.NODE_UP, row=node_row)
        return self._add_service(job, node_row, Item("", "" if job == "node" else server_of(labels)), FIELD_INDEX[job]["up"], digest, sender)

    def _service_series(self, labels: Labels, digest: int, sender: SenderScope) -> int:
        found = find_field(labels)
        if found is None:
            return self._table.ignore(sender.id, digest, None)
        field, item = found
        return self._add_service(field.job, self._node(labels, sender), item, FIELD_INDEX[field.job][field.name], digest, sender)

    def _add_service(self, job: str, node_row: int, item: Item, field: int, digest: int, sender: SenderScope) -> int:
        if len(item.name) > MAX_NAME or len(item.part) > MAX_PART or len(item.beside) > MAX_NAME:
            raise NotTaken(Refusal.NAME_TOO_LONG)
        item = Item(clean_text(item.name, MAX_NAME), clean_text(item.part, MAX_PART), clean_text(item.beside, MAX_NAME))
        row = self._services.row(job, node_row, item)
        return self._table.add(sender.id, digest, Kind.SERVICE, row=row, metric=JOBS.index(job), column=field, slice_row=node_row)
