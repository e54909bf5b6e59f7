"""`/gpus/<uuid>`: strip, values, faults in plain words, and the clock range. Inputs of case C38 for forms."""

import json
from datetime import timedelta
from pathlib import Path

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from fleet.control import signing
from fleet.models import Finding, Gpu, GpuReading, HealthTransition, MigSlice, ObservedControl, Policy, Workload, XidEvent
from tests.builders import make_gpu, make_node
from tests.console.pages import Cast, a_site, text_of

pytestmark = pytest.mark.django_db
CASE_38 = Path(__file__).parent.parent / "cases/C38-non-finite-input"


@pytest.fixture
def cast() -> Cast:
    return Cast()


@pytest.fixture
def phy(cast: Cast) -> Gpu:
    return a_site("WEST-1", cast.west).nodes.get().gpus.get(index=0)


@pytest.fixture
def plain(phy: Gpu) -> Gpu:
    return phy.node.gpus.get(index=1)


@pytest.fixture
def key(tmp_path: Path, settings: Settings) -> None:
    signing.create_key_file(tmp_path / "signing.pem")
    settings.SIGNING_KEY_FILE = str(tmp_path / "signing.pem")


def clock(**changes: str) -> dict[str, str]:
    ends_at = (timezone.now() + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%S")
    return {"min_mhz": "900", "max_mhz": "1200", "ends_at": ends_at, "reason": "heat", "idempotency_key": "k-1", **changes}


def test_the_strip_shows_positions_with_phy_locked_and_use_per_slice(cast: Cast, phy: Gpu) -> None:
    now = timezone.now()
    Workload.objects.create(
        gpu=phy, slice=phy.slices.get(start=3), namespace="acme-prod", pod="yolo-1", sharing="mig", tenant_key="acme", started_at=now, last_seen_at=now
    )
    answer = cast.client("viewer").get(f"/gpus/{phy.uuid}")
    strip = answer.context["facts"].strip
    assert [(span.start, span.size, span.kind) for span in strip.spans] == [
        (0, 1, "phy"),
        (1, 1, "phy"),
        (2, 1, "phy"),
        (3, 1, "ai"),
        (4, 1, "ai"),
        (5, 1, "ai"),
        (6, 1, "ai"),
        (7, 1, "none"),
    ]
    assert strip.spans[3].workloads[0].pod == "yolo-1"
    assert strip.spans[3].busy_ratio == 0.5
    page = text_of(answer)
    assert "3 protected, 4 for AI, 0 free" in page
    assert "locked" in page
    assert "Acme" in page


def test_free_positions_say_what_fits_and_larger_spans_take_their_room(cast: Cast, phy: Gpu) -> None:
    now = timezone.now()
    MigSlice.objects.filter(gpu=phy, start__gte=3).update(ended_at=now)
    MigSlice.objects.create(gpu=phy, gpu_instance_id=3, profile="2g.20gb", start=4, size=2, created_at=now)
    MigSlice.objects.create(gpu=phy, gpu_instance_id=19, profile="1g.10gb", created_at=now)
    strip = cast.client("viewer").get(f"/gpus/{phy.uuid}").context["facts"].strip
    assert [(span.start, span.size, span.kind) for span in strip.spans][3:] == [(3, 1, "free"), (4, 2, "ai"), (6, 1, "free"), (7, 1, "none")]
    assert "1g.10gb" in strip.spans[3].fits
    assert [span.slice.gpu_instance_id for span in strip.unplaced if span.slice] == [19]


def test_a_gpu_without_mig_is_shown_whole(cast: Cast, plain: Gpu) -> None:
    answer = cast.client("viewer").get(f"/gpus/{plain.uuid}")
    assert [(span.kind, span.size) for span in answer.context["facts"].strip.spans] == [("whole", 8)]
    assert "one whole GPU, without MIG" in text_of(answer)


def test_values_with_units_and_what_is_not_reported_is_not_zero(cast: Cast, plain: Gpu) -> None:
    GpuReading.objects.filter(gpu=plain).update(ecc_dbe_total=0.0)
    page = text_of(cast.client("viewer").get(f"/gpus/{plain.uuid}"))
    for text in ("61 °C", "1,395 MHz", "406 W", "78 %"):
        assert text in page
    counters = page.split('id="counters"')[1]
    assert 'ECC double-bit</dt><dd class="num"><span data-field' in counters
    assert counters.split("ECC single-bit")[1].split("</dd>")[0].endswith("not reported</span></span>")


def test_values_that_are_old_are_shown_with_their_age(cast: Cast, plain: Gpu) -> None:
    client = cast.client("viewer")
    assert "Last values" not in text_of(client.get(f"/gpus/{plain.uuid}"))
    GpuReading.objects.filter(gpu=plain).update(sampled_at=timezone.now() - timedelta(seconds=25))
    assert "Ageing" in text_of(client.get(f"/gpus/{plain.uuid}"))
    GpuReading.objects.filter(gpu=plain).update(sampled_at=timezone.now() - timedelta(minutes=5))
    assert "nothing has come since" in text_of(client.get(f"/gpus/{plain.uuid}"))
    GpuReading.objects.filter(gpu=plain).delete()
    assert "never measured" in text_of(client.get(f"/gpus/{plain.uuid}"))


def test_xids_and_findings_in_plain_words_with_the_advised_action(cast: Cast, plain: Gpu) -> None:
    now = timezone.now()
    XidEvent.objects.create(gpu=plain, xid=79, first_at=now, last_at=now, count=2, source="gauge")
    XidEvent.objects.create(gpu=plain, xid=9999, first_at=now, last_at=now, source="gauge")
    Finding.objects.create(
        kind="gpu",
        object_key=plain.uuid,
        site=plain.node.site,
        code="xid_79",
        severity="critical",
        summary="GPU has fallen off the bus",
        advised_action="Restart the node.",
        since=now,
        last_at=now,
    )
    HealthTransition.objects.create(kind="gpu", object_key=plain.uuid, from_state="ok", to_state="down", cause="gpu_lost", why="Lost.", at=now)
    page = text_of(cast.client("viewer").get(f"/gpus/{plain.uuid}"))
    for words in ("XID 79:", "(2 times)", "XID 9999:", "GPU has fallen off the bus", "Restart the node.", "Down: Lost."):
        assert words in page, words


def test_setting_the_clock_range_stores_it_and_offers_undo(cast: Cast, plain: Gpu, key: None) -> None:
    client = cast.client("operator")
    assert client.post(f"/gpus/{plain.uuid}/clock-range", clock())["Location"] == f"/gpus/{plain.uuid}"
    policy = Policy.objects.get()
    assert (policy.parameters, policy.reason, policy.created_by) == ({"min_mhz": 900, "max_mhz": 1200}, "heat", cast.operator)
    page = text_of(client.get(f"/gpus/{plain.uuid}"))
    assert 'id="undo"' in page
    assert "900–1,200 MHz" in page
    assert "waits for the agent" in page
    client.post(f"/gpus/{plain.uuid}/clock-range", clock())
    assert Policy.objects.count() == 1, "the same form sent twice is one control"
    client.post(f"/gpus/{plain.uuid}/controls/{policy.pk}/withdraw", {"reason": "Undone within 10 seconds"})
    policy.refresh_from_db()
    assert policy.withdrawn_by == cast.operator
    page = text_of(client.get(f"/gpus/{plain.uuid}"))
    assert 'id="undo"' not in page
    assert "withdrawn by olga" in page


def test_desired_and_observed_with_drift(cast: Cast, plain: Gpu, key: None) -> None:
    client = cast.client("operator")
    client.post(f"/gpus/{plain.uuid}/clock-range", clock())
    now = timezone.now()
    ObservedControl.objects.create(
        node=plain.node,
        gpu_uuid=plain.uuid,
        control="clock_range",
        version=1,
        state="drifted",
        observed={"sm_mhz": 1395},
        detail="Measured 1395 MHz, above 1200 MHz.",
        at=now,
        received_at=now,
    )
    page = text_of(client.get(f"/gpus/{plain.uuid}"))
    assert "drifted" in page
    assert "read back 1,395 MHz" in page
    assert "above 1200 MHz" in page


def test_on_a_phy_gpu_the_button_is_off_with_the_reason_and_the_post_is_refused(cast: Cast, phy: Gpu, key: None) -> None:
    client = cast.client("operator")
    page = text_of(client.get(f"/gpus/{phy.uuid}"))
    assert 'aria-disabled="true" aria-describedby="clock-refusal"' in page
    assert "carries PHY at positions 0-2" in page
    assert 'id="clock-dialog"' not in page
    answer = client.post(f"/gpus/{phy.uuid}/clock-range", clock())
    assert answer.status_code == 409
    assert "carries PHY at positions 0-2" in text_of(answer).split('id="clock-dialog"')[1]
    assert not Policy.objects.exists()


def test_who_may_not_operate_has_no_button_and_gets_403(cast: Cast, plain: Gpu, key: None) -> None:
    viewer = cast.client("viewer")
    assert "Clock range" not in text_of(viewer.get(f"/gpus/{plain.uuid}"))
    answer = viewer.post(f"/gpus/{plain.uuid}/clock-range", clock())
    assert answer.status_code == 403
    assert "“operate”" in text_of(answer)
    assert not Policy.objects.exists()


def test_strangers(cast: Cast, plain: Gpu, key: None) -> None:
    for name in ("stranger", "tenant_user"):
        client = cast.client(name)
        assert client.get(f"/gpus/{plain.uuid}").status_code == 404
        assert client.post(f"/gpus/{plain.uuid}/clock-range", clock()).status_code == 404
    assert Client().get(f"/gpus/{plain.uuid}").status_code == 302
    assert cast.client("operator").get("/gpus/GPU-nowhere").status_code == 404
    assert not Policy.objects.exists()


def test_a_policy_of_another_gpu_cannot_be_withdrawn_through_this_one(cast: Cast, plain: Gpu, key: None) -> None:
    other = make_gpu(node=make_node(site=plain.node.site))
    client = cast.client("operator")
    client.post(f"/gpus/{other.uuid}/clock-range", clock())
    assert client.post(f"/gpus/{plain.uuid}/controls/{Policy.objects.get().pk}/withdraw").status_code == 404
    assert Policy.objects.get().withdrawn_at is None


def test_c38_numbers_that_are_none_are_refused_and_named(cast: Cast, plain: Gpu, key: None) -> None:
    client = cast.client("operator")
    texts = [
        str(json.loads(row["raw"]).get("threshold"))
        for row in json.loads((CASE_38 / "requests.json").read_text())
        if row["id"] not in ("fine", "in-json-field")
    ]
    assert "nan" in texts
    for text in [*texts, "1e400", "-5", "1200.5", "", "9" * 400]:
        answer = client.post(f"/gpus/{plain.uuid}/clock-range", clock(min_mhz=text))
        assert answer.status_code == 422, text
        assert "min_mhz" in answer.context["form"].errors, text
    assert not Policy.objects.exists()
    assert client.get(f"/gpus/{plain.uuid}").status_code == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_mhz", "99999"), ("ends_at", "2020-01-01T00:00:00"), ("ends_at", "2099-01-01T00:00:00"), ("ends_at", "soon"), ("reason", ""), ("reason", "x" * 301)],
)
def test_wrong_fields_are_named_in_the_open_dialog(cast: Cast, plain: Gpu, key: None, field: str, value: str) -> None:
    answer = cast.client("operator").post(f"/gpus/{plain.uuid}/clock-range", clock(**{field: value}))
    assert answer.status_code == 422
    assert set(answer.context["form"].errors) == {field}
    assert "data-show" in text_of(answer).split('id="clock-dialog"')[1][:80]


def test_a_lowest_above_the_highest_is_refused(cast: Cast, plain: Gpu, key: None) -> None:
    answer = cast.client("operator").post(f"/gpus/{plain.uuid}/clock-range", clock(min_mhz="1300"))
    assert answer.status_code == 422
    assert set(answer.context["form"].errors) == {"min_mhz"}


def test_without_a_signing_key_nothing_is_set(cast: Cast, plain: Gpu, settings: Settings) -> None:
    settings.SIGNING_KEY_FILE = ""
    answer = cast.client("operator").post(f"/gpus/{plain.uuid}/clock-range", clock())
    assert answer.status_code == 503
    assert "Nothing was set" in text_of(answer)
    assert not Policy.objects.exists()
