"""The door of imports: take a file, map its columns, check and stage it, apply it, undo it, write its result file.

Each function translates for one step of the job; `run_import` and `run_undo` are what a worker does.
"""

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from django.db import transaction

from fleet import jobs
from fleet.bulk import copy_rows
from fleet.inventory.export import neutralise
from fleet.inventory.importing.apply import ChangedSince, apply_rows, undo_rows
from fleet.inventory.importing.check import HEADER, CheckedRow, check_columns, check_rows, suggest_columns
from fleet.inventory.importing.columns import KINDS, Kind
from fleet.inventory.importing.device_targets import TARGETS
from fleet.inventory.importing.difference import Difference, compare
from fleet.inventory.importing.read import FORMATS, MAX_BYTES, MAX_COLUMNS, UNPRINTABLE, Sheet, UnreadableFile, format_of, read_sheet
from fleet.jobs import JobFailed, NotPossible, Outcome, Progress
from fleet.models import ImportRow, InventoryImport, Job

IMPORT, UNDO = "inventory_import", "inventory_undo"
_LOOKED_AT = 200  # rows that are read at once, to learn the columns; the rest is a worker's
MAP, CHECK, DECIDE, APPLY, UNDOING = "map", "check", "decide", "apply", "undo"


class Refused(ValueError):
    """A request about an import cannot be met; `errors` are sentences by field ("" for the whole)."""

    def __init__(self, errors: Mapping[str, str]) -> None:
        super().__init__(" ".join(errors.values()))
        self.errors = dict(errors)


def start_import(
    *,
    owner: Any,
    kind: str,
    file_name: str,
    content: bytes,
    on_duplicate: str,
    region_ids: Iterable[int] | None,
    column_map: Mapping[str, str] | None = None,
    file_format: str = "",
) -> InventoryImport:
    """Take an uploaded file. When its columns are clear (or `column_map` is given) it is queued for the check, else it waits for the map.

    `region_ids`: regions that the owner may change, None for the whole fleet. Raises `Refused` for what can be said at once.
    """
    errors: dict[str, str] = {}
    if kind not in KINDS:
        errors["kind"] = f"is none of {', '.join(KINDS)}."
    if on_duplicate not in InventoryImport.OnDuplicate.values:
        errors["on_duplicate"] = f"is none of {', '.join(InventoryImport.OnDuplicate.values)}."
    if file_format and file_format not in FORMATS:
        errors["format"] = f"is none of {', '.join(FORMATS)}."
    if len(content) > MAX_BYTES:
        errors["file"] = f"has {len(content):,} bytes; at most {MAX_BYTES:,} are read."
    if column_map is not None and (len(column_map) > MAX_COLUMNS or any(UNPRINTABLE.search(text) for pair in column_map.items() for text in pair)):
        errors["column_map"] = f"has more than {MAX_COLUMNS} columns, or names that cannot be printed."
    file_name = UNPRINTABLE.sub("?", file_name)
    if errors:
        raise Refused(errors)
    try:
        file_format = file_format or format_of(file_name)
        columns = read_sheet(content, file_format, most=_LOOKED_AT).columns
    except UnreadableFile as error:
        raise Refused({"file": str(error)}) from error
    suggested = dict(column_map) if column_map is not None else suggest_columns(KINDS[kind], columns)
    clear = column_map is not None or not check_columns(KINDS[kind], columns, suggested)
    with transaction.atomic():
        job = jobs.create_job(
            kind=IMPORT,
            title=f"Import of {KINDS[kind].title.lower()} from {file_name[:120] or 'a request'}",
            owner=owner,
            state=Job.State.QUEUED if clear else Job.State.WAITING,
            phase=CHECK if clear else MAP,
        )
        return InventoryImport.objects.create(
            job=job,
            kind=kind,
            format=file_format,
            file_name=file_name[:200],
            content=content,
            column_map=suggested,
            on_duplicate=on_duplicate,
            region_ids=None if region_ids is None else sorted(region_ids),
        )


def file_columns(inventory_import: InventoryImport) -> tuple[str, ...]:
    """The columns of the uploaded file, in its order, as far as its first rows name them."""
    return read_sheet(bytes(inventory_import.content), inventory_import.format, most=_LOOKED_AT).columns


def map_columns(inventory_import: InventoryImport, column_map: Mapping[str, str], now: datetime) -> None:
    """Say which column is which field ("" leaves a column out), and queue the check. Raises `Refused` naming the columns that do not fit, or `NotPossible`."""
    kind = KINDS[inventory_import.kind]
    if errors := check_columns(kind, file_columns(inventory_import), column_map):
        raise Refused({error["field"]: error["message"] for error in errors})
    with transaction.atomic():
        held = _decidable(inventory_import)
        held.column_map = dict(column_map)
        held.save(update_fields=["column_map"])
        jobs.queue_again(held.job, phase=CHECK, now=now)


