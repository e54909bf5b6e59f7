"""`/guard-rails`: who sees which breakers and freezes, who resets and ends them, and that a freeze on the page holds commands."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from console.models import User
from fleet.models import AuditEntry, Breaker, Freeze
from tests.builders import make_node, make_region, make_site, make_tenant, make_user
from tests.fleet.command_world import key, make_agent, previewed  # noqa: F401 (fixture)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("key")]


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def text(answer: Any) -> str:
    return " ".join(answer.content.decode().split())


def make_breaker(scope: str = "", **fields: Any) -> Breaker:
    kind = "region" if scope else "fleet"
    return Breaker.objects.create(rule=kind, scope_kind=kind, scope_key=scope, why=f"too much in {scope or 'the fleet'}", tripped_at=timezone.now(), **fields)


def make_freeze(kind: str, scope: str = "") -> Freeze:
    now = timezone.now()
    return Freeze.objects.create(
        scope_kind=kind,
        scope_key=scope,
        starts_at=now,
        ends_at=now + timedelta(hours=1),
        reason=f"freeze of {scope or kind}",
        created_by="lena",
        created_at=now,
    )


def test_each_sees_what_holds_its_regions() -> None:
    north, south = make_region("north"), make_region("south")
    here, there = make_node("du-here", site=make_site("N-1", region=north)), make_node("du-there", site=make_site("S-1", region=south))
    for region in ("", "north", "south"):
        make_breaker(region)
    for kind, scope in (
        ("fleet", ""),
        ("region", "north"),
        ("region", "south"),
        ("site", "N-1"),
        ("site", "S-1"),
        ("node", str(here.pk)),
        ("node", str(there.pk)),
    ):
        make_freeze(kind, scope)
    everything = text(signed_in(make_user(role="viewer")).get("/guard-rails"))
    scoped = text(signed_in(make_user(role="lead", region=north)).get("/guard-rails"))
    for words in ("too much in the fleet", "too much in north", "freeze of fleet", "freeze of north", "freeze of N-1", f"freeze of {here.pk}"):
        assert words in everything
        assert words in scoped
    for words in ("too much in south", "freeze of south", "freeze of S-1", f"freeze of {there.pk}<"):
        assert words in everything
        assert words not in scoped
    assert "region_disrupted_share" in scoped


def test_strangers() -> None:
    north, south = make_region("north"), make_region("south")
    breaker, freeze = make_breaker("north"), make_freeze("region", "north")
    reset, end = f"/guard-rails/breakers/{breaker.pk}/reset", f"/guard-rails/freezes/{freeze.pk}/end"
    body = {"reason": "x", "backlog": "replay"}
    assert Client().get("/guard-rails").status_code == 302
    tina = signed_in(make_user("tina", tenant=make_tenant("acme")))
    assert [tina.get("/guard-rails").status_code, tina.post(reset, body).status_code, tina.post(end, body).status_code] == [404, 404, 404]
    other = signed_in(make_user("other", role="lead", region=south))
    assert [other.post(reset, body).status_code, other.post(end, body).status_code] == [404, 404]
    olga = signed_in(make_user("olga", role="operator", region=north))
    page = text(olga.get("/guard-rails"))
    assert "<form class=" not in page.partition("<main")[2]
    assert [olga.post(path, body).status_code for path in (reset, end, "/guard-rails")] == [403, 403, 403]
    local = signed_in(make_user("local", role="lead", region=north))
    assert local.post(f"/guard-rails/breakers/{make_breaker().pk}/reset", body).status_code == 403
    assert local.post("/guard-rails", form("fleet")).status_code == 403
    assert "There is no region" in text(local.post("/guard-rails", form("region", "south")))
    assert local.post("/guard-rails/breakers/99999999999999999999/reset", body).status_code == 404
    assert (Breaker.objects.filter(reset_at__isnull=True).count(), Freeze.objects.filter(ended_at__isnull=True).count()) == (2, 1)


def form(kind: str, scope: str = "", **more: str) -> dict[str, str]:
    now = timezone.now()
    times = {"starts_at": f"{now - timedelta(minutes=1):%Y-%m-%dT%H:%M}", "ends_at": f"{now + timedelta(hours=2):%Y-%m-%dT%H:%M}"}
    return {"scope_kind": kind, "scope_key": scope, "reason": "festival", **times, **more}


def test_a_lead_resets_a_breaker_with_a_reason_and_a_word_on_what_waits() -> None:
    breaker = make_breaker("north", evidence={"acts": 11})
    make_region("north")
    lena = signed_in(make_user("lena", role="lead"))
    path = f"/guard-rails/breakers/{breaker.pk}/reset"
    for body in ({"reason": "", "backlog": "skip"}, {"reason": "seen", "backlog": ""}, {"reason": "seen", "backlog": "nonsense"}):
        lena.post(path, body)
        breaker.refresh_from_db()
        assert breaker.reset_at is None
    assert "skip or replay" in text(lena.get("/guard-rails"))
    assert lena.post(path, {"reason": "seen", "backlog": "skip"}, follow=True).status_code == 200
    breaker.refresh_from_db()
    assert (breaker.reset_by, breaker.reset_reason, breaker.backlog) == ("lena", "seen", "skip")
    assert AuditEntry.objects.get(action="breaker.reset").detail["acts"] == 11
    page = text(lena.get("/guard-rails"))
    assert "No breaker is open." in page
    assert "lena" in page


def test_a_freeze_from_the_page_holds_commands_until_it_is_ended() -> None:
    node = make_agent(site=make_site("N-1", region=make_region("north")))
    lena = signed_in(make_user("lena", role="lead"))
    for wrong, words in (
        ({"reason": ""}, "This field is required"),
        ({"ends_at": "2020-01-01T00:00"}, "Must come after the start"),
        ({"scope_key": "nowhere"}, "nowhere"),
        ({"starts_at": "soon"}, "Enter a valid date/time"),
    ):
        answer = lena.post("/guard-rails", form("site", "N-1") | wrong)
        assert (answer.status_code, words in text(answer)) == (400, True), wrong
    assert Freeze.objects.count() == 0
    assert lena.post("/guard-rails", form("site", "N-1")).status_code == 302
    now = timezone.now()
    (refused,) = previewed("drain", [node], now=now).content["refused"]
    assert (refused["rule"], "festival" in refused["why"]) == ("freeze", True)
    freeze = Freeze.objects.get()
    lena.post(f"/guard-rails/freezes/{freeze.pk}/end", {"reason": ""})
    freeze.refresh_from_db()
    assert freeze.ended_at is None
    lena.post(f"/guard-rails/freezes/{freeze.pk}/end", {"reason": "over"})
    assert previewed("drain", [node], now=timezone.now()).content["refused"] == []
    assert "No freeze is in force or planned." in text(lena.get("/guard-rails"))
    assert list(AuditEntry.objects.filter(action__startswith="freeze.").order_by("pk").values_list("action", "object_key")) == [
        ("freeze.set", "N-1"),
        ("freeze.ended", "N-1"),
    ]


@pytest.mark.parametrize("scoped", [False, True])
def test_few_statements_however_many_are_frozen_and_held(scoped: bool) -> None:
    north = make_region("north")
    viewer = make_user(role="lead", region=north if scoped else None)
    counts = []
    for size in (3, 60):
        for number in range(size):
            make_freeze("site", make_site(f"S-{size}-{number}", region=north).code)
            if not scoped:
                make_breaker(f"r-{size}-{number}")
        client = signed_in(viewer)
        with CaptureQueriesContext(connection) as seen:
            assert client.get("/guard-rails").status_code == 200
        counts.append(len(seen))
    assert counts[0] == counts[1]
