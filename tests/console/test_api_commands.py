"""Commands and switches by the API: who may, on what, and that nothing outside one's scope is reached or told."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone
from pytest_django import Settings

from console.models import User
from fleet.control import signing
from fleet.models import AuditEntry, Command, CommandTarget, Node, Switch, Workload
from tests.builders import T0, make_gpu, make_phy_gpu, make_region, make_site, make_tenant, make_user
from tests.console.api_support import call, strict
from tests.fleet.command_world import make_agent, make_agents

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def key(tmp_path: Path, settings: Settings) -> None:
    signing.create_key_file(tmp_path / "signing.pem")
    settings.SIGNING_KEY_FILE = str(tmp_path / "signing.pem")


def preview(user: User, selection: Any, kind: str = "drain", **more: Any) -> Any:
    return call(user, "POST", "commands/preview/", {"kind": kind, "selection": selection, **more})


def submit(user: User, selection: Any, kind: str = "drain", *, key: str = "k1", fresh: bool = True, scopes: Any = None, **more: Any) -> Any:
    asked = {name: value for name, value in more.items() if name in ("parameters", "break_glass")}
    seen = preview(user, selection, kind, **asked)
    assert seen.status_code == 200, seen.content
    found = strict(seen)
    body = {"kind": kind, "selection": selection, "preview_hash": found["hash"], "confirm": found["content"]["phrase"], "reason": "CHG-7", **more}
    return call(user, "POST", "commands/", body, fresh=fresh, scopes=scopes, **{"Idempotency-Key": key})


def test_from_preview_to_a_running_command() -> None:
    node, user = make_agent(), make_user("olga", role="operator")
    make_gpu(node=node)
    Workload.objects.create(gpu=node.gpus.get(), namespace="a", pod="p", sharing="whole", tenant_key="acme", started_at=T0, last_seen_at=T0)
    seen = strict(preview(user, {"nodes": [node.pk]}))
    assert (seen["content"]["targets"], seen["content"]["workloads"], seen["content"]["tenants"], seen["content"]["phy_placements"]) == (1, 1, ["acme"], 0)
    assert Command.objects.count() == 0
    done = submit(user, {"nodes": [node.pk]})
    assert done.status_code == 201, done.content
    command = strict(done)
    assert (command["state"], command["risk"], command["states"], command["created_by"]) == ("running", 1, {"pending": 1}, "olga")
    again = submit(user, {"nodes": [node.pk]})
    assert (again.status_code, strict(again)["id"]) == (200, command["id"])
    targets = strict(call(user, "GET", f"commands/{command['id']}/targets/"))["results"]
    assert [(one["node_host_name"], one["state"]) for one in targets] == [(node.host_name, "pending")]
    rows = strict(call(user, "GET", "commands/?state=running&kind=drain"))["results"]
    assert [one["id"] for one in rows] == [command["id"]]


@pytest.mark.parametrize(
    ("selection", "field"),
    [
        ({}, "selection"),
        ([], "selection"),
        ({"nodes": [1], "sites": ["a"]}, "selection"),
        ({"nodes": []}, "selection.nodes"),
        ({"nodes": ["1"]}, "selection.nodes"),
        ({"nodes": [True]}, "selection.nodes"),
        ({"nodes": [10**30]}, "selection.nodes"),
        ({"nodes": [424242]}, "selection.nodes"),
        ({"sites": ["a\x00b"]}, "selection.sites"),
        ({"sites": [5]}, "selection.sites"),
        ({"list": "cities", "query": "", "expected": 1}, "selection.list"),
        ({"list": "sites", "query": "", "expected": "1"}, "selection.expected"),
        ({"list": "sites", "query": "", "expected": 7}, "selection.expected"),
        ({"list": "sites", "query": "nonsense=1", "expected": 0}, "selection.query"),
        ({"list": "nodes", "query": 5, "expected": 0}, "selection.query"),
        ({"retry_of": "x"}, "selection.retry_of"),
    ],
)
def test_a_bad_selection_is_named(selection: Any, field: str) -> None:
    answer = preview(make_user(role="operator"), selection)
    assert answer.status_code == 400, answer.content
    assert field in strict(answer)["detail"]


def test_all_that_match_is_a_frozen_set_with_its_count() -> None:
    region = make_region("north")
    make_agents(3, region=region)
    make_agents(2, region=make_region("south"))
    user = make_user(role="operator")
    seen = strict(preview(user, {"list": "sites", "query": "region=north&ordering=-power", "expected": 3}))
    assert (seen["content"]["targets"], seen["content"]["by_region"], seen["content"]["phrase"]) == (3, {"north": 3}, "drain 3 nodes")


def test_what_lies_elsewhere_does_not_exist_and_refuses_the_whole() -> None:
    """Case C36: a foreign id is as one that is not there, and nothing is done to one's own either."""
    north, south = make_region("north"), make_region("south")
    (mine,), (other,) = make_agents(1, region=north), make_agents(1, region=south)
    user = make_user(role="operator", region=north)
    foreign = preview(user, {"nodes": [mine.pk, other.pk]})
    missing = preview(user, {"nodes": [mine.pk, 424242]})
    assert (
        (foreign.status_code, strict(foreign)["detail"])
        == (missing.status_code, strict(missing)["detail"])
        == (400, "selection.nodes: 1 of them do not exist.")
    )
    done = submit(make_user(role="operator"), {"nodes": [other.pk]})
    theirs = strict(done)["id"]
    for method, path in (("GET", ""), ("GET", "targets/"), ("POST", "abort/"), ("POST", "approve/")):
        answer = call(user, method, f"commands/{theirs}/{path}", {"reason": "x"} if method == "POST" else None)
        assert answer.status_code == 404, path
    assert strict(call(user, "GET", "commands/"))["results"] == []


