"""`/search` and its suggestions: exact ids first, all kinds, only what one sees."""

import pytest
from django.test import Client
from django.utils import timezone

from fleet.models import Workload
from tests.console.pages import Cast, a_site, text_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def cast() -> Cast:
    cast = Cast()
    for code in ("WEST-11", "WEST-1", "OLD-WEST-1"):
        a_site(code, cast.west)
    gpu = cast.west.sites.get(code="WEST-1").nodes.get().gpus.get(index=0)
    now = timezone.now()
    Workload.objects.create(gpu=gpu, namespace="acme-prod", pod="yolo-west-1", sharing="mig", started_at=now, last_seen_at=now)
    return cast


def labels(answer: object) -> list[str]:
    return [hit.label for hit in answer.context["hits"]]  # type: ignore[attr-defined]


def test_the_exact_code_comes_first_then_what_begins_so_then_what_contains_it(cast: Cast) -> None:
    hits = cast.client("viewer").get("/search?q=west-1&kind=site").context["hits"]
    assert [hit.key for hit in hits] == ["WEST-1", "WEST-11", "OLD-WEST-1"]


def test_all_kinds_are_searched(cast: Cast) -> None:
    hits = cast.client("viewer").get("/search?q=west").context["hits"]
    assert {hit.kind for hit in hits} == {"site", "node", "workload", "region"}


def test_a_gpu_by_its_uuid_with_or_without_prefix_or_only_its_beginning(cast: Cast) -> None:
    gpu = cast.west.sites.get(code="WEST-1").nodes.get().gpus.get(index=0)
    client = cast.client("viewer")
    for text in (gpu.uuid, gpu.uuid.removeprefix("GPU-"), gpu.uuid[:13], gpu.uuid.upper()):
        assert labels(client.get("/search", {"q": text})) == [gpu.uuid]
    assert client.get("/search", {"q": gpu.uuid, "go": "1"})["Location"] == f"/gpus/{gpu.uuid}"


def test_nothing_found_says_what_was_searched(cast: Cast) -> None:
    page = text_of(cast.client("viewer").get("/search?q=zzzz"))
    assert "Nothing matches “zzzz”" in page
    assert "Searched: site codes and names" in page
    assert cast.client("viewer").get("/search?q=").status_code == 200
    assert cast.client("viewer").get("/search?q=%25_%27%22%3Cscript%3E").status_code == 200


def test_a_nul_in_the_text_finds_nothing_and_breaks_nothing(cast: Cast) -> None:
    assert cast.client("viewer").get("/search?q=a%00b").status_code == 200
    assert cast.client("viewer").get("/search/suggest?q=a%00b").json() == {"results": []}


def test_suggestions_are_at_most_20_with_the_key_that_filters_take(cast: Cast) -> None:
    found = cast.client("viewer").get("/search/suggest?q=west&kind=site").json()["results"]
    assert [row["key"] for row in found] == ["WEST-1", "WEST-11", "OLD-WEST-1"]
    assert found[0]["url"] == "/sites/WEST-1"


def test_strangers_find_nothing_and_tenants_people_have_no_search(cast: Cast) -> None:
    assert labels(cast.client("stranger").get("/search?q=west")) == []
    assert cast.client("stranger").get("/search/suggest?q=west").json() == {"results": []}
    assert cast.client("tenant_user").get("/search?q=west").status_code == 404
    assert cast.client("tenant_user").get("/search/suggest?q=west").status_code == 404
    assert Client().get("/search?q=west").status_code == 302
