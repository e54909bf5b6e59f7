"""Import of inventory: every error at once, difference before apply, one change set, undo; nothing half-applied."""

import json
from datetime import timedelta
from typing import Any

import pytest

from console.models import User
from fleet import jobs
from fleet.inventory.importing import pipeline
from fleet.inventory.importing.pipeline import Refused, result_file
from fleet.job_kinds import runner_of
from fleet.jobs import NotPossible
from fleet.models import Area, Disagreement, Finding, Gpu, ImportRow, InventoryImport, Job, Node, ProtectedPlacement, Region, Site
from tests.builders import T0, make_area, make_gpu, make_node, make_region, make_site, make_user

pytestmark = pytest.mark.django_db
SITES = b"""code,name,region,kind,latitude,longitude,time_zone,power_feed,power_feed_watts,expected_nodes
MUC-1,Munich 1,south,cell,48.1,11.5,Europe/Berlin,A+B 2N,12000,1
MUC-2,,south,,,,,,,
"""


@pytest.fixture
def owner() -> User:
    return make_user("lena")


@pytest.fixture
def south() -> Region:
    return make_region("south", area=make_area("de"))


def start(owner: User, content: bytes, kind: str = "sites", name: str = "", **fields: Any) -> InventoryImport:
    arguments = {"on_duplicate": "update", "region_ids": None} | fields
    return pipeline.start_import(owner=owner, kind=kind, file_name=name or f"{kind}.csv", content=content, **arguments)


def work(job: Job) -> Job:
    """What a worker does."""
    done = jobs.run(job.pk, runner_of, T0)
    assert done is not None
    return done


def checked(owner: User, content: bytes, kind: str = "sites", **fields: Any) -> InventoryImport:
    held = start(owner, content, kind, **fields)
    assert work(held.job).state == Job.State.WAITING
    held.refresh_from_db()
    return held


def applied(owner: User, content: bytes, kind: str = "sites", **fields: Any) -> InventoryImport:
    held = checked(owner, content, kind, **fields)
    pipeline.queue_apply(held, user=owner, reason="new sites", region_ids=None, now=T0)
    job = work(held.job)
    assert (job.state, job.error) == (Job.State.DONE, "")
    held.refresh_from_db()
    return held


def errors_of(held: InventoryImport) -> list[tuple[int, str, str]]:
    return [(row.number, error["field"], error["message"]) for row in held.rows.order_by("number") for error in row.errors]


def test_new_sites_are_checked_compared_and_applied(owner: User, south: Region) -> None:
    held = checked(owner, SITES)
    assert held.counts == {"new": 2}
    assert not Site.objects.exists()
    pipeline.queue_apply(held, user=owner, reason="first sites", region_ids=None, now=T0)
    job = work(held.job)
    assert (job.state, job.phase, job.done, job.total, job.failed) == (Job.State.DONE, "applied", 2, 2, 0)
    first, second = Site.objects.order_by("code")
    assert (first.name, first.latitude, str(first.time_zone), first.power_feed, first.power_feed_watts) == ("Munich 1", 48.1, "Europe/Berlin", "A+B 2N", 12000)
    assert (second.name, second.kind, second.latitude, str(second.time_zone), second.expected_nodes) == ("MUC-2", "cell", None, "UTC", None)
    event = first.events.get()  # type: ignore[attr-defined]
    assert event.pgh_context.metadata == {"user": owner.pk, "reason": "first sites", "source": "import", "job": str(job.pk)}


