"""Imports, jobs and exports through the API: what a lead can do on the pages, step by step."""

import csv
import io
import json
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from console.models import User
from fleet import jobs
from fleet.job_kinds import runner_of
from fleet.models import ImportRow, InventoryImport, Job, JobLogLine, Site
from tests.builders import T0, make_area, make_gpu, make_node, make_phy_gpu, make_region, make_site, make_tenant, make_user
from tests.console.api_support import call, strict

pytestmark = pytest.mark.django_db
SITES = b"code,name,region,kind\nMUC-1,Munich 1,south,cell\nMUC-2,Munich 2,south,cell\n"


def upload(user: User, content: bytes = SITES, name: str = "sites.csv", **fields: Any) -> Any:
    client = Client()
    client.force_login(user)
    return client.post("/api/v1/imports/", {"file": SimpleUploadedFile(name, content), "kind": "sites"} | fields)


def work(job_id: str) -> Job:
    """What a worker does."""
    done = jobs.run(job_id, runner_of, T0)
    assert done is not None
    return done


@pytest.fixture
def lead() -> User:
    make_region("south", area=make_area("de"))
    return make_user("lena", role="lead")


def test_from_upload_to_undo(lead: User) -> None:
    made = upload(lead)
    assert made.status_code == 202
    key = strict(made)["id"]
    assert made["Location"] == f"/api/v1/jobs/{key}/"
    assert strict(call(lead, "GET", f"jobs/{key}/"))["state"] == "queued"
    work(key)
    checked = strict(call(lead, "GET", f"imports/{key}/"))
    assert (checked["counts"], checked["job"]["state"], checked["job"]["phase"]) == ({"new": 2}, "waiting", "decide")
    rows = strict(call(lead, "GET", f"imports/{key}/rows/?outcome=new"))
    assert [(row["number"], row["key"], row["selected"]) for row in rows["results"]] == [(2, "MUC-1", True), (3, "MUC-2", True)]
    assert strict(call(lead, "POST", f"imports/{key}/select/", {"numbers": [3], "selected": False})) == {"changed": 1}
    assert not Site.objects.exists()
    assert call(lead, "POST", f"imports/{key}/apply/", {"reason": ""}).status_code == 400
    applied = call(lead, "POST", f"imports/{key}/apply/", {"reason": "new sites"})
    assert applied.status_code == 202
    work(key)
    assert list(Site.objects.values_list("code", flat=True)) == ["MUC-1"]
    assert [line["level"] for line in strict(call(lead, "GET", f"jobs/{key}/log/"))["results"]] == ["info", "info"]
    history = strict(call(lead, "GET", "sites/MUC-1/history/"))["results"]
    assert (history[0]["who"], history[0]["what"], history[0]["reason"]) == ("lena", "added", "new sites")
    undo = call(lead, "POST", f"imports/{key}/undo/", {"reason": "wrong file"})
    assert undo.status_code == 202
    work(undo["Location"].split("/")[-2])
    assert not Site.objects.exists()
    assert call(lead, "POST", f"imports/{key}/undo/", {"reason": "again"}).status_code == 409


def test_all_errors_of_all_rows_are_listed(lead: User) -> None:
    key = strict(upload(lead, b"code,region,kind,latitude\nA,south,tower,1\nB,south,cell,91\nC,south,cell,1\n"))["id"]
    work(key)
    rows = strict(call(lead, "GET", f"imports/{key}/rows/?outcome=error"))["results"]
    assert [(row["number"], row["errors"][0]["field"]) for row in rows] == [(2, "kind"), (3, "latitude")]
    refused = call(lead, "POST", f"imports/{key}/apply/", {"reason": "x"})
    assert (refused.status_code, strict(refused)["errors"][0]["pointer"]) == (400, "/skip_errors")
    assert call(lead, "POST", f"imports/{key}/apply/", {"reason": "x", "skip_errors": True}).status_code == 202
    work(key)
    assert list(Site.objects.values_list("code", flat=True)) == ["C"]
    table = b"".join(call(lead, "GET", f"imports/{key}/result/").streaming_content).decode()
    assert [row["result"] for row in csv.DictReader(io.StringIO(table))] == ["error", "error", "new"]


