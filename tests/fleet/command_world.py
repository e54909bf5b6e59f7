"""A fleet that takes commands: enrolled, connected nodes, and a signing key."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from agent.protocol import CommandBody, CommandState, CommandUpdate
from console.models import User
from fleet.control import commands, results, signing
from fleet.control.action_facts import Wanted
from fleet.control.commands import Preview, Submitted
from fleet.models import AgentConnection, AgentIdentity, Command, CommandTarget, Node, Region
from tests.builders import T0, make_node, make_site, make_user


@pytest.fixture
def key(tmp_path: Path, settings: Settings) -> None:
    path = tmp_path / "signing.pem"
    signing.create_key_file(path)
    settings.SIGNING_KEY_FILE = str(path)


def make_agent(node: Node | None = None, *, connected: bool = True, boot_id: str = "boot-1", **fields: Any) -> Node:
    node = node or make_node(**fields)
    Node.objects.filter(pk=node.pk).update(boot_id=boot_id)
    AgentIdentity.objects.create(node=node, public_key=node.pk.to_bytes(32, "big"), enrolled_at=T0)
    AgentConnection.objects.create(node=node, connected=connected, connected_at=T0, heartbeat_at=T0)
    node.refresh_from_db()
    return node


def make_agents(count: int, *, region: Region) -> list[Node]:
    """One node at each of so many sites of the region."""
    return [make_agent(site=make_site(region=region)) for _ in range(count)]


def previewed(kind: str, nodes: list[Node], parameters: dict[str, Any] | None = None, now: datetime = T0, **more: Any) -> Preview:
    return commands.preview(kind=kind, parameters=parameters or {}, wanted=[Wanted(node.pk) for node in nodes], now=now, **more)


def submitted(kind: str, nodes: list[Node], user: User | None = None, parameters: dict[str, Any] | None = None, now: datetime = T0, **more: Any) -> Submitted:
    seen = previewed(kind, nodes, parameters, now, **({"break_glass": True} if more.get("break_glass") else {}))
    values: dict[str, Any] = {"reason": "CHG-7", "confirm": seen.content["phrase"], "preview_hash": seen.hash, **more}
    return commands.submit(kind=kind, parameters=parameters or {}, wanted=[Wanted(node.pk) for node in nodes], user=user or make_user(), now=now, **values)


def say(target: CommandTarget, state: str, *, at: datetime = T0, sequence: int = 1, node: int | None = None, **more: Any) -> dict[tuple[int, int], int]:
    """The target's agent says so; returns what was acknowledged."""
    values: dict[str, Any] = {"code": "", "detail": "", **more}
    update = CommandUpdate(target=target.pk, state=CommandState(state), at=at.timestamp(), sequence=sequence, **values)
    return results.record_updates([(node or target.node_id, update)], now=at)


def body_of(target: CommandTarget) -> CommandBody:
    target.refresh_from_db()
    assert target.body is not None
    return CommandBody.from_bytes(bytes(target.body))


def states(command: Command) -> dict[str, int]:
    found: dict[str, int] = {}
    for state in command.targets.values_list("state", flat=True):
        found[state] = found.get(state, 0) + 1
    return found
