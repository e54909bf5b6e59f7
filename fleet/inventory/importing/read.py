"""Reads CSV, XLSX, YAML and JSON files into rows of texts. Pure: no Django.

Every value is text, so that all formats are checked alike and nothing is guessed (`0012` stays `0012`, `NO` is no truth value).
A file that cannot be read, or that would unfold beyond the limits, is an `UnreadableFile` with a sentence for its sender.
"""

import csv
import io
import json
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Any

import yaml
from openpyxl import load_workbook

MAX_BYTES = 32 * 1024 * 1024
MAX_ROWS = 200_000
MAX_COLUMNS = 100
MAX_CELL = 4_000
MAX_UNZIPPED = 256 * 1024 * 1024
MAX_ZIP_MEMBERS = 1_000
MAX_DEPTH = 8
FORMATS = ("csv", "xlsx", "yaml", "json")
# PostgreSQL keeps no NUL, and lone surrogates are no text.
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_NULLS = ("", "~", "null", "Null", "NULL")
# What a spreadsheet would take for a formula; exports put an apostrophe before it, imports take that away again.
_NEUTRALISED = re.compile(r"^'[=+\-@\t\r]")


class UnreadableFile(Exception):
    """The file as a whole cannot be read; the text says why and where."""


@dataclass(frozen=True)
class Row:
    """One row: its number in the file (for CSV and XLSX the line a spreadsheet shows), and text by column; None is "no value"."""

    number: int
    cells: dict[str, str | None]


@dataclass(frozen=True)
class Sheet:
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def format_of(file_name: str) -> str:
    """The format that a file's name says. Raises `UnreadableFile` for any other."""
    ending = file_name.rsplit(".", 1)[-1].lower() if "." in file_name else ""
    ending = {"yml": "yaml"}.get(ending, ending)
    if ending not in FORMATS:
        raise UnreadableFile(f"{file_name[:80] or 'The file'} is none of CSV, XLSX, YAML, JSON: its name should end in .csv, .xlsx, .yaml or .json.")
    return ending


def read_sheet(content: bytes, file_format: str, *, most: int | None = None) -> Sheet:
    """All rows of the file, or its first `most`. Raises `UnreadableFile`."""
    if len(content) > MAX_BYTES:
        raise UnreadableFile(f"The file has {len(content):,} bytes; at most {MAX_BYTES:,} are read.")
    if not content.strip():
        raise UnreadableFile("The file is empty.")
    readers = {"csv": _read_csv, "xlsx": _read_xlsx, "yaml": _read_yaml, "json": _read_json}
    if file_format not in readers:
        raise UnreadableFile(f"{file_format!r} is none of {', '.join(FORMATS)}.")
    return readers[file_format](content, most)


def _text_of(content: bytes, what: str) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"The {what} is not UTF-8: byte {error.start + 1} cannot be read. Save it as UTF-8.") from error
    if "\x00" in text:
        raise UnreadableFile(f"The {what} holds NUL characters (UTF-16?). Save it as UTF-8.")
    return text


def _header(cells: list[str | None], number: int) -> tuple[str, ...]:
    names = [(cell or "").strip() for cell in cells]
    while names and not names[-1]:
        names.pop()
    if not names:
        raise UnreadableFile(f"Row {number}: the header names no columns.")
    if len(names) > MAX_COLUMNS:
        raise UnreadableFile(f"Row {number}: {len(names)} columns; at most {MAX_COLUMNS} are read.")
    for place, name in enumerate(names, start=1):
        if not name:
            raise UnreadableFile(f"Row {number}: column {place} has no name.")
        if UNPRINTABLE.search(name) or len(name) > 200:
            raise UnreadableFile(f"Row {number}: the name of column {place} has characters that cannot be printed, or more than 200.")
        if names.count(name) > 1:
            raise UnreadableFile(f"Row {number}: the column {name[:60]!r} stands twice.")
    return tuple(names)


def _cell(text: str | None) -> str | None:
    if text is None:
        return None
    value = text.strip()
    if _NEUTRALISED.match(value):
        value = value[1:]
    return value or None