def test_rights() -> None:
    node = make_agent()
    viewer, tenant = make_user(role="viewer"), make_user(tenant=make_tenant())
    assert preview(viewer, {"nodes": [node.pk]}).status_code == 403
    assert preview(viewer, {"nodes": [node.pk]}, "diagnostics").status_code == 200
    assert preview(tenant, {"nodes": [node.pk]}).status_code == 400
    assert call(tenant, "GET", "command-kinds/").status_code == 403
    operator = make_user(role="operator")
    assert preview(operator, {"nodes": [node.pk]}, break_glass=True).status_code == 403
    token = call(operator, "POST", "commands/preview/", {"kind": "drain", "selection": {"nodes": [node.pk]}}, scopes=["read:*"])
    assert token.status_code == 403, "a token that only reads"


def test_class_3_needs_a_fresh_sign_in_the_phrase_and_another_person() -> None:
    nodes = make_agents(3, region=make_region())
    selection = {"nodes": [node.pk for node in nodes]}
    olga, lena, other = make_user("olga", role="lead"), make_user("lena", role="lead"), make_user("otto", role="operator")
    stale = submit(olga, selection, fresh=False)
    assert (stale.status_code, "reauthenticate" in strict(stale)["detail"]) == (403, True)
    assert submit(olga, selection, confirm="drain 1 node").status_code == 400
    assert Command.objects.count() == 0
    key = strict(submit(olga, selection))["id"]
    own = call(olga, "POST", f"commands/{key}/approve/", {"reason": "x"}, fresh=True)
    assert (own.status_code, strict(own)["detail"]) == (409, "Who asked for it cannot decide on it.")
    assert call(other, "POST", f"commands/{key}/approve/", {"reason": "x"}, fresh=True).status_code == 403
    assert call(lena, "POST", f"commands/{key}/approve/", {"reason": "x"}).status_code == 403, "her sign-in is old"
    assert call(lena, "POST", f"commands/{key}/approve/", {}, fresh=True).status_code == 400
    done = call(lena, "POST", f"commands/{key}/approve/", {"reason": "looks right"}, fresh=True)
    assert (done.status_code, strict(done)["state"]) == (200, "running")
    assert [one["person"] for one in strict(done)["decisions"]] == ["lena"]
    ran = call(lena, "POST", f"commands/{key}/abort/", {"reason": "stop"})
    assert strict(ran)["states"] == {"cancelled": 3}


def test_a_token_counts_as_its_owner() -> None:
    nodes = make_agents(3, region=make_region())
    olga = make_user("olga", role="lead")
    key = strict(submit(olga, {"nodes": [node.pk for node in nodes]}))["id"]
    own = call(olga, "POST", f"commands/{key}/approve/", {"reason": "x"}, scopes=["read:*", "write:*"])
    assert own.status_code == 409
    assert Command.objects.get().state == "awaiting"


def test_drift_is_told_and_nothing_is_stored() -> None:
    nodes = make_agents(2, region=make_region())
    user = make_user(role="operator")
    seen = strict(preview(user, {"nodes": [node.pk for node in nodes]}))
    Node.objects.filter(pk=nodes[0].pk).update(retired_at=timezone.now())
    body = {"kind": "drain", "selection": {"nodes": [nodes[1].pk]}, "preview_hash": seen["hash"], "reason": "x"}
    answer = call(user, "POST", "commands/", body, fresh=True, **{"Idempotency-Key": "k"})
    assert (answer.status_code, strict(answer)["type"]) == (409, "urn:masthead:problem:preview_drifted")
    assert (Command.objects.count(), CommandTarget.objects.count()) == (0, 0)


