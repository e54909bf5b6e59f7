"""Inventory and health of a node, with GPUs that stopped answering named by what is known of them."""

from __future__ import annotations

from dataclasses import replace

from agent.backends.base import Backend
from agent.journal import Journal
from agent.protocol import Condition, GpuCondition, HealthReport, InventoryReport


def inspect(backend: Backend, journal: Journal, now: float) -> tuple[InventoryReport, HealthReport]:
    """Ask the hardware, remember whom it listed, and fill in the UUIDs that it cannot say any more."""
    boot_id = backend.boot_id()
    inventory = backend.inventory(now)
    known = journal.known_gpus(boot_id)
    health = name_lost_gpus(backend.health(now), known)
    seen = {gpu.uuid: gpu.index for gpu in inventory.gpus}
    if any(known.get(uuid) != index for uuid, index in seen.items()) or (seen and not known):
        journal.remember_gpus(seen, boot_id)
    return inventory, health


def name_lost_gpus(report: HealthReport, known: dict[str, int]) -> HealthReport:
    """`report` with every GPU of `known` (UUID → last index) in it.

    A condition without UUID gets that of the silent GPU with its index, or of the only silent one. What then is still silent is
    `lost` when the driver lists the others, and `unknown` when the driver itself cannot be asked.
    """
    named = {condition.uuid for condition in report.gpus if condition.uuid}
    silent = {uuid: index for uuid, index in known.items() if uuid not in named}
    gpus: list[GpuCondition] = []
    for condition in report.gpus:
        if not condition.uuid:
            unnamed = sum(1 for other in report.gpus if not other.uuid)
            uuid = next((uuid for uuid, index in silent.items() if index == condition.index), None)
            if uuid is None and len(silent) == 1 and unnamed == 1:
                uuid = next(iter(silent))
            if uuid is not None:
                del silent[uuid]
                condition = replace(condition, uuid=uuid)
        gpus.append(condition)
    driver_silent = bool(report.driver_mismatch or report.driver_error)
    for uuid, index in sorted(silent.items(), key=lambda item: item[1]):
        if driver_silent:
            gpus.append(GpuCondition(uuid=uuid, index=index, condition=Condition.UNKNOWN, detail="The driver cannot be asked."))
        else:
            gpus.append(GpuCondition(uuid=uuid, index=None, condition=Condition.LOST, detail="The driver no longer lists this GPU."))
    return replace(report, gpus=tuple(gpus))
