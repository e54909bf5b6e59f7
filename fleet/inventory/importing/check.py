"""Checks every row of a sheet: all errors of all rows at once, each naming the row and the field. Pure: no Django."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleet.catalogue import Sku
from fleet.inventory.importing.columns import Kind, Value
from fleet.inventory.importing.read import Sheet
from fleet.inventory.mig import WHOLE, LayoutRefused, Placement, Purpose, Span, require_layout

HEADER = 0  # row number of what is wrong with the columns
IGNORE = ""


@dataclass
class CheckedRow:
    """`values` holds the fields that the file has, read. `key` is "" when what names the object could not be read."""

    number: int
    key: str = ""
    values: dict[str, Value] = field(default_factory=dict)
    errors: list[dict[str, str]] = field(default_factory=list)

    def refuse(self, name: str, message: str) -> None:
        self.errors.append({"field": name, "message": message})


def suggest_columns(kind: Kind, columns: tuple[str, ...]) -> dict[str, str]:
    """Which of the file's columns is which field, by its name; columns that match none are left out."""
    fields = set(kind.names)
    found: dict[str, str] = {}
    for column in columns:
        name = column.strip().lower().replace(" ", "_").replace("-", "_")
        if name in fields and name not in found.values():
            found[column] = name
    return found


def check_columns(kind: Kind, columns: tuple[str, ...], column_map: Mapping[str, str]) -> list[dict[str, str]]:
    """What is wrong with the columns: unknown ones (not mapped, not ignored), fields given twice, required ones that are missing."""
    errors: list[dict[str, str]] = []
    for column in columns:
        if column not in column_map:
            errors.append({"field": column[:100], "message": f"is no column of {kind.title.lower()}; map it to one, or to nothing to leave it out."})
        elif column_map[column] != IGNORE and column_map[column] not in kind.names:
            errors.append({"field": column[:100], "message": f"is mapped to {column_map[column][:60]!r}, which is no field of {kind.title.lower()}."})
    used = [column_map[column] for column in columns if column_map.get(column)]
    for name in dict.fromkeys(used):
        if used.count(name) > 1:
            errors.append({"field": name, "message": "is given by more than one column."})
    for wanted in kind.columns:
        if wanted.required and wanted.name not in used:
            errors.append({"field": wanted.name, "message": "is required, and the file has no such column."})
    for mapped in column_map:
        if mapped not in columns:
            errors.append({"field": mapped[:100], "message": "is mapped, but the file has no such column."})
    return errors


def check_rows(
    kind: Kind, sheet: Sheet, column_map: Mapping[str, str], key_of: Callable[[Mapping[str, Value]], str], advance: Callable[[int], Any] = int
) -> list[CheckedRow]:
    """Read every cell of every row. `key_of` names the object of a row; the same name twice is an error in each of the rows. `advance` hears of each 500 rows."""
    named = [(column, kind.column(column_map[column])) for column in sheet.columns if column_map.get(column)]
    checked: list[CheckedRow] = []
    first_of: dict[str, CheckedRow] = {}
    for count, row in enumerate(sheet.rows, start=1):
        result = CheckedRow(row.number)
        for source, column in named:
            text = row.cells.get(source)
            if text is None:
                if column.required:
                    result.refuse(column.name, "is required.")
                elif source in row.cells:
                    result.values[column.name] = column.default
                continue
            try:
                result.values[column.name] = column.parse(text)
            except ValueError as error:
                result.refuse(column.name, str(error))
        if all(result.values.get(name) is not None for name in kind.key):
            result.key = key_of(result.values)
            other = first_of.setdefault(result.key, result)
            if other is not result:
                result.refuse(kind.key[-1], f"{result.key} also stands in row {other.number}.")
                if not any(error["message"].endswith(" also stands below.") for error in other.errors):
                    other.refuse(kind.key[-1], f"{result.key} also stands below.")
        checked.append(result)
        if count % 500 == 0:
            advance(500)
    advance(len(sheet.rows) % 500)
    return checked


def check_protection(sku: Sku, spans: Sequence[Span]) -> str:
    """Why these positions cannot be kept for PHY on a board; "" when they can, by themselves and together, each as one instance."""
    if not spans or list(spans) == [WHOLE]:
        return ""
    if not sku.mig_capable:
        return "this board has no MIG: protect the whole GPU (all) or nothing (none)."
    choices: list[list[Placement]] = []
    problems = []
    for span in spans:
        fitting = [Placement(span.start, each.name, Purpose.PHY) for each in sku.profiles if each.size == span.size and span.start in each.placements]
        if not fitting:
            problems.append(f"no instance of {span.size} positions can start at {span.start} on this board.")
        choices.append(fitting)
    if problems:
        return " ".join(problems)
    first: LayoutRefused | None = None
    for layout in itertools.product(*choices):
        try:
            require_layout(sku, layout, spans)
        except LayoutRefused as refused:
            first = first or refused
        else:
            return ""
    return str(first or "")