def test_all_errors_at_once_naming_row_and_field(owner: User, south: Region) -> None:
    content = b"""code,region,latitude,kind,time_zone,expected_nodes
A,south,91,cell,UTC,1
B,nowhere,1,tower,Mars/Base,-1
 bad,south,nan,cell,UTC,1.5
A,south,1,cell,UTC,1
,south,1,cell,UTC,1
"""
    held = checked(owner, content)
    assert errors_of(held) == [
        (2, "latitude", "91 is not within -90..90."),
        (2, "code", "A also stands below."),
        (3, "kind", "'tower' is none of cell, edge, central."),
        (3, "time_zone", "'Mars/Base' is no time zone; write it as Europe/Berlin."),
        (3, "expected_nodes", "-1 is not within 0..100000."),
        (3, "region", "'nowhere' does not exist; give its area too, and it is added."),
        (4, "latitude", "'nan' is not a number (decimal point, no thousands separators)."),
        (4, "expected_nodes", "'1.5' is not a whole number."),
        (5, "code", "A also stands in row 2."),
        (6, "code", "is required."),
    ]
    assert held.counts == {"error": 5}
    with pytest.raises(Refused, match="5 rows have errors"):
        pipeline.queue_apply(held, user=owner, reason="x", region_ids=None, now=T0)
    assert not Site.objects.exists()


def test_the_right_rows_can_be_applied_without_the_wrong_ones(owner: User, south: Region) -> None:
    held = checked(owner, b"code,region\nA,south\nB,nowhere\n")
    pipeline.queue_apply(held, user=owner, reason="x", region_ids=None, now=T0, skip_errors=True)
    assert work(held.job).state == Job.State.DONE
    assert list(Site.objects.values_list("code", flat=True)) == ["A"]


def test_unknown_columns_wait_for_the_map(owner: User, south: Region) -> None:
    held = start(owner, b"Site Code,region,comment\nA,south,hello\n")
    assert (held.job.state, held.job.phase) == (Job.State.WAITING, "map")
    with pytest.raises(Refused) as refused:
        pipeline.map_columns(held, {"Site Code": "code", "region": "region"}, T0)
    assert list(refused.value.errors) == ["comment"]
    with pytest.raises(Refused) as refused:
        pipeline.map_columns(held, {"Site Code": "code", "region": "code", "comment": "shoe"}, T0)
    assert set(refused.value.errors) == {"comment", "code", "region"}
    pipeline.map_columns(held, {"Site Code": "code", "region": "region", "comment": ""}, T0)
    work(held.job)
    assert InventoryImport.objects.get().counts == {"new": 1}


def test_a_given_map_that_does_not_fit_is_an_error_of_the_header(owner: User, south: Region) -> None:
    held = checked(owner, b"code,region,shoe\nA,south,42\n", column_map={"code": "code", "region": "region"})
    assert errors_of(held) == [(0, "shoe", "is no column of sites; map it to one, or to nothing to leave it out.")]
    with pytest.raises(Refused, match="columns"):
        pipeline.queue_apply(held, user=owner, reason="x", region_ids=None, now=T0, skip_errors=True)


def test_difference_same_changed_new(owner: User, south: Region) -> None:
    make_site("A", region=south, name="A", latitude=1.5)
    make_site("B", region=south, name="B")
    held = checked(owner, b"code,region,name,latitude\nA,south,A,1.5\nB,south,Bee,\nC,south,,\n")
    assert {row.key: row.outcome for row in held.rows.all()} == {"A": "same", "B": "changed", "C": "new"}
    assert pipeline.changes_of(held.rows.get(key="B")) == [("name", "B", "Bee")]


@pytest.mark.parametrize(("on_duplicate", "name", "outcome"), [("skip", "old", "changed"), ("update", "new", "changed"), ("fail", "old", "error")])
def test_duplicates_are_skipped_updated_or_refused(owner: User, south: Region, on_duplicate: str, name: str, outcome: str) -> None:
    make_site("A", region=south, name="old")
    held = checked(owner, b"code,region,name\nA,south,new\nB,south,new\n", on_duplicate=on_duplicate)
    assert held.rows.get(key="A").outcome == outcome
    if on_duplicate == "fail":
        assert errors_of(held) == [(2, "code", "A is in the inventory already.")]
        return
    pipeline.queue_apply(held, user=owner, reason="x", region_ids=None, now=T0)
    work(held.job)
    assert Site.objects.get(code="A").name == name
    assert Site.objects.get(code="B").name == "new"


