"""Commands, cancels, switches and local events over a real gateway's socket."""

import uuid
from datetime import timedelta

import pytest
from django.utils import timezone

from agent.protocol import CommandAck, CommandBody, EventAck, SignedCancel, SignedCommand, SignedSwitch, Welcome, verify_switch
from agent.protocol.command import verify_cancel, verify_command
from fleet.control import commands, dispatch, signing, switches
from fleet.control.action_facts import Wanted
from fleet.models import AgentConnection, AuditEntry, Command, CommandTarget, LocalEvent, Node, SwitchAnswer
from tests.builders import make_node, make_region, make_site, make_user
from tests.fleet.gateway_process import GatewayProcess, Wire, enrolled, gateway, gateway_process, until  # noqa: F401 (fixtures)

pytestmark = pytest.mark.django_db(transaction=True)


def drain(node: Node) -> Command:
    now = timezone.now()
    seen = commands.preview(kind="drain", parameters={}, wanted=[Wanted(node.pk)], now=now)
    return commands.submit(kind="drain", parameters={}, wanted=[Wanted(node.pk)], preview_hash=seen.hash, reason="x", user=make_user(), now=now).command


def update(target: int, state: str, sequence: int, **more: object) -> dict[str, object]:
    at = timezone.now().timestamp()
    base = {"type": "command_update", "target": target, "state": state, "code": "", "detail": "", "at": at, "sequence": sequence}
    return {**base, "progress": {}, "blocked": [], "output": "", **more}


def test_a_command_reaches_its_agent_and_what_it_says_is_stored_and_acknowledged(gateway: GatewayProcess) -> None:  # noqa: F811
    node = make_node()
    key, _ = enrolled(node)
    with Wire(gateway, key) as wire:
        assert isinstance(wire.receive(), Welcome)
        command = drain(node)
        order = wire.receive()
        assert isinstance(order, SignedCommand)
        body = verify_command(order, trusted_keys=(signing.public_key(),), node_id=node.pk)
        assert (body.id, body.kind) == (str(command.pk), "drain")
        wire.send(update(order.target, "accepted", 1))
        assert wire.receive() == CommandAck(target=order.target, sequence=1)
        wire.send(update(order.target, "done", 2, output="nothing to evict"))
        assert wire.receive() == CommandAck(target=order.target, sequence=2)
    target = CommandTarget.objects.get()
    assert (target.state, target.output) == ("done", "nothing to evict")
    dispatch.advance(now=timezone.now())
    command.refresh_from_db()
    assert command.state == Command.State.DONE


def test_a_command_for_a_node_that_is_away_waits_for_it_and_is_sent_again_until_it_is_accepted(gateway: GatewayProcess) -> None:  # noqa: F811
    node = make_node()
    key, _ = enrolled(node)
    drain(node)
    for _ in range(2):
        with Wire(gateway, key) as wire:
            messages = [wire.receive(), wire.receive()]
        assert [type(message) for message in messages] == [Welcome, SignedCommand]
        until(lambda: CommandTarget.objects.get().state == "sent" and not AgentConnection.objects.filter(connected=True).exists())
    assert CommandBody.from_bytes(messages[1].body).node == node.pk  # type: ignore[union-attr]


def test_a_cancel_follows_what_was_sent(gateway: GatewayProcess) -> None:  # noqa: F811
    node = make_node()
    key, _ = enrolled(node)
    with Wire(gateway, key) as wire:
        wire.receive()
        command = drain(node)
        order = wire.receive()
        assert isinstance(order, SignedCommand)
        wire.send(update(order.target, "running", 1))
        assert isinstance(wire.receive(), CommandAck)
        commands.abort(command_id=command.pk, reason="stop", user=make_user(), now=timezone.now())
        cancel = wire.receive()
        assert isinstance(cancel, SignedCancel)
        assert verify_cancel(cancel, trusted_keys=(signing.public_key(),), node_id=node.pk).target == order.target
        wire.send(update(order.target, "cancelled", 2, code="cancelled"))
        assert isinstance(wire.receive(), CommandAck)
    assert CommandTarget.objects.get().state == "cancelled"


