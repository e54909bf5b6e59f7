"""Applies the chosen rows of a checked import as one change set, and undoes it. All or nothing; what changed in between is named."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pghistory
from django.db import transaction

from fleet.inventory.importing.columns import KINDS
from fleet.inventory.importing.device_targets import PROTECTED, TARGETS, GpuTarget, close_unexpected
from fleet.inventory.importing.targets import Target
from fleet.jobs import JobFailed, Progress
from fleet.models import ImportRow, InventoryImport, Job

_NAMED = 20  # conflicts that a message names


class ChangedSince(JobFailed):
    """Objects are not what the import saw. `conflicts` holds a sentence for each."""

    def __init__(self, what: str, conflicts: Sequence[str]) -> None:
        rest = f" And {len(conflicts) - _NAMED} more." if len(conflicts) > _NAMED else ""
        super().__init__(f"{what} {' '.join(conflicts[:_NAMED])}{rest}")
        self.conflicts = list(conflicts)


def context_of(inventory_import: InventoryImport, user: Any, reason: str) -> Any:
    """The history context of the change set: who, why, and which job."""
    return pghistory.context(user=user.pk, reason=reason, source="import", job=str(inventory_import.pk))


def apply_rows(inventory_import: InventoryImport, progress: Progress, user: Any, now: datetime) -> dict[str, Any]:
    """Write the selected rows. Raises `ChangedSince` when an object is no longer what the difference showed; nothing is written then."""
    with transaction.atomic(), context_of(inventory_import, user, inventory_import.reason):
        locked = InventoryImport.objects.select_for_update().get(pk=inventory_import.pk)
        if locked.applied_at is not None:
            return {}
        rows = list(
            locked.rows.filter(selected=True, outcome__in=(ImportRow.Outcome.NEW, ImportRow.Outcome.CHANGED, ImportRow.Outcome.CONFLICT)).order_by("number")
        )
        progress.start("apply", len(rows))
        target = _target(locked, now)
        target.load([row.values for row in rows], lock=True)
        conflicts = [problem for row in rows if (problem := _forbidden(target, row) or _differs(target, row, row.before))]
        if conflicts:
            raise ChangedSince("The inventory changed since the check; nothing was applied.", conflicts)
        target.create([row.values for row in rows if row.outcome == ImportRow.Outcome.NEW], progress.advance)
        target.update([(row.key, _changes(row)) for row in rows if row.outcome != ImportRow.Outcome.NEW], progress.advance)
        if isinstance(target, GpuTarget):
            close_unexpected([row.key for row in rows], now)
        locked.applied_at = now
        locked.save(update_fields=["applied_at"])
        # In the same transaction, so that an undo knows it even if this worker dies right after.
        Job.objects.filter(pk=locked.pk).update(result={**progress.job.result, "made": target.made()})
    counts = {outcome: sum(1 for row in rows if row.outcome == outcome) for outcome in ("new", "changed", "conflict")}
    progress.log(f"Applied {len(rows)} rows: {counts['new']} new, {counts['changed']} changed, {counts['conflict']} in conflict and chosen.")
    made = target.made()
    if protected := made.get(PROTECTED):
        progress.log(f"{len(protected)} GPUs of DU nodes had no placements kept for PHY and got the default ones.")
    return {"applied": counts, "made": made}


def undo_rows(inventory_import: InventoryImport, progress: Progress, user: Any, reason: str, now: datetime) -> dict[str, Any]:
    """Take an applied import back: delete what it made, restore what it changed. Raises `ChangedSince` when anything of it was changed or is used since."""
    with transaction.atomic(), context_of(inventory_import, user, reason):
        locked = InventoryImport.objects.select_for_update(of=("self",)).select_related("job").get(pk=inventory_import.pk)
        if locked.applied_at is None:
            raise JobFailed("The import was never applied.")
        if locked.undone_at is not None:
            return {}
        rows = list(
            locked.rows.filter(selected=True, outcome__in=(ImportRow.Outcome.NEW, ImportRow.Outcome.CHANGED, ImportRow.Outcome.CONFLICT)).order_by("number")
        )
        progress.start("undo", len(rows))
        target = _target(locked, now)
        target.load([values for row in rows for values in (row.values, row.before) if values], lock=True)
        conflicts = [problem for row in rows if (problem := _forbidden(target, row) or _differs(target, row, row.values))]
        made = [row.key for row in rows if row.outcome == ImportRow.Outcome.NEW]
        if not conflicts:
            conflicts = [f"{key} {why}" for key, why in sorted(target.users(made).items())]
        if conflicts:
            raise ChangedSince("Changed since the import; nothing was undone.", conflicts)
        target.delete(made, progress.advance)
        target.update([(row.key, _back(row)) for row in rows if row.outcome != ImportRow.Outcome.NEW], progress.advance)
        target.unmake(locked.job.result.get("made", {}))
        locked.undone_at = now
        locked.save(update_fields=["undone_at"])
    progress.log(f"Undone: {len(made)} deleted, {len(rows) - len(made)} restored.")
    return {"deleted": len(made), "restored": len(rows) - len(made)}


def _target(inventory_import: InventoryImport, now: datetime) -> Target:
    return TARGETS[KINDS[inventory_import.kind].name](inventory_import.region_ids, now)


def _changes(row: ImportRow) -> dict[str, Any]:
    before = row.before or {}
    return {name: value for name, value in row.values.items() if name not in before or before[name] != value}


def _back(row: ImportRow) -> dict[str, Any]:
    before = row.before or {}
    return {name: before[name] for name in _changes(row) if name in before}


def _forbidden(target: Target, row: ImportRow) -> str:
    """Why a row may not be written by whoever decided; "" when it may."""
    if all(target.may_write(row.key, values) for values in (row.values, row.before) if values):
        return ""
    return f"Row {row.number}: {row.key} is not yours to change."


def _differs(target: Target, row: ImportRow, wanted: dict[str, Any] | None) -> str:
    """Why the object of a row is not what `wanted` says (None: it should not exist); "" when it is."""
    held = target.held.get(row.key)
    if wanted is None:
        return f"Row {row.number}: {row.key} exists by now." if held is not None else ""
    if held is None:
        return f"Row {row.number}: {row.key} is gone."
    current = target.current(held)
    different = [name for name, value in wanted.items() if name in current and current[name] != value]
    if not different:
        return ""
    name = different[0]
    return f"Row {row.number}: {row.key} has {name} {_shown(current[name])} now, not {_shown(wanted[name])}."


def _shown(value: Any) -> str:
    return "nothing" if value in (None, "") else repr(value)
