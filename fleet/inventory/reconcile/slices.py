"""MIG slices: they start, end and are never the same again once their profile, place or UUID changed. A layout that is gone is a finding."""

from collections import defaultdict
from datetime import datetime

from django.db.models import F, OuterRef, Subquery
from django.db.models.functions import Greatest

from fleet.bulk import update_rows
from fleet.health.findings import Found, close_findings, open_findings
from fleet.inventory.reconcile.layouts import judge_layouts
from fleet.inventory.reconcile.observed import Observed, ObservedSlice, Reconciled
from fleet.models import Finding, Gpu, MigSlice, Node, ObjectKind, ProtectedPlacement, Workload

DRIFT = "mig_drift"


def reconcile_slices(seen: Observed, gpus: dict[str, Gpu], nodes: dict[int, Node], now: datetime) -> tuple[dict[tuple[str, int], MigSlice], Reconciled]:
    """Bring the slices of these GPUs in; returns the live ones by (GPU UUID, GPU instance id), and what changed.

    A slice that a source does not name ends only where the source's list of that GPU is complete.
    """
    result = Reconciled()
    wanted = [each for each in seen.slices if each.gpu_uuid in gpus]
    complete = {uuid: at for uuid, at in seen.complete_slices.items() if uuid in gpus}
    uuid_of = {gpus[uuid].pk: uuid for uuid in {each.gpu_uuid for each in wanted} | set(complete)}
    if not uuid_of:
        return {}, result
    rows = list(MigSlice.objects.select_for_update().filter(gpu_id__in=uuid_of, ended_at__isnull=True).order_by("pk"))
    live = {(uuid_of[row.gpu_id], row.gpu_instance_id): row for row in rows}
    layout_before = _layouts(live)
    ended_until = _ended_until(uuid_of, wanted)
    protected = _protected(list(uuid_of))
    new: list[MigSlice] = []
    ended: dict[int, MigSlice] = {}
    filled: list[MigSlice] = []
    for each in sorted(wanted, key=lambda each: each.at):
        key = (each.gpu_uuid, each.gpu_instance_id)
        held = live.get(key)
        if held is not None and _same(held, each):
            if _fill(held, each, protected[gpus[each.gpu_uuid].pk]) and held.pk:
                filled.append(held)
            continue
        if held is not None and each.at < held.created_at:
            continue
        if held is None and key in ended_until and each.at <= ended_until[key]:
            continue
        if held is not None:
            held.ended_at = max(held.created_at, each.at)
            ended[held.pk] = held
        live[key] = _slice_of(each, gpus[each.gpu_uuid], protected[gpus[each.gpu_uuid].pk])
        new.append(live[key])
    listed = {(each.gpu_uuid, each.gpu_instance_id) for each in wanted}
    for key, row in list(live.items()):
        at = complete.get(key[0])
        if at is not None and key not in listed and row.created_at <= at:
            row.ended_at = at
            ended[row.pk] = row
            del live[key]
    update_rows(MigSlice, ["ended_at"], list(ended.values()))
    update_rows(
        MigSlice, ["start", "size", "mig_uuid", "compute_instance_id", "purpose"], list({row.pk: row for row in filled if row.pk not in ended}.values())
    )
    if ended:
        end_of_slice = MigSlice.objects.filter(pk=OuterRef("slice_id")).values("ended_at")
        result.workloads_ended = Workload.objects.running().filter(slice__in=ended).update(ended_at=Greatest(F("started_at"), Subquery(end_of_slice)))
    MigSlice.objects.bulk_create(new, batch_size=2000)
    result.slices_started, result.slices_ended = len(new), len(ended)
    _drift(complete, gpus, nodes, live, layout_before, protected, now)
    judge_layouts({each.gpu_uuid: each.at for each in wanted} | complete, gpus, nodes, live.values(), protected, now)
    return live, result


def _same(held: MigSlice, each: ObservedSlice) -> bool:
    """Whether what is seen is the slice that is held: profile, place and UUID, as far as both are known."""
    if held.profile != each.profile:
        return False
    if held.start is not None and each.start is not None and (held.start, held.size) != (each.start, each.size):
        return False
    return not (held.mig_uuid and each.mig_uuid) or held.mig_uuid == each.mig_uuid


def _purpose(start: int | None, size: int | None, protected: set[int]) -> MigSlice.Purpose:
    if start is None or size is None:
        return MigSlice.Purpose.AI
    return MigSlice.Purpose.PHY if protected & set(range(start, start + size)) else MigSlice.Purpose.AI


