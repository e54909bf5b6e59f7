"""Prometheus finds the fleet's exporters by one list: complete or not given, within the token's regions."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import Settings

from fleet.models import Node, Region, Sender
from fleet.telemetry.senders import create_sender, revoke_sender, rotate_token
from tests.builders import make_node, make_region, make_site

pytestmark = pytest.mark.django_db


@pytest.fixture
def south() -> Region:
    return make_region("south")


@pytest.fixture
def token(south: Region) -> str:
    return create_sender(name="prom", regions=[south])[1]


def get(client: Client, token: str | None, path: str = "dcgm", **headers: str) -> Any:
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return client.get(f"/api/v1/sd/{path}", headers=headers)


def test_the_list_has_the_regions_of_the_token(client: Client, south: Region, token: str) -> None:
    site = make_site("S-1", region=south)
    make_node("du-1.edge.example", site=site, exporter_address="10.0.0.1:9400", node_exporter_address="10.0.0.1:9100")
    make_node("inf-1", site=site, exporter_address="[fe80::2]:9400", triton_address="10.0.0.2:8002")
    make_node("bare", site=site)
    make_node("old", site=site, exporter_address="10.0.0.9:9400", retired_at=timezone.now())
    make_node("other", exporter_address="10.9.9.9:9400")
    answer = get(client, token)
    assert (answer.status_code, answer["Content-Type"]) == (200, "application/json")
    assert answer.json() == [
        {"targets": ["10.0.0.1:9400"], "labels": {"region": "south", "site": "S-1", "node": "du-1.edge.example"}},
        {"targets": ["[fe80::2]:9400"], "labels": {"region": "south", "site": "S-1", "node": "inf-1"}},
    ]
    assert [group["targets"] for group in get(client, token, "triton").json()] == [["10.0.0.2:8002"]]
    assert [group["targets"] for group in get(client, token, "node").json()] == [["10.0.0.1:9100"]]
    assert get(client, token, "vllm").json() == []


def test_prometheus_beside_us_asks_without_tls_and_nobody_else(token: str, settings: Settings) -> None:
    settings.SECURE_SSL_REDIRECT = True
    client = Client()
    assert get(client, token).status_code == 200
    assert client.get("/sites").status_code == 301


def test_a_part_of_the_list_by_region(client: Client, south: Region) -> None:
    north = make_region("north")
    for region in (south, north):
        make_node(site=make_site(region=region), exporter_address=f"{region.slug}:9400")
    _, token = create_sender(name="both", regions=[south, north])
    assert len(get(client, token).json()) == 2
    assert [group["targets"] for group in get(client, token, "dcgm?region=north").json()] == [["north:9400"]]


@pytest.mark.parametrize(
    ("path", "status"), [("dcgm?region=nowhere", 404), ("dcgm?region=north", 404), ("shoes", 404), ("dcgm?area=x", 400), ("dcgm?region=%00", 404)]
)
def test_what_does_not_exist_or_is_not_in_scope(client: Client, token: str, path: str, status: int) -> None:
    make_region("north")
    answer = get(client, token, path)
    assert (answer.status_code, answer["Content-Type"]) == (status, "application/problem+json")
    assert answer.json()["detail"]


def test_no_list_without_a_token_that_is_good_for_it(client: Client, south: Region, token: str) -> None:
    now = timezone.now()
    _, writer = create_sender(name="writer", regions=[south], may_discover=False)
    _, expired = create_sender(name="expired", regions=[south], expires_at=now - timedelta(seconds=1))
    gone, revoked = create_sender(name="gone", regions=[south])
    revoke_sender(gone, now=now)
    for bad in (None, "", "wrong", writer, expired, revoked, "x" * 5000):
        answer = get(client, bad)
        assert answer.status_code == 401, bad
        assert answer["WWW-Authenticate"].startswith("Bearer")
    assert client.get("/api/v1/sd/dcgm", headers={"Authorization": f"Basic {token}"}).status_code == 401
    assert client.post("/api/v1/sd/dcgm", headers={"Authorization": f"Bearer {token}"}).status_code == 405


def test_a_token_without_its_scheme_as_old_prometheus_sends_it(client: Client, token: str) -> None:
    assert client.get("/api/v1/sd/dcgm", headers={"Authorization": token}).status_code == 200


def test_two_tokens_are_good_while_rotating(client: Client, token: str) -> None:
    newer = rotate_token(Sender.objects.get(), now=timezone.now())
    assert [get(client, each).status_code for each in (token, newer)] == [200, 200]


def test_an_unchanged_list_is_not_sent_again(client: Client, south: Region, token: str) -> None:
    make_node(site=make_site(region=south), exporter_address="10.0.0.1:9400")
    etag = get(client, token)["ETag"]
    again = get(client, token, **{"If-None-Match": f'"other", W/{etag}'})
    assert (again.status_code, again.content, again["ETag"]) == (304, b"", etag)
    Node.objects.update(exporter_address="10.0.0.2:9400")
    assert get(client, token, **{"If-None-Match": etag}).status_code == 200


@pytest.mark.parametrize("broken", ["fleet_sender", "fleet_region", "fleet_node"])
def test_an_inventory_that_cannot_be_read_is_503_never_a_short_list(client: Client, south: Region, token: str, broken: str) -> None:
    def refuse(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if f'FROM "{broken}"' in sql:
            raise OperationalError("server closed the connection unexpectedly")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(refuse):
        answer = get(client, token)
    assert (answer.status_code, answer["Retry-After"], answer["Content-Type"]) == (503, "15", "application/problem+json")
    assert get(client, token).status_code == 200


def test_statements_do_not_grow_with_the_fleet(client: Client, south: Region, token: str) -> None:
    counts = []
    for more in (3, 57):
        for _ in range(more):
            make_node(site=make_site(region=south), exporter_address="10.0.0.1:9400")
        get(client, token)
        with CaptureQueriesContext(connection) as queries:
            assert len(json.loads(get(client, token).content)) >= more
        counts.append(len(queries))
    assert counts[0] == counts[1] <= 4