def _rows_of_table(lines: Iterator[tuple[int, list[str | None]]], most: int | None) -> Sheet:
    """A table with comment lines (`# …`) before its header, and empty rows anywhere."""
    columns: tuple[str, ...] = ()
    rows: list[Row] = []
    for number, cells in lines:
        if not any(cell and cell.strip() for cell in cells):
            continue
        if not columns:
            if (cells[0] or "").lstrip().startswith("#"):
                continue
            columns = _header(cells, number)
            continue
        extra = [cell for cell in cells[len(columns) :] if cell and cell.strip()]
        if extra:
            raise UnreadableFile(f"Row {number}: more cells than the header has columns; the first is {extra[0][:60]!r}.")
        padded = [*cells[: len(columns)], *[None] * (len(columns) - len(cells))]
        for name, cell in zip(columns, padded, strict=True):
            if cell is not None and len(cell) > MAX_CELL:
                raise UnreadableFile(f"Row {number}: {name} has {len(cell):,} characters; at most {MAX_CELL:,} are read.")
        rows.append(Row(number, {name: _cell(cell) for name, cell in zip(columns, padded, strict=True)}))
        if len(rows) > MAX_ROWS:
            raise UnreadableFile(f"The file has more than {MAX_ROWS:,} rows. Split it.")
        if len(rows) == most:
            break
    if not columns:
        raise UnreadableFile("The file has no header row.")
    return Sheet(columns, tuple(rows))


def _read_csv(content: bytes, most: int | None) -> Sheet:
    text = _text_of(content, "CSV file")
    first = next((line for line in text.splitlines() if line.strip() and not line.lstrip(' "').startswith("#")), "")
    delimiter = max(",;\t|", key=first.count)
    csv.field_size_limit(MAX_CELL * 4)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)

    def lines() -> Iterator[tuple[int, list[str | None]]]:
        number = 1
        try:
            for cells in reader:
                yield number, list(cells)
                number = reader.line_num + 1
        except csv.Error as error:
            raise UnreadableFile(f"Row {number}: not CSV ({error}).") from error

    return _rows_of_table(lines(), most)


def _read_xlsx(content: bytes, most: int | None) -> Sheet:
    _refuse_zip_bomb(content)
    try:
        book = load_workbook(io.BytesIO(content), read_only=True, data_only=True, keep_links=False)
    except Exception as error:  # openpyxl raises whatever its XML and zip readers raise
        raise UnreadableFile("The XLSX file cannot be read: it is damaged, encrypted, or no workbook.") from error
    try:
        if not book.worksheets:
            raise UnreadableFile("The workbook has no sheet.")
        return _rows_of_table(_xlsx_lines(book.worksheets[0]), most)
    except UnreadableFile:
        raise
    except Exception as error:  # a sheet is only parsed while it is walked
        raise UnreadableFile("The first sheet of the XLSX file cannot be read: it is damaged.") from error
    finally:
        book.close()


def _xlsx_lines(sheet: Any) -> Iterator[tuple[int, list[str | None]]]:
    sheet.reset_dimensions()  # what the file claims is not to be relied on
    for number, cells in enumerate(sheet.iter_rows(values_only=True), start=1):
        if number > MAX_ROWS + 1_000:
            raise UnreadableFile(f"The sheet has more than {MAX_ROWS:,} rows. Split it.")
        if len(cells) > MAX_COLUMNS and any(cell is not None for cell in cells[MAX_COLUMNS:]):
            raise UnreadableFile(f"Row {number}: more than {MAX_COLUMNS} columns.")
        yield number, [_xlsx_text(cell) for cell in cells[:MAX_COLUMNS]]


def _xlsx_text(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return str(value)


def _refuse_zip_bomb(content: bytes) -> None:
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
        members = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError) as error:
        raise UnreadableFile("The file is no XLSX workbook.") from error
    if len(members) > MAX_ZIP_MEMBERS or sum(member.file_size for member in members) > MAX_UNZIPPED:
        raise UnreadableFile(f"The workbook would unfold to more than {MAX_UNZIPPED // 1024 // 1024} MiB or {MAX_ZIP_MEMBERS} parts.")
    if any(member.flag_bits & 1 for member in members):
        raise UnreadableFile("The workbook is encrypted. Save it without a password.")
    for member in members:
        if not member.filename.endswith((".xml", ".rels")):
            continue
        try:
            with archive.open(member) as part:
                head = part.read(65_536)
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError, RuntimeError) as error:
            raise UnreadableFile(f"The workbook is damaged in {member.filename[:80]}.") from error
        except Exception as error:  # zlib, bz2 and lzma have their own
            raise UnreadableFile(f"The workbook is damaged in {member.filename[:80]}.") from error
        if b"<!DOCTYPE" in head or b"<!ENTITY" in head:
            raise UnreadableFile("The workbook declares XML entities, which are not read.")


def _refuse_constant(text: str) -> None:
    raise UnreadableFile(f"{text} is not JSON.")


def _json_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise UnreadableFile(f"An object names {twice[:60]!r} twice.")
    return found


