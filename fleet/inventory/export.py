"""Writes inventory as CSV, XLSX, YAML or JSON: the rows of a queryset, with the filter, the time and the zone in the file. Streamed.

The columns are those of the import, so that an export can be imported again. Cells that a spreadsheet would run get an apostrophe.
"""

import csv
import io
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.postgres.aggregates import StringAgg
from django.db.models import CharField, Q, QuerySet, Value
from django.db.models.functions import Cast, Concat
from openpyxl import Workbook
from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

from fleet.inventory.importing.columns import KINDS

CONTENT_TYPES = {
    "csv": "text/csv; charset=utf-8",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "yaml": "application/yaml; charset=utf-8",
    "json": "application/json",
}
_CHUNK = 2000
_RUNS = ("=", "+", "-", "@", "\t", "\r", "\n")
_NUMBER = re.compile(r"^[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?$")


class UnknownFormat(ValueError):
    """Neither CSV nor XLSX, YAML or JSON."""


@dataclass(frozen=True)
class About:
    """What stands in the file beside the rows. `filter` is the page's query text, "" for everything."""

    filter: str
    made_at: datetime
    made_by: str
    time_zone: str = "UTC"

    def lines(self, kind: str, rows: int) -> dict[str, str]:
        return {
            "export": f"Masthead {kind}",
            "filter": self.filter or "none (all rows in scope)",
            "rows": str(rows),
            "made_at": self.made_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "time_zone": self.time_zone,
            "made_by": self.made_by,
        }


def neutralise(text: str) -> str:
    """A text that no spreadsheet takes for a formula; numbers stay numbers."""
    return f"'{text}" if text.startswith(_RUNS) and not _NUMBER.match(text) else text


def export_rows(kind: str, rows: QuerySet[Any], file_format: str, about: About) -> Iterator[bytes]:
    """The file in chunks. `kind` is sites, nodes or gpus and `rows` a queryset of that model, filtered and ordered as the page shows it.

    The count is taken first. Raises `UnknownFormat` before the first chunk.
    """
    writers: dict[str, Callable[[tuple[str, ...], Iterator[tuple[Any, ...]], dict[str, str]], Iterator[bytes]]] = {
        "csv": _csv,
        "xlsx": _xlsx,
        "yaml": _yaml,
        "json": _json,
    }
    if file_format not in writers:
        raise UnknownFormat(f"{file_format!r} is none of {', '.join(writers)}.")
    names = KINDS[kind].names
    return writers[file_format](names, _values(kind, rows), about.lines(kind, rows.count()))


def file_name(kind: str, file_format: str, made_at: datetime) -> str:
    return f"masthead-{kind}-{made_at:%Y%m%d-%H%M%S}.{file_format}"


def _values(kind: str, rows: QuerySet[Any]) -> Iterator[tuple[Any, ...]]:
    """Values in the order of the kind's columns, one query, read through a cursor."""
    if kind == "gpus":
        span = Concat(Cast("protected_placements__start", CharField()), Value(":"), Cast("protected_placements__size", CharField()))
        rows = rows.annotate(spans=StringAgg(span, delimiter=" ", order_by="protected_placements__start", filter=Q(protected_placements__isnull=False)))
    paths = {
        "sites": {"region": "region__slug", "area": "region__area__slug"},
        "nodes": {"site": "site__code"},
        "gpus": {"site": "node__site__code", "node": "node__host_name", "protected_placements": "spans"},
    }[kind]
    columns = [paths.get(name, name) for name in KINDS[kind].names]
    zone = columns.index("time_zone") if "time_zone" in columns else None
    for row in rows.values_list(*columns).iterator(chunk_size=_CHUNK):
        yield row if zone is None else (*row[:zone], str(row[zone]), *row[zone + 1 :])


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return neutralise(str(value)) if isinstance(value, str) else repr(value)


def _csv(names: tuple[str, ...], rows: Iterator[tuple[Any, ...]], about: dict[str, str]) -> Iterator[bytes]:
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerows([f"# {name}: {text}"] for name, text in about.items())
    writer.writerow(names)
    for number, row in enumerate(rows, start=1):
        writer.writerow([_text(value) for value in row])
        if number % _CHUNK == 0:
            yield buffer.getvalue().encode()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue().encode()


def _xlsx(names: tuple[str, ...], rows: Iterator[tuple[Any, ...]], about: dict[str, str]) -> Iterator[bytes]:
    book = Workbook(write_only=True)
    sheet = book.create_sheet("rows")
    sheet.append(list(names))
    for row in rows:
        sheet.append([_cell(value) for value in row])
    info = book.create_sheet("about")
    for name, text in about.items():
        info.append([name, _cell(text)])
    with tempfile.TemporaryFile() as file:
        book.save(file)
        file.seek(0)
        while chunk := file.read(1 << 16):
            yield chunk


def _cell(value: Any) -> Any:
    return ILLEGAL_CHARACTERS_RE.sub("", neutralise(value)) if isinstance(value, str) else value


def _dumped(names: tuple[str, ...], row: tuple[Any, ...]) -> str:
    return json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False, allow_nan=False)


def _yaml(names: tuple[str, ...], rows: Iterator[tuple[Any, ...]], about: dict[str, str]) -> Iterator[bytes]:
    yield "".join(f"# {name}: {' '.join(text.split())}\n" for name, text in about.items()).encode()
    yield from _chunks((f"- {_dumped(names, row)}\n" for row in rows), empty="[]\n")


def _json(names: tuple[str, ...], rows: Iterator[tuple[Any, ...]], about: dict[str, str]) -> Iterator[bytes]:
    yield f'{{"export": {json.dumps(about, ensure_ascii=False)},\n"rows": ['.encode()
    yield from _chunks(f"{',' if number else ''}\n{_dumped(names, row)}" for number, row in enumerate(rows))
    yield b"\n]}\n"


def _chunks(lines: Iterator[str], *, empty: str = "") -> Iterator[bytes]:
    held: list[str] = []
    some = False
    for line in lines:
        some = True
        held.append(line)
        if len(held) == _CHUNK:
            yield "".join(held).encode()
            held = []
    yield ("".join(held) if some else empty).encode()
