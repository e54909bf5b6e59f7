"""`/sites/<code>`: what is known of one site, and planning maintenance on it. Inputs of case C36 for forms."""

import json
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from fleet.models import (
    AuditEntry,
    DataQuality,
    Disagreement,
    Finding,
    GpuReading,
    HealthState,
    HealthTransition,
    LastKnownReading,
    MaintenanceWindow,
    SliceReading,
)
from tests.builders import make_node, make_phy_gpu, make_site
from tests.console.pages import Cast, a_site, text_of, with_values

pytestmark = pytest.mark.django_db
CASE_36 = Path(__file__).parent.parent / "cases/C36-foreign-id-in-a-write"


@pytest.fixture
def cast() -> Cast:
    return Cast()


def window(scope_key: str, *, starts_in: int = 1, ends_in: int = 3, reason: str = "CHG-1") -> dict[str, str]:
    now = timezone.now()
    form = "%Y-%m-%dT%H:%M"
    return {
        "scope_kind": "site",
        "scope_key": scope_key,
        "starts_at": (now + timedelta(hours=starts_in)).strftime(form),
        "ends_at": (now + timedelta(hours=ends_in)).strftime(form),
        "reason": reason,
    }


def test_header_numbers_nodes_gpus_findings_timeline(cast: Cast) -> None:
    now = timezone.now()
    site = a_site("WEST-1", cast.west, state=HealthState.DEGRADED, why="1 of 2 GPUs is slowed by heat.")
    gpu = site.nodes.get().gpus.get(index=0)
    Finding.objects.create(
        kind="gpu",
        object_key=gpu.uuid,
        site=site,
        code="heat",
        severity="major",
        summary="Slowed by heat",
        advised_action="Check the cooling.",
        since=now,
        last_at=now,
    )
    Finding.objects.create(kind="node", object_key=str(site.nodes.get().pk), site=site, code="x", severity="minor", summary="Something", since=now, last_at=now)
    HealthTransition.objects.create(
        kind="site", object_key="WEST-1", site=site, from_state="ok", to_state="degraded", cause="heat", why="It became hot.", at=now
    )
    DataQuality.objects.create(site=site, reason="out_of_range", count=12345, first_at=now, last_at=now, example="power 9e18")
    Disagreement.objects.create(
        kind="node",
        object_key="7",
        site=site,
        field="driver",
        held_source="import",
        held_value="550",
        seen_source="agent",
        seen_value="580",
        since=now,
        last_at=now,
    )
    page = text_of(cast.client("viewer").get("/sites/WEST-1"))
    for words in (
        "1 of 2 GPUs is slowed by heat.",
        "host-west-1",
        "Slowed by heat",
        "Check the cooling.",
        "It became hot.",
        "12,345",
        "out_of_range",
        "580",
        "812 W",
        "61 °C",
    ):
        assert words in page, words
    assert ">host-west-1</a>" in page.split('id="findings"')[1], "a node's finding is told by its host name"


def test_a_site_out_of_contact_keeps_its_last_values_with_their_age(cast: Cast) -> None:
    now = timezone.now()
    site = a_site(
        "WEST-1",
        cast.west,
        state=HealthState.UNKNOWN,
        why="The link is down.",
        now=now - timedelta(hours=2),
        out_of_contact_since=now - timedelta(hours=2),
        power_watts=None,
    )
    gpu = site.nodes.get().gpus.get(index=0)
    GpuReading.objects.all().delete()  # an unlogged table after a crash
    SliceReading.objects.all().delete()
    LastKnownReading.objects.create(
        gpu=gpu, sampled_at=now - timedelta(hours=2), values={"gpu_temperature_celsius": 71.0}, slices={"7": {"engine_active_ratio": 0.5}}, written_at=now
    )
    page = text_of(cast.client("viewer").get("/sites/WEST-1"))
    assert "Out of contact" in page
    assert "What you see are the last values" in page
    assert "71 °C" in page
    assert "not reported" in page
    assert "2 h" in page


def test_a_site_that_never_spoke_says_so(cast: Cast) -> None:
    make_site("NEW-1", region=cast.west)
    page = text_of(cast.client("viewer").get("/sites/NEW-1"))
    assert "Never heard of" in page
    assert "Has never reported." in page
    assert "No GPU of this site is known yet" in page


def test_the_same_statements_for_1_and_for_12_gpus(cast: Cast) -> None:
    site = a_site("WEST-1", cast.west)
    client = cast.client("viewer")
    client.get("/sites/WEST-1")
    with CaptureQueriesContext(connection) as few:
        client.get("/sites/WEST-1")
    for number in range(5):
        node = make_node(f"more-{number}", site=site)
        with_values(make_phy_gpu(node=node), now=timezone.now())
        with_values(
            make_phy_gpu(
                node=node,
            ),
            now=timezone.now(),
        )
    with CaptureQueriesContext(connection) as many:
        client.get("/sites/WEST-1")
    assert len(many) == len(few)


def test_strangers(cast: Cast) -> None:
    a_site("WEST-1", cast.west)
    assert cast.client("stranger").get("/sites/WEST-1").status_code == 404
    assert cast.client("tenant_user").get("/sites/WEST-1").status_code == 404
    assert cast.client("operator").get("/sites/NOWHERE").status_code == 404
    assert Client().get("/sites/WEST-1").status_code == 302