def _read_json(content: bytes, most: int | None) -> Sheet:
    text = _text_of(content, "JSON file")
    try:
        data = json.loads(text, parse_int=str, parse_float=str, parse_constant=_refuse_constant, object_pairs_hook=_json_pairs)
    except json.JSONDecodeError as error:
        raise UnreadableFile(f"Line {error.lineno}, column {error.colno}: not JSON ({error.msg}).") from error
    except RecursionError as error:
        raise UnreadableFile("The JSON file is nested too deep.") from error
    return _rows_of_records(data, most)


def _rows_of_records(data: Any, most: int | None) -> Sheet:
    if isinstance(data, dict) and isinstance(data.get("rows"), list):
        data = data["rows"]
    if not isinstance(data, list):
        raise UnreadableFile("The file should hold a list of rows, or an object whose `rows` is one.")
    if len(data) > MAX_ROWS:
        raise UnreadableFile(f"The file has more than {MAX_ROWS:,} rows. Split it.")
    columns: dict[str, None] = {}
    rows: list[Row] = []
    for number, record in enumerate(data[:most], start=1):
        if not isinstance(record, dict):
            raise UnreadableFile(f"Row {number} is no object with fields.")
        cells: dict[str, str | None] = {}
        for raw, value in record.items():
            name = str(raw).strip()
            if isinstance(value, dict | list):
                raise UnreadableFile(f"Row {number}: {name[:60]} should be one value, not a list or an object.")
            text = {True: "true", False: "false"}[value] if isinstance(value, bool) else value
            if text is not None and len(text) > MAX_CELL:
                raise UnreadableFile(f"Row {number}: {name[:60]} has {len(text):,} characters; at most {MAX_CELL:,} are read.")
            cells[name] = _cell(text)
        if not any(cells.values()):
            continue
        columns.update(dict.fromkeys(cells))
        if len(columns) > MAX_COLUMNS:
            raise UnreadableFile(f"Row {number}: more than {MAX_COLUMNS} different fields.")
        rows.append(Row(number, cells))
    if not columns:
        raise UnreadableFile("The file holds no rows.")
    _header(list(columns), 1)
    return Sheet(tuple(columns), tuple(rows))


def _read_yaml(content: bytes, most: int | None) -> Sheet:
    """YAML by its events: scalars stay text, and anchors, aliases and tags (by which a small file unfolds to a huge one) are refused."""
    text = _text_of(content, "YAML file")
    try:
        return _rows_of_records(_yaml_value(yaml.parse(text, Loader=yaml.CSafeLoader), most), most)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"Line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise UnreadableFile(f"{where}not YAML ({error.problem or error.context}).") from error
    except yaml.YAMLError as error:
        raise UnreadableFile(f"Not YAML ({str(error)[:120]}).") from error


def _yaml_value(events: Iterator[Any], most: int | None) -> Any:
    """The first document as lists, dicts and texts; of a list at the top its first `most` entries."""
    stack: list[Any] = []
    keys: list[str | None] = []
    documents = 0
    result: Any = None

    def put(value: Any, line: int) -> None:
        nonlocal result
        if not stack:
            result = value
        elif isinstance(stack[-1], list):
            stack[-1].append(value)
            if len(stack) == 1 and len(stack[-1]) > MAX_ROWS:
                raise UnreadableFile(f"The file has more than {MAX_ROWS:,} rows. Split it.")
        elif keys[-1] is None:
            if not isinstance(value, str):
                raise UnreadableFile(f"Line {line}: a field's name should be text.")
            if value in stack[-1]:
                raise UnreadableFile(f"Line {line}: {value[:60]!r} stands twice in one row.")
            keys[-1] = value
        else:
            stack[-1][keys[-1]] = value
            keys[-1] = None

    for event in events:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise UnreadableFile(f"Line {line}: anchors and aliases are not read.")
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise UnreadableFile(f"Line {line}: only one document is read.")
        elif isinstance(event, yaml.ScalarEvent):
            plain = not event.style  # quoted scalars name their quote
            is_key = bool(stack) and isinstance(stack[-1], dict) and keys[-1] is None
            put(None if plain and not is_key and event.value in _NULLS else event.value, line)
        elif isinstance(event, yaml.SequenceStartEvent | yaml.MappingStartEvent):
            if len(stack) >= MAX_DEPTH:
                raise UnreadableFile(f"Line {line}: nested too deep.")
            if stack and isinstance(stack[-1], dict) and keys[-1] is None:
                raise UnreadableFile(f"Line {line}: a field's name should be text.")
            stack.append([] if isinstance(event, yaml.SequenceStartEvent) else {})
            keys.append(None)
        elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
            keys.pop()
            put(stack.pop(), line)
            if len(stack) == 1 and isinstance(stack[0], list) and len(stack[0]) == most:
                return stack[0]
    return result
