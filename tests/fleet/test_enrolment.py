"""Bundles in bulk: as a function and as a command. What happens to them at the gateway is in test_gateway.py."""

from datetime import timedelta
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from agent.protocol import Bundle
from fleet.agents import enrolment
from fleet.control import signing
from fleet.models import AgentIdentity, AuditEntry, EnrolmentToken
from tests.builders import T0, make_node, make_region, make_site, make_user

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def key(tmp_path: Path, settings: Settings) -> None:
    path = tmp_path / "signing.pem"
    signing.create_key_file(path)
    settings.SIGNING_KEY_FILE = str(path)
    settings.GATEWAY_URL = "wss://gateway.example/agent"


def test_bundles_hold_what_an_agent_needs_and_the_console_keeps_only_a_hash() -> None:
    nodes = [make_node() for _ in range(3)]
    issued = enrolment.issue_bundles(nodes=nodes, user=make_user("anna"), now=T0)
    bundles = [Bundle.decode(each.text) for each in issued]
    assert [each.node for each in issued] == nodes
    assert {bundle.gateway_url for bundle in bundles} == {"wss://gateway.example/agent"}
    assert {bundle.console_key for bundle in bundles} == {signing.public_key()}
    assert {token.token_hash for token in EnrolmentToken.objects.all()} == {enrolment.hash_token(bundle.token) for bundle in bundles}
    assert len({bundle.token for bundle in bundles}) == 3
    assert AuditEntry.objects.filter(actor="anna", action="agent.token_issued").count() == 3


@pytest.mark.parametrize("valid_for", [timedelta(0), timedelta(days=-1), timedelta(days=91)])
def test_a_life_without_sense_is_refused(valid_for: timedelta) -> None:
    with pytest.raises(ValueError, match="valid_for"):
        enrolment.issue_bundles(nodes=[make_node()], user=make_user(), now=T0, valid_for=valid_for)
    assert not EnrolmentToken.objects.exists()


def test_as_many_queries_for_sixty_nodes_as_for_three() -> None:
    counts = []
    for number in (3, 60):
        nodes, user = [make_node() for _ in range(number)], make_user()
        with CaptureQueriesContext(connection) as queries:
            enrolment.issue_bundles(nodes=nodes, user=user, now=T0)
        counts.append(len(queries))
    assert counts[0] == counts[1]


def test_the_command_writes_a_file_per_node_without_a_key(tmp_path: Path) -> None:
    make_user("anna")
    site = make_site("BER-1", region=make_region("berlin"))
    make_node("a", site=site)
    enrolled, elsewhere = make_node("b", site=site), make_node("c")
    AgentIdentity.objects.create(node=enrolled, public_key=bytes(32), enrolled_at=T0)
    call_command("issue_bundles", region="berlin", user="anna", out=tmp_path / "out", verbosity=0)
    (path,) = (tmp_path / "out").iterdir()
    assert (path.name, path.stat().st_mode & 0o777) == ("BER-1-a.bundle", 0o600)
    assert Bundle.decode(path.read_text()).gateway_url == "wss://gateway.example/agent"
    call_command("issue_bundles", site="BER-1", user="anna", out=tmp_path / "both", enrolled_too=True, verbosity=0)
    assert len(list((tmp_path / "both").iterdir())) == 2
    assert not EnrolmentToken.objects.filter(node=elsewhere).exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"region": "nowhere"}, "No such node"),
        ({"user": "nobody"}, "--user"),
        ({"days": 0}, "valid_for"),
    ],
)
def test_the_command_says_what_is_wrong_and_issues_nothing(tmp_path: Path, options: dict[str, object], says: str) -> None:
    make_user("anna")
    make_node("a", site=make_site(region=make_region("berlin")))
    with pytest.raises(CommandError, match=says):
        call_command("issue_bundles", **{"region": "berlin", "user": "anna", "out": tmp_path / "out", "verbosity": 0, **options})
    assert not EnrolmentToken.objects.exists()
