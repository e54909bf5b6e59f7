"""MIG layouts that cannot be: shown with the reason where hardware tells of them, refused with row and reason in imports."""

from datetime import timedelta

import pytest

from agent.protocol import SliceFacts
from console.models import User
from fleet import jobs
from fleet.catalogue import sku
from fleet.inventory.importing import pipeline
from fleet.inventory.importing.check import check_protection
from fleet.inventory.mig import Span
from fleet.inventory.seen import reconcile_agent_report, reconcile_telemetry
from fleet.job_kinds import runner_of
from fleet.models import Finding, Gpu, MigSlice, ProtectedPlacement
from tests.builders import T0, make_gpu, make_node, make_site, make_user
from tests.fleet.seen import gpu_facts, report, series, slice_facts

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


def found() -> list[str]:
    return [reason for finding in Finding.objects.open().filter(code="mig_impossible") for reason in finding.evidence["reasons"]]


def told(gpu: Gpu, *slices: SliceFacts, minutes: int = 1) -> None:
    at = T0 + minutes * MINUTE
    reconcile_agent_report(gpu.node_id, report(at, gpu_facts(gpu.uuid, name="", mig_enabled=True, slices=slices)), at)


@pytest.mark.parametrize(
    ("board", "slices", "reasons"),
    [
        ("h100-sxm-80gb", [(1, "4g.40gb", 4, 4)], ["4g.40gb may start only at position 0, not at 4."]),
        ("l40s-48gb", [(1, "1g.10gb", 0, 1)], ["L40S 48GB has no MIG: it is one whole GPU."]),
        ("h100-sxm-80gb", [(1, "3g.40gb", 0, 4), (2, "2g.20gb", 2, 2)], ["3g.40gb at 0 and 2g.20gb at 2 both take positions 2-3."]),
        ("h100-sxm-80gb", [(1, "3g.40gb", 0, 3)], ["3g.40gb takes 4 positions, not 3."]),
    ],
)
def test_what_cannot_be_is_held_as_told_and_found_with_every_reason(board: str, slices: list[tuple[int, str, int, int]], reasons: list[str]) -> None:
    gpu = make_gpu(sku=board, mig_enabled=True)
    told(gpu, *(slice_facts(*each) for each in slices))
    assert found() == reasons
    finding = Finding.objects.open().get(code="mig_impossible")
    assert (finding.object_key, finding.severity, finding.since) == (gpu.uuid, "major", T0 + MINUTE)
    assert reasons[0] in finding.summary
    assert list(MigSlice.objects.order_by("start").values_list("profile", "start")) == [(profile, start) for _, profile, start, _ in slices]
    told(gpu, *(slice_facts(*each) for each in slices), minutes=2)
    assert Finding.objects.filter(code="mig_impossible").count() == 1
    told(gpu, minutes=3)
    assert found() == []


def test_an_instance_half_inside_what_is_phys_is_found() -> None:
    gpu = make_gpu(mig_enabled=True)
    ProtectedPlacement.objects.create(gpu=gpu, start=0, size=2)
    told(gpu, slice_facts(1, "3g.40gb", 0, 4), slice_facts(2, "3g.40gb", 4, 4))
    assert found() == ["3g.40gb at 0 is meant for PHY but lies outside the protected placements."]


def test_telemetry_that_names_slices_of_a_board_without_mig_is_found_too() -> None:
    gpu = make_gpu(sku="l40s-48gb")
    place = {"node_host": gpu.node.host_name, "site_code": gpu.node.site.code}
    reconcile_telemetry([series(gpu.uuid, T0, gpu_instance_id=1, profile="1g.10gb", model_name="", **place)], T0)
    assert found() == ["L40S 48GB has no MIG: it is one whole GPU."]


def test_layouts_that_can_be_and_boards_that_nobody_knows_are_not_found() -> None:
    for board in ("h100-sxm-80gb", "unknown"):
        gpu = make_gpu(sku=board, mig_enabled=True)
        told(gpu, slice_facts(1, "4g.40gb", 0, 4), slice_facts(2, "3g.40gb", 4, 4))
    assert found() == []


@pytest.mark.parametrize(
    ("spans", "problem"),
    [
        ([(0, 1), (1, 1), (2, 1)], ""),
        ([(0, 4), (4, 4)], ""),
        ([(0, 2), (2, 2), (4, 2), (6, 2)], ""),
        ([(0, 8)], ""),
        ([], ""),
        ([(7, 1)], "no instance of 1 positions can start at 7 on this board."),
        ([(0, 3), (3, 2)], "no instance of 3 positions can start at 0 on this board. no instance of 2 positions can start at 3 on this board."),
    ],
)
def test_spans_for_phy_together_are_a_layout_of_the_board(spans: list[tuple[int, int]], problem: str) -> None:
    assert check_protection(sku("h100-sxm-80gb"), [Span(*each) for each in spans]) == problem


def test_an_import_that_contradicts_instances_which_were_seen_is_refused_with_row_and_reason() -> None:
    owner: User = make_user("lena")
    node = make_node("du-1", site=make_site("S"), role="du")
    for number in (1, 2, 3):
        gpu = make_gpu(f"GPU-0000000{number}", node=node, index=number, mig_enabled=True)
        for instance, start in ((1, 0), (2, 4)):
            MigSlice.objects.create(gpu=gpu, gpu_instance_id=instance, profile="3g.40gb", start=start, size=4, created_at=T0)
    content = b"""uuid,site,node,sku,protected_placements
GPU-00000001,S,du-1,h100-sxm-80gb,0:1 1:1
GPU-00000002,S,du-1,l40s-48gb,
GPU-00000003,S,du-1,h100-sxm-80gb,0:4
GPU-00000004,S,du-1,h100-sxm-80gb,4:8
"""
    held = pipeline.start_import(owner=owner, kind="gpus", file_name="gpus.csv", content=content, on_duplicate="update", region_ids=None)
    jobs.run(held.job.pk, runner_of, T0)
    errors = [(row.number, error["field"], error["message"]) for row in held.rows.order_by("number") for error in row.errors]
    assert errors == [
        (2, "protected_placements", "would cut through the instance 3g.40gb at 0, which takes positions 0-3."),
        (3, "sku", "does not fit the instances that were seen: L40S 48GB has no MIG: it is one whole GPU."),
        (5, "protected_placements", "'4:8' goes beyond the positions 0-7."),
    ]
