"""Workloads: which pod's container runs on which GPU or slice, since when, until when."""

from collections import defaultdict
from datetime import datetime, timedelta

from fleet.bulk import update_rows
from fleet.inventory.reconcile.observed import Observed, ObservedWorkload, Reconciled
from fleet.models import Gpu, MigSlice, Source, Workload

SEEN_STEP = timedelta(minutes=1)  # a workload that goes on is noted this often
_SHARED = (Workload.Sharing.MPS, Workload.Sharing.TIME_SLICED)
Place = tuple[str, int | None]


def reconcile_workloads(seen: Observed, gpus: dict[str, Gpu], slices: dict[tuple[str, int], MigSlice], on_nodes: dict[str, Gpu]) -> Reconciled:
    """Start and end workloads. `gpus` are those that the source saw, `on_nodes` all GPUs of nodes whose list of workloads is complete.

    A source that names a place's workload (or says that it has none) ends the others there; those that share a GPU by MPS or
    time-slicing are ended only by a source that names all of them, since an exporter may name just one.
    """
    result = Reconciled()
    known = {**on_nodes, **gpus}
    named: dict[Place, list[ObservedWorkload]] = defaultdict(list)
    for each in seen.workloads:
        if each.gpu_uuid in known:
            named[(each.gpu_uuid, each.gpu_instance_id)].append(each)
    places: dict[Place, datetime] = {place: at for place, at in seen.complete_workloads.items() if place[0] in known}
    node_lists = {uuid: at for uuid, gpu in known.items() if (at := seen.complete_workload_nodes.get(gpu.node_id)) is not None}
    uuid_of = {known[uuid].pk: uuid for uuid in {place[0] for place in (*named, *places)} | set(node_lists)}
    if not uuid_of:
        return result
    live_slices = slices | _other_slices(uuid_of, {place for place in (*named, *places) if place[1] is not None} - set(slices))
    held = list(Workload.objects.running().select_for_update(of=("self",)).filter(gpu_id__in=uuid_of).select_related("slice").order_by("pk"))
    by_identity = {_identity(uuid_of[row.gpu_id], row): row for row in held}
    new: list[Workload] = []
    again: dict[int, Workload] = {}
    kept: set[int] = set()
    for place, entries in named.items():
        slice_row = live_slices.get((place[0], place[1])) if place[1] is not None else None
        if place[1] is not None and slice_row is None:
            continue  # the slice has ended since, or its sighting was too late
        for each in entries:
            identity = (*place, each.namespace, each.pod, each.container)
            sharing = each.sharing or (Workload.Sharing.MIG if slice_row is not None else Workload.Sharing.WHOLE)
            row = by_identity.get(identity)
            if row is None:
                row = Workload(
                    gpu=known[place[0]],
                    slice=slice_row,
                    namespace=each.namespace,
                    pod=each.pod,
                    container=each.container,
                    sharing=sharing,
                    started_at=each.at,
                    last_seen_at=each.at,
                )
                by_identity[identity] = row
                new.append(row)
                continue
            if row.pk:
                kept.add(row.pk)
            if (each.sharing or row.sharing) != row.sharing or each.at - row.last_seen_at >= SEEN_STEP:
                row.sharing, row.last_seen_at = each.sharing or row.sharing, max(row.last_seen_at, each.at)
                if row.pk:
                    again[row.pk] = row
    ended = _ended(seen, held, kept, uuid_of, places, node_lists)
    update_rows(Workload, ["last_seen_at", "sharing"], [row for pk, row in again.items() if pk not in ended])
    update_rows(Workload, ["ended_at"], list(ended.values()))
    Workload.objects.bulk_create(new, batch_size=2000)
    result.workloads_started, result.workloads_ended = len(new), len(ended)
    return result


def _identity(uuid: str, row: Workload) -> tuple[str, int | None, str, str, str]:
    return (uuid, row.slice.gpu_instance_id if row.slice is not None else None, row.namespace, row.pod, row.container)


def _other_slices(uuid_of: dict[int, str], places: set[Place]) -> dict[tuple[str, int], MigSlice]:
    """Live slices that workloads stand on but that were no part of this sighting."""
    if not places:
        return {}
    rows = MigSlice.objects.filter(gpu_id__in=uuid_of, ended_at__isnull=True)
    return {(uuid_of[row.gpu_id], row.gpu_instance_id): row for row in rows}


def _ended(
    seen: Observed, held: list[Workload], kept: set[int], uuid_of: dict[int, str], places: dict[Place, datetime], node_lists: dict[str, datetime]
) -> dict[int, Workload]:
    ended: dict[int, Workload] = {}
    for row in held:
        uuid = uuid_of[row.gpu_id]
        at = node_lists.get(uuid)
        place = (uuid, row.slice.gpu_instance_id if row.slice is not None else None)
        if at is None and not (seen.source == Source.TELEMETRY and row.sharing in _SHARED and place not in seen.all_sharers):
            at = places.get(place)
        if at is None or row.pk in kept or row.started_at > at:
            continue
        row.ended_at = at
        ended[row.pk] = row
    return ended
