"""Files become rows of text, whatever their format; files that cannot be read, or would unfold, are refused with a sentence."""

import io
import json
import zipfile
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest
from openpyxl import Workbook

from fleet.inventory.importing import read
from fleet.inventory.importing.read import Sheet, UnreadableFile, format_of, read_sheet


def rows(content: bytes, file_format: str) -> list[tuple[int, dict[str, str | None]]]:
    return [(row.number, row.cells) for row in read_sheet(content, file_format).rows]


def workbook(*lines: Sequence[Any]) -> bytes:
    book = Workbook(write_only=True)
    sheet = book.create_sheet()
    for line in lines:
        sheet.append(line)
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


@pytest.mark.parametrize(("name", "found"), [("a.csv", "csv"), ("A.XLSX", "xlsx"), ("x.yml", "yaml"), ("x.y.yaml", "yaml"), ("s.json", "json")])
def test_the_name_says_the_format(name: str, found: str) -> None:
    assert format_of(name) == found


@pytest.mark.parametrize("name", ["", "sites", "sites.xls", "sites.csv.gz"])
def test_other_formats_are_refused(name: str) -> None:
    with pytest.raises(UnreadableFile, match="none of CSV"):
        format_of(name)


def test_all_formats_say_the_same() -> None:
    expected = [{"code": "A-1", "latitude": "48.1", "name": None}, {"code": "0012", "latitude": "-1", "name": "NO"}]
    csv = b"code,latitude,name\r\nA-1,48.1,\r\n0012,-1,NO\r\n"
    yaml = b"- {code: A-1, latitude: 48.1, name: null}\n- code: 0012\n  latitude: -1\n  name: NO\n"
    js = b'{"rows": [{"code": "A-1", "latitude": 48.1, "name": null}, {"code": "0012", "latitude": -1, "name": "NO"}]}'
    xlsx = workbook(["code", "latitude", "name"], ["A-1", 48.1, None], ["0012", -1, "NO"])
    for content, file_format in ((csv, "csv"), (yaml, "yaml"), (js, "json"), (xlsx, "xlsx")):
        assert [cells for _, cells in rows(content, file_format)] == expected, file_format


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv_of_a_spreadsheet(delimiter: str) -> None:
    text = '\ufeff# Masthead sites\r\n"# filter: region=a,b"\r\ncode,name\r\n\r\nA,"two\r\nlines, one cell"\r\nB,x\r\n'
    content = text.replace(",", delimiter).encode() if delimiter != "," else text.encode()
    found = rows(content, "csv")
    assert [(number, cells["code"]) for number, cells in found] == [(5, "A"), (7, "B")]
    assert "\n" in str(found[0][1]["name"])


def test_cells_of_a_workbook_as_text() -> None:
    content = workbook(["a", "b", "c", "d", "e"], [True, 5.0, 0.5, datetime(2026, 11, 30, 1, 2), 12])  # noqa: DTZ001 - a workbook knows no zones
    assert rows(content, "xlsx") == [(2, {"a": "true", "b": "5", "c": "0.5", "d": "2026-11-30T01:02:00", "e": "12"})]


def test_a_neutralised_cell_is_what_it_was() -> None:
    assert rows(b"code,name\nA,'=1+1\nB,'quoted\n", "csv")[0][1]["name"] == "=1+1"
    assert rows(b"code,name\nA,'=1+1\nB,'quoted\n", "csv")[1][1]["name"] == "'quoted"