def test_a_column_that_the_file_lacks_changes_nothing_and_an_empty_cell_clears(owner: User, south: Region) -> None:
    make_site("A", region=south, name="A", latitude=1.5, longitude=2.5)
    applied(owner, b"code,region,latitude\nA,south,\n")
    site = Site.objects.get()
    assert (site.name, site.latitude, site.longitude) == ("A", None, 2.5)


def test_chosen_rows_only(owner: User, south: Region) -> None:
    held = checked(owner, b"code,region\nA,south\nB,south\nC,south\n")
    assert pipeline.select_rows(held, [2, 4, 99], selected=False) == 2
    pipeline.queue_apply(held, user=owner, reason="x", region_ids=None, now=T0)
    work(held.job)
    assert list(Site.objects.values_list("code", flat=True)) == ["B"]


def test_regions_of_a_new_area_are_added_and_undone(owner: User) -> None:
    held = applied(owner, b"code,region,area\nA,north,se\nB,north,se\n")
    assert Region.objects.get(slug="north").area.slug == "se"
    undone = undo(held, owner)
    assert (undone.state, undone.result["deleted"]) == (Job.State.DONE, 2)
    assert not Site.objects.exists()
    assert not Region.objects.exists()
    assert not Area.objects.exists()


def test_rights_are_looked_at_again_when_it_is_applied(owner: User, south: Region) -> None:
    """A role may have ended since the check, a token of fewer regions may apply it, a site may have moved."""
    north = make_region("north")
    make_site("A", region=south, name="old")
    mine = make_site("B", region=north, name="old")
    make_node("n1", site=mine)
    files = {"sites": b"code,region,name\nA,south,new\nB,north,new\n", "nodes": b"site,host_name,role\nB,n1,du\n"}
    held = {kind: checked(owner, content, kind, region_ids=[south.pk, north.pk]) for kind, content in files.items()}
    Site.objects.filter(pk=mine.pk).update(region=south)
    for kind, allowed in (("sites", [north.pk]), ("nodes", [north.pk])):
        pipeline.queue_apply(held[kind], user=owner, reason="x", region_ids=allowed, now=T0)
        job = work(held[kind].job)
        assert job.state != Job.State.DONE
        held[kind].refresh_from_db()
        assert held[kind].applied_at is None
    assert set(Site.objects.values_list("name", flat=True)) == {"old"}


def test_a_region_lies_in_one_area(owner: User, south: Region) -> None:
    held = checked(owner, b"code,region,area\nA,south,fr\n")
    assert errors_of(held) == [(2, "area", "the region 'south' lies in the area 'de', not in 'fr'.")]


def undo(held: InventoryImport, owner: User) -> Job:
    return work(pipeline.queue_undo(held, user=owner, reason="wrong file", region_ids=None))


def test_undo_restores_what_was_and_deletes_what_was_made(owner: User, south: Region) -> None:
    make_site("A", region=south, name="old", latitude=1.0)
    held = applied(owner, b"code,region,name,latitude\nA,south,new,2\nB,south,b,3\n")
    job = undo(held, owner)
    assert (job.state, job.phase, job.result["restored"], job.result["deleted"]) == (Job.State.DONE, "undone", 1, 1)
    site = Site.objects.get()
    assert (site.code, site.name, site.latitude) == ("A", "old", 1.0)
    last = site.events.order_by("pgh_id").last()  # type: ignore[attr-defined]
    assert last.pgh_context.metadata["reason"] == "wrong file"
    held.refresh_from_db()
    assert held.undone_at == T0
    with pytest.raises(NotPossible, match="undone already"):
        pipeline.queue_undo(held, user=owner, reason="again", region_ids=None)


