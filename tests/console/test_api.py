"""The REST API: who may call, lists, filters, details, writes, errors. Inputs of cases C36 and C38."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from console.models import User
from console.tokens import issue_token
from fleet.models import Finding, GpuReading, HealthState, Region, Site, SiteHealth, Workload
from tests.builders import T0, make_gpu, make_node, make_phy_gpu, make_region, make_site, make_tenant, make_user

pytestmark = pytest.mark.django_db

Call = Callable[..., Any]


def strict(answer: Any) -> Any:
    """The body, read as strict JSON."""
    return json.loads(answer.content, parse_constant=lambda word: pytest.fail(f"{word} in the body"))


@pytest.fixture
def call() -> Call:
    """call(user, method, path, body=None, scopes=None, **headers): with a token when scopes are given, else with the session."""

    def _call(user: User | None, method: str, path: str, body: Any = None, *, scopes: list[str] | None = None, **headers: str) -> Any:
        client = Client()
        if user and scopes is None:
            client.force_login(user)
        elif user:
            now = timezone.now()
            _, secret = issue_token(user=user, name="t", scopes=scopes or [], expires_at=now + timedelta(days=1), now=now)
            headers["Authorization"] = f"Bearer {secret}"
        raw = body if isinstance(body, str | bytes) else None if body is None else json.dumps(body)
        return client.generic(method, f"/api/v1/{path}", raw or "", content_type="application/json", headers=headers)

    return _call


# --- who may call


def test_nobody_gets_401_as_a_problem(call: Call) -> None:
    answer = call(None, "GET", "sites/")
    assert (answer.status_code, answer["Content-Type"]) == (401, "application/problem+json")
    assert "Bearer" in answer["WWW-Authenticate"]
    assert strict(answer)["status"] == 401
    assert call(None, "GET", "sites/", Authorization="Bearer mh_wrong").status_code == 401


def test_a_token_does_what_its_scopes_name(call: Call) -> None:
    user = make_user(role="administrator")
    make_site("S-1")
    assert call(user, "GET", "sites/", scopes=["read:sites"]).status_code == 200
    refused = call(user, "GET", "gpus/", scopes=["read:sites"])
    assert refused.status_code == 403
    assert "read:gpus" in strict(refused)["detail"]
    assert call(user, "GET", "gpus/", scopes=["read:*"]).status_code == 200
    assert call(user, "PATCH", "sites/S-1/", {"name": "x"}, scopes=["read:*"]).status_code == 403


def test_a_revoked_or_expired_token_is_nobody(call: Call) -> None:
    user, now = make_user(role="viewer"), timezone.now()
    token, secret = issue_token(user=user, name="t", scopes=["read:*"], expires_at=now + timedelta(days=1), now=now)
    assert call(None, "GET", "sites/", Authorization=f"Bearer {secret}").status_code == 200
    token.revoked_at = now
    token.save()
    assert call(None, "GET", "sites/", Authorization=f"Bearer {secret}").status_code == 401
    token.revoked_at, token.expires_at = None, now
    token.save()
    assert call(None, "GET", "sites/", Authorization=f"Bearer {secret}").status_code == 401


def test_the_scope_of_regions(call: Call) -> None:
    north, south = make_region("north"), make_region("south")
    mine, other = make_site("MINE", region=north), make_site("OTHER", region=south)
    gpu, foreign = make_gpu(node=make_node(site=mine)), make_gpu(node=make_node(site=other))
    for kind, code in (("viewer", "MINE"),):
        user = make_user(role=kind, region=north)
        assert [site["code"] for site in strict(call(user, "GET", "sites/"))["results"]] == [code]
        assert [one["uuid"] for one in strict(call(user, "GET", "gpus/"))["results"]] == [gpu.uuid]
        assert call(user, "GET", "sites/OTHER/").status_code == 404
        assert call(user, "GET", f"gpus/{foreign.uuid}/").status_code == 404
        assert call(user, "GET", f"nodes/{foreign.node_id}/").status_code == 404
        missing, hidden = call(user, "GET", "sites/NOT-THERE/"), call(user, "GET", "sites/OTHER/")
        assert {**strict(missing), "instance": ""} == {**strict(hidden), "instance": ""}


def test_a_tenants_people_see_their_workloads_and_nothing_else(call: Call) -> None:
    amber, birch = make_tenant("amber"), make_tenant("birch")
    gpu = make_gpu()
    for key in ("amber", "birch"):
        Workload.objects.create(gpu=gpu, namespace=f"ns-{key}", pod="p", sharing="whole", tenant_key=key, started_at=T0, last_seen_at=T0)
    user = make_user(tenant=amber)
    body = strict(call(user, "GET", "workloads/"))
    assert [one["tenant_key"] for one in body["results"]] == ["amber"]
    assert body["count"] == 1
    assert not {"site", "gpu", "gpu_instance_id"} & set(body["results"][0])
    assert call(user, "GET", "workloads/?tenant=birch").status_code == 400  # not a filter that a tenant has
    assert call(user, "GET", "workloads/?site=SITE-1").status_code == 400
    foreign = Workload.objects.get(tenant_key=birch.key)
    assert call(user, "GET", f"workloads/{foreign.pk}/").status_code == 404
    for path in ("sites/", "nodes/", "gpus/", "findings/", "regions/", "areas/", "transitions/", "disagreements/", "data-quality/", "xid-events/"):
        assert strict(call(user, "GET", path))["count"] == 0, path


# --- lists


def test_pages_by_cursor_visit_each_row_once(call: Call) -> None:
    region = make_region()
    Site.objects.bulk_create(Site(code=f"S-{index:03d}", name="same", region=region) for index in range(25))
    user = make_user(role="viewer")
    seen, path = [], "sites/?page_size=10&ordering=-name"
    links = []
    while path:
        answer = call(user, "GET", path)
        body = strict(answer)
        seen += [site["code"] for site in body["results"]]
        links.append(answer.get("Link", ""))
        path = body["next"].split("/api/v1/")[1] if body["next"] else ""
    assert sorted(seen) == [f"S-{index:03d}" for index in range(25)]
    assert (body["count"], body["count_is_estimate"]) == (25, False)
    assert 'rel="next"' in links[0]
    back = strict(call(user, "GET", body["previous"].split("/api/v1/")[1]))
    assert [site["code"] for site in back["results"]] == seen[10:20]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("cursor=rubbish", "cursor"),
        ("cursor=WzFd", "cursor"),
        ("cursor=WyJjb2RlIiwgbnVsbCwgMSwgMF0", "cursor"),
        ("page_size=0", "page_size"),
        ("page_size=1001", "page_size"),
        ("page_size=x", "page_size"),
        ("ordering=password", "ordering"),
        ("stat=down", "stat"),
        ("fields=secret", "fields"),
        ("expand=owner", "expand"),
        ("state=purple", "state"),
    ],
)
def test_a_bad_parameter_is_named(call: Call, query: str, field: str) -> None:
    make_site()
    answer = call(make_user(role="viewer"), "GET", f"sites/?{query}")
    assert answer.status_code == 400
    assert field in strict(answer)["detail"]
    assert strict(answer)["errors"][0]["pointer"] == f"/{field}"


def test_filters_are_those_of_the_pages(call: Call) -> None:
    down, silent = make_site("DOWN"), make_site("SILENT")
    make_site("NEW")
    SiteHealth.objects.create(site=down, state=HealthState.DOWN, since=T0, cause="gpu_lost", why="x")
    SiteHealth.objects.create(site=silent, state=HealthState.UNKNOWN, since=T0, cause="link_down", why="y", out_of_contact_since=T0)
    user = make_user(role="viewer")

    def codes(query: str) -> set[str]:
        return {site["code"] for site in strict(call(user, "GET", f"sites/?{query}"))["results"]}

    assert codes("state=down") == {"DOWN"}
    assert codes("state=unknown") == {"SILENT", "NEW"}
    assert codes("state=down,unknown") == codes("state=down&state=unknown") == {"DOWN", "SILENT", "NEW"}
    assert codes("out_of_contact=yes") == {"SILENT"}
    assert codes("cause=gpu_lost,link_down") == {"DOWN", "SILENT"}


def test_fields_and_expand(call: Call) -> None:
    site = make_site("S-1")
    user = make_user(role="viewer")
    assert strict(call(user, "GET", "sites/S-1/?fields=code,name")) == {"code": "S-1", "name": site.name}
    assert strict(call(user, "GET", "sites/S-1/?expand=health"))["health"] == {
        "state": "unknown",
        "since": None,
        "cause": "never_reported",
        "why": "Has never reported.",
    }
    gpu = make_phy_gpu()
    body = strict(call(user, "GET", f"gpus/{gpu.uuid}/?expand=slices,reading,health"))
    assert (len(body["slices"]), body["reading"], body["carries_phy"]) == (7, None, True)
    GpuReading.objects.create(gpu=gpu, sampled_at=T0, power_watts=float("nan"), sm_clock_hertz=1.98e9)
    body = strict(call(user, "GET", f"gpus/{gpu.uuid}/?expand=reading"))
    assert (body["reading"]["power_watts"], body["reading"]["sm_clock_hertz"], body["reading"]["xid"]) == (None, 1.98e9, None)


@pytest.mark.parametrize(
    "path",
    [
        "sites/?expand=health&page_size=200",
        "nodes/?expand=health,agent&page_size=200",
        "gpus/?expand=slices,health,reading&page_size=200",
        "regions/?page_size=200",
    ],
)
def test_as_many_statements_for_60_rows_as_for_3(call: Call, path: str) -> None:
    user = make_user(role="viewer")

    def statements() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert call(user, "GET", path).status_code == 200
        return len(captured)

    region = make_region()
    for _ in range(3):
        make_phy_gpu(node=make_node(site=make_site(region=region)))
    few = statements()
    for _ in range(57):
        make_gpu(node=make_node(site=make_site(region=region)))
    assert statements() == few


# --- details and writes


def test_etag_and_if_match(call: Call) -> None:
    make_site("S-1", name="Old")
    lead = make_user(role="lead")
    read = call(lead, "GET", "sites/S-1/")
    etag = read["ETag"]
    assert call(lead, "GET", "sites/S-1/", **{"If-None-Match": etag}).status_code == 304
    assert call(lead, "PATCH", "sites/S-1/", {"name": "New"}).status_code == 428
    changed = call(lead, "PATCH", "sites/S-1/", {"name": "New"}, **{"If-Match": etag})
    assert (changed.status_code, strict(changed)["name"]) == (200, "New")
    assert changed["ETag"] != etag
    stale = call(lead, "PATCH", "sites/S-1/", {"name": "Newer"}, **{"If-Match": etag})
    assert (stale.status_code, stale["Content-Type"]) == (412, "application/problem+json")
    assert Site.objects.get(code="S-1").name == "New"


def test_writes_need_the_right_and_name_it(call: Call) -> None:
    make_site("S-1")
    viewer, lead = make_user(role="viewer"), make_user(role="lead")
    etag = call(viewer, "GET", "sites/S-1/")["ETag"]
    refused = call(viewer, "PATCH", "sites/S-1/", {"name": "x"}, **{"If-Match": etag})
    assert refused.status_code == 403
    assert "import" in strict(refused)["detail"]
    assert call(lead, "DELETE", "sites/S-1/", **{"If-Match": etag}).status_code == 204
    assert call(lead, "GET", "sites/S-1/").status_code == 404


def test_what_still_holds_something_is_not_deleted(call: Call) -> None:
    make_node(site=make_site("S-1"))
    lead = make_user(role="lead")
    answer = call(lead, "DELETE", "sites/S-1/", **{"If-Match": call(lead, "GET", "sites/S-1/")["ETag"]})
    assert answer.status_code == 409
    assert "nodes" in strict(answer)["detail"]
    assert Site.objects.filter(code="S-1").exists()


def test_c36_a_foreign_id_in_a_write_is_like_a_missing_one(call: Call) -> None:
    north, south = make_region("north"), make_region("south")
    make_site("MINE", region=north)
    lead = make_user(role="lead", region=north)
    etag = call(lead, "GET", "sites/MINE/")["ETag"]
    foreign = call(lead, "PATCH", "sites/MINE/", {"region": south.slug}, **{"If-Match": etag})
    missing = call(lead, "PATCH", "sites/MINE/", {"region": "no-such"}, **{"If-Match": etag})
    assert foreign.status_code == missing.status_code == 400
    assert strict(foreign)["detail"].replace(south.slug, "no-such") == strict(missing)["detail"]
    assert Site.objects.get(code="MINE").region == north


C38 = [
    ("nan-string", '{"latitude": "nan"}', "latitude"),
    ("inf-string", '{"latitude": "inf"}', "latitude"),
    ("minus-inf", '{"latitude": "-Infinity"}', "latitude"),
    ("overflow-string", '{"latitude": "1e400"}', "latitude"),
    ("overflow-number", '{"latitude": 1e400}', "latitude"),
    ("bare-nan", '{"latitude": NaN}', "latitude"),
    ("in-json-field", '{"latitude": 0.99, "labels": {"x": Infinity}}', "labels.x"),
]


@pytest.mark.parametrize(("raw", "field"), [case[1:] for case in C38], ids=[case[0] for case in C38])
def test_c38_numbers_that_are_none_are_refused_by_name(call: Call, raw: str, field: str) -> None:
    region = make_region("north")
    lead = make_user(role="lead")
    body = '{"code": "N-1", "name": "N", "region": "north", ' + raw[1:]
    answer = call(lead, "POST", "sites/", body)
    assert answer.status_code == 400
    assert field in strict(answer)["detail"]
    assert not Site.objects.filter(region=region).exists()
    assert call(lead, "GET", "sites/").status_code == 200


def test_c38_a_fine_number_is_taken(call: Call) -> None:
    make_region("north")
    answer = call(make_user(role="lead"), "POST", "sites/", {"code": "N-1", "name": "N", "region": "north", "latitude": 0.995, "time_zone": "Europe/Berlin"})
    assert answer.status_code == 201
    assert (strict(answer)["latitude"], strict(answer)["time_zone"]) == (0.995, "Europe/Berlin")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ("{", ""),
        ("[]", ""),
        ('{"code": "N-1"}', "name"),
        ('{"code": "N/1", "name": "x", "region": "north"}', "code"),
        ('{"code": "N-1", "name": "x", "region": "north", "colour": "red"}', "colour"),
        ('{"code": "N-1", "name": "x", "region": "north", "time_zone": "Mars/Base"}', "time_zone"),
        ('{"code": "N-1", "name": "x\\u0000", "region": "north"}', "name"),
        ('{"code": "N-1", "name": "x", "region": "north", "latitude": 91}', "latitude"),
        ('{"code": "N-1", "name": "x", "region": "north", "power_feed_watts": 99999999999999999999}', "power_feed_watts"),
        ('{"code": "N-1", "name": "x", "region": ["north"]}', "region"),
    ],
)
def test_a_bad_body_is_a_400_that_names_the_field(call: Call, body: str, field: str) -> None:
    make_region("north")
    answer = call(make_user(role="lead"), "POST", "sites/", body)
    assert (answer.status_code, answer["Content-Type"]) == (400, "application/problem+json")
    assert field in strict(answer)["detail"]
    assert not Site.objects.exists()


def test_findings_are_filtered_by_site_and_openness(call: Call) -> None:
    site = make_site("S-1")
    for code, until in (("xid", None), ("gpu_lost", T0)):
        Finding.objects.create(kind="gpu", object_key="GPU-1", site=site, code=code, severity="major", summary="s", since=T0, last_at=T0, until=until)
    user = make_user(role="viewer")
    assert [one["code"] for one in strict(call(user, "GET", "findings/?site=S-1&open=true"))["results"]] == ["xid"]
    assert strict(call(make_user(role="viewer", region=make_region()), "GET", "findings/"))["count"] == 0


def test_region_counts_say_unknown_for_the_silent(call: Call) -> None:
    region = make_region("north")
    SiteHealth.objects.create(site=make_site(region=region), state=HealthState.OK, since=T0)
    make_site(region=region)
    counts = strict(call(make_user(role="viewer"), "GET", "regions/north/"))["site_counts"]
    assert counts == {"all": 2, "ok": 1, "degraded": 0, "down": 0, "unknown": 1, "maintenance": 0}
    assert Region.objects.count() == 1


def test_unknown_paths_and_methods_are_problems(call: Call) -> None:
    user = make_user(role="viewer")
    assert call(user, "GET", "nothing/")["Content-Type"] == "application/problem+json"
    assert call(user, "DELETE", "gpus/").status_code == 405


def test_about_and_rate_headers(call: Call) -> None:
    answer = call(make_user("ann", role="viewer"), "GET", "about")
    assert strict(answer)["caller"]["user"] == "ann"
    assert answer["RateLimit-Policy"].startswith('"default";q=')
    assert "RateLimit" in answer


def test_rate_limit_answers_429_with_retry_after(call: Call, settings: Any) -> None:
    settings.API_REQUESTS_PER_MINUTE = 2
    user, now = make_user(role="viewer"), timezone.now()
    _, secret = issue_token(user=user, name="t", scopes=["read:*"], expires_at=now + timedelta(days=1), now=now)
    answers = [call(None, "GET", "about", Authorization=f"Bearer {secret}") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert int(answers[-1]["Retry-After"]) > 0
    assert answers[-1]["Content-Type"] == "application/problem+json"


def test_the_browsable_page_and_schema(client: Client) -> None:
    assert client.get("/api/docs/").status_code == 302
    assert client.get("/api/schema/").status_code == 401
    client.force_login(make_user(role="viewer"))
    assert b"swagger-ui" in client.get("/api/docs/").content
    assert client.get("/api/schema/").status_code == 200
