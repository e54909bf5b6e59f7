"""Who is said to have done what: the audit and the history of changes that come through the API."""

from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.test import Client
from django.utils import timezone

from console.models import ApiToken, User
from console.tokens import issue_token
from fleet.models import AuditEntry, Finding, Node, ObjectKind, Region, Site
from fleet.telemetry.senders import create_sender
from tests.builders import T0, make_gpu, make_node, make_region, make_site, make_tenant, make_user
from tests.console.api_support import call, strict

pytestmark = pytest.mark.django_db


def context_of(site: Site) -> dict[str, Any]:
    event: Any = site.events.order_by("-pgh_id").first()  # type: ignore[attr-defined]
    return dict(event.pgh_context.metadata)


@pytest.mark.parametrize("scopes", [None, ["read:*", "write:*"]], ids=["session", "token"])
def test_a_change_names_its_user_request_and_reason(scopes: list[str] | None) -> None:
    site, lead = make_site("S-1"), make_user("lena", role="lead")
    headers = {"If-Match": "*", "X-Reason": "Umzug nach Köln".encode().decode("latin-1")}
    done = call(lead, "PATCH", "sites/S-1/", {"name": "New"}, scopes=scopes, **headers)
    assert done.status_code == 200
    context = context_of(site)
    assert (context["user"], context["request_id"], context["reason"], context["url"]) == (
        lead.pk,
        done["X-Request-ID"],
        "Umzug nach Köln",
        "/api/v1/sites/S-1/",
    )
    assert context.get("token") == (ApiToken.objects.get().prefix if scopes else None)
    newest = strict(call(lead, "GET", "sites/S-1/history/?limit=1"))["results"]
    assert [(one["who"], one["what"], one["reason"]) for one in newest] == [("lena", "changed", "Umzug nach Köln")]
    assert newest[0]["changes"] == [{"field": "name", "before": "Site S-1", "after": "New"}]


@pytest.mark.parametrize("query", ["limit=0", "limit=501", "limit=x", "page=2", "before=yesterday", "before=2026-11-20T10:00:00"])
def test_a_bad_history_is_named(query: str) -> None:
    make_site("S-1")
    answer = call(make_user(role="viewer"), "GET", f"sites/S-1/history/?{query}")
    assert answer.status_code == 400
    assert query.split("=")[0] in strict(answer)["detail"]


def test_history_goes_on_to_what_is_older() -> None:
    make_site("S-1")
    for hour in range(5):
        AuditEntry.objects.create(at=T0 + timedelta(hours=hour), actor="lena", action=f"act {hour}", kind=ObjectKind.SITE, object_key="S-1", outcome="done")
    user, read, before = make_user(role="viewer"), [], ""
    while page := strict(call(user, "GET", f"sites/S-1/history/?limit=2{before}"))["results"]:
        read += [one["what"] for one in page]
        before = f"&before={quote(page[-1]['at'])}"
    assert [what for what in read if what.startswith("act")] == [f"act {hour}" for hour in (4, 3, 2, 1, 0)]
    assert read.count("added") == 1
    client = Client()
    client.force_login(user)
    assert client.get("/sites/S-1?history_before=soon").status_code == 400
    assert b"act 2" in client.get(f"/sites/S-1?history_before={quote((T0 + timedelta(hours=3)).isoformat())}").content


def test_every_object_has_its_history() -> None:
    gpu = make_gpu(node=make_node(site=make_site("S-1")))
    gpu.serial = "42"
    gpu.save()
    region = gpu.node.site.region
    user, stranger = make_user(role="viewer"), make_user(role="viewer", region=make_region())
    for path in (f"gpus/{gpu.uuid}", f"nodes/{gpu.node_id}", "sites/S-1", f"regions/{region.slug}", f"areas/{region.area.slug}"):
        entries = strict(call(user, "GET", f"{path}/history/"))["results"]
        assert entries[-1]["what"] == "added", path
        assert call(stranger, "GET", f"{path}/history/").status_code == 404, path


def test_tokens_leave_who_made_rotated_and_revoked_them() -> None:
    admin, robot = make_user("root", role="administrator"), make_user("robot", is_service_account=True)
    body = {"name": "ci", "scopes": ["read:sites"], "expires_at": (timezone.now() + timedelta(days=30)).isoformat(), "user": "robot"}
    answer = call(admin, "POST", "tokens/", body)
    made = strict(answer)
    rotated = call(admin, "POST", f"tokens/{made['prefix']}/rotate/")
    assert (rotated.status_code, strict(rotated)["name"]) == (201, "ci")
    assert call(admin, "POST", f"tokens/{made['prefix']}/rotate/").status_code == 409
    assert call(None, "GET", "sites/", Authorization=f"Bearer {made['secret']}").status_code == 401
    assert call(None, "GET", "sites/", Authorization=f"Bearer {strict(rotated)['secret']}").status_code == 200
    assert call(admin, "DELETE", f"tokens/{strict(rotated)['prefix']}/").status_code == 204
    entries = list(AuditEntry.objects.order_by("pk"))
    assert [(one.actor, one.action) for one in entries] == [
        ("root", "token.create"),
        ("root", "token.create"),
        ("root", "token.revoke"),
        ("root", "token.revoke"),
    ]
    assert (entries[0].object_key, entries[0].request_id, entries[0].detail["user"]) == (made["prefix"], answer["X-Request-ID"], "robot")
    assert not any(made["secret"] in str(one.detail) for one in entries)
    assert robot.api_tokens.filter(revoked_at__isnull=True).count() == 0


