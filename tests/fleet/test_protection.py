"""PHY is kept on every GPU of a DU node from the first word about it, whoever says it, until an import says otherwise."""

import random
from datetime import timedelta
from pathlib import Path

import pytest
from django.apps import apps
from pytest_django import Settings

from agent.protocol import DesiredState, GpuFacts
from console.models import User
from fleet import jobs
from fleet.control import controls, desired_state, signing
from fleet.inventory import protection
from fleet.inventory.importing import pipeline
from fleet.inventory.seen import reconcile_agent_report, reconcile_telemetry
from fleet.job_kinds import runner_of
from fleet.models import DesiredDocument, Gpu, InventoryImport, Job, MigSlice, Node, ProtectedPlacement, StaleDocument
from tests.builders import T0, make_gpu, make_node, make_phy_gpu, make_site, make_user
from tests.fleet.seen import gpu_facts, report, series, slice_facts

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)
DEFAULT = [(0, 1), (1, 1), (2, 1)]
WHOLE = [(0, 8)]
ONES = tuple(slice_facts(7 + start, "1g.10gb", start, 1, f"MIG-{start}") for start in range(7))
COLUMNS = "uuid,site,node,sku,protected_placements"


@pytest.fixture
def owner() -> User:
    return make_user("lena")


@pytest.fixture
def du() -> Node:
    return make_node("du-1", site=make_site("S"), role=Node.Role.DU)


def spans(uuid: str = "GPU-00000001") -> list[tuple[int, int]]:
    return list(ProtectedPlacement.objects.filter(gpu__uuid=uuid).order_by("start").values_list("start", "size"))


def imported(owner: User, content: str, kind: str = "gpus") -> InventoryImport:
    held = pipeline.start_import(owner=owner, kind=kind, file_name=f"{kind}.csv", content=content.encode(), on_duplicate="update", region_ids=None)
    jobs.run(held.job.pk, runner_of, T0)
    held.refresh_from_db()
    if not held.rows.filter(selected=True).exists():
        return held
    pipeline.queue_apply(held, user=owner, reason="as built", region_ids=None, now=T0)
    job = jobs.run(held.job.pk, runner_of, T0)
    assert job is not None
    assert (job.state, job.error) == (Job.State.DONE, "")
    held.refresh_from_db()
    return held


def undone(held: InventoryImport, owner: User) -> None:
    job = jobs.run(pipeline.queue_undo(held, user=owner, reason="wrong", region_ids=None).pk, runner_of, T0)
    assert job is not None
    assert (job.state, job.error) == (Job.State.DONE, "")


def gpu_row(node: str = "du-1", placements: str = "", uuid: str = "GPU-00000001", sku: str = "h100-sxm-80gb") -> str:
    return f"{COLUMNS}\n{uuid},S,{node},{sku},{placements}\n"


def refused(uuid: str = "GPU-00000001") -> bool:
    return bool(controls.refusal_for(Gpu.objects.select_related("node__site").get(uuid=uuid)))


def test_a_gpu_that_an_agent_finds_on_a_du_node_is_protected(du: Node) -> None:
    reconcile_agent_report(du.pk, report(T0, gpu_facts("GPU-00000001", mig_enabled=True, slices=ONES)), T0)
    assert spans() == DEFAULT
    assert controls.refusal_for(Gpu.objects.get()).startswith("GPU carries PHY at positions 0-2:")
    assert list(MigSlice.objects.order_by("start").values_list("purpose", flat=True)) == ["phy"] * 3 + ["ai"] * 4


def test_a_gpu_that_telemetry_finds_on_a_du_node_is_protected_and_one_elsewhere_is_not(du: Node) -> None:
    other = make_node("inf-1", site=du.site)
    seen = [series("GPU-00000001", T0, node_host="du-1", site_code="S"), series("GPU-00000002", T0, node_host=other.host_name, site_code="S")]
    reconcile_telemetry(seen, T0)
    assert (spans(), spans("GPU-00000002")) == (DEFAULT, [])
    assert not refused("GPU-00000002")