def select_rows(inventory_import: InventoryImport, numbers: Iterable[int], *, selected: bool) -> int:
    """Choose rows, or leave them out; returns how many that changed. Rows with errors cannot be chosen."""
    with transaction.atomic():
        held = _decidable(inventory_import)
        usable = held.rows.exclude(outcome__in=(ImportRow.Outcome.ERROR, ImportRow.Outcome.SAME))
        return usable.filter(number__in=list(numbers)).exclude(selected=selected).update(selected=selected)


def select_outcome(inventory_import: InventoryImport, outcome: str, *, selected: bool) -> int:
    """Choose all rows of an outcome (new, changed, conflict), or leave them out; returns how many that changed."""
    with transaction.atomic():
        rows = _decidable(inventory_import).rows.filter(outcome=outcome).exclude(outcome__in=(ImportRow.Outcome.ERROR, ImportRow.Outcome.SAME))
        return rows.exclude(selected=selected).update(selected=selected)


def queue_apply(
    inventory_import: InventoryImport, *, user: Any, reason: str, region_ids: Iterable[int] | None, now: datetime, skip_errors: bool = False
) -> None:
    """Apply the selected rows. Raises `Refused`, or `NotPossible` when the import does not wait for this decision."""
    reason = _reason(reason)
    with transaction.atomic():
        held = _decidable(inventory_import)
        if held.job.phase != DECIDE:
            raise NotPossible("The file is not checked yet.")
        wrong = held.rows.filter(outcome=ImportRow.Outcome.ERROR)
        if not skip_errors and wrong.exists():
            raise Refused({"skip_errors": f"{wrong.count()} rows have errors. Correct the file, or choose to apply the others without them."})
        if held.rows.filter(number=HEADER).exists():
            raise Refused({"": "The columns do not fit: map them first."})
        if not held.rows.filter(selected=True).exists():
            raise Refused({"": "No row is chosen that would change anything."})
        held.reason, held.decided_by, held.skip_errors = reason, user, skip_errors
        held.region_ids = None if region_ids is None else sorted(region_ids)
        held.save(update_fields=["reason", "decided_by", "skip_errors", "region_ids"])
        jobs.queue_again(held.job, phase=APPLY, now=now)


def queue_undo(inventory_import: InventoryImport, *, user: Any, reason: str, region_ids: Iterable[int] | None) -> Job:
    """A job that takes an applied import back. Raises `Refused` or `NotPossible`."""
    reason = _reason(reason)
    with transaction.atomic():
        held = InventoryImport.objects.select_for_update().get(pk=inventory_import.pk)
        if held.applied_at is None:
            raise NotPossible("The import was not applied: there is nothing to undo.")
        if held.undone_at is not None:
            raise NotPossible("The import is undone already.")
        # None is the whole fleet: who has lost that right may not take such an import back.
        if region_ids is not None and (held.region_ids is None or not set(held.region_ids) <= set(region_ids)):
            raise NotPossible("The import changed regions that are not yours.")
        running = Job.objects.filter(kind=UNDO, state__in=jobs.OPEN, result__import_id=str(held.pk))
        if running.exists():
            raise NotPossible("The undo is under way already.")
        job = jobs.create_job(kind=UNDO, title=f"Undo: import of {held.kind} from {held.file_name[:120]}", owner=user, phase=UNDOING)
        job.result = {"import_id": str(held.pk), "reason": reason}
        job.save(update_fields=["result"])
        return job


def _reason(text: str) -> str:
    reason = text.strip()
    if not reason or len(reason) > 300 or UNPRINTABLE.search(reason):
        raise Refused({"reason": "Say why, in one line of at most 300 characters."})
    return reason


def _decidable(inventory_import: InventoryImport) -> InventoryImport:
    held = InventoryImport.objects.select_for_update(of=("self",)).select_related("job").get(pk=inventory_import.pk)
    if held.job.state != Job.State.WAITING:
        raise NotPossible(f"The import is {held.job.get_state_display().lower()}; it does not wait for a decision.")
    return held


