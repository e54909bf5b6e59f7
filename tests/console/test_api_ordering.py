"""The API sorts by what the pages sort by, in the same order: values that are missing come last, and cursors visit each row once, there and back."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db.models import Q
from django.test import RequestFactory

from console.access import access_of
from console.list_kinds import GPUS, NODES, REGIONS, SITES, gpu_rows, node_rows, region_rows, site_rows
from console.lists import ListKind, read_list
from console.models import User
from fleet.models import AgentConnection, Gpu, GpuHealth, GpuReading, HealthState, NodeHealth, SiteHealth
from tests.builders import T0, make_gpu, make_node, make_region, make_site, make_user
from tests.console.api_support import call, strict

pytestmark = pytest.mark.django_db

KINDS: dict[str, tuple[ListKind, Callable[..., Any], str]] = {
    "sites": (SITES, site_rows, "code"),
    "nodes": (NODES, node_rows, "host_name"),
    "gpus": (GPUS, gpu_rows, "uuid"),
    "regions": (REGIONS, region_rows, "slug"),
}
ORDERS = [(name, sign + order) for name, (kind, _, _) in KINDS.items() for order in kind.orderings for sign in ("", "-")]


@pytest.fixture
def fleet() -> User:
    """Rows that share values and rows that lack them: without health, without a reading, without an agent."""
    north, south = make_region("north", kind="central"), make_region("south")
    states = [HealthState.OK, HealthState.DOWN, HealthState.UNKNOWN, HealthState.DEGRADED, None, HealthState.OK, None]
    for number, state in enumerate(states):
        site = make_site(f"S-{number}", region=north if number % 2 else south, name="same" if number % 3 else "other")
        node = make_node(f"n-{number}", site=site, driver_version="550" if number % 2 else "")
        gpu = make_gpu(node=node, index=None if number == 2 else number % 2)
        if state is not None:
            since = T0.replace(minute=number % 3)
            power = None if number == 1 else 100.5 * (number % 2)
            SiteHealth.objects.create(site=site, state=state, since=since, cause="c", power_watts=power, gpus_reporting=number, gpus_expected=number)
            NodeHealth.objects.create(node=node, state=state, since=since, cause="c")
            GpuHealth.objects.create(gpu=gpu, state=state, since=since, cause="c", last_xid=79 if number == 1 else None)
        if number in (0, 3, 5):
            GpuReading.objects.create(gpu=gpu, sampled_at=T0, power_watts=None if number == 0 else 300.25, sm_clock_hertz=1.98e9)
            AgentConnection.objects.create(node=node, connected=number == 3, refusal="", report={})
    return make_user(role="viewer")


def page_order(kind: ListKind, rows: Any, user: User, ordering: str) -> list[Any]:
    request: Any = RequestFactory().get("/", {"ordering": ordering})
    request.user = user
    shown = read_list(request, kind, rows(access_of(user)))
    assert not shown.errors
    return list(shown.rows)


@pytest.mark.parametrize(("name", "ordering"), ORDERS, ids=[f"{name}:{ordering}" for name, ordering in ORDERS])
def test_every_order_of_the_page(fleet: User, name: str, ordering: str) -> None:
    kind, rows, key = KINDS[name]
    expected = [getattr(row, key) for row in page_order(kind, rows, fleet, ordering)]
    there, path, last = [], f"{name}/?page_size=2&ordering={ordering}", ""
    pages = []
    while path:
        body = strict(call(fleet, "GET", path))
        pages.append([row[key] for row in body["results"]])
        there += pages[-1]
        path, last = (body["next"] or "").partition("/api/v1/")[2], body["previous"] or ""
    assert there == expected
    back: list[list[str]] = []
    path = last.partition("/api/v1/")[2]
    while path:
        body = strict(call(fleet, "GET", path))
        back.insert(0, [row[key] for row in body["results"]])
        path = (body["previous"] or "").partition("/api/v1/")[2]
    assert back == pages[:-1]


@pytest.mark.parametrize("ordering", ["state", "-power", "-contact"])
def test_an_export_has_the_orders_of_the_page(fleet: User, ordering: str) -> None:
    answer = call(fleet, "GET", f"sites/export?format=csv&ordering={ordering}")
    assert answer.status_code == 200
    lines = [line for line in b"".join(answer.streaming_content).decode("utf-8-sig").splitlines() if line.startswith("S-")]
    assert [line.split(",")[0] for line in lines] == [site.code for site in page_order(SITES, site_rows, fleet, ordering)]


def test_what_has_no_value_comes_last_in_both_directions(fleet: User) -> None:
    without = set(Gpu.objects.filter(Q(reading__isnull=True) | Q(reading__power_watts__isnull=True)).values_list("uuid", flat=True))
    for sign in ("", "-"):
        found = [row["uuid"] for row in strict(call(fleet, "GET", f"gpus/?ordering={sign}power"))["results"]]
        assert set(found[2:]) == without