@pytest.mark.parametrize("model", ["NVIDIA L40S", "NVIDIA X1000", ""], ids=["no MIG", "not in the catalogue", "not told"])
def test_where_nobody_knows_what_is_phys_the_whole_gpu_is(du: Node, model: str) -> None:
    reconcile_telemetry([series("GPU-00000001", T0, node_host="du-1", site_code="S", model_name=model)], T0)
    assert spans() == WHOLE
    assert controls.refusal_for(Gpu.objects.get()).startswith("GPU carries PHY at positions 0-7:")


def test_a_model_that_is_told_later_makes_the_whole_gpu_the_default_layout(du: Node) -> None:
    reconcile_telemetry([series("GPU-00000001", T0, node_host="du-1", site_code="S", model_name="")], T0)
    reconcile_agent_report(du.pk, report(T0 + MINUTE, gpu_facts("GPU-00000001", mig_enabled=True, slices=ONES)), T0 + MINUTE)
    assert spans() == DEFAULT
    assert MigSlice.objects.filter(purpose="phy").count() == 3


@pytest.mark.parametrize("first", ["3g.40gb", "4g.40gb"])
@pytest.mark.parametrize("telemetry_first", [False, True])
def test_instances_that_do_not_fit_the_default_layout_keep_the_whole_gpu_until_an_import_states_where_phy_is(
    du: Node, owner: User, first: str, telemetry_first: bool
) -> None:
    if telemetry_first:
        reconcile_telemetry([series("GPU-00000001", T0, node_host="du-1", site_code="S")], T0)
    halves = (slice_facts(1, first, 0, 4, "MIG-a"), slice_facts(2, "3g.40gb", 4, 4, "MIG-b"))
    reconcile_agent_report(du.pk, report(T0 + MINUTE, gpu_facts("GPU-00000001", mig_enabled=True, slices=halves)), T0 + MINUTE)
    assert spans() == WHOLE
    imported(owner, gpu_row(placements="4:4"))
    assert spans() == [(4, 4)]
    assert list(MigSlice.objects.order_by("start").values_list("purpose", flat=True)) == ["ai", "phy"]
    reconcile_agent_report(du.pk, report(T0 + 2 * MINUTE, gpu_facts("GPU-00000001", mig_enabled=True, slices=ONES)), T0 + 2 * MINUTE)
    assert spans() == [(4, 4)]


def test_what_fits_inside_the_default_placements_keeps_them(du: Node) -> None:
    parts = (slice_facts(1, "2g.20gb", 0, 2), slice_facts(2, "1g.10gb", 2, 1), slice_facts(3, "1g.10gb", 3, 1), slice_facts(4, "3g.40gb", 4, 4))
    reconcile_agent_report(du.pk, report(T0, gpu_facts("GPU-00000001", mig_enabled=True, slices=parts)), T0)
    assert spans() == DEFAULT


def test_slices_that_are_held_as_phys_say_where_it_is(du: Node) -> None:
    gpu = make_gpu("GPU-00000001", node=du, mig_enabled=True)
    for instance, start, purpose in ((1, 0, "ai"), (2, 4, "phy")):
        MigSlice.objects.create(gpu=gpu, gpu_instance_id=instance, profile="3g.40gb", start=start, size=4, purpose=purpose, created_at=T0)
    assert protection.protect_bare() == 1
    assert spans() == [(4, 4)]
    assert protection.protect_bare() == 0


def test_an_import_with_an_empty_cell_protects_and_is_undone(du: Node, owner: User) -> None:
    held = imported(owner, gpu_row())
    assert spans() == DEFAULT
    imported(owner, gpu_row())
    assert spans() == DEFAULT
    undone(held, owner)
    assert not Gpu.objects.exists()


def test_an_empty_cell_or_a_missing_column_takes_nothing_away(du: Node, owner: User) -> None:
    imported(owner, gpu_row(placements="4:4"))
    imported(owner, gpu_row())
    imported(owner, "uuid,site,node,sku,serial\nGPU-00000001,S,du-1,h100-sxm-80gb,17\n")
    assert spans() == [(4, 4)]