def test_nobody_gets_the_secret_of_another_person() -> None:
    admin, ann, now = make_user(role="administrator"), make_user("ann", role="viewer"), timezone.now()
    token, _ = issue_token(user=ann, name="t", scopes=["read:*"], expires_at=now + timedelta(days=1), now=now)
    assert call(admin, "POST", f"tokens/{token.prefix}/rotate/").status_code == 403
    assert call(admin, "DELETE", f"tokens/{token.prefix}/").status_code == 204


def test_an_act_by_token_names_the_token() -> None:
    admin = make_user("root", role="administrator")
    assert call(admin, "POST", "tenants/", {"key": "amber", "name": "Amber"}, scopes=["write:people"]).status_code == 201
    entry = AuditEntry.objects.get(action="tenant.create")
    assert (entry.actor, entry.through) == ("root", f"token:{ApiToken.objects.get().prefix}")


def test_senders_leave_who_made_rotated_and_revoked_them() -> None:
    admin = make_user("root", role="administrator")
    make_region("north")
    made = call(admin, "POST", "senders/", {"name": "prom", "regions": ["north"]})
    for act in ("rotate", "end_rotation", "end_rotation"):
        call(admin, "POST", f"senders/prom/{act}/")
    for _ in range(2):
        assert call(admin, "DELETE", "senders/prom/").status_code == 204
    entries = list(AuditEntry.objects.filter(kind=ObjectKind.SENDER, object_key="prom").order_by("pk"))
    assert [one.action for one in entries] == ["sender.create", "sender.rotate", "sender.end_rotation", "sender.revoke"]
    assert {one.actor for one in entries} == {"root"}
    assert (entries[0].request_id, entries[0].detail["regions"]) == (made["X-Request-ID"], ["north"])
    create_sender(name="by-command", regions=[])
    assert AuditEntry.objects.get(object_key="by-command").actor == "console"


def test_a_finding_is_cleared_with_a_reason() -> None:
    site = make_site("S-1")
    finding = Finding.objects.create(kind="site", object_key="S-1", site=site, code="xid_79", severity="major", summary="s", since=T0, last_at=T0)
    operator, viewer = make_user("olga", role="operator"), make_user(role="viewer")
    path = f"findings/{finding.pk}/clear/"
    assert call(viewer, "POST", path, {"reason": "x"}).status_code == 403
    assert call(make_user(role="operator", region=make_region()), "POST", path, {"reason": "x"}).status_code == 404
    assert call(operator, "POST", path, {"reason": " "}).status_code == 400
    body = strict(call(operator, "POST", path, {"reason": "board swapped"}))
    assert body["until"]
    assert "board swapped" in body["ended_because"]
    entry = AuditEntry.objects.get(action="finding.clear")
    assert (entry.actor, entry.object_key, entry.reason) == ("olga", "S-1", "board swapped")


# --- the list


@pytest.fixture
def entries() -> None:
    north = make_region("north")
    gpu = make_gpu("GPU-north", node=make_node("n-1", site=make_site("N-1", region=north)))
    make_site("S-1")
    rows = [
        ("ann", "maintenance.plan", ObjectKind.REGION, "north"),
        ("ann", "maintenance.plan", ObjectKind.SITE, "N-1"),
        ("ann", "maintenance.plan", ObjectKind.SITE, "S-1"),
        ("ann", "agent.revoke", ObjectKind.NODE, str(gpu.node_id)),
        ("bob", "control.set", ObjectKind.GPU, "GPU-north"),
        ("bob", "user.create", "", "carl"),
        ("bob", "sender.create", ObjectKind.SENDER, "prom"),
        ("lena", "token.create", "", "mh_1"),
    ]
    for minutes, (actor, action, kind, key) in enumerate(rows):
        AuditEntry.objects.create(at=T0 + timedelta(minutes=minutes), actor=actor, action=action, kind=kind, object_key=key)


def seen(user: User, query: str = "") -> list[str]:
    return [one["object_key"] for one in strict(call(user, "GET", f"audit/?ordering=at&{query}"))["results"]]


def test_each_sees_the_acts_of_its_scope(entries: None) -> None:
    node, north = str(Node.objects.get().pk), Region.objects.get(slug="north")
    assert len(seen(make_user(role="administrator"))) == 8
    assert seen(make_user("lena", role="lead")) == ["north", "N-1", "S-1", node, "GPU-north", "mh_1"]
    for role in ("lead", "administrator"):
        assert seen(make_user(role=role, region=north)) == ["north", "N-1", node, "GPU-north"]
    assert seen(make_user(role="lead", region=make_region())) == []
    for user in (make_user(role="operator"), make_user(role="viewer", region=north), make_user(tenant=make_tenant())):
        refused = call(user, "GET", "audit/")
        assert refused.status_code == 403
        assert "lead" in strict(refused)["detail"]


def test_filters_of_the_audit(entries: None) -> None:
    admin = make_user(role="administrator")
    assert seen(admin, "actor=bob&kind=gpu") == ["GPU-north"]
    assert seen(admin, "action=user.create,token.create") == ["carl", "mh_1"]
    assert seen(admin, "kind=site&key=S-1") == ["S-1"]
    assert seen(admin, f"since={(T0 + timedelta(minutes=6)).isoformat().replace('+', '%2B')}") == ["prom", "mh_1"]
    assert seen(admin, f"until={(T0 + timedelta(minutes=1)).isoformat().replace('+', '%2B')}") == ["north"]
    for query in ("since=yesterday", "kind=planet", "who=ann"):
        assert call(admin, "GET", f"audit/?{query}").status_code == 400, query


def test_the_audit_is_read_only(entries: None) -> None:
    admin, pk = make_user(role="administrator"), AuditEntry.objects.values_list("pk", flat=True)[0]
    for method in ("PUT", "PATCH", "DELETE"):
        assert call(admin, method, f"audit/{pk}/", {}).status_code == 405
    assert call(admin, "POST", "audit/", {}).status_code == 405
