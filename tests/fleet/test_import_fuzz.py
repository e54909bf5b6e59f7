"""Whatever a file holds: rows, or a sentence about what is wrong with it. Nothing else."""

import io
import json
import zipfile
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openpyxl import Workbook

from console.models import User
from fleet import jobs
from fleet.inventory.importing import pipeline
from fleet.inventory.importing.check import check_columns, check_rows, suggest_columns
from fleet.inventory.importing.columns import KINDS
from fleet.inventory.importing.device_targets import TARGETS
from fleet.inventory.importing.read import FORMATS, UnreadableFile, read_sheet
from fleet.job_kinds import runner_of
from fleet.models import Job
from tests.builders import T0, make_gpu, make_node, make_region, make_site, make_user

quick = settings(max_examples=60, deadline=None)
with_database = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
cells = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        ["", "A", "south", "1e400", "nan", "-0", "=1+1", "\x00", "0:1 1:1", "all", "true", "GPU-00000001", "du-1", "h100-sxm-80gb", "9" * 30, "3b:00.0"]
    ),
    st.integers().map(str),
    st.floats().map(str),
)
values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), cells),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(cells, inner, max_size=3)),
    max_leaves=8,
)


def read(content: bytes, file_format: str) -> None:
    try:
        sheet = read_sheet(content, file_format)
    except UnreadableFile:
        return
    for row in sheet.rows:
        assert set(row.cells) <= set(sheet.columns)


@quick
@given(content=st.binary(max_size=400), file_format=st.sampled_from(FORMATS))
def test_any_bytes(content: bytes, file_format: str) -> None:
    read(content, file_format)


@quick
@given(content=st.text(alphabet="{}[]()&*!|>\"':,-#\n\t ab0?%@`\\", max_size=120), file_format=st.sampled_from(["csv", "yaml", "json"]))
def test_any_marks(content: str, file_format: str) -> None:
    read(content.encode(), file_format)


@quick
@given(data=values)
def test_any_json(data: Any) -> None:
    read(json.dumps(data).encode(), "json")
    read(json.dumps([data]).encode(), "yaml")


def _workbook() -> bytes:
    book = Workbook(write_only=True)
    sheet = book.create_sheet()
    for row in (["code", "region"], ["A", 1.5], ["B", True]):
        sheet.append(row)
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


WORKBOOK = _workbook()
PARTS = {name: zipfile.ZipFile(io.BytesIO(WORKBOOK)).read(name) for name in zipfile.ZipFile(io.BytesIO(WORKBOOK)).namelist()}


@quick
@given(place=st.integers(0, len(WORKBOOK) - 1), byte=st.integers(0, 255), cut=st.integers(0, len(WORKBOOK)))
def test_a_damaged_workbook(place: int, byte: int, cut: int) -> None:
    damaged = bytearray(WORKBOOK)
    damaged[place] = byte
    read(bytes(damaged), "xlsx")
    read(WORKBOOK[:cut], "xlsx")


@quick
@given(part=st.sampled_from(sorted(PARTS)), place=st.integers(0, 2000), text=st.binary(max_size=20))
def test_a_workbook_with_a_part_that_was_tampered_with(part: str, place: int, text: bytes) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in PARTS.items():
            at = place % (len(content) + 1)
            archive.writestr(name, content[:at] + text + content[at:] if name == part else content)
    read(file.getvalue(), "xlsx")


def importer() -> User:
    """One user for all examples of a test: hashing a password takes longer than the example."""
    return User.objects.filter(username="fuzz").first() or make_user("fuzz", role="lead")


def table(kind: str, rows: list[list[str]], extra: list[str]) -> bytes:
    names = [*KINDS[kind].names, *extra]
    return json.dumps([dict(zip(names, row, strict=False)) for row in rows]).encode()


@quick
@given(kind=st.sampled_from(sorted(KINDS)), rows=st.lists(st.lists(cells, min_size=1, max_size=12), min_size=1, max_size=4))
def test_any_cells_are_checked(kind: str, rows: list[list[str]]) -> None:
    try:
        sheet = read_sheet(table(kind, rows, []), "json")
    except UnreadableFile:
        return
    column_map = suggest_columns(KINDS[kind], sheet.columns)
    check_columns(KINDS[kind], sheet.columns, column_map)
    for row in check_rows(KINDS[kind], sheet, column_map, TARGETS[kind].key_of):
        assert all(error["field"] and error["message"] for error in row.errors)
        json.dumps(row.values, allow_nan=False)


@pytest.mark.django_db
@with_database
@given(
    kind=st.sampled_from(sorted(KINDS)),
    rows=st.lists(st.lists(cells, min_size=1, max_size=12), min_size=1, max_size=3),
    names=st.lists(cells, max_size=2),
    name=cells,
)
def test_the_whole_door(kind: str, rows: list[list[str]], names: list[str], name: str) -> None:
    owner = importer()
    if not getattr(test_the_whole_door, "made", None):
        make_gpu("GPU-00000001", node=make_node("du-1", site=make_site("A", region=make_region("south"))))
        test_the_whole_door.made = True
    try:
        held = pipeline.start_import(owner=owner, kind=kind, file_name=f"{name}.json", content=table(kind, rows, names), on_duplicate="update", region_ids=None)
        if held.job.state == Job.State.WAITING:
            columns = pipeline.file_columns(held)
            pipeline.map_columns(held, {column: column if column in KINDS[kind].names else "" for column in columns}, T0)
    except pipeline.Refused:
        return
    job = jobs.run(held.job.pk, runner_of, T0)
    assert job is not None
    assert not job.error.startswith("Something went wrong")
    if job.state == Job.State.FAILED:
        return
    try:
        pipeline.queue_apply(held, user=owner, reason=f"fuzz {name}"[:50], region_ids=None, now=T0, skip_errors=True)
    except pipeline.Refused:
        return
    job = jobs.run(held.job.pk, runner_of, T0)
    assert job is not None
    assert not job.error.startswith("Something went wrong")
    b"".join(pipeline.result_file(held))


@pytest.mark.django_db
@with_database
@given(
    content=st.one_of(
        st.binary(max_size=200), st.lists(st.lists(cells, max_size=4), max_size=3).map(lambda rows: "\n".join(map(",".join, rows)).encode(errors="replace"))
    ),
    name=cells,
    kind=cells,
)
def test_the_upload_answers_whatever_comes(content: bytes, name: str, kind: str) -> None:
    client = Client()
    client.force_login(importer())
    for shown in (kind, "nodes"):
        file = SimpleUploadedFile(f"{name or 'x'}.csv", content)
        answer = client.post("/imports/new", {"kind": shown, "on_duplicate": "update", "file": file})
        assert answer.status_code in (302, 422)
