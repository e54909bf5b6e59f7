"""The standard list: filters, chips, order, pages, counts, columns, saved views; the same statements at 3 and at 60 rows."""

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from console.access import access_of
from console.list_kinds import KINDS, SITES, site_rows
from console.lists import ListKind
from console.models import SavedView
from fleet.models import AuditEntry, HealthState, Site
from script.benchmarks.fleet_rows import fill_fleet
from tests.console.pages import Cast, a_site, signed_in, text_of

pytestmark = pytest.mark.django_db
PATHS = ["/sites", "/nodes", "/gpus", "/regions"]


@pytest.fixture
def cast() -> Cast:
    return Cast()


def codes_in(answer: object) -> list[str]:
    return [row.code for row in answer.context["list"].rows]  # type: ignore[attr-defined]


def statements(client: Client, path: str) -> int:
    with CaptureQueriesContext(
        connection,
    ) as captured:
        assert client.get(path).status_code == 200
    return len(captured)


@pytest.mark.parametrize("path", PATHS)
def test_outside_the_scope_nothing_is_listed_and_tenants_people_have_no_list(cast: Cast, path: str) -> None:
    a_site("WEST-1", cast.west)
    assert "west-1" in text_of(cast.client("operator").get(path)).lower() or path == "/regions"
    assert "west-1" not in text_of(cast.client("stranger").get(path)).lower()
    assert cast.client("tenant_user").get(path).status_code == 404
    assert Client().get(path).status_code == 302


def test_the_same_statements_at_3_and_at_60_rows(cast: Cast) -> None:
    fill_fleet(sites=60, now=timezone.now(), sites_per_region=1)
    client = cast.client("administrator")
    client.get("/sites")
    for path in PATHS:
        assert len(client.get(f"{path}?page_size=60").context["list"].rows) == 60
        assert statements(client, f"{path}?page_size=3") == statements(client, f"{path}?page_size=60"), path
    assert len(client.get("/search?q=maryvale").context["hits"]) < len(client.get("/search?q=0").context["hits"]) == 50
    assert statements(client, "/search?q=maryvale") == statements(client, "/search?q=0")


def test_filters_come_from_the_address_and_stand_as_chips(cast: Cast) -> None:
    a_site("DOWN-1", cast.west, state=HealthState.DOWN)
    a_site("UNKNOWN-1", cast.west, state=HealthState.UNKNOWN)
    a_site("OK-1", cast.west)
    client = cast.client("operator")
    answer = client.get("/sites?state=down&state=unknown&region=west&q=-1")
    assert codes_in(answer) == ["DOWN-1", "UNKNOWN-1"]
    assert [(chip.label, chip.value) for chip in answer.context["list"].chips] == [("Quick filter", "-1"), ("State", "Down, Unknown"), ("Region", "west")]
    assert "region=" not in answer.context["list"].chips[2].without
    assert "Remove the filter State" in text_of(answer)


def test_a_site_without_a_health_row_has_never_reported_and_is_unknown(cast: Cast) -> None:
    a_site("OK-1", cast.west)
    Site.objects.create(code="NEW-1", name="New", region=cast.west)
    client = cast.client("operator")
    assert codes_in(client.get("/sites?state=unknown")) == ["NEW-1"]
    assert "Has never reported." in text_of(client.get("/sites"))


def test_wrong_filters_list_nothing_and_name_what_is_wrong(cast: Cast) -> None:
    a_site("OK-1", cast.west)
    client = cast.client("operator")
    for query, word in (
        ("state=fine", "State"),
        ("page=0", "page"),
        ("page_size=201", "page_size"),
        ("ordering=colour", "ordering"),
        ("id=x", "Chosen rows"),
        ("page=1e400", "page"),
        ("q=%00", "Quick filter"),
    ):
        answer = client.get(f"/sites?{query}")
        assert answer.status_code == 200
        assert codes_in(answer) == []
        assert word in " ".join(answer.context["list"].errors), query


def test_order_is_stable_and_a_missing_value_comes_last_both_ways(cast: Cast) -> None:
    for number, watts in enumerate((5.0, None, 7.0)):
        a_site(f"S-{number}", cast.west, power_watts=watts)
    client = cast.client("operator")
    assert codes_in(client.get("/sites?ordering=power")) == ["S-0", "S-2", "S-1"]
    assert codes_in(client.get("/sites?ordering=-power")) == ["S-2", "S-0", "S-1"]


def test_pages_hold_each_row_once(cast: Cast) -> None:
    for number in range(7):
        Site.objects.create(code=f"S-{number}", name="Same", region=cast.west)
    client = cast.client("operator")
    seen = [code for page in (1, 2, 3) for code in codes_in(client.get(f"/sites?ordering=name&page_size=3&page={page}"))]
    assert sorted(seen) == [f"S-{number}" for number in range(7)]
    last = client.get("/sites?ordering=name&page_size=3&page=3").context["list"]
    assert (last.has_next, last.first, last.last, last.count_text) == (False, 7, 7, "7")
    assert "past the end" in text_of(client.get("/sites?page=9"))