def test_only_none_takes_protection_away_and_the_history_says_who_and_why(du: Node, owner: User) -> None:
    reconcile_agent_report(du.pk, report(T0, gpu_facts("GPU-00000001")), T0)
    held = imported(owner, gpu_row(placements="none"))
    assert spans() == []
    assert not refused()
    events = apps.get_model("fleet", "ProtectedPlacementEvent").objects.filter(pgh_label="delete")
    assert {(event.pgh_context.metadata["user"], event.pgh_context.metadata["reason"]) for event in events} == {(owner.pk, "as built")}
    reconcile_agent_report(du.pk, report(T0 + MINUTE, gpu_facts("GPU-00000001")), T0 + MINUTE)
    assert protection.protect_bare() == 0
    assert spans() == []
    undone(held, owner)
    assert spans() == DEFAULT


def test_a_node_that_becomes_a_du_protects_its_gpus_and_the_undo_takes_that_back(owner: User) -> None:
    node = make_node("inf-1", site=make_site("S"))
    imported(owner, gpu_row("inf-1", "none"))
    assert not refused()
    held = imported(owner, "site,host_name,role\nS,inf-1,du\n", "nodes")
    node.refresh_from_db()
    assert (node.role, spans()) == ("du", DEFAULT)
    undone(held, owner)
    assert spans() == []
    assert not refused()


def test_a_gpu_that_moves_to_a_du_node_is_protected(du: Node, owner: User) -> None:
    other = make_node("inf-1", site=du.site)
    reconcile_agent_report(other.pk, report(T0, gpu_facts("GPU-00000001")), T0)
    reconcile_agent_report(du.pk, report(T0 + MINUTE, gpu_facts("GPU-00000001")), T0 + MINUTE)
    assert (Gpu.objects.get().node, spans()) == (du, DEFAULT)
    make_gpu("GPU-00000002", node=other)
    held = imported(owner, gpu_row("du-1", uuid="GPU-00000002"))
    assert spans("GPU-00000002") == DEFAULT
    undone(held, owner)
    assert spans("GPU-00000002") == []


def test_that_a_gpu_needs_none_holds_for_the_du_node_it_was_said_of_alone(du: Node, owner: User) -> None:
    imported(owner, gpu_row(placements="none"))
    make_node("du-2", site=du.site, role=Node.Role.DU)
    assert not refused()
    imported(owner, gpu_row("du-2"))
    assert spans() == DEFAULT


def test_a_board_that_replaces_another_of_a_kind_without_mig_is_kept_whole(du: Node) -> None:
    old = make_phy_gpu(node=du, pci_bus_id="00000000:19:00.0", first_seen_at=T0, last_seen_at=T0)
    reconcile_agent_report(du.pk, report(T0 + MINUTE, gpu_facts("GPU-00000001", name="NVIDIA L40S")), T0 + MINUTE)
    old.refresh_from_db()
    assert (old.presence, spans()) == ("retired", WHOLE)


def test_a_gpu_that_no_door_saw_refuses_controls_and_its_document_keeps_it_whole(du: Node, signing_key: None) -> None:
    gpu = make_gpu("GPU-00000001", node=du)
    assert (
        controls.refusal_for(gpu)
        == "GPU stands on a DU node and what of it is PHY's is not known: clock, power and reset need approvals, which do not exist yet."
    )
    desired_state.issue_documents([du.pk], now=T0)
    assert documents() == [[("GPU-00000001", 0, 8)]]
    assert desired_state.refresh_documents(now=T0 + MINUTE) == 1
    assert documents()[-1] == [("GPU-00000001", start, 1) for start in range(3)]