def test_who_lost_the_whole_fleet_may_not_undo_an_import_over_it(owner: User, south: Region) -> None:
    held = applied(owner, b"code,name,region\nA,new,south\n")
    with pytest.raises(NotPossible, match="regions that are not yours"):
        pipeline.queue_undo(held, user=owner, reason="mine", region_ids=[south.pk])


def test_undo_refuses_what_changed_since_and_names_it(owner: User, south: Region) -> None:
    make_site("A", region=south, name="old")
    held = applied(owner, b"code,region,name\nA,south,new\nB,south,b\n")
    Site.objects.filter(code="A").update(name="edited")
    job = undo(held, owner)
    assert job.state == Job.State.FAILED
    assert job.error == "Changed since the import; nothing was undone. Row 2: A has name 'edited' now, not 'new'."
    assert Site.objects.count() == 2
    Site.objects.filter(code="A").update(name="new")
    make_node("n", site=Site.objects.get(code="B"))
    assert undo(held, owner).error == "Changed since the import; nothing was undone. B has nodes by now."
    assert Site.objects.get(code="A").name == "new"


def test_the_inventory_changed_between_check_and_apply(owner: User, south: Region) -> None:
    make_site("A", region=south, name="old")
    held = checked(owner, b"code,region,name\nA,south,new\nB,south,b\n")
    Site.objects.filter(code="A").update(name="other")
    make_site("B", region=south)
    pipeline.queue_apply(held, user=owner, reason="x", region_ids=None, now=T0)
    job = work(held.job)
    assert (job.state, job.phase) == (Job.State.WAITING, "decide")
    assert "Row 2: A has name 'other' now, not 'old'. Row 3: B exists by now." in job.error
    assert Site.objects.get(code="A").name == "other"
    assert pipeline.changes_of(held.rows.get(key="A")) == [("name", "other", "new")]
    pipeline.queue_apply(held, user=owner, reason="x", region_ids=None, now=T0)
    assert work(held.job).state == Job.State.DONE
    assert Site.objects.get(code="A").name == "new"


def test_the_scope_of_the_importer(owner: User, south: Region) -> None:
    north = make_region("north", area=south.area)
    make_site("N-1", region=north)
    content = b"code,region,area\nS-1,south,\nN-2,north,\nN-1,south,\nX-1,west,de\n"
    held = checked(owner, content, region_ids=[south.pk])
    assert errors_of(held) == [
        (3, "region", "'north' is not yours to change."),
        (4, "code", "is not yours to use."),
        (5, "region", "'west' does not exist, and only who may change the whole fleet can add it."),
    ]
    nodes = checked(owner, b"site,host_name,role\nN-1,n1,du\n", "nodes", region_ids=[south.pk])
    assert errors_of(nodes) == [(2, "site", "'N-1' does not exist.")]


def test_nodes_are_known_by_their_first_label(owner: User, south: Region) -> None:
    site = make_site("A", region=south)
    make_node("du-1", site=site, role="du")
    content = b"site,host_name,role,expected_gpus,exporter_address\nA,DU-1.edge.example,du,2,10.0.0.1:9400\nA,inf-1,inference,,bad\nA,inf-2,inference,4,[fe80::1]:9400\n"
    held = checked(owner, content, "nodes")
    assert errors_of(held) == [(3, "exporter_address", "'bad' is no host:port.")]
    pipeline.queue_apply(held, user=owner, reason="x", region_ids=None, now=T0, skip_errors=True)
    work(held.job)
    assert list(Node.objects.order_by("pk").values_list("host_name", "expected_gpus", "exporter_address")) == [
        ("DU-1.edge.example", 2, "10.0.0.1:9400"),
        ("inf-2", 4, "[fe80::1]:9400"),
    ]