def test_columns_are_mapped_when_they_are_not_clear(lead: User) -> None:
    key = strict(upload(lead, b"Site,Where\nA,south\n"))["id"]
    seen = strict(call(lead, "GET", f"imports/{key}/columns/"))
    assert (seen["columns"], seen["fields"][0]) == (["Site", "Where"], {"name": "code", "required": True, "help": "Names the site, e.g. MUC-0042."})
    assert call(lead, "POST", f"imports/{key}/map/", {"column_map": {"Site": "code"}}).status_code == 400
    assert call(lead, "POST", f"imports/{key}/map/", {"column_map": {"Site": "code", "Where": "region"}}).status_code == 202
    assert work(key).phase == "decide"
    at_once = strict(upload(lead, b"Site,Where\nA,south\n", column_map=json.dumps({"Site": "code", "Where": "region"})))["id"]
    assert work(at_once).phase == "decide"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"kind": "galaxies"}, "kind"),
        ({"format": "pdf"}, "format"),
        ({"on_duplicate": "explode"}, "on_duplicate"),
        ({"column_map": "{"}, "column_map"),
        ({"column_map": '{"a": 1}'}, "column_map"),
        ({"colour": "red"}, "colour"),
        ({"name": "sites.doc"}, "file"),
        ({"content": b"\xff\xfe\x00"}, "file"),
        ({"content": b""}, "file"),
    ],
)
def test_a_bad_upload_is_named_and_leaves_nothing(lead: User, fields: dict[str, Any], field: str) -> None:
    answer = upload(lead, **fields)
    assert (answer.status_code, answer["Content-Type"]) == (400, "application/problem+json")
    assert field in strict(answer)["detail"]
    assert not Job.objects.exists()


def test_an_upload_that_is_none(lead: User) -> None:
    assert call(lead, "POST", "imports/", {"kind": "sites"}).status_code == 415
    client = Client()
    client.force_login(lead)
    for raw in (b"", b"--x\r\n", b"--x\r\nContent-Disposition: form-data; name=file\r\n\r\nabc\r\n--x--\r\n"):
        assert client.generic("POST", "/api/v1/imports/", raw, content_type="multipart/form-data; boundary=x").status_code == 400


def test_a_waiting_import_is_dropped(lead: User) -> None:
    key = strict(upload(lead))["id"]
    assert strict(call(lead, "POST", f"imports/{key}/cancel/"))["state"] == "cancelled"
    assert call(lead, "POST", f"imports/{key}/cancel/").status_code == 409
    assert call(lead, "POST", f"jobs/{key}/cancel/").status_code == 409
    assert call(lead, "POST", f"imports/{key}/apply/", {"reason": "x"}).status_code == 409


def test_rights_and_scope(lead: User) -> None:
    viewer, operator, other = make_user(role="viewer"), make_user(role="operator"), make_user(role="lead")
    for user in (viewer, operator, make_user(tenant=make_tenant())):
        refused = upload(user)
        assert refused.status_code == 403
        assert "import" in strict(refused)["detail"]
    key = strict(upload(lead))["id"]
    for user in (viewer, other):
        for path in (f"imports/{key}/", f"imports/{key}/rows/", f"jobs/{key}/", f"jobs/{key}/log/", f"imports/{key}/result/"):
            assert call(user, "GET", path).status_code == 404, path
        assert call(user, "POST", f"imports/{key}/cancel/").status_code == 404
    assert call(make_user(role="administrator"), "GET", f"imports/{key}/").status_code == 200


