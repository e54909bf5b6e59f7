"""Maintenance, people, tokens and senders through the API."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from console.access import Right, access_of
from console.models import ApiToken, RoleGrant, User
from console.tokens import issue_token, rotate_token
from fleet.models import AuditEntry, MaintenanceWindow, Sender
from fleet.telemetry.senders import verify_token
from tenants.models import Membership, NamespaceMapping
from tests.builders import make_gpu, make_node, make_region, make_site, make_tenant, make_user

pytestmark = pytest.mark.django_db


def call(user: User, method: str, path: str, body: Any = None, **headers: str) -> Any:
    client = Client(raise_request_exception=False)
    client.force_login(user)
    return client.generic(method, f"/api/v1/{path}", "" if body is None else json.dumps(body), content_type="application/json", headers=headers)


def window(**change: Any) -> dict[str, Any]:
    now = timezone.now()
    return {
        "scope_kind": "site",
        "scope_key": "S-1",
        "starts_at": now.isoformat(),
        "ends_at": (now + timedelta(hours=2)).isoformat(),
        "reason": "fibre",
    } | change


# --- maintenance


def test_plan_extend_and_end_a_window() -> None:
    make_site("S-1")
    user = make_user(role="operator")
    made = call(user, "POST", "maintenance/", window())
    assert made.status_code == 201
    path = f"maintenance/{made.json()['id']}"
    later = (timezone.now() + timedelta(hours=5)).isoformat()
    assert call(user, "POST", f"{path}/extend/", {"ends_at": later, "reason": "slow"}).status_code == 200
    assert call(user, "GET", "maintenance/?active=true").json()["count"] == 1
    ended = call(user, "POST", f"{path}/end/", {"reason": "done"}).json()
    assert ended["ended_by"] == user.username
    assert call(user, "GET", "maintenance/?active=true").json()["count"] == 0
    assert AuditEntry.objects.filter(action__startswith="maintenance.").count() == 3


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"scope_kind": "galaxy"}, "scope_kind"),
        ({"scope_key": "NOPE"}, "scope_key"),
        ({"ends_at": "2020-01-01T00:00:00Z"}, "ends_at"),
        ({"reason": ""}, "reason"),
        ({"starts_at": "soon"}, "starts_at"),
        ({"scope_kind": "node", "scope_key": "x"}, "scope_key"),
    ],
)
def test_a_bad_window_is_named(change: dict[str, Any], field: str) -> None:
    make_site("S-1")
    answer = call(make_user(role="operator"), "POST", "maintenance/", window(**change))
    assert answer.status_code == 400
    assert field in answer.json()["detail"]
    assert not MaintenanceWindow.objects.exists()


def test_c36_windows_outside_the_scope_do_not_exist() -> None:
    north = make_region("north")
    make_site("MINE", region=north)
    foreign = make_site("S-1")
    node, gpu = make_node(site=foreign), make_gpu(node=make_node(site=foreign))
    user = make_user(role="operator", region=north)
    for kind, key, missing in (
        ("site", "S-1", "NOPE"),
        ("node", str(node.pk), "999999"),
        ("gpu", gpu.uuid, "GPU-none"),
        ("region", foreign.region.slug, "nowhere"),
    ):
        hidden, absent = (call(user, "POST", "maintenance/", window(scope_kind=kind, scope_key=value)) for value in (key, missing))
        assert hidden.status_code == absent.status_code == 400, kind
        assert hidden.json()["detail"].replace(key, missing) == absent.json()["detail"]
    assert call(user, "POST", "maintenance/", window(scope_kind="fleet", scope_key="")).status_code == 403
    made = call(make_user(role="operator"), "POST", "maintenance/", window()).json()
    assert call(user, "GET", f"maintenance/{made['id']}/").status_code == 404
    assert call(user, "POST", f"maintenance/{made['id']}/end/", {"reason": "x"}).status_code == 404
    assert call(make_user(role="viewer"), "POST", "maintenance/", window()).status_code == 403


# --- people


@pytest.mark.parametrize("path", ["users/", "role-grants/", "tenants/", "memberships/", "namespaces/", "senders/"])
def test_only_administrators_of_the_fleet(path: str) -> None:
    assert call(make_user(role="administrator"), "GET", path).status_code == 200
    for user in (make_user(role="lead"), make_user(role="administrator", region=make_region()), make_user(tenant=make_tenant())):
        refused = call(user, "GET", path)
        assert refused.status_code == 403
        assert "administer" in refused.json()["detail"]


def test_a_person_from_arrival_to_leaving() -> None:
    admin, region = make_user(role="administrator"), make_region("north")
    assert "password" in call(admin, "POST", "users/", {"username": "ann", "password": "short"}).json()["detail"]
    made = call(admin, "POST", "users/", {"username": "ann", "password": "correct horse battery staple"})
    assert made.status_code == 201
    assert "password" not in made.json()
    assert call(admin, "POST", "users/", {"username": "ANN", "password": "correct horse battery staple"}).status_code == 400
    grant = call(admin, "POST", "role-grants/", {"user": "ann", "role": "operator", "region": "north"})
    assert grant.status_code == 201
    ann = User.objects.get(username="ann")
    assert access_of(ann).may(Right.OPERATE, region.pk)
    assert ann.access_changed_at is not None
    client = Client()
    assert client.login(username="ann", password="correct horse battery staple")
    assert client.get("/api/v1/about").status_code == 200
    assert call(admin, "POST", f"users/{ann.pk}/active/", {"active": False}).json()["is_active"] is False
    assert client.get("/api/v1/about").status_code in {401, 403}
    assert call(admin, "DELETE", f"role-grants/{grant.json()['id']}/").status_code == 204
    assert {"user.create", "role.grant", "user.deactivate", "role.revoke"} <= set(AuditEntry.objects.values_list("action", flat=True))


def test_somebody_is_left_to_administer() -> None:
    admin = make_user(role="administrator")
    grant = RoleGrant.objects.get(user=admin)
    refused = call(admin, "DELETE", f"role-grants/{grant.pk}/")
    assert (refused.status_code, RoleGrant.objects.filter(pk=grant.pk).exists()) == (409, True)
    assert call(admin, "POST", f"users/{admin.pk}/active/", {"active": False}).status_code == 409


def test_tenants_members_and_namespaces() -> None:
    admin, ann = make_user(role="administrator"), make_user("ann")
    make_site("S-1")
    assert call(admin, "POST", "tenants/", {"key": "am ber", "name": "Amber"}).status_code == 400
    assert call(admin, "POST", "tenants/", {"key": "amber", "name": "Amber"}).status_code == 201
    assert call(admin, "POST", "tenants/", {"key": "amber", "name": "Again"}).status_code == 400
    member = call(admin, "POST", "memberships/", {"tenant": "amber", "user": "ann", "role": "member"})
    assert access_of(ann).tenant_keys == {"amber"}
    for site in (None, "S-1"):
        assert call(admin, "POST", "namespaces/", {"tenant": "amber", "namespace": "ns", "site": site}).status_code == 201
    assert call(admin, "POST", "namespaces/", {"tenant": "amber", "namespace": "ns", "site": None}).status_code == 400
    assert call(admin, "POST", "tenants/amber/suspend/", {"suspended": True}).json()["suspended_at"]
    assert access_of(ann).tenant_keys == frozenset()
    assert call(admin, "DELETE", f"memberships/{member.json()['id']}/").status_code == 204
    assert call(admin, "DELETE", f"namespaces/{NamespaceMapping.objects.first().pk}/").status_code == 204  # type: ignore[union-attr]
    assert not Membership.objects.exists()


# --- tokens


def test_own_tokens_are_shown_once_and_revoked() -> None:
    user, other = make_user("ann", role="viewer", region=make_region("north")), make_user(role="viewer")
    body = {"name": "grafana", "scopes": ["read:sites"], "regions": ["north"], "expires_at": (timezone.now() + timedelta(days=30)).isoformat()}
    made = call(user, "POST", "tokens/", body)
    assert made.status_code == 201
    secret, prefix = made.json()["secret"], made.json()["prefix"]
    assert "secret" not in call(user, "GET", f"tokens/{prefix}/").json()
    assert Client().get("/api/v1/sites/", headers={"Authorization": f"Bearer {secret}"}).status_code == 200
    assert call(other, "GET", f"tokens/{prefix}/").status_code == 404
    assert call(other, "DELETE", f"tokens/{prefix}/").status_code == 404
    assert call(user, "DELETE", f"tokens/{prefix}/").status_code == 204
    assert Client().get("/api/v1/sites/", headers={"Authorization": f"Bearer {secret}"}).status_code == 401
    assert not ApiToken.objects.filter(token_hash=secret).exists()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"scopes": ["fly:sites"]}, "scopes"),
        ({"scopes": []}, "scopes"),
        ({"regions": ["south"]}, "regions"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
        ({"expires_at": "2999-01-01T00:00:00Z"}, "expires_at"),
        ({"user": "robot"}, "administer"),
    ],
)
def test_a_bad_token_is_named(change: dict[str, Any], field: str) -> None:
    make_region("south")
    user = make_user(role="viewer", region=make_region("north"))
    body = {"name": "t", "scopes": ["read:sites"], "expires_at": (timezone.now() + timedelta(days=30)).isoformat()}
    answer = call(user, "POST", "tokens/", body | change)
    assert answer.status_code in {400, 403}
    assert field in answer.json()["detail"]
    assert not ApiToken.objects.exists()


def test_a_token_cannot_make_tokens() -> None:
    admin = make_user(role="administrator")
    body = {"name": "t", "scopes": ["write:*", "read:*"], "expires_at": (timezone.now() + timedelta(days=30)).isoformat()}
    secret = call(admin, "POST", "tokens/", body).json()["secret"]
    answer = Client().post("/api/v1/tokens/", json.dumps(body), content_type="application/json", headers={"Authorization": f"Bearer {secret}"})
    assert answer.status_code == 403


def test_a_token_for_a_service_account() -> None:
    admin = make_user(role="administrator")
    assert call(admin, "POST", "users/", {"username": "robot", "is_service_account": True}).status_code == 201
    body = {"name": "t", "scopes": ["read:*"], "expires_at": (timezone.now() + timedelta(days=30)).isoformat(), "user": "robot"}
    assert call(admin, "POST", "tokens/", body).json()["user"] == "robot"


# --- senders


def test_a_sender_from_first_token_to_revocation() -> None:
    admin = make_user(role="administrator")
    make_region("north")
    made = call(admin, "POST", "senders/", {"name": "prom-north", "regions": ["north"]})
    assert made.status_code == 201
    first = made.json()["token"]
    assert call(admin, "POST", "senders/", {"name": "prom-north", "regions": ["north"]}).status_code == 400
    assert call(admin, "POST", "senders/", {"name": "other", "regions": []}).status_code == 400
    second = call(admin, "POST", "senders/prom-north/rotate/").json()["token"]
    now = timezone.now()
    assert verify_token(first, now=now)
    assert verify_token(second, now=now)
    call(admin, "POST", "senders/prom-north/end_rotation/")
    assert verify_token(first, now=now) is None
    assert call(admin, "DELETE", "senders/prom-north/").status_code == 204
    assert verify_token(second, now=now) is None
    assert "token" not in call(admin, "GET", "senders/prom-north/").json()
    assert Sender.objects.count() == 1


def test_a_limited_token_reaches_nothing_when_its_region_is_gone() -> None:
    user, north, now = make_user(role="viewer"), make_region("north"), timezone.now()
    make_site("S-1")
    token, secret = issue_token(user=user, name="t", scopes=["read:*"], expires_at=now + timedelta(days=1), now=now, regions=[north])
    headers = {"Authorization": f"Bearer {secret}"}
    north.delete()
    assert Client().get("/api/v1/sites/", headers=headers).json()["count"] == 0
    _, secret = rotate_token(token=token, now=now)
    assert Client().get("/api/v1/sites/", headers={"Authorization": f"Bearer {secret}"}).json()["count"] == 0