def test_gpus_with_protected_placements(owner: User, south: Region) -> None:
    make_node("du-1.edge", site=make_site("A", region=south))
    content = b"""uuid,site,node,sku,index,pci_bus_id,mig_enabled,protected_placements
GPU-00000001,A,du-1,h100-sxm-80gb,0,3b:00.0,true,0:1 1:1 2:1
GPU-00000002,A,DU-1,NVIDIA L40S,1,,,
GPU-00000003,A,du-2,h100-sxm-80gb,,,,
GPU-00000004,A,du-1,l40s-48gb,,,true,0-2
GPU-00000005,A,du-1,h100-sxm-80gb,,,,0-2
GPU-00000006,A,du-1,h200,,xx,,9
"""
    held = checked(owner, content, "gpus")
    assert errors_of(held) == [
        (4, "node", "the site A has no node 'du-2'; import it first."),
        (5, "protected_placements", "this board has no MIG: protect the whole GPU (all) or nothing (none)."),
        (5, "mig_enabled", "L40S 48GB has no MIG."),
        (6, "protected_placements", "no instance of 3 positions can start at 0 on this board."),
        (7, "pci_bus_id", "'xx' is no PCI address (00000000:19:00.0)."),
        (7, "protected_placements", "'9' is no placement; write 0-2, or start:size as in 0:1 1:1 2:1."),
    ]
    pipeline.queue_apply(held, user=owner, reason="x", region_ids=None, now=T0, skip_errors=True)
    work(held.job)
    first, second = Gpu.objects.order_by("uuid")
    assert (first.pci_bus_id, first.mig_enabled, first.presence, first.sources["sku"]) == ("00000000:3B:00.0", True, "expected", "import")
    assert list(first.protected_placements.order_by("start").values_list("start", "size")) == [(0, 1), (1, 1), (2, 1)]
    assert second.sku == "l40s-48gb"
    again = checked(owner, content.replace(b"0:1 1:1 2:1", b"all"), "gpus")
    assert pipeline.changes_of(again.rows.get(key="GPU-00000001")) == [("protected_placements", "0:1 1:1 2:1", "0:8")]
    pipeline.queue_apply(again, user=owner, reason="whole GPU for PHY", region_ids=None, now=T0, skip_errors=True)
    work(again.job)
    assert list(ProtectedPlacement.objects.values_list("start", "size")) == [(0, 8)]
    assert undo(again, owner).state == Job.State.DONE
    assert ProtectedPlacement.objects.count() == 3


def test_what_was_seen_is_a_conflict_that_must_be_chosen(owner: User, south: Region) -> None:
    node = make_node("du-1", site=make_site("A", region=south))
    gpu = make_gpu("GPU-00000001", node=node, sources={"sku": "agent"}, first_seen_at=T0, last_seen_at=T0)
    Finding.objects.create(kind="gpu", object_key=gpu.uuid, code="unexpected_gpu", severity="warning", summary="x", since=T0, last_at=T0)
    Disagreement.objects.create(
        kind="gpu", object_key=gpu.uuid, field="sku", held_source="agent", held_value="a", seen_source="telemetry", seen_value="b", since=T0, last_at=T0
    )
    held = checked(owner, b"uuid,site,node,sku\nGPU-00000001,A,du-1,h200\n".replace(b"h200", b"h200-141gb"), "gpus")
    assert (held.counts, held.rows.get().selected) == ({"conflict": 1}, False)
    with pytest.raises(Refused, match="No row is chosen"):
        pipeline.queue_apply(held, user=owner, reason="x", region_ids=None, now=T0)
    pipeline.select_rows(held, [2], selected=True)
    pipeline.queue_apply(held, user=owner, reason="x", region_ids=None, now=T0)
    work(held.job)
    gpu.refresh_from_db()
    assert (gpu.sku, gpu.sources["sku"]) == ("h200-141gb", "import")
    assert not Finding.objects.open().exists()
    assert not Disagreement.objects.filter(until__isnull=True).exists()