@pytest.mark.parametrize(
    ("content", "file_format", "message"),
    [
        (b"", "csv", "empty"),
        (b"  \n ", "json", "empty"),
        (b"code\nA", "txt", "none of"),
        ("code\nä".encode("latin-1"), "csv", "not UTF-8: byte 6"),
        ("code\nA".encode("utf-16-le"), "csv", "NUL"),
        (b"code,,name\nA,b,c", "csv", "Row 1: column 2 has no name"),
        (b"code,code\nA,b", "csv", "Row 1: the column 'code' stands twice"),
        (b"code,name\nA,b,c", "csv", "Row 2: more cells"),
        (b'code\n"A', "csv", "not CSV"),
        (b"# only a comment\n", "csv", "no header"),
        (b"code\n" + b"x" * 5000, "csv", "Row 2: code has 5,000 characters"),
        (b"[1, 2]", "json", "Row 1 is no object"),
        (b'{"a": 1}', "json", "should hold a list"),
        (b'[{"a": [1]}]', "json", "Row 1: a should be one value"),
        (b'[{"a": NaN}]', "json", "NaN is not JSON"),
        (b'[{"a": 1, "a": 2}]', "json", "names 'a' twice"),
        (b'[{"a": 1}', "json", "Line 1, column 10"),
        (b"[]", "json", "no rows"),
        (b"[" * 200_000, "json", "nested too deep"),
        (b"a: b: c", "yaml", "Line 1, column 5: not YAML"),
        (b"- {a: 1}\n---\n- {a: 2}\n", "yaml", "only one document"),
        (b"- {a: 1, a: 2}\n", "yaml", "stands twice"),
        (b"- {[a]: 1}\n", "yaml", "name should be text"),
        (b"- " * 60 + b"x", "yaml", "nested too deep"),
        (b"PK\x03\x04 not really", "xlsx", "no XLSX workbook"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_sentence(content: bytes, file_format: str, message: str) -> None:
    with pytest.raises(UnreadableFile, match=message):
        read_sheet(content, file_format)


def test_yaml_that_unfolds_is_refused() -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(8))
    with pytest.raises(UnreadableFile, match="anchors and aliases"):
        read_sheet(bomb.encode(), "yaml")


def test_yaml_does_not_make_objects() -> None:
    content = b"- {code: !!python/object/apply:os.system ['echo']}\n"
    with pytest.raises(UnreadableFile, match="one value"):
        read_sheet(content, "yaml")


def zipped(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/") + ".xml", content)
    return file.getvalue()


def test_a_workbook_that_unfolds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "MAX_UNZIPPED", 1_000_000)
    with pytest.raises(UnreadableFile, match="unfold"):
        read_sheet(zipped(xl__workbook=b"0" * 2_000_000), "xlsx")


def test_a_workbook_with_entities_is_refused() -> None:
    with pytest.raises(UnreadableFile, match="entities"):
        read_sheet(zipped(xl__workbook=b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>'), "xlsx")


def test_a_damaged_workbook_is_refused() -> None:
    content = bytearray(workbook(["code"], ["A"]))
    for place in range(200, len(content) - 200, 7):
        content[place] ^= 0x5A
    with pytest.raises(UnreadableFile):
        read_sheet(bytes(content), "xlsx")
    with pytest.raises(UnreadableFile):
        read_sheet(zipped(a=b"<x/>"), "xlsx")


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "MAX_ROWS", 3)
    many = {
        "csv": b"code\n" + b"A\n" * 4,
        "json": json.dumps([{"code": "A"}] * 4).encode(),
        "yaml": b"- {code: A}\n" * 4,
        "xlsx": workbook(["code"], *[["A"]] * 4),
    }
    for file_format, content in many.items():
        with pytest.raises(UnreadableFile, match="more than 3 rows"):
            read_sheet(content, file_format)
    monkeypatch.setattr(read, "MAX_BYTES", 5)
    with pytest.raises(UnreadableFile, match="at most 5"):
        read_sheet(b"code\nA\n", "csv")


def test_a_file_without_rows_has_its_columns() -> None:
    assert read_sheet(b"code,name\n", "csv") == Sheet(("code", "name"), ())


@pytest.mark.parametrize("file_format", ["csv", "xlsx", "yaml", "json"])
def test_the_first_rows_are_read_without_the_rest(file_format: str) -> None:
    many = {
        "csv": b"code\n" + b"A\n" * 9 + b'"broken',
        "xlsx": workbook(["code"], *[["A"]] * 9),
        "yaml": b"- {code: A}\n" * 9 + b"- {broken",
        "json": json.dumps([{"code": "A"}] * 9).encode(),
    }
    sheet = read_sheet(many[file_format], file_format, most=4)
    assert (sheet.columns, len(sheet.rows)) == (("code",), 4)