def test_an_agent_cannot_speak_for_anothers_target(gateway: GatewayProcess) -> None:  # noqa: F811
    mine, other = make_node(), make_node()
    enrolled(mine)
    key, _ = enrolled(other)
    drain(mine)
    target = CommandTarget.objects.get()
    with Wire(gateway, key) as wire:
        wire.receive()
        wire.send(update(target.pk, "done", 9))
        assert isinstance(wire.receive(), CommandAck)
    target.refresh_from_db()
    assert target.state == "pending"


def test_a_switch_reaches_those_of_its_scope_and_no_others_also_later(gateway: GatewayProcess) -> None:  # noqa: F811
    north, south = make_region("north"), make_region("south")
    inside, outside = make_node(site=make_site(region=north)), make_node(site=make_site(region=south))
    (key, _), (foreign, _) = enrolled(inside), enrolled(outside)
    with Wire(gateway, key) as wire, Wire(gateway, foreign) as stranger:
        wire.receive(), stranger.receive()
        armed = switches.arm(kind="kill", scope_kind="region", scope_key="north", reason="fire", user=make_user(), now=timezone.now())
        signed = wire.receive()
        assert isinstance(signed, SignedSwitch)
        body = verify_switch(signed, trusted_keys=(signing.public_key(),))
        assert (body.switch, body.armed, body.scope_key) == (str(armed.pk), True, "north")
        answer = {"type": "switch_update", "switch": body.switch, "version": 1, "state": "applied", "stopped": 4, "remaining": 0, "detail": "", "sequence": 1}
        wire.send({**answer, "at": timezone.now().timestamp()})
        until(lambda: SwitchAnswer.objects.filter(switch=armed, node=inside, state="applied", stopped=4).exists())
        with pytest.raises(TimeoutError):
            stranger.receive(1)
    standing = switches.standing(armed)
    assert (standing.nodes, standing.applied, standing.silent, standing.stopped) == (1, 1, 0, 4)
    switches.release(switch_id=armed.pk, reason="over", user=make_user(), now=timezone.now())
    with Wire(gateway, key) as wire:
        wire.receive()
        late = wire.receive()
        assert isinstance(late, SignedSwitch)
        assert not verify_switch(late, trusted_keys=(signing.public_key(),)).armed
        assert switches.standing(type(armed).objects.get()).silent == 1, "it has not said that it released it"
        wire.send({**answer, "version": 2, "state": "released", "sequence": 2, "at": timezone.now().timestamp()})
        until(lambda: SwitchAnswer.objects.filter(switch=armed, node=inside, state="released").exists())
    with Wire(gateway, key) as wire:
        wire.receive()
        with pytest.raises(TimeoutError):
            wire.receive(1)  # it knows
        # Its disk is back at an older state: it says that it still holds what was released, and hears of it again.
        wire.send({**answer, "sequence": 3, "at": timezone.now().timestamp()})
        again = wire.receive()
        assert isinstance(again, SignedSwitch)
        assert not verify_switch(again, trusted_keys=(signing.public_key(),)).armed


def test_what_an_agent_did_on_its_own_is_kept_once_with_its_audit_entry(gateway: GatewayProcess) -> None:  # noqa: F811
    node = make_node()
    key, _ = enrolled(node)
    at = timezone.now() - timedelta(days=2)
    event = {"type": "local_event", "id": str(uuid.uuid4()), "kind": "evicted", "at": at.timestamp(), "subject": "acme/llm-0", "detail": {"over_bytes": 5}}
    for _ in range(2):
        with Wire(gateway, key) as wire:
            wire.receive()
            wire.send(event)
            assert wire.receive() == EventAck(ids=(str(event["id"]),))
    stored = LocalEvent.objects.get()
    assert (stored.node, stored.kind, abs(stored.at - at) < timedelta(milliseconds=1)) == (node, "evicted", True)
    entry = AuditEntry.objects.get(action="agent.evicted")
    assert (entry.actor, entry.detail["subject"]) == (f"agent:{node.pk}", "acme/llm-0")
