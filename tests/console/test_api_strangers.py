"""Every endpoint of the API, whatever is added to it, against people to whom its objects do not exist."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.apps import apps
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from console.models import User
from tenants.models import Membership
from tests.builders import make_region, make_tenant, make_user
from tests.console.api_support import strict
from tests.console.api_world import Keys, make_world

pytestmark = pytest.mark.django_db

# Plain views with rules of their own, tested where they live.
ELSEWHERE = {"api-schema", "api-docs", "api-service-discovery", None}
# Everybody has these for itself, or they hold nothing of the fleet (test_api_facts.py says who may).
OWN = {
    "api-about",
    "api-command-kinds",
    "api-guard-rails",
    "api-overview",
    "api-sku",
    "api-skus",
    "api-search",
    "api-profile",
    "api-profile-password",
    "api-session-list",
    "api-sessions-revoke-others",
    "api-token-list",
    "api-view-list",
}
# Lists that a stranger may read, and finds empty; the other lists refuse it by naming the right.
REFUSED = {403, 404}


@dataclass(frozen=True)
class Endpoint:
    name: str
    template: str
    methods: tuple[str, ...]

    def __str__(self) -> str:
        return self.name


def endpoints() -> Iterator[Endpoint]:
    yield from _walk(get_resolver("console.api.urls").url_patterns, "")


def _walk(patterns: list[Any], prefix: str) -> Iterator[Endpoint]:
    for pattern in patterns:
        route = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from _walk(pattern.url_patterns, route)
        elif isinstance(pattern, URLPattern) and pattern.name not in ELSEWHERE:
            callback: Any = pattern.callback
            actions = getattr(callback, "actions", None)
            methods = actions or {name: name for name in ("get", "post", "put", "patch", "delete") if hasattr(callback.cls, name)}
            yield Endpoint(str(pattern.name), _readable(pattern), tuple(sorted(method.upper() for method in methods)))


def _readable(pattern: URLPattern) -> str:
    """`v1/sites/{code}/history/` of whichever kind of pattern."""
    found = get_resolver("console.api.urls").reverse_dict.getlist(str(pattern.name))[0][0]
    template, names = found[0]
    return str(template) % {name: "{" + name + "}" for name in names}


ENDPOINTS = sorted(set(endpoints()), key=lambda one: one.name)


@pytest.fixture
def keys() -> Keys:
    return make_world()


def strangers() -> list[User]:
    return [
        make_user("south", role="administrator", region=make_region("south")),
        make_user("viewer", role="viewer", region=make_region("west")),
        make_user("birch", tenant=make_tenant("birch")),
        make_user("norole"),
    ]


def client_of(user: User | None) -> Client:
    client = Client()
    if user:
        client.force_login(user)
    return client


def send(client: Client, method: str, endpoint: Endpoint, keys: Keys) -> Any:
    path = endpoint.template.format(**keys.get(endpoint.template.split("/")[1], {}))
    headers = {"If-Match": "*", "Idempotency-Key": "k"}
    return client.generic(method, f"/api/{path}", "" if method == "GET" else "{}", content_type="application/json", headers=headers)


def rows() -> dict[str, int]:
    """How many rows each table holds, sessions aside (a sign-in makes one)."""
    return {model._meta.label: model._default_manager.count() for model in apps.get_models() if "ession" not in model.__name__}


def test_the_table_is_complete() -> None:
    assert len(ENDPOINTS) > 80
    assert {"api-site-history", "api-import-apply", "api-clock-range", "api-gpu-export", "api-job-log"} <= {one.name for one in ENDPOINTS}


def test_nobody_is_asked_to_sign_in(keys: Keys) -> None:
    client, before = client_of(None), rows()
    for endpoint in ENDPOINTS:
        for method in endpoint.methods:
            answer = send(client, method, endpoint, keys)
            assert (answer.status_code, answer["Content-Type"]) == (401, "application/problem+json"), (endpoint.name, method)
            assert strict(answer)["status"] == 401
    assert rows() == before


def test_what_lies_outside_the_scope_does_not_exist(keys: Keys) -> None:
    people = [(user, client_of(user)) for user in strangers()]
    before = rows()
    for user, client in people:
        for endpoint in ENDPOINTS:
            if endpoint.name in OWN:
                continue
            for method in endpoint.methods:
                answer = send(client, method, endpoint, keys)
                what = (user.username, endpoint.name, method, answer.status_code)
                if "{" in endpoint.template:
                    assert answer.status_code in REFUSED, what
                elif method == "GET" and answer.status_code == 200 and not endpoint.name.endswith("-export"):
                    listed = [row for row in strict(answer)["results"] if row.get("slug") not in {"south", "west"}]
                    listed = [row for row in listed if not str(row.get("slug", "")).startswith("area-")]
                    assert listed == [], what
                elif method == "GET" and answer.status_code == 200:
                    assert b"N-1" not in b"".join(answer.streaming_content), what
                else:
                    assert answer.status_code in REFUSED | {400, 415}, what
    assert rows() == before


def test_a_foreign_object_reads_like_one_that_is_missing(keys: Keys) -> None:
    client = client_of(make_user(role="administrator", region=make_region("south")))
    missing = {word: {name: _other(name, value) for name, value in named.items()} for word, named in keys.items()}
    for endpoint in ENDPOINTS:
        if "{" not in endpoint.template or endpoint.name in OWN:
            continue
        for method in endpoint.methods:
            hidden, absent = send(client, method, endpoint, keys), send(client, method, endpoint, missing)
            assert hidden.status_code == absent.status_code, (endpoint.name, method)
            assert {**strict(hidden), "instance": ""} == {**strict(absent), "instance": ""}, (endpoint.name, method)


def _other(name: str, value: Any) -> Any:
    if name == "panel":
        return value
    if name in {"pk", "job", "command", "switch"}:
        return 999_999_999 if isinstance(value, int) else "00000000-0000-4000-8000-000000000000"
    return "nowhere"


def test_a_tenants_person_sees_its_own_workloads_only(keys: Keys) -> None:
    amber = client_of(make_user(tenant=Membership.objects.get().tenant))
    for endpoint in ENDPOINTS:
        if endpoint.name in OWN or "GET" not in endpoint.methods:
            continue
        answer = send(amber, "GET", endpoint, keys)
        if endpoint.name.startswith("api-workload"):
            assert answer.status_code == 200
            assert "N-1" not in answer.content.decode()
        elif answer.status_code == 200 and not endpoint.name.endswith("-export"):
            assert strict(answer)["results"] == [], endpoint.name
        elif answer.status_code != 200:
            assert answer.status_code in REFUSED, endpoint.name