def test_beyond_ten_thousand_the_count_is_an_estimate_and_says_so(cast: Cast) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            """INSERT INTO fleet_site (region_id, code, name, kind, time_zone, power_feed)
            SELECT %s, 'S-' || n, 'x', 'cell', 'UTC', '' FROM generate_series(1, 10050) n""",
            [cast.west.pk],
        )
    state = cast.client("operator").get("/sites").context["list"]
    assert state.count_is_estimate
    assert state.count_text.startswith("about 1")


def test_nothing_matching_says_how_many_there_are_without_the_filters(cast: Cast) -> None:
    a_site("OK-1", cast.west)
    assert "Without them there are 1." in text_of(cast.client("operator").get("/sites?state=down"))
    assert "Nothing here yet" in text_of(cast.client("stranger").get("/sites"))


def test_columns_and_density_are_kept_per_user(cast: Cast) -> None:
    a_site("OK-1", cast.west)
    client = cast.client("operator")
    answer = client.post("/lists/sites/columns", {"column": ["feed", "nonsense"], "density": "compact", "query": "?state=ok"})
    assert answer["Location"] == "/sites?state=ok"
    shown = client.get("/sites")
    assert [header.column.key for header in shown.context["list"].headers] == ["code", "feed"]
    assert 'data-density="compact"' in shown.content.decode()
    client.post("/lists/sites/columns", {"reset": "yes"})
    assert len(client.get("/sites").context["list"].headers) == len([column for column in SITES.columns if column.shown])
    assert client.post("/lists/planets/columns", {}).status_code == 404


def test_saved_views_own_and_shared(cast: Cast) -> None:
    operator, viewer = cast.client("operator"), cast.client("viewer")
    operator.post("/lists/sites/views", {"name": "My trouble", "query": "?state=down&ordering=-since"})
    operator.post("/lists/sites/views", {"name": "For all", "query": "?state=unknown", "shared": "yes"})
    operator.post("/lists/sites/views", {"name": "For all", "query": "?state=unknown&region=west", "shared": "yes"})
    assert "My trouble" in text_of(operator.get("/sites"))
    seen = text_of(viewer.get("/sites"))
    assert "For all" in seen
    assert "My trouble" not in seen
    shared = SavedView.objects.get(name="For all")
    assert shared.query == "?state=unknown&region=west"
    assert viewer.post("/lists/sites/views/delete", {"view": shared.pk}).status_code == 404
    assert operator.post("/lists/sites/views/delete", {"view": shared.pk}).status_code == 302
    assert operator.post("/lists/sites/views", {"name": "", "query": ""}).status_code == 302
    assert SavedView.objects.count() == 1


def test_a_saved_view_cannot_lead_elsewhere(cast: Cast) -> None:
    answer = cast.client("operator").post("/lists/sites/views", {"name": "x", "query": "//evil.example/?a=1"})
    assert answer["Location"].startswith("/sites")


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_column_can_be_drawn_and_sorted(cast: Cast, kind: ListKind) -> None:
    a_site("OK-1", cast.west)
    Site.objects.create(code="NEW-1", name="New", region=cast.west)
    AuditEntry.objects.create(at=timezone.now(), actor="ann", action="test")
    client = cast.client("administrator")
    client.post(f"/lists/{kind.name}/columns", {"column": [column.key for column in kind.columns]})
    for ordering in kind.orderings:
        for sign in ("", "-"):
            answer = client.get(f"/{kind.name}?ordering={sign}{ordering}")
            assert answer.context["list"].errors == []
            assert answer.context["list"].rows


# Of filters that take neither a choice nor any text.
ODD_VALUES = {"since": "2026-11-20T10:00:00Z", "until": "2026-11-20T10:00:00Z", "source": "127.0.0.1"}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_filter_can_be_used(cast: Cast, kind: ListKind) -> None:
    a_site("OK-1", cast.west)
    client = cast.client("administrator")
    for name, field in kind.filter_class.base_filters.items():
        given = ODD_VALUES.get(name) or next(iter(dict(field.extra.get("choices", [])) or {"1": ""}))
        answer = client.get(f"/{kind.name}", {name: given})
        assert answer.context["list"].errors == [], name


def test_cells_escape_what_others_wrote(cast: Cast) -> None:
    a_site("OK-1", cast.west, state=HealthState.DOWN, why="<script>alert(1)</script>")
    assert "<script>alert" not in cast.client("operator").get("/sites").content.decode()


def test_rows_of_a_scope_are_those_of_its_access(cast: Cast) -> None:
    a_site("OK-1", cast.west)
    assert [row.code for row in site_rows(access_of(cast.operator))] == ["OK-1"]
    assert not site_rows(access_of(cast.stranger)).exists()


def test_a_wide_list_still_weighs_little(cast: Cast) -> None:
    for number in range(60):
        Site.objects.create(code=f"S-{number}", name="A name of some length", region=cast.west)
    assert len(signed_in(cast.operator).get("/sites?page_size=200").content) < 150_000
