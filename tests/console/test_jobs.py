"""`/jobs`, the import's steps and the exports: for their owner and for administrators; for nobody else they exist."""

import csv
import io
import re
import uuid
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from console.models import User
from fleet import jobs
from fleet.job_kinds import runner_of
from fleet.models import InventoryImport, Job, JobLogLine, Site
from tests.builders import make_site, make_user
from tests.console.pages import Cast, signed_in, text_of

pytestmark = pytest.mark.django_db
SITES = b"code,region,name,latitude\nW-1,west,West one,1\nW-2,west,,91\nW-3,west,West three,\n"


@pytest.fixture
def cast() -> Cast:
    return Cast()


@pytest.fixture
def lead(cast: Cast) -> User:
    return make_user("lena", role="lead", region=cast.west)


@pytest.fixture
def client(lead: User) -> Client:
    return signed_in(lead)


def upload(client: Client, content: bytes, name: str = "sites.csv", **fields: str) -> Any:
    data: dict[str, Any] = {"kind": "sites", "on_duplicate": "update", "file": SimpleUploadedFile(name, content)} | fields
    return client.post("/imports/new", data)


def work() -> Job:
    job = Job.objects.filter(state=Job.State.QUEUED).get()
    done = jobs.run(job.pk, runner_of, timezone.now())
    assert done is not None
    return done


def waiting(client: Client, content: bytes = SITES) -> InventoryImport:
    assert upload(client, content).status_code == 302
    work()
    return InventoryImport.objects.select_related("job").get()


def test_the_whole_way_from_upload_to_undo(client: Client, lead: User) -> None:
    page = client.get("/imports/new")
    assert "Columns of Sites" in text_of(page)
    answer = upload(client, SITES)
    job = Job.objects.get()
    assert answer["Location"] == f"/jobs/{job.pk}"
    queued = client.get(f"/jobs/{job.pk}")
    assert f'hx-get="/jobs/{job.pk}"' in queued.content.decode()
    work()
    done = client.get(f"/jobs/{job.pk}", headers={"HX-Request": "true"})
    assert "<html" not in done.content.decode()
    assert "hx-get" not in done.content.decode()
    assert "See errors and differences" in text_of(done)
    review = client.get(f"/imports/{job.pk}")
    assert "latitude</b> 91 is not within -90..90." in text_of(review)
    assert "Apply 2 rows" in text_of(review)
    refused = client.post(f"/imports/{job.pk}/apply", {"reason": "west"})
    assert refused.status_code == 422
    assert "1 rows have errors" in text_of(refused)
    assert client.post(f"/imports/{job.pk}/apply", {"reason": "", "skip_errors": "on"}).status_code == 422
    assert client.post(f"/imports/{job.pk}/apply", {"reason": "west", "skip_errors": "on"})["Location"] == f"/jobs/{job.pk}"
    work()
    assert list(Site.objects.values_list("code", "name")) == [("W-1", "West one"), ("W-3", "West three")]
    text = b"".join(client.get(f"/imports/{job.pk}/result").streaming_content).decode()  # type: ignore[attr-defined]
    assert [row[:3] for row in csv.reader(io.StringIO(text))][1:] == [["2", "new", "yes"], ["3", "error", "no"], ["4", "new", "yes"]]
    applied = client.get(f"/imports/{job.pk}")
    assert "Undo the import" in text_of(applied)
    undo = client.post(f"/imports/{job.pk}/undo", {"reason": "wrong"})
    work()
    assert "The import" in text_of(client.get(undo["Location"]))
    assert not Site.objects.exists()
    assert "Undone" in text_of(client.get(f"/imports/{job.pk}"))
    log = b"".join(client.get(f"/jobs/{job.pk}/log").streaming_content).decode()  # type: ignore[attr-defined]
    assert "2 new" in log
    assert "Applied 2 rows" in log