def _fill(held: MigSlice, each: ObservedSlice, protected: set[int]) -> bool:
    """Learn what was not known yet; True when something was."""
    changed = False
    if held.start is None and each.start is not None:
        held.start, held.size, held.purpose = each.start, each.size, _purpose(each.start, each.size, protected)
        changed = True
    if not held.mig_uuid and each.mig_uuid:
        held.mig_uuid, changed = each.mig_uuid, True
    if each.compute_instance_id is not None and held.compute_instance_id != each.compute_instance_id:
        held.compute_instance_id, changed = each.compute_instance_id, True
    return changed


def _slice_of(each: ObservedSlice, gpu: Gpu, protected: set[int]) -> MigSlice:
    return MigSlice(
        gpu=gpu,
        gpu_instance_id=each.gpu_instance_id,
        compute_instance_id=each.compute_instance_id or 0,
        mig_uuid=each.mig_uuid,
        profile=each.profile,
        start=each.start,
        size=each.size,
        purpose=_purpose(each.start, each.size, protected),
        created_at=each.at,
    )


def _ended_until(uuid_of: dict[int, str], wanted: list[ObservedSlice]) -> dict[tuple[str, int], datetime]:
    """When the last slice of each instance ended, so that a late sample does not bring it back."""
    if not wanted:
        return {}
    first = min(each.at for each in wanted)
    gone = MigSlice.objects.filter(gpu_id__in=uuid_of, ended_at__gte=first).order_by("ended_at").values_list("gpu_id", "gpu_instance_id", "ended_at")
    return {(uuid_of[gpu_id], instance): ended_at for gpu_id, instance, ended_at in gone if ended_at is not None}


def _protected(gpu_ids: list[int]) -> dict[int, set[int]]:
    """Protected memory positions by GPU."""
    positions: dict[int, set[int]] = defaultdict(set)
    for gpu_id, start, size in ProtectedPlacement.objects.filter(gpu_id__in=gpu_ids).values_list("gpu_id", "start", "size"):
        positions[gpu_id].update(range(start, start + size))
    return positions


def _layouts(live: dict[tuple[str, int], MigSlice]) -> dict[str, list[str]]:
    layouts: dict[str, list[str]] = defaultdict(list)
    for (uuid, _), row in sorted(live.items(), key=lambda item: (item[1].start if item[1].start is not None else 8, item[0][1])):
        layouts[uuid].append(row.profile if row.start is None else f"{row.profile}@{row.start}")
    return layouts


def _drift(
    complete: dict[str, datetime],
    gpus: dict[str, Gpu],
    nodes: dict[int, Node],
    live: dict[tuple[str, int], MigSlice],
    layout_before: dict[str, list[str]],
    protected: dict[int, set[int]],
    now: datetime,
) -> None:
    """Say so where a MIG GPU lost its layout, or lacks an instance on a placement kept for the radio; end that where it is back."""
    found, fine = [], []
    layout_now = _layouts(live)
    rows_of: dict[str, list[MigSlice]] = defaultdict(list)
    for (owner, _), row in live.items():
        rows_of[owner].append(row)
    for uuid, at in complete.items():
        gpu, here = gpus[uuid], rows_of[uuid]
        covered = {position for row in here if row.start is not None and row.size for position in range(row.start, row.start + row.size)}
        bare = sorted(protected[gpu.pk] - covered) if len(protected[gpu.pk]) < 8 else []
        emptied = gpu.mig_enabled and not here
        if emptied and uuid not in layout_before and not bare:
            continue  # never had a layout, or the finding is open since it lost it
        if not emptied and not (bare and gpu.mig_enabled):
            fine.append(uuid)
            continue
        desired = layout_before.get(uuid, [])
        where = f"positions {', '.join(map(str, bare))} kept for PHY hold no instance" if bare else "no capacity"
        found.append(
            Found(
                kind=ObjectKind.GPU,
                object_key=uuid,
                site_id=nodes[gpu.node_id].site_id,
                code=DRIFT,
                severity=Finding.Severity.CRITICAL if bare else Finding.Severity.MAJOR,
                summary=f"MIG is on but the layout is not there: {where}. Wanted {', '.join(desired) or 'a layout'}, found {', '.join(layout_now.get(uuid, [])) or 'none'}.",
                advised_action="Create the instances again (after a reboot they are always gone), then restart the device plugin.",
                evidence={"desired": desired, "actual": layout_now.get(uuid, []), "bare_protected_positions": bare},
                at=at,
            )
        )
    open_findings(found)
    if fine:
        close_findings(ObjectKind.GPU, fine, at=now, because="The layout is back", codes=[DRIFT])