def test_history_shows_before_and_after_with_who(cast: Cast) -> None:
    site = a_site("WEST-1", cast.west)
    site.name = "Renamed"
    site.region = cast.east
    site.save()
    page = text_of(cast.client("administrator").get("/sites/WEST-1"))
    assert "<del>Site WEST-1</del>" in page
    assert "<ins>Renamed</ins>" in page
    assert "<del>West</del>" in page
    assert "<ins>East</ins>" in page


def test_an_operator_plans_extends_and_ends_maintenance(cast: Cast) -> None:
    a_site("WEST-1", cast.west)
    client = cast.client("operator")
    assert client.post("/maintenance/plan", window("WEST-1"))["Location"] == "/sites/WEST-1"
    row = MaintenanceWindow.objects.get()
    assert (row.scope_kind, row.scope_key, row.reason, row.created_by) == ("site", "WEST-1", "CHG-1", "olga")
    assert "CHG-1" in text_of(client.get("/sites/WEST-1"))
    client.post(f"/maintenance/{row.pk}/extend")
    assert MaintenanceWindow.objects.get().ends_at == row.ends_at + timedelta(hours=1)
    client.post(f"/maintenance/{row.pk}/end")
    assert MaintenanceWindow.objects.get().ended_at is not None
    history = text_of(client.get("/sites/WEST-1"))
    for act in ("maintenance.create", "maintenance.extend", "maintenance.end"):
        assert act in history


def test_times_are_read_in_the_persons_zone(cast: Cast) -> None:
    a_site("WEST-1", cast.west)
    cast.operator.time_zone = "Asia/Tokyo"
    cast.operator.save()
    cast.client("operator").post("/maintenance/plan", {**window("WEST-1"), "starts_at": "2031-01-01T09:00", "ends_at": "2031-01-01T10:00"})
    assert MaintenanceWindow.objects.get().starts_at.isoformat() == "2031-01-01T00:00:00+00:00"
    assert "JST" in text_of(cast.client("operator").get("/sites/WEST-1"))


def test_a_wrong_plan_names_each_field_and_stores_nothing(cast: Cast) -> None:
    a_site("WEST-1", cast.west)
    answer = cast.client("operator").post("/maintenance/plan", {**window("WEST-1", starts_in=3, ends_in=1, reason=" "), "scope_kind": "site"})
    assert answer.status_code == 422
    assert set(answer.context["form"].errors) == {"reason"} | ({"ends_at"} if "ends_at" in answer.context["form"].errors else set())
    for changes in ({"starts_at": "nonsense"}, {"ends_at": "1e400"}, {"reason": "x" * 301}, {"starts_at": "", "ends_at": ""}):
        answer = cast.client("operator").post("/maintenance/plan", {**window("WEST-1"), **changes})
        assert answer.status_code == 422
        assert set(answer.context["form"].errors) == set(changes)
    assert not MaintenanceWindow.objects.exists()


def test_a_viewer_gets_403_that_names_the_right(cast: Cast) -> None:
    a_site("WEST-1", cast.west)
    answer = cast.client("viewer").post("/maintenance/plan", window("WEST-1"))
    assert answer.status_code == 403
    assert "“operate”" in text_of(answer)
    assert "Plan maintenance" not in text_of(cast.client("viewer").get("/sites/WEST-1"))


def test_c36_a_foreign_id_in_a_form_is_like_one_that_does_not_exist(cast: Cast) -> None:
    world = json.loads((CASE_36 / "world.json").read_text())["objects"]
    own, foreign = (a_site(name, region) for name, region in (("AMBER", cast.west), ("BIRCH", cast.east)))
    foreign_gpu = foreign.nodes.get().gpus.get(index=1)
    type(foreign_gpu).objects.filter(pk=foreign_gpu.pk).update(uuid=world["birch"]["gpu"])
    client = cast.client("operator")

    def posted(path: str, data: dict[str, str]) -> tuple[int, str]:
        answer = client.post(path, data)
        return answer.status_code, text_of(answer).split('id="main"')[1].split("Problem id")[0]

    missing = posted("/maintenance/plan", window("NOWHERE"))
    assert posted("/maintenance/plan", window("BIRCH")) == missing
    assert missing[0] == 404
    clock = {"min_mhz": "1000", "max_mhz": "1200", "ends_at": "2031-01-01T00:00:00", "reason": "x", "idempotency_key": "k"}
    assert posted(f"/gpus/{world['birch']['gpu']}/clock-range", clock) == posted("/gpus/GPU-315d2f71-8aec-5077-a544-d9a9eb283017/clock-range", clock)
    stranger_window = MaintenanceWindow.objects.create(
        scope_kind="site", scope_key="BIRCH", starts_at=timezone.now(), ends_at=timezone.now() + timedelta(hours=1), reason="x", created_by="stan"
    )
    assert posted(f"/maintenance/{stranger_window.pk}/end", {})[0] == posted("/maintenance/999999/end", {})[0] == 404
    assert list(client.get(f"/gpus?node={foreign.nodes.get().pk}").context["list"].rows) == []
    assert {row.node.site.code for row in client.get("/gpus").context["list"].rows} == {own.code}
    assert not AuditEntry.objects.exists()
    assert MaintenanceWindow.objects.count() == 1
