"""The pages of commands, approvals and switches: from a list's selection to a result, by people with and without the right."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from console.models import User
from fleet.control import commands, signing, switches
from fleet.models import Command, Switch
from tests.builders import T0, make_gpu, make_region, make_tenant, make_user
from tests.console.api_support import freshen
from tests.fleet.command_world import make_agent, make_agents, say, submitted

pytestmark = pytest.mark.django_db
PAGES = ["/commands", "/commands/new", "/approvals", "/switches"]


@pytest.fixture(autouse=True)
def key(tmp_path: Path, settings: Settings) -> None:
    signing.create_key_file(tmp_path / "signing.pem")
    settings.SIGNING_KEY_FILE = str(tmp_path / "signing.pem")


def signed_in(user: User, *, fresh: bool = True) -> Client:
    client = Client()
    client.force_login(user)
    if fresh:
        freshen(client, user)
    return client


def text(answer: Any) -> str:
    return " ".join(answer.content.decode().split())


def form_of(answer: Any) -> dict[str, str]:
    return {name: answer.context["submit"].initial[name] for name in ("preview_hash", "parameters", "idempotency_key")}


def test_from_a_lists_filter_to_a_run_that_waits_for_approval_and_goes_on() -> None:
    nodes = make_agents(3, region=make_region("north"))
    olga, lena = make_user("olga", role="operator"), make_user("lena", role="lead")
    client = signed_in(olga)
    address = f"/commands/new?kind=drain&list=sites&query={quote('region=north')}&expected=3&deadline_seconds=600&grace_seconds=-1"
    seen = client.get(address)
    assert seen.status_code == 200
    assert "drain 3 nodes" in text(seen)
    assert Command.objects.count() == 0
    wrong = client.post(address, {**form_of(seen), "reason": "CHG-7", "confirm": "drain 2 nodes"})
    assert (wrong.status_code, Command.objects.count()) == (400, 0)
    assert "Type “drain 3 nodes”" in text(wrong)
    done = client.post(address, {**form_of(seen), "reason": "CHG-7", "confirm": "drain 3 nodes"})
    command = Command.objects.get()
    assert (done.status_code, done["Location"]) == (302, f"/commands/{command.pk}")
    assert (command.state, command.parameters["deadline_seconds"], command.selection["expected"]) == ("awaiting", 600, 3)
    mine = text(client.get(f"/commands/{command.pk}"))
    assert "you cannot approve your own" in mine
    assert f"/commands/{command.pk}/approve" not in mine
    hers = signed_in(lena)
    assert f"/commands/{command.pk}/approve" in text(hers.get("/approvals"))
    hers.post(f"/commands/{command.pk}/approve", {"reason": "fine"})
    command.refresh_from_db()
    assert command.state == "running"
    assert "Nothing waits for an approval" in text(hers.get("/approvals"))
    say(command.targets.in_flight().get(), "running", blocked=("budget llm-a keeps llm-a-0",))
    assert "budget llm-a keeps llm-a-0" in text(client.get(f"/commands/{command.pk}", headers={"HX-Request": "true"}))
    assert nodes[0].host_name in text(client.get(f"/commands/{command.pk}"))


def test_a_stale_sign_in_is_asked_for_the_password_and_comes_back() -> None:
    nodes = make_agents(2, region=make_region())
    olga = make_user("olga", role="operator")
    client = signed_in(olga, fresh=False)
    address = f"/commands/new?kind=drain&nodes={nodes[0].pk},{nodes[1].pk}"
    seen = client.get(address)
    answer = client.post(address, {**form_of(seen), "reason": "x", "confirm": "drain 2 nodes"})
    assert answer["Location"].startswith("/accounts/reauthenticate/?next=%2Fcommands%2Fnew%3Fkind")
    assert Command.objects.count() == 0
    assert client.get(answer["Location"]).status_code == 200
    back = client.post(answer["Location"], {"password": "olgaolga"})
    assert back["Location"] == address
    client.post(address, {**form_of(client.get(address)), "reason": "x", "confirm": "drain 2 nodes"})
    assert Command.objects.get().state == "awaiting"


def test_a_denial_and_an_abort_on_the_page() -> None:
    lena = make_user("lena", role="lead")
    command = submitted("drain", make_agents(2, region=make_region()), now=timezone.now()).command
    client = signed_in(lena)
    client.post(f"/commands/{command.pk}/deny", {"reason": "no"})
    command.refresh_from_db()
    assert command.state == "denied"
    page = text(client.get(f"/commands/{command.pk}"))
    assert "/abort" not in page
    assert f"retry_of={command.pk}" in page
    other = submitted("drain", [make_agent()], now=timezone.now()).command
    assert "Say why" in text(client.post(f"/commands/{other.pk}/abort", {"reason": " "}, follow=True))
    client.post(f"/commands/{other.pk}/abort", {"reason": "stop"})
    other.refresh_from_db()
    assert other.state == "aborted"


def test_drift_shows_the_new_preview_and_does_nothing() -> None:
    nodes = make_agents(2, region=make_region())
    client = signed_in(make_user(role="operator"))
    address = f"/commands/new?kind=drain&sites={nodes[0].site.code},{nodes[1].site.code}"
    shown = form_of(client.get(address))
    make_agent(site=nodes[0].site)
    answer = client.post(address, {**shown, "reason": "x", "confirm": "drain 2 nodes"})
    assert (answer.status_code, Command.objects.count()) == (409, 0)
    assert "The fleet has changed since the preview." in text(answer)
    assert answer.context["preview"]["targets"] == 3


@pytest.mark.parametrize(
    "query",
    ["kind=drain&nodes=x", "kind=drain&nodes=424242", "kind=drain&list=sites&query=nonsense%3D1&expected=1", "kind=drain&retry_of=x", "kind=drain&sites=%00"],
)
def test_a_selection_that_cannot_be_is_named(query: str) -> None:
    answer = signed_in(make_user(role="operator")).get(f"/commands/new?{query}")
    assert answer.status_code == 400
    assert "form-errors" in text(answer)


def test_parameters_out_of_range_are_named_at_their_field() -> None:
    node = make_agent()
    page = text(signed_in(make_user(role="operator")).get(f"/commands/new?kind=drain&nodes={node.pk}&deadline_seconds=5"))
    assert "greater than or equal to 10" in page
    assert 'id="confirm"' not in page


def test_a_kill_in_three_clicks_seen_on_every_page_and_released() -> None:
    north = make_region("north")
    make_agents(2, region=north)
    olga = make_user("olga", role="operator", region=north)
    client = signed_in(olga, fresh=False)
    shown = text(client.get("/switches?scope_kind=region&scope_key=north"))
    assert "nodes at 2 sites" in shown
    body = {"kind": "kill", "scope_kind": "region", "scope_key": "north", "reason": "fire"}
    done = client.post("/switches", body)
    switch = Switch.objects.get()
    assert done["Location"] == f"/switches/{switch.pk}"
    for path in ("/sites", "/", "/jobs", f"/switches/{switch.pk}"):
        assert "Kill switch: region north" in text(client.get(path)), path
    assert "2 not heard from" in text(client.get(f"/switches/{switch.pk}", headers={"HX-Request": "true"}))
    elsewhere = signed_in(make_user(role="operator", region=make_region("south")))
    assert "Kill switch: region north" not in text(elsewhere.get("/sites"))
    client.post(f"/switches/{switch.pk}/release", {"reason": "over"})
    switch.refresh_from_db()
    assert not switch.armed
    assert "Kill switch: region north" not in text(client.get("/sites"))


def test_the_whole_fleet_is_not_a_region_operators_to_kill() -> None:
    client = signed_in(make_user(role="operator", region=make_region("north")))
    assert client.post("/switches", {"kind": "kill", "scope_kind": "fleet", "scope_key": "", "reason": "x"}).status_code == 403
    assert client.post("/switches", {"kind": "kill", "scope_kind": "region", "scope_key": "south", "reason": "x"}).status_code == 400
    assert Switch.objects.count() == 0


def test_strangers() -> None:
    command = submitted("drain", [make_agent(site=None)]).command
    armed = switches.arm(kind="kill", scope_kind="node", scope_key=str(command.targets.get().node_id), reason="x", user=make_user(), now=T0)
    owned = [f"/commands/{command.pk}", f"/switches/{armed.pk}"]
    posts = [f"/commands/{command.pk}/{act}" for act in ("approve", "deny", "pause", "resume", "abort")] + [f"/switches/{armed.pk}/release"]
    for user, pages in (
        (make_user(tenant=make_tenant()), [*PAGES, *owned]),
        (make_user(), [*PAGES, *owned]),
        (make_user(role="lead", region=make_region()), owned),
    ):
        client = signed_in(user)
        assert {client.get(path).status_code for path in pages} == {404}
        assert {client.post(path, {"reason": "x"}).status_code for path in posts} == {404}
    viewer = signed_in(make_user(role="viewer"))
    assert {viewer.get(path).status_code for path in [*PAGES, *owned]} == {200}
    assert {viewer.post(path, {"reason": "x"}).status_code for path in posts} == {403}
    anonymous = Client()
    assert {anonymous.get(path).status_code for path in [*PAGES, *owned]} == {302}
    command.refresh_from_db()
    assert command.state == "running"


def test_a_gpu_is_reset_from_its_selection_and_phy_is_refused_with_the_reason() -> None:
    node = make_agent()
    gpu = make_gpu(node=node)
    client = signed_in(make_user(role="operator"))
    assert "reset 1 GPU" in text(client.get(f"/commands/new?kind=gpu_reset&gpus={gpu.uuid}"))
    assert commands.KINDS["gpu_reset"].per_gpu