def test_documents_follow_placements_that_change(du: Node, owner: User, signing_key: None) -> None:
    reconcile_agent_report(du.pk, report(T0, gpu_facts("GPU-00000001")), T0)
    assert desired_state.refresh_documents(now=T0) == 1
    assert desired_state.refresh_documents(now=T0) == 0
    imported(owner, gpu_row(placements="4:4"))
    assert desired_state.refresh_documents(now=T0 + MINUTE) == 1
    other = make_node("du-2", site=du.site, role=Node.Role.DU)
    reconcile_agent_report(other.pk, report(T0 + MINUTE, gpu_facts("GPU-00000001")), T0 + MINUTE)
    assert Gpu.objects.get().node_id == other.pk
    assert desired_state.refresh_documents(now=T0 + 2 * MINUTE) == 2
    assert documents() == [[("GPU-00000001", start, 1) for start in range(3)], [("GPU-00000001", 4, 4)], [], [("GPU-00000001", 4, 4)]]
    assert not StaleDocument.objects.exists()


@pytest.fixture
def signing_key(tmp_path: Path, settings: Settings) -> None:
    path = tmp_path / "signing.pem"
    signing.create_key_file(path)
    settings.SIGNING_KEY_FILE = str(path)


def documents() -> list[list[tuple[str, int, int]]]:
    """Protected spans of each document, by node and version."""
    states = [DesiredState.from_bytes(bytes(each.body)) for each in DesiredDocument.objects.order_by("node_id", "version")]
    return [[(span.gpu_uuid, span.start, span.size) for span in state.protected] for state in states]


@pytest.mark.parametrize("seed", range(8))
def test_no_gpu_of_a_du_node_is_ever_without_protection(owner: User, seed: int) -> None:
    """Whatever is seen or imported, in any order, short of an import that says `none` of a GPU on a DU node."""
    chance = random.Random(seed)
    site = make_site("S")
    nodes = [make_node(name, site=site, role=role) for name, role in (("du-1", "du"), ("inf-1", "inference"), ("du-2", "du"))]
    layouts = ((), ONES, (slice_facts(1, "4g.40gb", 0, 4), slice_facts(2, "3g.40gb", 4, 4)), None)
    for step in range(1, 13):
        now, node = T0 + step * MINUTE, chance.choice(nodes)
        uuid = f"GPU-0000000{chance.randrange(4)}"
        pci = f"00000000:{chance.choice('12')}9:00.0"
        match chance.randrange(4):
            case 0:
                model = chance.choice(["NVIDIA H100 80GB HBM3", "", "NVIDIA L40S"])
                reconcile_telemetry([series(uuid, now, node_host=node.host_name, site_code="S", model_name=model, pci_bus_id=pci)], now)
            case 1:
                gpus: list[GpuFacts] = [
                    gpu_facts(uuid, pci_bus_id=pci, mig_enabled=True, slices=chance.choice(layouts), name=chance.choice(["NVIDIA H100 80GB HBM3", ""]))
                ]
                reconcile_agent_report(node.pk, report(now, *gpus, complete=chance.random() < 0.7), now)
            case 2:
                du_nodes = Node.objects.get(pk=node.pk).role == "du"
                imported_or_conflict(owner, gpu_row(node.host_name, chance.choice(["", "4:4", "all"] if du_nodes else ["", "none"]), uuid))
            case _:
                imported_or_conflict(owner, f"site,host_name,role\nS,{node.host_name},{chance.choice(['du', 'inference'])}\n", "nodes")
        bare = Gpu.objects.filter(node__role="du", protected_placements__isnull=True).exclude(presence="retired")
        assert not bare.exists(), f"after step {step}"


def imported_or_conflict(owner: User, content: str, kind: str = "gpus") -> None:
    """Apply a file also where it contradicts what was seen: somebody chose its rows."""
    held = pipeline.start_import(owner=owner, kind=kind, file_name=f"{kind}.csv", content=content.encode(), on_duplicate="update", region_ids=None)
    jobs.run(held.job.pk, runner_of, T0)
    held.refresh_from_db()
    held.rows.filter(outcome="conflict").update(selected=True)
    if held.rows.filter(selected=True).exists():
        pipeline.queue_apply(held, user=owner, reason="as built", region_ids=None, now=T0)
        job = jobs.run(held.job.pk, runner_of, T0)
        assert job is not None
        assert (job.state, job.error) == (Job.State.DONE, "")
