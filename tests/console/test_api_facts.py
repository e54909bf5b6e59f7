"""What the pages show and a program asks for: controls with their state, the agent's papers, boards, XIDs in words, the overview."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from agent.protocol import fingerprint_of
from console.models import User
from fleet.catalogue import SKUS
from fleet.control import controls
from fleet.control.signing import create_key_file
from fleet.health.xid import table
from fleet.models import (
    AgentConnection,
    AgentIdentity,
    DesiredDocument,
    EnrolmentToken,
    Finding,
    Gpu,
    KeyChangeRequest,
    ObservedControl,
    SiteHealth,
    Workload,
    XidEvent,
)
from tests.builders import T0, make_area, make_gpu, make_node, make_region, make_site, make_tenant, make_user
from tests.console.api_support import call, strict

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def signing_key(tmp_path: Path, settings: Any) -> None:
    create_key_file(tmp_path / "signing.pem")
    settings.SIGNING_KEY_FILE = str(tmp_path / "signing.pem")


def lock_clock(gpu: Gpu, user: User) -> int:
    """Asked for; returns the version of the document that says so."""
    now = timezone.now()
    controls.submit_clock_range(gpu=gpu, min_mhz=900, max_mhz=1100, ends_at=now + timedelta(hours=1), reason="heat", user=user, idempotency_key=None, now=now)
    return DesiredDocument.objects.filter(node=gpu.node).latest("version").version


def observe(gpu: Gpu, state: str, version: int, **fields: Any) -> None:
    ObservedControl.objects.create(
        node=fields.pop("node", gpu.node), gpu_uuid=gpu.uuid, control="clock_range", state=state, version=version, at=T0, received_at=T0, observed={}, **fields
    )


def clock_range(user: User, gpu: Gpu) -> Any:
    return strict(call(user, "GET", f"gpus/{gpu.uuid}/clock-range"))


def test_a_control_says_its_state_and_why_the_agent_refused_the_document() -> None:
    gpu, user = make_gpu(), make_user(role="operator")
    assert (clock_range(user, gpu)["state"], strict(call(user, "GET", f"gpus/{gpu.uuid}/controls/"))) == (None, [])
    version = lock_clock(gpu, user)
    assert clock_range(user, gpu)["state"] == "pending"
    contact = AgentConnection.objects.create(node=gpu.node, connected=True, refusal="bad_signature: not the console's key", report={})
    assert clock_range(user, gpu)["document_refused_because"] == "bad_signature: not the console's key"
    contact.refusal = ""
    contact.save()
    observe(gpu, "drifted", version, detail="read back 1980 MHz")
    shown = clock_range(user, gpu)
    assert (shown["state"], shown["observed"]["detail"], shown["agent_connected"], shown["document_refused_because"]) == (
        "drifted",
        "read back 1980 MHz",
        True,
        "",
    )
    [listed] = strict(call(user, "GET", f"gpus/{gpu.uuid}/controls/"))
    assert (listed["control"], listed["state"], listed["in_force"]["parameters"]) == ("clock_range", "drifted", {"min_mhz": 900, "max_mhz": 1100})


def test_the_word_of_the_node_that_a_gpu_left_does_not_count() -> None:
    gpu, user, old = make_gpu(), make_user(role="operator"), make_node()
    observe(gpu, "applied", 7, node=old)
    assert clock_range(user, gpu)["observed"] is None
    version = lock_clock(gpu, user)
    assert (clock_range(user, gpu)["state"], clock_range(user, gpu)["observed"]) == ("pending", None)
    observe(gpu, "applied", version)
    assert (clock_range(user, gpu)["state"], clock_range(user, gpu)["observed"]["version"]) == ("applied", version)


def test_a_node_shows_the_papers_of_its_agent() -> None:
    node, user, now = make_node(), make_user(role="viewer"), timezone.now()
    path = f"nodes/{node.pk}/?expand=enrolment,gpus"
    assert strict(call(user, "GET", path))["enrolment"] == {"key": None, "open_token": None, "key_change": None, "document": None}
    AgentIdentity.objects.create(node=node, public_key=b"o" * 32, enrolled_at=T0, revoked_at=T0)
    AgentIdentity.objects.create(node=node, public_key=b"k" * 32, enrolled_at=T0)
    EnrolmentToken.objects.create(node=node, token_hash="a", expires_at=now + timedelta(days=1))
    EnrolmentToken.objects.create(node=node, token_hash="b", expires_at=now + timedelta(days=2), used_at=now)
    change = KeyChangeRequest.objects.create(node=node, public_key=b"n" * 32, requested_at=T0)
    make_gpu(node=node)
    make_gpu(node=node, presence=Gpu.Presence.MISSING)
    for version in (1, 2):
        DesiredDocument.objects.create(node=node, version=version, body=b"{}", signature=b"s", key_id="k", created_at=T0)
    body = strict(call(user, "GET", path))
    assert body["enrolment"]["key"] == {"fingerprint": fingerprint_of(b"k" * 32), "enrolled_at": "2026-11-20T10:00:00Z"}
    assert body["enrolment"]["open_token"]["expires_at"].startswith((now + timedelta(days=1)).strftime("%Y-%m-%dT%H"))
    assert body["enrolment"]["key_change"]["id"] == change.pk
    assert body["enrolment"]["document"]["version"] == 2
    assert body["gpus"] == {"present": 1, "known": 2}


def test_the_papers_of_many_nodes_take_as_many_statements_as_of_three() -> None:
    user, site = make_user(role="viewer"), make_site()

    def statements() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert call(user, "GET", "nodes/?expand=enrolment,gpus,agent,health&page_size=200").status_code == 200
        return len(captured)

    def add(count: int) -> None:
        for _ in range(count):
            node = make_node(site=site)
            AgentIdentity.objects.create(node=node, public_key=str(node.pk).encode().zfill(32), enrolled_at=T0)

    add(3)
    few = statements()
    add(57)
    assert statements() == few


def test_boards() -> None:
    user = make_user(role="viewer")
    found = strict(call(user, "GET", "skus/"))["results"]
    assert [one["key"] for one in found] == sorted(SKUS)
    one = strict(call(user, "GET", "skus/h100-sxm-80gb/"))
    assert (one["memory_mib"], one["mig_capable"], one["power_max_watts"]) == (81559, True, 700) or one["mig_capable"]
    profile = next(each for each in one["profiles"] if each["name"] == "1g.10gb")
    assert (profile["placements"], profile["size"]) == ([0, 1, 2, 3, 4, 5, 6], 1)
    assert one["sources"]
    assert call(user, "GET", "skus/voodoo/").status_code == 404
    assert call(user, "GET", "skus/?x=1").status_code == 400
    assert call(make_user(tenant=make_tenant()), "GET", "skus/").status_code == 403


def test_an_xid_says_what_it_means_and_what_to_do() -> None:
    gpu = make_gpu()
    for code in (79, 12345):
        XidEvent.objects.create(gpu=gpu, xid=code, first_at=T0, last_at=T0, source="gauge")
    found = {row["xid"]: row for row in strict(call(make_user(role="viewer"), "GET", "xid-events/"))["results"]}
    assert (found[79]["meaning"], found[79]["advised_action"]) == (table().rule(79).meaning, table().rule(79).advised)
    assert found[79]["meaning"]
    assert found[12345]["meaning"] == "Not in the table"
    assert found[79]["known"] is True
    assert found[12345]["known"] is False


def test_the_overview_in_one_call() -> None:
    area = make_area("north")
    region = make_region("n-1", area=area)
    down, silent = make_site("DOWN", region=region, power_feed_watts=1000), make_site("SILENT", region=region)
    SiteHealth.objects.create(site=down, state="down", since=T0, cause="gpu_lost", last_contact_at=T0, power_watts=900.0)
    SiteHealth.objects.create(site=silent, state="unknown", since=T0, cause="link_down", last_contact_at=T0, out_of_contact_since=T0)
    make_site("NEW", region=region)
    Finding.objects.create(kind="site", object_key="DOWN", site=down, code="gpu_lost", severity="critical", summary="s", since=T0, last_at=T0)
    body = strict(call(make_user(role="viewer"), "GET", "overview"))
    assert body["sites"] == {
        "total": 3,
        "reporting": 1,
        "never": 1,
        "oldest_contact_at": "2026-11-20T10:00:00Z",
        "by_state": {"ok": 0, "degraded": 0, "down": 1, "unknown": 2, "maintenance": 0},
    }
    [cause] = body["findings"]["by_cause"]
    assert (cause["code"], cause["title"], cause["severity"], cause["sites"], cause["objects"], cause["site"]) == (
        "gpu_lost",
        "GPU lost",
        "critical",
        1,
        1,
        "DOWN",
    )
    assert body["findings"]["open"] == 1
    assert [(line["region"], line["worst"], line["reporting"]) for line in body["worst_regions"]] == [("n-1", "down", 1)]
    assert (body["silent"]["total"], [one["site"] for one in body["silent"]["sites"]]) == (1, ["SILENT"])
    assert body["power"] == [{"area": "North", "watts": 900.0, "sites_with_power": 1, "sites": 3, "fed_watts": 900.0, "feed_watts": 1000}]
    assert strict(call(make_user(role="viewer", region=make_region()), "GET", "overview"))["sites"]["total"] == 0
    assert call(make_user(role="viewer"), "GET", "overview?x=1").status_code == 400


def test_a_tenants_overview_is_of_its_workloads_alone() -> None:
    gpu, amber = make_gpu(), make_tenant("amber")
    for key in ("amber", "birch"):
        Workload.objects.create(gpu=gpu, namespace=f"ns-{key}", pod="p", sharing="whole", tenant_key=key, started_at=T0, last_seen_at=T0)
    body = strict(call(make_user(tenant=amber), "GET", "overview"))
    assert body["tenants"] == [{"name": "Amber", "workloads": 1, "pods": 1, "namespaces": 1, "touched": 1}]
    assert set(body) == {"at", "tenants"}
