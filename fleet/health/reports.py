"""What a node's agent says of the health of its GPUs, kept as rows that the telemetry process reads. Only what is not right has a row."""

from datetime import UTC, datetime

from django.db import transaction

from agent.protocol.health import Condition, HealthReport
from fleet.models import Gpu, ReportedCondition

Said = ReportedCondition.Condition


def apply(node_id: int, report: HealthReport, now: datetime) -> int:
    """Replace what is known of this node by its newest report; returns how many conditions stand.

    A GPU is known by its UUID; one that could not tell it is the inventory's GPU of that index. GPUs of the inventory that the driver no longer
    lists are lost. When the driver as a whole cannot be asked, nothing is said of single GPUs.
    """
    said = _conditions(node_id, report)
    at = min(datetime.fromtimestamp(report.at, UTC), now)
    with transaction.atomic():
        held = {row.gpu_uuid: row for row in ReportedCondition.objects.select_for_update().filter(node_id=node_id)}
        gone = [row.pk for gpu_uuid, row in held.items() if gpu_uuid not in said]
        if gone:
            ReportedCondition.objects.filter(pk__in=gone).delete()
        rows = []
        for gpu_uuid, (condition, detail) in said.items():
            old = held.get(gpu_uuid)
            since = old.since if old is not None and old.condition == condition else at
            rows.append(ReportedCondition(node_id=node_id, gpu_uuid=gpu_uuid, condition=condition, detail=detail[:300], since=since, last_at=max(at, since)))
        ReportedCondition.objects.bulk_create(
            rows, update_conflicts=True, unique_fields=["node", "gpu_uuid"], update_fields=["condition", "detail", "since", "last_at"]
        )
    return len(rows)


def _conditions(node_id: int, report: HealthReport) -> dict[str, tuple[str, str]]:
    """(condition, detail) by GPU UUID; "" is the driver."""
    mismatch = report.driver_mismatch
    if mismatch is not None:
        return {"": (Said.DRIVER_MISMATCH, f"kernel module {mismatch.loaded_module or 'unknown'}, library {mismatch.library or 'unknown'}")}
    if report.driver_error:
        return {"": (Said.DRIVER_ERROR, report.driver_error)}
    inventory = list(Gpu.objects.filter(node_id=node_id).exclude(presence=Gpu.Presence.RETIRED).values_list("uuid", "index", "presence"))
    named = {gpu.uuid for gpu in report.gpus if gpu.uuid}
    by_index = {index: gpu_uuid for gpu_uuid, index, _ in inventory if index is not None and gpu_uuid not in named}
    said: dict[str, tuple[str, str]] = {}
    for gpu in report.gpus:
        gpu_uuid = gpu.uuid or (by_index.get(gpu.index, "") if gpu.index is not None else "")
        if not gpu_uuid:
            continue
        named.add(gpu_uuid)
        if gpu.condition is not Condition.OK:
            said[gpu_uuid] = (Said(gpu.condition.value), gpu.detail)
    if report.gpus:
        for gpu_uuid, _, presence in inventory:
            if gpu_uuid not in named and presence in (Gpu.Presence.PRESENT, Gpu.Presence.MISSING):
                said[gpu_uuid] = (Said.LOST, "the driver no longer lists it")
    return said