def test_a_gpu_moves_to_a_node_of_the_same_name_at_another_site(owner: User, south: Region) -> None:
    gpu = make_gpu("GPU-00000001", node=make_node("du-1", site=make_site("A", region=south)), presence="expected")
    other = make_node("du-1", site=make_site("B", region=south))
    held = applied(owner, b"uuid,site,node,sku\nGPU-00000001,B,du-1,h100-sxm-80gb\n", "gpus")
    gpu.refresh_from_db()
    assert gpu.node == other
    assert undo(held, owner).state == Job.State.DONE
    gpu.refresh_from_db()
    assert gpu.node.site.code == "A"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"kind": "shoes"}, "kind"),
        ({"on_duplicate": "maybe"}, "on_duplicate"),
        ({"name": "x.doc"}, "file"),
        ({"content": b""}, "file"),
        ({"file_format": "doc"}, "format"),
    ],
)
def test_what_can_be_said_at_once_is(owner: User, fields: dict[str, Any], named: str) -> None:
    arguments: dict[str, Any] = {"content": b"code\nA\n"} | fields
    with pytest.raises(Refused) as refused:
        start(owner, **arguments)
    assert list(refused.value.errors) == [named]
    assert not Job.objects.exists()


def test_a_decision_needs_a_reason_and_a_waiting_import(owner: User, south: Region) -> None:
    held = start(owner, SITES)
    with pytest.raises(NotPossible, match="queued"):
        pipeline.queue_apply(held, user=owner, reason="x", region_ids=None, now=T0)
    work(held.job)
    with pytest.raises(Refused) as refused:
        pipeline.queue_apply(held, user=owner, reason="  ", region_ids=None, now=T0)
    assert list(refused.value.errors) == ["reason"]
    pipeline.queue_apply(held, user=owner, reason="x", region_ids=None, now=T0)
    with pytest.raises(NotPossible):
        pipeline.queue_apply(held, user=owner, reason="x", region_ids=None, now=T0)
    with pytest.raises(NotPossible):
        pipeline.select_rows(held, [2], selected=False)
    with pytest.raises(NotPossible, match="not applied"):
        pipeline.queue_undo(held, user=owner, reason="x", region_ids=None)


def test_an_empty_table_fails_with_a_sentence(owner: User) -> None:
    job = work(start(owner, b"code,region\n").job)
    assert (job.state, job.error) == (Job.State.FAILED, "The file holds no rows under its header.")


def test_the_result_file_tells_each_row(owner: User, south: Region) -> None:
    make_site("A", region=south, name="=old")
    held = applied(owner, b"code,region,name\nA,south,new\nB,south,=cmd()\n")
    text = b"".join(result_file(held)).decode().splitlines()
    assert text[0].startswith("row,result,applied,errors,changes,code,name,region")
    assert text[1].startswith("2,changed,yes,,name: =old -> new,A,new,south")
    assert text[2].startswith("3,new,yes,,,B,'=cmd(),south")


def test_a_worker_that_dies_after_the_commit_changes_nothing_twice(owner: User, south: Region) -> None:
    held = applied(owner, SITES)
    Job.objects.filter(pk=held.pk).update(state=Job.State.QUEUED, phase="apply")
    assert work(held.job).state == Job.State.DONE
    assert Site.objects.count() == 2
    assert ImportRow.objects.count() == 2
    assert jobs.recover_jobs(T0 + timedelta(days=1)) == 0


def test_a_field_that_only_a_late_row_names_is_an_error_of_the_header(owner: User, south: Region) -> None:
    rows = [{"code": f"A-{number}", "region": "south"} for number in range(300)] + [{"code": "Z", "region": "south", "shoe": 42}]
    held = checked(owner, json.dumps(rows).encode(), name="sites.json")
    assert errors_of(held) == [(0, "shoe", "is no column of sites; map it to one, or to nothing to leave it out.")]


def test_a_file_that_breaks_off_late_fails_with_a_sentence(owner: User, south: Region) -> None:
    content = b"code,region\n" + b"".join(b"A-%d,south\n" % number for number in range(300)) + b'"broken'
    job = work(start(owner, content).job)
    assert (job.state, job.error) == (Job.State.FAILED, "Row 302: not CSV (unexpected end of data).")