def test_columns_that_are_not_clear_are_mapped_by_a_person(client: Client) -> None:
    answer = upload(client, b"Site,region,remark\nW-1,west,x\n")
    held = InventoryImport.objects.get()
    assert answer["Location"] == f"/imports/{held.pk}/columns"
    page = text_of(client.get(answer["Location"]))
    assert "is no column of sites" in page
    wrong = client.post(answer["Location"], {"column-0": "code", "column-1": "region", "column-2": "?"})
    assert (wrong.status_code, Job.objects.get().phase) == (422, "map")
    assert client.post(answer["Location"], {"column-0": "code", "column-1": "region", "column-2": ""})["Location"] == f"/jobs/{held.pk}"
    work()
    held.refresh_from_db()
    assert held.counts == {"new": 1}


def test_rows_are_chosen_one_by_one_or_all(client: Client) -> None:
    held = waiting(client)
    address = f"/imports/{held.pk}/select"
    answer = client.post(address, {"outcome": "new", "shown": ["2", "4"], "chosen": ["4"], "page": "1"})
    assert answer["Location"] == f"/imports/{held.pk}?outcome=new&page=1"
    assert set(held.rows.filter(selected=True).values_list("number", flat=True)) == {4}
    client.post(address, {"outcome": "new", "all": "no"})
    assert not held.rows.filter(selected=True).exists()
    client.post(address, {"outcome": "new", "all": "yes"})
    assert held.rows.filter(selected=True).count() == 2
    client.post(address, {"outcome": "error", "all": "yes", "page": "x"})
    assert held.rows.filter(selected=True).count() == 2


@pytest.mark.parametrize(
    ("content", "name", "says"),
    [
        (b"", "sites.csv", "empty"),
        (b"x", "sites.exe", "none of CSV"),
        (b"\xff\xfe\x00", "sites.csv", "not UTF-8"),
        (b"- &a [*a]", "sites.yaml", "anchors"),
        (b"PK\x03\x04", "sites.xlsx", "no XLSX workbook"),
    ],
)
def test_a_file_that_cannot_be_read_is_said_at_once(client: Client, content: bytes, name: str, says: str) -> None:
    answer = upload(client, content, name)
    assert answer.status_code == 422
    assert says in text_of(answer)
    assert not Job.objects.exists()


def test_the_import_right_is_named_to_those_who_lack_it(cast: Cast) -> None:
    for name in ("operator", "viewer"):
        answer = cast.client(name).get("/imports/new")
        assert answer.status_code == 403
        assert "import" in text_of(answer)
        assert "Import a file" not in text_of(cast.client(name).get("/jobs"))
    assert cast.client("tenant_user").get("/imports/new").status_code == 404
    assert Client().get("/imports/new").status_code == 302


def test_the_regions_of_the_importer_hold(client: Client, cast: Cast) -> None:
    held = waiting(client, b"code,region\nE-1,east\nW-1,west\n")
    assert held.counts == {"error": 1, "new": 1}


def test_others_jobs_and_imports_do_not_exist(client: Client, cast: Cast) -> None:
    held = waiting(client)
    for name, status in (("stranger", 404), ("operator", 404), ("tenant_user", 404), ("administrator", 200)):
        other = cast.client(name)
        for address in (f"/jobs/{held.pk}", f"/jobs/{held.pk}/log", f"/imports/{held.pk}", f"/imports/{held.pk}/result"):
            assert other.get(address).status_code == status, (name, address)
    stranger = cast.client("stranger")
    for address in (f"/jobs/{held.pk}/cancel", f"/imports/{held.pk}/apply", f"/imports/{held.pk}/select", f"/imports/{held.pk}/undo"):
        assert stranger.post(address, {"reason": "x"}).status_code == 404
    assert str(held.pk) not in stranger.get("/jobs").content.decode()
    assert str(held.pk) in cast.client("administrator").get("/jobs").content.decode()
    assert client.get(f"/jobs/{uuid.uuid4()}").status_code == 404


def test_posts_only(client: Client) -> None:
    held = waiting(client)
    for address in (f"/jobs/{held.pk}/cancel", f"/imports/{held.pk}/apply", f"/imports/{held.pk}/select", f"/imports/{held.pk}/undo"):
        assert client.get(address).status_code == 405
    assert Client(enforce_csrf_checks=True).post(f"/jobs/{held.pk}/cancel").status_code == 403


