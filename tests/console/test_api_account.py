"""Search, saved views, the own profile and sessions through the API."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from console.models import SavedView, User
from console.tokens import issue_token
from fleet.health.maintenance import create_window, find_scope
from fleet.models import Finding, Workload
from fleet.telemetry.senders import create_sender
from tenants.models import Membership, NamespaceMapping
from tests.builders import T0, make_gpu, make_node, make_region, make_site, make_tenant, make_user
from tests.console.api_support import call, strict

pytestmark = pytest.mark.django_db


# --- search


def test_search_finds_every_kind_in_scope() -> None:
    north = make_region("north")
    gpu = make_gpu("GPU-aa11aa11-0000-0000-0000-000000000001", node=make_node("edge-n1", site=make_site("N-1", region=north)))
    make_node("edge-s1", site=make_site("S-1"))
    Workload.objects.create(gpu=gpu, namespace="ns", pod="edge-pod", sharing="whole", started_at=T0, last_seen_at=T0)
    user = make_user(role="viewer", region=north)
    hits = strict(call(user, "GET", "search?q=edge"))["results"]
    assert {(hit["kind"], hit["key"]) for hit in hits} == {("node", "edge-n1"), ("workload", "edge-pod")}
    assert strict(call(user, "GET", "search?q=GPU-aa11&kind=gpu"))["results"][0]["url"] == f"/gpus/{gpu.uuid}"
    assert strict(call(user, "GET", "search?q=S-1"))["results"] == []
    assert strict(call(make_user(tenant=make_tenant()), "GET", "search?q=edge"))["results"] == []


def test_a_token_finds_what_it_may_read() -> None:
    make_gpu(node=make_node("edge-n1", site=make_site("edge-1")))
    user = make_user(role="viewer")
    assert {hit["kind"] for hit in strict(call(user, "GET", "search?q=edge", scopes=["read:sites"]))["results"]} == {"site"}
    assert call(user, "GET", "search?q=edge&kind=node", scopes=["read:sites"]).status_code == 403
    assert call(user, "GET", "search?q=edge", scopes=["read:about"]).status_code == 403


@pytest.mark.parametrize("query", ["", "q=", "q=%00", "q=x&limit=51", "q=x&limit=0", "q=x&kind=planet", "q=x&page=2"])
def test_a_bad_search_is_named(query: str) -> None:
    answer = call(make_user(role="viewer"), "GET", f"search?{query}")
    assert (answer.status_code, answer["Content-Type"]) == (400, "application/problem+json")


# --- saved views


def test_a_view_from_making_to_deleting() -> None:
    ann, bob = make_user("ann", role="viewer"), make_user("bob", role="viewer")
    made = call(ann, "POST", "views/", {"page": "sites", "name": "Down ones", "query": "state=down&ordering=-code"})
    assert made.status_code == 201
    view = strict(made)
    assert (view["slug"], view["query"], view["shared"], view["owner"]) == ("down-ones", "state=down&ordering=-code", False, "ann")
    assert SavedView.objects.get().query == "?state=down&ordering=-code"  # as the page keeps it
    path = f"views/{view['id']}/"
    assert call(bob, "GET", path).status_code == 404
    assert call(ann, "PATCH", path, {"shared": True}).status_code == 428
    etag = call(ann, "GET", path)["ETag"]
    assert strict(call(ann, "PATCH", path, {"shared": True}, **{"If-Match": etag}))["query"] == "state=down&ordering=-code"
    assert call(ann, "PATCH", path, {"name": "x"}, **{"If-Match": etag}).status_code == 412
    assert strict(call(bob, "GET", "views/?page=sites"))["count"] == 1
    refused = call(bob, "DELETE", path, **{"If-Match": "*"})
    assert refused.status_code == 403
    assert "owner" in strict(refused)["detail"]
    assert call(ann, "DELETE", path, **{"If-Match": "*"}).status_code == 204
    assert not SavedView.objects.exists()


def test_a_view_of_the_wall() -> None:
    user = make_user(role="viewer")
    assert call(user, "POST", "views/", {"page": "wall", "name": "North", "slug": "north", "query": "region=north&area=de"}).status_code == 201
    assert SavedView.objects.get().query == "region=north&area=de"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"page": "planets"}, "page"),
        ({"name": ""}, "name"),
        ({"query": "state=purple"}, "query"),
        ({"query": "stat=down"}, "query"),
        ({"query": "x" * 3000}, "query"),
        ({"page": "wall", "query": "state=down"}, "query"),
        ({"slug": "a b"}, "slug"),
        ({"owner": "bob"}, "owner"),
    ],
)
def test_a_bad_view_is_named(change: dict[str, Any], field: str) -> None:
    answer = call(make_user(role="viewer"), "POST", "views/", {"page": "sites", "name": "V", "query": ""} | change)
    assert answer.status_code == 400
    assert field in strict(answer)["detail"]
    assert not SavedView.objects.exists()


def test_the_same_view_twice_is_a_conflict() -> None:
    user = make_user(role="viewer")
    body = {"page": "sites", "name": "V", "query": ""}
    assert [call(user, "POST", "views/", body).status_code for _ in range(2)] == [201, 409]


def test_views_are_not_for_tenants() -> None:
    SavedView.objects.create(owner=make_user(role="viewer"), page="sites", slug="v", name="V", shared=True)
    user = make_user(tenant=make_tenant())
    assert strict(call(user, "GET", "views/"))["count"] == 0
    assert call(user, "POST", "views/", {"page": "sites", "name": "V", "query": ""}).status_code == 403


# --- profile and sessions


def test_the_own_profile() -> None:
    user = make_user("ann", role="viewer")
    read = call(user, "GET", "profile")
    assert strict(read)["username"] == "ann"
    change = {"time_zone": "Europe/Berlin", "theme": "dark", "list_columns": {"sites": ["code", "state"]}}
    assert call(user, "PATCH", "profile", change).status_code == 428
    done = call(user, "PATCH", "profile", change, **{"If-Match": read["ETag"]})
    assert (done.status_code, strict(done)["time_zone"]) == (200, "Europe/Berlin")
    assert call(user, "PATCH", "profile", change, **{"If-Match": read["ETag"]}).status_code == 412
    user.refresh_from_db()
    assert (user.theme, user.list_columns) == ("dark", {"sites": ["code", "state"]})


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"time_zone": "Mars/Base"}, "time_zone"),
        ({"theme": "pink"}, "theme"),
        ({"username": "root"}, "username"),
        ({"is_active": True}, "is_active"),
        ({"list_columns": {"sites": ["nope"]}}, "list_columns"),
        ({"list_columns": {"planets": []}}, "list_columns"),
        ({"list_columns": 5}, "list_columns"),
        ({"email": "x"}, "email"),
    ],
)
def test_a_bad_profile_is_named(change: dict[str, Any], field: str) -> None:
    answer = call(make_user("ann"), "PATCH", "profile", change, **{"If-Match": "*"})
    assert answer.status_code == 400
    assert field in strict(answer)["detail"]


def signed_in(user: User) -> Client:
    client = Client()
    assert client.post("/accounts/login/", {"login": user.username, "password": user.username * 2}).status_code == 302
    return client


def test_sessions_are_listed_and_ended() -> None:
    user, other = make_user("annannann", role="viewer"), make_user("bobbobbob", role="viewer")
    here, there, foreign = signed_in(user), signed_in(user), signed_in(other)
    found = strict(here.get("/api/v1/sessions/"))["results"]
    assert sorted(one["is_current"] for one in found) == [False, True]
    theirs = strict(foreign.get("/api/v1/sessions/"))["results"][0]["id"]
    assert here.delete(f"/api/v1/sessions/{theirs}/").status_code == 404
    elsewhere = next(one["id"] for one in found if not one["is_current"])
    assert here.delete(f"/api/v1/sessions/{elsewhere}/").status_code == 204
    assert there.get("/api/v1/about").status_code == 401
    signed_in(user)
    assert strict(here.post("/api/v1/sessions/revoke-others")) == {"ended": 1}
    assert here.get("/api/v1/about").status_code == 200
    assert foreign.get("/api/v1/about").status_code == 200


def test_the_own_password() -> None:
    user = make_user("annannann", role="viewer")
    client = signed_in(user)
    new = "correct horse battery staple"

    def change(current: str, password: str) -> Any:
        return client.post("/api/v1/profile/password", {"current": current, "new": password}, content_type="application/json")

    assert "current" in strict(change("wrong", new))["detail"]
    assert change("annannann" * 2, "short").status_code == 400
    assert call(user, "POST", "profile/password", {"current": "annannann" * 2, "new": new}, scopes=["write:*"]).status_code == 403
    assert change("annannann" * 2, new).status_code == 204
    assert client.get("/api/v1/about").status_code == 401
    user.refresh_from_db()
    assert user.check_password(new)


def test_an_administrator_signs_somebody_out() -> None:
    admin, user = make_user(role="administrator"), make_user("annannann", role="viewer")
    client = signed_in(user)
    assert strict(call(admin, "POST", f"users/{user.pk}/end_sessions/")) == {"ended": 1}
    assert client.get("/api/v1/about").status_code == 401
    assert call(user, "POST", f"users/{user.pk}/end_sessions/").status_code == 403


@pytest.mark.parametrize(
    "path", ["views/", "tokens/", "users/", "role-grants/", "memberships/", "namespaces/", "senders/", "audit/", "maintenance/", "findings/"]
)
def test_as_many_statements_for_60_rows_as_for_3(path: str) -> None:
    admin, tenant, region, now = make_user("admin", role="administrator"), make_tenant(), make_region(), timezone.now()

    def add(start: int, count: int) -> None:
        for number in range(start, start + count):
            user = make_user(role="viewer", region=region)
            site = make_site(region=region)
            SavedView.objects.create(owner=user, page="sites", slug=f"v-{number}", name="V", shared=True)
            issue_token(user=user, name="t", scopes=["read:sites"], expires_at=now + timedelta(days=1), now=now, regions=[region])
            Membership.objects.create(user=user, tenant=tenant, role="member")
            NamespaceMapping.objects.create(tenant=tenant, namespace=f"ns-{number}", site=site)
            create_sender(name=f"s-{number}", regions=[region])
            create_window(scope=find_scope("site", site.code), starts_at=now, ends_at=now + timedelta(hours=1), reason="r", actor="admin", now=now)
            Finding.objects.create(kind="site", object_key=site.code, site=site, code="x", severity="major", summary="s", since=T0, last_at=T0)

    def statements() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert call(admin, "GET", f"{path}?page_size=500").status_code == 200
        return len(captured)

    add(0, 3)
    few = statements()
    add(3, 57)
    assert statements() == few
