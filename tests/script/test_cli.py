"""`script/masthead` against a served console: preview, run, watch, decide, kill, and what it says when it may not or cannot."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from django.utils import timezone
from pytest_django import Settings
from pytest_django.live_server_helper import LiveServer

from console.models import User
from console.tokens import issue_token
from fleet.control import dispatch, signing
from fleet.models import Command, Switch
from script.cli import main
from tests.builders import make_region, make_user
from tests.fleet.command_world import make_agents, say

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def key(tmp_path: Path, settings: Settings) -> None:
    signing.create_key_file(tmp_path / "signing.pem")
    settings.SIGNING_KEY_FILE = str(tmp_path / "signing.pem")


def token_of(user: User, *scopes: str) -> str:
    now = timezone.now()
    return issue_token(user=user, name="cli", scopes=list(scopes or ("read:*", "write:*")), expires_at=now + timedelta(hours=1), now=now)[1]


def masthead(server: LiveServer, token: str, *words: str) -> Result:
    return CliRunner().invoke(main, ["--url", server.url, "--token", token, *words])


def found(result: Result) -> Any:
    """The JSON that it printed; the served console logs to the same place before it."""
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    return json.loads("\n".join(lines[next(number for number, line in enumerate(lines) if line in ("{", "[")) :]))


def test_from_preview_to_the_end(live_server: LiveServer) -> None:
    nodes = make_agents(2, region=make_region("north"))
    olga, lena = token_of(make_user("olga", role="lead")), token_of(make_user("lena", role="lead"))
    seen = masthead(live_server, olga, "preview", "drain", "--list", "nodes", "--query", "region=north", "--expected", "2", "-p", "deadline_seconds=600")
    assert seen.exit_code == 0, seen.output
    assert "phrase: drain 2 nodes" in seen.output
    assert Command.objects.count() == 0
    chosen = ["--nodes", f"{nodes[0].pk},{nodes[1].pk}"]
    unconfirmed = masthead(live_server, olga, "run", "drain", *chosen, "--reason", "CHG-7")
    assert (unconfirmed.exit_code, "Type “drain 2 nodes”" in unconfirmed.output) == (1, True)
    asked = found(masthead(live_server, olga, "-o", "json", "run", "drain", *chosen, "--reason", "CHG-7", "--confirm", "drain 2 nodes"))
    assert asked["state"] == "awaiting"
    own = masthead(live_server, olga, "approve", asked["id"], "--reason", "x")
    assert (own.exit_code, "Who asked for it cannot decide" in own.output) == (1, True)
    assert masthead(live_server, lena, "approve", asked["id"], "--reason", "fine").exit_code == 0
    command = Command.objects.get()
    for _ in range(2):
        say(command.targets.in_flight().get(), "done", at=timezone.now())
        dispatch.advance(now=timezone.now())
    assert masthead(live_server, olga, "watch", asked["id"]).exit_code in (0, 1)
    assert nodes[0].host_name in masthead(live_server, olga, "show", asked["id"]).output
    assert [one["id"] for one in found(masthead(live_server, olga, "-o", "json", "list", "--kind", "drain"))] == [asked["id"]]


def test_kill_and_release(live_server: LiveServer) -> None:
    make_agents(1, region=make_region("north"))
    token = token_of(make_user("olga", role="operator"))
    armed = found(masthead(live_server, token, "-o", "json", "kill", "--scope", "region:north", "--reason", "fire"))
    assert (armed["reached"]["nodes"], Switch.objects.get().armed) == (1, True)
    assert masthead(live_server, token, "release", armed["switch"]["id"], "--reason", "out").exit_code == 0
    assert not Switch.objects.get().armed


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["preview", "explode", "--nodes", "1"], 1, "kind"),
        (["preview", "drain", "--nodes", "x"], 2, "whole numbers"),
        (["preview", "drain"], 2, "One of --nodes"),
        (["preview", "drain", "--list", "nodes"], 2, "--expected"),
        (["preview", "drain", "--nodes", "1", "-p", "force"], 2, "name=value"),
        (["show", "00000000-0000-4000-8000-000000000000"], 1, "404"),
        (["kill", "--scope", "planet", "--reason", "x"], 1, "planet"),
    ],
)
def test_what_cannot_be_is_said(live_server: LiveServer, words: list[str], status: int, said: str) -> None:
    result = masthead(live_server, token_of(make_user(role="operator")), *words)
    assert (result.exit_code, said in result.output) == (status, True), result.output


def test_a_token_that_only_reads_and_a_console_that_is_away(live_server: LiveServer) -> None:
    reading = token_of(make_user(role="operator"), "read:*")
    assert masthead(live_server, reading, "kill", "--scope", "fleet", "--reason", "x").exit_code == 1
    away = CliRunner().invoke(main, ["--url", "http://127.0.0.1:9", "--token", "x", "list"])
    assert away.exit_code == 3
