"""Exports hold what the filter shows, can be imported again, and run nothing in a spreadsheet."""

import csv
import io
import json

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from openpyxl import load_workbook

from fleet.inventory.export import About, UnknownFormat, export_rows, file_name, neutralise
from fleet.inventory.importing.read import read_sheet
from fleet.models import Gpu, Node, Site
from tests.builders import T0, make_area, make_gpu, make_node, make_phy_gpu, make_region, make_site

pytestmark = pytest.mark.django_db
ABOUT = About(filter="region=south&state=down", made_at=T0, made_by="lena")


@pytest.fixture
def sites() -> list[Site]:
    south = make_region("south", area=make_area("de"))
    return [
        make_site("A", region=south, name="=HYPERLINK(1)", latitude=-12.5, longitude=0.1, time_zone="Europe/Berlin", power_feed='A, "B"\nC', expected_nodes=2),
        make_site("B", region=south, name="Bé", power_feed_watts=100),
    ]


def exported(kind: str, file_format: str, rows: object = None) -> bytes:
    models = {"sites": Site, "nodes": Node, "gpus": Gpu}
    return b"".join(export_rows(kind, models[kind]._default_manager.order_by("pk") if rows is None else rows, file_format, ABOUT))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("=1+1", "'=1+1"),
        ("+49 89", "'+49 89"),
        ("@x", "'@x"),
        ("-x", "'-x"),
        ("\tx", "'\tx"),
        ("-12.5", "-12.5"),
        ("+3", "+3"),
        ("1e-5", "1e-5"),
        ("a=b", "a=b"),
        ("", ""),
    ],
)
def test_formulas_are_neutralised_and_numbers_are_not(text: str, safe: str) -> None:
    assert neutralise(text) == safe


@pytest.mark.parametrize("file_format", ["csv", "xlsx", "yaml", "json"])
def test_every_format_reads_back_as_the_same_rows(sites: list[Site], file_format: str) -> None:
    sheet = read_sheet(exported("sites", file_format), file_format)
    assert sheet.columns == ("code", "name", "region", "area", "kind", "latitude", "longitude", "time_zone", "power_feed", "power_feed_watts", "expected_nodes")
    first, second = (row.cells for row in sheet.rows)
    assert (first["code"], first["name"], first["region"], first["area"]) == ("A", "=HYPERLINK(1)", "south", "de")
    assert (first["latitude"], first["longitude"], first["time_zone"], first["expected_nodes"]) == ("-12.5", "0.1", "Europe/Berlin", "2")
    assert first["power_feed"] == 'A, "B"\nC'
    assert (second["name"], second["latitude"], second["power_feed"], second["power_feed_watts"]) == ("Bé", None, None, "100")


def test_the_file_says_filter_rows_time_and_zone(sites: list[Site]) -> None:
    about = {
        "export": "Masthead sites",
        "filter": "region=south&state=down",
        "rows": "2",
        "made_at": "2026-11-20T10:00:00Z",
        "time_zone": "UTC",
        "made_by": "lena",
    }
    lines = [row[0] for row in csv.reader(io.StringIO(exported("sites", "csv").decode())) if row[0].startswith("#")]
    assert lines == [f"# {name}: {text}" for name, text in about.items()]
    assert json.loads(exported("sites", "json"))["export"] == about
    assert exported("sites", "yaml").decode().startswith("# export: Masthead sites\n# filter: region=south&state=down\n")
    book = load_workbook(io.BytesIO(exported("sites", "xlsx")))
    assert [tuple(row) for row in book["about"].values] == list(about.items())
    assert book["rows"]["B2"].value == "'=HYPERLINK(1)"
    assert file_name("sites", "csv", T0) == "masthead-sites-20261120-100000.csv"


def test_only_what_the_filter_shows(sites: list[Site]) -> None:
    text = exported("sites", "csv", Site.objects.filter(code="B")).decode()
    assert "# rows: 1" in text
    assert [row[0] for row in csv.reader(io.StringIO(text)) if not row[0].startswith("#")] == ["code", "B"]


def test_nothing_to_export_is_a_valid_file() -> None:
    for file_format in ("csv", "xlsx", "yaml", "json"):
        assert exported("sites", file_format)
    assert json.loads(exported("sites", "json"))["rows"] == []


def test_nodes_and_gpus() -> None:
    node = make_node("du-1", site=make_site("S"), role="du", expected_gpus=2, exporter_address="10.0.0.1:9400")
    make_gpu("GPU-00000002", node=node, sku="l40s-48gb", index=1)
    phy = make_phy_gpu(node=node)
    assert [row.cells["exporter_address"] for row in read_sheet(exported("nodes", "csv"), "csv").rows] == ["10.0.0.1:9400"]
    rows = {row.cells["uuid"]: row.cells for row in read_sheet(exported("gpus", "csv"), "csv").rows}
    assert rows[phy.uuid]["protected_placements"] == "0:1 1:1 2:1"
    assert (rows["GPU-00000002"]["protected_placements"], rows["GPU-00000002"]["site"], rows["GPU-00000002"]["mig_enabled"]) == (None, "S", "false")


def test_statements_do_not_grow_with_the_rows(sites: list[Site]) -> None:
    with CaptureQueriesContext(connection) as few:
        exported("sites", "csv")
    for number in range(60):
        make_site(f"X-{number}", region=sites[0].region)
    with CaptureQueriesContext(connection) as many:
        exported("sites", "csv")
    assert len(few) == len(many) <= 2


def test_an_unknown_format_is_refused_before_the_first_byte() -> None:
    with pytest.raises(UnknownFormat):
        export_rows("sites", Site.objects.all(), "doc", ABOUT)