def run_import(job: Job, progress: Progress, now: datetime) -> Outcome:
    """What a worker does for an import: the check, or the apply."""
    inventory_import = InventoryImport.objects.select_related("job", "decided_by").get(pk=job.pk)
    changed = ""
    if job.phase == APPLY:
        try:
            return Outcome(phase="applied", result=apply_rows(inventory_import, progress, inventory_import.decided_by, now))
        except ChangedSince as error:
            changed = str(error)
            progress.log(changed, "warning")
    counts = check_import(inventory_import, progress, now)
    progress.log(", ".join(f"{counts.get(outcome, 0)} {outcome}" for outcome in ImportRow.Outcome.values) + ".")
    if not counts:
        raise JobFailed("The file holds no rows under its header.")
    return Outcome(Job.State.WAITING, DECIDE, error=changed)


def run_undo(job: Job, progress: Progress, now: datetime) -> Outcome:
    inventory_import = InventoryImport.objects.get(pk=job.result["import_id"])
    return Outcome(phase="undone", result=undo_rows(inventory_import, progress, job.owner, job.result["reason"], now))


def check_import(inventory_import: InventoryImport, progress: Progress, now: datetime) -> dict[str, int]:
    """Check every row, compare, and stage all of it in `ImportRow`; returns the counts by outcome."""
    kind = KINDS[inventory_import.kind]
    progress.start("read")
    try:
        sheet = read_sheet(bytes(inventory_import.content), inventory_import.format)
    except UnreadableFile as error:
        raise JobFailed(str(error)) from error
    if errors := check_columns(kind, sheet.columns, inventory_import.column_map):
        return _stage(inventory_import, [Difference(CheckedRow(HEADER, errors=errors), ImportRow.Outcome.ERROR, None, False)])
    return _stage(inventory_import, _differences(inventory_import, kind, sheet, progress, now))


def _differences(inventory_import: InventoryImport, kind: Kind, sheet: Sheet, progress: Progress, now: datetime) -> list[Difference]:
    target = TARGETS[kind.name](inventory_import.region_ids, now)
    progress.start("check", len(sheet.rows))
    checked = check_rows(kind, sheet, inventory_import.column_map, target.key_of, progress.advance)
    progress.start("compare", len(checked))
    target.load([row.values for row in checked], lock=False)
    found = []
    for count, row in enumerate(checked, start=1):
        target.check(row)
        found.append(compare(target, row, inventory_import.on_duplicate))
        if count % 500 == 0:
            progress.advance(500, sum(1 for each in found[-500:] if each.row.errors))
    rest = len(checked) % 500
    progress.advance(rest, sum(1 for each in found[-rest:] if each.row.errors) if rest else 0)
    return found


def _stage(inventory_import: InventoryImport, differences: list[Difference]) -> dict[str, int]:
    counts = Counter(str(each.outcome) for each in differences)
    with transaction.atomic():
        InventoryImport.objects.select_for_update().get(pk=inventory_import.pk)
        ImportRow.objects.filter(inventory_import=inventory_import).delete()
        copy_rows(
            ImportRow,
            ["inventory_import", "number", "key", "outcome", "values", "before", "errors", "selected"],
            (
                (inventory_import.pk, each.row.number, each.row.key[:120], each.outcome.value, each.row.values, each.before, each.row.errors, each.selected)
                for each in differences
            ),
        )
        InventoryImport.objects.filter(pk=inventory_import.pk).update(counts=dict(counts))
    inventory_import.counts = dict(counts)
    return dict(counts)


def result_file(inventory_import: InventoryImport) -> Iterator[bytes]:
    """The import as CSV, row by row: what came of each, its errors, what it changed. Safe to open in a spreadsheet."""
    kind = KINDS[inventory_import.kind]
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    applied = inventory_import.applied_at is not None
    writer.writerow(["row", "result", "applied", "errors", "changes", *kind.names])
    for number, row in enumerate(inventory_import.rows.order_by("number").iterator(chunk_size=2000), start=1):
        errors = " ".join(f"{error['field']}: {error['message']}" for error in row.errors)
        writer.writerow(
            neutralise(value)
            for value in [
                str(row.number),
                row.outcome,
                "yes" if applied and row.selected else "no",
                errors,
                "; ".join(f"{name}: {_word(before)} -> {_word(after)}" for name, before, after in changes_of(row)),
                *("" if row.values.get(name) is None else str(row.values[name]) for name in kind.names),
            ]
        )
        if number % 500 == 0:
            yield buffer.getvalue().encode()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue().encode()


def changes_of(row: ImportRow) -> list[tuple[str, Any, Any]]:
    """(field, before, after) of what a row would change."""
    return [
        (name, row.before[name], value) for name, value in row.values.items() if row.before is not None and name in row.before and row.before[name] != value
    ]


def _word(value: Any) -> str:
    return "nothing" if value in (None, "") else str(value)