def test_a_job_is_cancelled_by_its_owner(client: Client) -> None:
    held = waiting(client)
    client.post(f"/jobs/{held.pk}/cancel")
    held.job.refresh_from_db()
    assert held.job.state == Job.State.CANCELLED
    assert "Cancelled" in text_of(client.get(f"/jobs/{held.pk}"))
    late = client.post(f"/imports/{held.pk}/apply", {"reason": "x", "skip_errors": "on"})
    assert (late.status_code, "cancelled" in text_of(late)) == (422, True)


def test_progress_has_done_failed_total_and_time_to_go(client: Client, lead: User) -> None:
    job = jobs.create_job(kind="inventory_import", title="Import of sites", owner=lead)
    now = timezone.now()
    Job.objects.update(state=Job.State.RUNNING, total=200, done=2, failed=1, phase="check", started_at=now, heartbeat_at=now)
    page = text_of(client.get(f"/jobs/{job.pk}"))
    assert re.search(r'<progress class="progress wide" max="200" value="2"', page)
    assert "after 5 %" in page
    Job.objects.update(done=100, started_at=now - timezone.timedelta(seconds=30))  # type: ignore[attr-defined]
    assert re.search(r"<b>\d+ s</b><span>to go", text_of(client.get(f"/jobs/{job.pk}")))


def test_a_queue_without_workers_is_said(client: Client, lead: User) -> None:
    job = jobs.create_job(kind="inventory_import", title="Import of sites", owner=lead)
    assert "No worker" not in text_of(client.get(f"/jobs/{job.pk}"))
    Job.objects.update(heartbeat_at=timezone.now() - jobs.UNSENT * 3)
    assert "No worker has taken this job yet." in text_of(client.get(f"/jobs/{job.pk}"))


def test_statements_do_not_grow_with_jobs_rows_and_lines(client: Client, lead: User) -> None:
    counts = []
    client.get("/jobs")
    for more in (2, 40):
        for number in range(more):
            job = jobs.create_job(kind="inventory_import", title=f"Import {number}", owner=lead, state=Job.State.WAITING)
            JobLogLine.objects.bulk_create([JobLogLine(job=job, text="x")] * more)
        with CaptureQueriesContext(connection) as queries:
            client.get("/jobs")
            client.get(f"/jobs/{job.pk}")
        counts.append(len(queries))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("kind", ["sites", "nodes", "gpus"])
@pytest.mark.parametrize("file_format", ["csv", "xlsx", "yaml", "json"])
def test_lists_are_exported(cast: Cast, kind: str, file_format: str) -> None:
    make_site("W-1", region=cast.west)
    answer = cast.client("viewer").get(f"/exports/{kind}?format={file_format}")
    assert answer.status_code == 200
    assert f'filename="masthead-{kind}-' in answer["Content-Disposition"]
    assert b"".join(answer.streaming_content)  # type: ignore[attr-defined]


def test_an_export_has_the_lists_filter_order_and_scope(cast: Cast) -> None:
    for code in ("W-1", "W-2", "X-3"):
        make_site(code, region=cast.west)
    make_site("E-1", region=cast.east)
    viewer = cast.client("viewer")
    text = b"".join(viewer.get("/exports/sites?q=W-&ordering=-code&page=3").streaming_content).decode()  # type: ignore[attr-defined]
    codes = [row[0] for row in csv.reader(io.StringIO(text)) if not row[0].startswith("#")]
    assert codes[0] == "code"
    assert set(codes[1:]) == {"W-2", "W-1"}
    assert "# made_by: vera" in text
    assert "E-1" not in b"".join(viewer.get("/exports/sites").streaming_content).decode()  # type: ignore[attr-defined]
    for wrong in ("format=doc", "ordering=shoes", "id=x"):
        assert viewer.get(f"/exports/sites?{wrong}").status_code == 400
    assert viewer.get("/exports/shoes").status_code == 404
    assert cast.client("tenant_user").get("/exports/sites").status_code == 404
    assert "/exports/sites?" in viewer.get("/sites").content.decode()
