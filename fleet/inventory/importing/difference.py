"""Compares checked rows with the inventory: new, changed, same, or in conflict with what was seen."""

from dataclasses import dataclass

from fleet.inventory.importing.check import CheckedRow
from fleet.inventory.importing.columns import Value
from fleet.inventory.importing.targets import Target
from fleet.models import ImportRow, InventoryImport


@dataclass
class Difference:
    """What a row would do. `before` are the held values of the fields that it has; None for a new object."""

    row: CheckedRow
    outcome: ImportRow.Outcome
    before: dict[str, Value] | None
    selected: bool


def compare(target: Target, row: CheckedRow, on_duplicate: str) -> Difference:
    """The outcome of one row. Nothing is queried: `target` is loaded."""
    if row.errors:
        return Difference(row, ImportRow.Outcome.ERROR, None, False)
    held = target.held.get(row.key)
    if held is None:
        row.values = {**target.complete(row.values), **{name: row.values[name] for name in target.not_kept if row.values.get(name)}}
        return Difference(row, ImportRow.Outcome.NEW, None, True)
    current = target.current(held)
    if "name" in row.values and row.values["name"] is None:
        row.values["name"] = row.values["code"]
    before = {name: current[name] for name in row.values if name in current}
    changed = [name for name, value in before.items() if row.values[name] != value]
    if on_duplicate == InventoryImport.OnDuplicate.FAIL:
        row.refuse(target.kind.key[-1], f"{row.key} is in the inventory already.")
        return Difference(row, ImportRow.Outcome.ERROR, before, False)
    if not changed:
        return Difference(row, ImportRow.Outcome.SAME, before, False)
    if any(target.observed(held, name) for name in changed):
        return Difference(row, ImportRow.Outcome.CONFLICT, before, False)
    return Difference(row, ImportRow.Outcome.CHANGED, before, on_duplicate == InventoryImport.OnDuplicate.UPDATE)