@pytest.mark.parametrize("raw", ['{"deadline_seconds": NaN}', '{"deadline_seconds": 1e400}', '{"deadline_seconds": "nan"}', '{"deadline_seconds": 12.5}'])
def test_numbers_that_are_none_are_refused(raw: str) -> None:
    """Case C38."""
    node, user = make_agent(), make_user(role="operator")
    answer = call(user, "POST", "commands/preview/", f'{{"kind": "drain", "selection": {{"nodes": [{node.pk}]}}, "parameters": {raw}}}')
    assert answer.status_code == 400
    assert call(user, "GET", "commands/").status_code == 200


def test_break_glass_on_phy_takes_two_leads() -> None:
    node = make_agent()
    gpu = make_phy_gpu(node=node)
    asker, first, second = (make_user(role="lead") for _ in range(3))
    selection = {"gpus": [gpu.uuid]}
    refused = strict(preview(asker, selection, "gpu_reset"))["content"]
    assert (refused["risk"], refused["targets"], refused["refused"][0]["rule"]) == (4, 0, "phy")
    done = submit(asker, selection, "gpu_reset", break_glass=True)
    assert done.status_code == 201, done.content
    key = strict(done)["id"]
    for lead, state in ((first, "awaiting"), (second, "running")):
        assert strict(call(lead, "POST", f"commands/{key}/approve/", {"reason": "yes"}, fresh=True))["state"] == state


def test_a_kill_is_previewed_armed_seen_and_released_without_a_fresh_sign_in() -> None:
    north = make_region("north")
    make_agents(2, region=north)
    user = make_user("olga", role="operator", region=north)
    scope = {"kind": "kill", "scope_kind": "region", "scope_key": "north"}
    seen = strict(call(user, "POST", "switches/preview/", scope))
    assert (seen["sites"], seen["nodes"], seen["unreachable"]) == (2, 2, 0)
    armed = call(user, "POST", "switches/", {**scope, "reason": "fire"})
    assert armed.status_code == 201, armed.content
    switch = strict(armed)
    assert (switch["armed"], switch["standing"]["silent"], switch["standing"]["stopped"]) == (True, 2, 0)
    assert strict(call(user, "POST", "switches/", {**scope, "reason": "again"}))["id"] == switch["id"]
    assert [one["id"] for one in strict(call(user, "GET", "switches/?in_force=true"))["results"]] == [switch["id"]]
    released = call(user, "POST", f"switches/{switch['id']}/release/", {"reason": "over"})
    assert (strict(released)["armed"], strict(released)["version"]) == (False, 2)
    assert list(AuditEntry.objects.filter(kind="switch").order_by("pk").values_list("action", flat=True)) == ["switch.armed", "switch.released"]


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"scope_kind": "gpu", "scope_key": "GPU-1"}, 400),
        ({"scope_kind": "fleet", "scope_key": "x"}, 400),
        ({"scope_kind": "fleet"}, 403),
        ({"scope_key": "south"}, 400),
        ({"scope_key": "nowhere"}, 400),
        ({"kind": "explode"}, 400),
        ({"reason": ""}, 400),
        ({"ends_at": "2020-01-01T00:00:00Z"}, 400),
        ({"kind": "automation_off", "tenant": "acme"}, 400),
        ({"scope_key": "a\x00b"}, 400),
    ],
)
def test_a_switch_that_may_not_be_is_refused(changes: dict[str, Any], status: int) -> None:
    north = make_region("north")
    make_site(region=make_region("south"))
    user = make_user(role="operator", region=north)
    body = {
        "kind": "kill",
        "scope_kind": "region",
        "scope_key": "north",
        "reason": "x",
        **({"scope_key": ""} if changes.get("scope_kind") == "fleet" else {}),
        **changes,
    }
    answer = call(user, "POST", "switches/", body)
    assert answer.status_code == status, answer.content
    assert Switch.objects.count() == 0


def test_a_foreign_region_reads_like_one_that_is_not_there() -> None:
    make_region("south")
    user = make_user(role="operator", region=make_region("north"))
    answers = [call(user, "POST", "switches/preview/", {"kind": "kill", "scope_kind": "region", "scope_key": key}) for key in ("south", "sooth")]
    assert [answer.status_code for answer in answers] == [400, 400]
    assert strict(answers[0])["detail"].replace("south", "sooth") == strict(answers[1])["detail"]


def test_an_end_is_kept_only_if_one_was_set() -> None:
    user, end = make_user(role="operator"), timezone.now() + timedelta(hours=2)
    body = {"kind": "automation_off", "scope_kind": "fleet", "scope_key": "", "reason": "storm"}
    assert strict(call(user, "POST", "switches/", body))["ends_at"] is None
    kill = strict(call(user, "POST", "switches/", {**body, "kind": "kill", "ends_at": end.isoformat()}))
    assert kill["ends_at"].startswith(end.isoformat()[:19])