def test_a_regions_lead_changes_its_region_only(lead: User) -> None:
    north = make_region("north")
    local = make_user(role="lead", region=north)
    key = strict(upload(local))["id"]
    work(key)
    assert InventoryImport.objects.get(pk=key).region_ids == [north.pk]
    assert strict(call(local, "GET", f"imports/{key}/rows/?outcome=error"))["count"] == 2
    narrow = call(lead, "GET", "imports/", scopes=["read:imports"])
    assert strict(narrow)["count"] == 0
    assert call(lead, "GET", "imports/", scopes=["read:sites"]).status_code == 403


@pytest.mark.parametrize("kind", ["imports", "jobs", "rows", "log"])
def test_as_many_statements_for_60_rows_as_for_3(lead: User, kind: str) -> None:
    first = jobs.create_job(kind="inventory_import", title="t", owner=lead)
    held = InventoryImport.objects.create(job=first, kind="sites", format="csv", file_name="f", content=b"x")
    path = {"imports": "imports/", "jobs": "jobs/", "rows": f"imports/{first.pk}/rows/", "log": f"jobs/{first.pk}/log/"}[kind]

    def add(count: int, start: int) -> None:
        for number in range(start, start + count):
            job = jobs.create_job(kind="inventory_import", title="t", owner=lead)
            InventoryImport.objects.create(job=job, kind="sites", format="csv", file_name="f", content=b"x", decided_by=lead)
            ImportRow.objects.create(inventory_import=held, number=number, outcome="new", values={"code": "A"})
            JobLogLine.objects.create(job=first, text="x")

    def statements() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert call(lead, "GET", f"{path}?page_size=200").status_code == 200
        return len(captured)

    add(2, 1)
    few = statements()
    add(57, 3)
    assert statements() == few


# --- exports


@pytest.mark.parametrize("file_format", ["csv", "xlsx", "yaml", "json"])
@pytest.mark.parametrize("kind", ["sites", "nodes", "gpus"])
def test_exports_in_every_format(kind: str, file_format: str) -> None:
    make_phy_gpu(node=make_node(site=make_site("S-1")))
    answer = call(make_user(role="viewer"), "GET", f"{kind}/export?format={file_format}")
    assert answer.status_code == 200
    assert f'.{file_format}"' in answer["Content-Disposition"]
    assert len(b"".join(answer.streaming_content)) > 100


def test_an_export_is_filtered_ordered_and_scoped() -> None:
    north = make_region("north")
    for code in ("N-2", "N-1", "N-3"):
        make_site(code, region=north, kind="edge" if code == "N-3" else "cell")
    make_site("OTHER")
    user = make_user(role="viewer", region=north)

    def codes(query: str) -> list[str]:
        body = b"".join(call(user, "GET", f"sites/export?format=json&{query}").streaming_content)
        return [row["code"] for row in json.loads(body)["rows"]]

    assert codes("") == ["N-1", "N-2", "N-3"]
    assert codes("ordering=-code&kind=cell") == ["N-2", "N-1"]
    empty = b"".join(call(make_user(tenant=make_tenant()), "GET", "sites/export?format=json").streaming_content)
    assert json.loads(empty)["rows"] == []


@pytest.mark.parametrize("query", ["format=pdf", "stat=down", "page_size=10", "ordering=password"])
def test_a_bad_export_is_named(query: str) -> None:
    answer = call(make_user(role="viewer"), "GET", f"sites/export?{query}")
    assert answer.status_code == 400
    assert query.split("=")[0] in strict(answer)["detail"]


def test_an_exported_file_imports_as_no_change(lead: User) -> None:
    gpu = make_gpu(node=make_node("n-1", site=make_site("S-1")))
    for kind in ("sites", "nodes", "gpus"):
        content = b"".join(call(lead, "GET", f"{kind}/export").streaming_content)
        key = strict(upload(lead, content, f"{kind}.csv", kind=kind))["id"]
        work(key)
        assert strict(call(lead, "GET", f"imports/{key}/"))["counts"] == {"same": 1}, kind
    assert gpu.node.site.code == "S-1"
