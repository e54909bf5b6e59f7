"""Breakers open by themselves, hold what is disruptive, and only a person closes them, who says what becomes of what waited; freezes hold too."""

from datetime import timedelta
from typing import Any

import pytest

from console.models import User
from fleet.control import breakers, dispatch, freezes
from fleet.control.commands import CommandRefused
from fleet.control.guardrails import Limits
from fleet.models import AuditEntry, Breaker, Region, SiteHealth
from tests.builders import T0, make_node, make_region, make_site, make_user
from tests.console.api_support import call, strict
from tests.fleet.command_world import key, make_agent, make_agents, say, states, submitted  # noqa: F401 (fixture)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("key")]
LOW = Limits(region_trip_fewest=2, region_trip_share=0.01, fleet_trip_fewest=1000)


def silent_region(silent: int, sites: int) -> Region:
    region = make_region("north")
    for number in range(sites):
        SiteHealth.objects.create(
            site=make_site(region=region), state="unknown" if number < silent else "ok", since=T0, out_of_contact_since=T0 if number < silent else None
        )
    return region


@pytest.mark.parametrize(("silent", "sites", "opens"), [(2, 4, False), (3, 4, True), (3, 3, False), (0, 50, False), (26, 50, True)])
def test_more_than_half_of_a_region_silent_is_our_own_link(silent: int, sites: int, opens: bool) -> None:
    silent_region(silent, sites)
    opened = breakers.evaluate(now=T0)
    assert [(one.rule, one.scope_key) for one in opened] == ([("observer", "north")] if opens else [])
    assert breakers.evaluate(now=T0) == [], "one is enough"
    assert AuditEntry.objects.filter(action="breaker.tripped").count() == int(opens)


def test_many_acts_within_minutes_open_a_breaker_and_what_waits_is_held_until_a_person_decides() -> None:
    region = make_region("north")
    nodes = make_agents(4, region=region)
    for _ in range(40):
        make_node(site=make_site(region=region))
    for node in nodes[:3]:
        submitted("drain", [node])
    (opened,) = breakers.evaluate(now=T0, limits=LOW)
    assert (opened.rule, opened.scope_key, opened.evidence["acts"]) == ("region", "north", 3)
    with pytest.raises(CommandRefused, match="A breaker is open"):
        submitted("drain", [nodes[3]])
    with pytest.raises(CommandRefused, match="backlog"):
        breakers.reset(breaker_id=opened.pk, reason="fine", backlog="forget", user=make_user(), now=T0)
    breakers.reset(breaker_id=opened.pk, reason="fine", backlog="replay", user=make_user("anna"), now=T0)
    assert submitted("drain", [nodes[3]]).created
    with pytest.raises(CommandRefused, match="already"):
        breakers.reset(breaker_id=opened.pk, reason="fine", backlog="skip", user=make_user(), now=T0)


@pytest.mark.parametrize(("backlog", "state"), [("skip", "skipped"), ("replay", "pending")])
def test_what_waited_under_a_breaker(backlog: str, state: str) -> None:
    site = make_site(region=make_region("north"))
    first, second = make_agent(site=site), make_agent(site=site)
    (target,) = submitted("drain", [first]).command.targets.all()
    waiting = submitted("drain", [second]).command  # a site takes one at a time
    breaker = Breaker.objects.create(rule="region", scope_kind="region", scope_key="north", why="too much", tripped_at=T0)
    say(target, "skipped", sequence=1, code="precondition")
    dispatch.advance(now=T0 + timedelta(seconds=5))
    held = waiting.targets.get()
    assert (held.state, "breaker is open" in held.waits_for) == ("pending", True)
    breakers.reset(breaker_id=breaker.pk, reason="looked", backlog=backlog, user=make_user(), now=T0 + timedelta(seconds=6))
    dispatch.advance(now=T0 + timedelta(seconds=7))
    assert states(waiting) == {state: 1}
    assert (waiting.targets.get().released_at is not None) == (backlog == "replay")


def freeze(user: User, **changes: Any) -> Any:
    given: dict[str, Any] = {"scope_kind": "region", "scope_key": "north", "starts_at": T0, "ends_at": T0 + timedelta(hours=2), "reason": "match day"}
    return freezes.freeze(user=user, now=T0, **{**given, **changes})


def test_a_freeze_holds_until_its_end_and_break_glass_goes_past_it() -> None:
    node = make_agent(site=make_site(region=make_region("north")))
    made = freeze(make_user())
    with pytest.raises(CommandRefused, match="match day"):
        submitted("drain", [node])
    assert submitted("diagnostics", [node]).created
    freezes.end(freeze_id=made.pk, reason="rained off", user=make_user(), now=T0)
    assert submitted("drain", [node]).created


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"reason": ""}, "reason"),
        ({"starts_at": None}, "starts_at"),
        ({"ends_at": T0}, "ends_at"),
        ({"ends_at": T0 + timedelta(days=91)}, "ends_at"),
        ({"scope_key": "nowhere"}, "scope_key"),
        ({"scope_kind": "gpu"}, "scope_kind"),
    ],
)
def test_a_freeze_that_cannot_be_is_named(changes: dict[str, Any], field: str) -> None:
    make_region("north")
    with pytest.raises(CommandRefused) as refused:
        freeze(make_user(), **changes)
    assert list(refused.value.errors) == [field]


def test_by_the_api_and_only_by_leads() -> None:
    north = make_region("north")
    breaker = Breaker.objects.create(rule="region", scope_kind="region", scope_key="north", why="w", tripped_at=T0)
    operator, lead, south = make_user(role="operator"), make_user(role="lead", region=north), make_user(role="lead", region=make_region("south"))
    path, body = f"breakers/{breaker.pk}/reset/", {"reason": "looked", "backlog": "replay"}
    assert (call(operator, "POST", path, body).status_code, call(south, "POST", path, body).status_code) == (403, 404)
    assert call(lead, "POST", path, {"reason": "looked", "backlog": "x"}).status_code == 400
    assert strict(call(lead, "POST", path, body))["backlog"] == "replay"
    window = {"scope_kind": "region", "scope_key": "north", "starts_at": "2030-01-01T00:00:00Z", "ends_at": "2030-01-02T00:00:00Z", "reason": "x"}
    made = call(lead, "POST", "freezes/", window)
    assert made.status_code == 201, made.content
    assert call(lead, "POST", "freezes/", {**window, "scope_key": "south"}).status_code == 400
    assert strict(call(lead, "POST", f"freezes/{strict(made)['id']}/end/", {"reason": "off"}))["ended_at"]
    assert strict(call(operator, "GET", "guard-rails/"))["limits"]["node_actions_a_day"] == 3
