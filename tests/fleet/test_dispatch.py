"""Commands that run: waves, guard rails in flight, time that runs out, what agents say, and runs that pause and end by themselves."""

from datetime import timedelta

import pytest

from agent.protocol import CancelBody
from fleet.control import commands, dispatch
from fleet.control.commands import retry_targets
from fleet.models import AgentConnection, AuditEntry, Command, CommandTarget, Node
from tests.builders import T0, make_region, make_site, make_user
from tests.fleet.command_world import body_of, key, make_agent, make_agents, say, states, submitted  # noqa: F401 (fixture)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("key")]
S = CommandTarget.State


def approved(kind: str, nodes: list[Node], **more: object) -> Command:
    command = submitted(kind, nodes, **more).command  # type: ignore[arg-type]
    if command.state == Command.State.AWAITING:
        commands.decide(command_id=command.pk, approve=True, reason="fine", user=make_user(), now=T0)
        command.refresh_from_db()
    return command


def flying(command: Command) -> list[CommandTarget]:
    return list(command.targets.in_flight().order_by("pk"))


def test_a_drain_from_release_to_done() -> None:
    command = submitted("drain", [make_agent()]).command
    (target,) = flying(command)
    assert [row.pk for row in dispatch.due_for([target.node_id])] == [target.pk]
    dispatch.mark_sent([target.pk], now=T0)
    say(target, "accepted", sequence=1)
    assert dispatch.due_for([target.node_id]) == []
    say(target, "running", sequence=2, progress={"evicted": 1, "left": 4}, blocked=("budget llm-a: llm-a-1",))
    target.refresh_from_db()
    assert (target.state, target.progress, target.blocked) == (S.RUNNING, {"evicted": 1, "left": 4}, ["budget llm-a: llm-a-1"])
    say(target, "done", sequence=3, output="5 evicted", at=T0 + timedelta(seconds=9))
    dispatch.advance(now=T0 + timedelta(seconds=10))
    command.refresh_from_db()
    target.refresh_from_db()
    assert (command.state, target.state, target.output) == (Command.State.DONE, S.DONE, "5 evicted")
    actions = list(AuditEntry.objects.filter(object_key=str(command.pk)).order_by("pk").values_list("action", flat=True))
    assert actions[-4:] == ["command.accepted", "command.running", "command.done", "command.finished"]


def test_late_double_and_foreign_updates_change_nothing() -> None:
    command = submitted("drain", [make_agent()]).command
    (target,) = flying(command)
    other = make_agent()
    assert say(target, "done", sequence=5, node=other.pk), "it may forget it: the target is not its own"
    target.refresh_from_db()
    assert target.state == S.PENDING
    say(target, "running", sequence=4)
    say(target, "accepted", sequence=3)
    target.refresh_from_db()
    assert target.state == S.RUNNING
    say(target, "cancelled", sequence=6, code="cancelled")
    say(target, "done", sequence=7)
    target.refresh_from_db()
    assert (target.state, target.sequence) == (S.CANCELLED, 6)


def test_waves_go_on_one_after_another_and_the_limits_hold_in_flight() -> None:
    nodes = make_agents(12, region=make_region())  # fewer than 20 nodes: one at a time
    command = approved("drain", nodes)
    seen = 0
    now = T0
    while command.state == Command.State.RUNNING:
        (target,) = flying(command)
        seen += 1
        say(target, "accepted", sequence=1, at=now)
        assert dispatch.advance(now=now) == 0, "a second one has to wait"
        held = command.targets.filter(wave=command.wave, released_at__isnull=True).first()
        if held is not None:
            assert "1 of at most 1 nodes" in held.waits_for
        now += timedelta(seconds=5)
        say(target, "done", sequence=2, at=now)
        uncordon(target.node, now)
        dispatch.advance(now=now)
        command.refresh_from_db()
        assert seen < 20
    assert (command.state, seen, states(command)) == (Command.State.DONE, 12, {"done": 12})


def uncordon(node: Node, now: object) -> None:
    command = submitted("uncordon", [node], now=now).command  # type: ignore[arg-type]
    (target,) = flying(command)
    say(target, "done", sequence=1, at=now)  # type: ignore[arg-type]


def test_a_drained_node_counts_as_disrupted_until_it_is_uncordoned() -> None:
    region = make_region()
    site = make_site(region=region)
    first, second = make_agent(site=site), make_agent(site=site)
    (target,) = flying(submitted("drain", [first]).command)
    say(target, "done", sequence=2)
    waiting = submitted("drain", [second]).command
    assert flying(waiting) == []
    assert f"{site.code} has 1 of at most 1 nodes" in waiting.targets.get().waits_for
    uncordon(first, T0 + timedelta(seconds=5))
    assert dispatch.advance(now=T0 + timedelta(seconds=6)) == 1


def test_a_drained_node_is_rebooted_before_it_is_uncordoned_and_takes_no_second_place() -> None:
    region = make_region()
    site = make_site(region=region)
    first, second = make_agent(site=site), make_agent(site=site)
    (target,) = flying(submitted("drain", [first]).command)
    reboot = approved("reboot", [first])
    assert flying(reboot) == [], "the drain is still going on"
    assert "is being acted on already" in reboot.targets.get().waits_for
    say(target, "done", sequence=2)
    assert dispatch.advance(now=T0 + timedelta(seconds=5)) == 1
    assert len(flying(reboot)) == 1
    assert flying(submitted("drain", [second]).command) == [], "one node of the site at a time all the same"


def test_what_is_due_is_the_same_for_a_few_nodes_and_for_a_whole_gateways() -> None:
    first, second = make_agents(2, region=make_region())
    (one,) = flying(submitted("diagnostics", [first]).command)
    (other,) = flying(submitted("diagnostics", [second]).command)
    many = range(10**6, 10**6 + dispatch.FEW_NODES)
    assert [row.pk for row in dispatch.due_for([first.pk, second.pk])] == [one.pk, other.pk]
    assert [row.pk for row in dispatch.due_for([*many, second.pk])] == [other.pk]


def test_a_canary_that_fails_pauses_the_run_and_a_person_decides() -> None:
    command = approved("reboot", make_agents(30, region=make_region()))
    (canary,) = flying(command)
    say(canary, "failed", code="hardware", detail="no boot")
    dispatch.advance(now=T0 + timedelta(seconds=5))
    command.refresh_from_db()
    assert (command.state, command.paused_because, states(command)) == (Command.State.PAUSED, "The canary failed.", {"failed": 1, "pending": 29})
    assert dispatch.advance(now=T0 + timedelta(seconds=9)) == 0
    commands.abort(command_id=command.pk, reason="look first", user=make_user(), now=T0 + timedelta(seconds=10))
    command.refresh_from_db()
    assert states(command) == {"failed": 1, "cancelled": 29}
    assert len(retry_targets(command)) == 30


def test_unreachable_targets_are_counted_apart_and_do_not_turn_a_run_red() -> None:
    nodes = make_agents(3, region=make_region())
    AgentConnection.objects.filter(node=nodes[2]).update(connected=False)
    command = submitted("diagnostics", nodes).command
    for target in flying(command)[:2]:
        say(target, "done")
    dispatch.advance(now=T0 + timedelta(seconds=30))
    command.refresh_from_db()
    assert command.state == Command.State.RUNNING, "it may come back"
    dispatch.advance(now=T0 + timedelta(seconds=61))
    command.refresh_from_db()
    assert (command.state, states(command)) == (Command.State.DONE, {"done": 2, "unreachable": 1})
    gone = command.targets.get(state=S.UNREACHABLE)
    assert dispatch.due_for([gone.node_id]) == [], "and it is not sent when it comes back"


def test_what_an_agent_did_although_we_heard_nothing_is_the_truth() -> None:
    node = make_agent()
    command = submitted("drain", [node]).command
    (target,) = flying(command)
    dispatch.mark_sent([target.pk], now=T0)
    AgentConnection.objects.filter(node=node).update(connected=False)
    dispatch.advance(now=T0 + timedelta(seconds=61))
    target.refresh_from_db()
    assert target.state == S.UNREACHABLE
    say(target, "done", sequence=3, at=T0 + timedelta(hours=5))
    target.refresh_from_db()
    assert target.state == S.DONE


def test_a_target_that_nobody_began_in_time_expires() -> None:
    command = submitted("drain", [make_agent()]).command
    (target,) = flying(command)
    dispatch.mark_sent([target.pk], now=T0)
    dispatch.advance(now=command.not_after + timedelta(seconds=31))
    target.refresh_from_db()
    command.refresh_from_db()
    assert (target.state, target.code, command.state) == (S.EXPIRED, "expired", Command.State.DONE)
    say(target, "expired", sequence=1, code="expired")
    target.refresh_from_db()
    assert target.state == S.EXPIRED


def test_a_turn_that_never_came_expires_too() -> None:
    site = make_site()
    first, second = make_agent(site=site), make_agent(site=site)
    submitted("drain", [first])
    waiting = submitted("drain", [second]).command
    dispatch.advance(now=waiting.not_after + timedelta(seconds=1))
    waiting.refresh_from_db()
    assert (waiting.state, waiting.targets.get().detail) == (Command.State.DONE, "Its turn did not come in time.")


def test_abort_sends_cancels_to_what_is_in_flight() -> None:
    command = submitted("drain", [make_agent()]).command
    (target,) = flying(command)
    dispatch.mark_sent([target.pk], now=T0)
    say(target, "running", sequence=1)
    commands.abort(command_id=command.pk, reason="stop", user=make_user(), now=T0)
    (due,) = dispatch.due_for([target.node_id])
    assert due.cancel_body is not None
    assert CancelBody.from_bytes(bytes(due.cancel_body)).target == target.pk
    say(target, "cancelled", sequence=2, code="cancelled")
    target.refresh_from_db()
    assert (target.state, dispatch.due_for([target.node_id])) == (S.CANCELLED, [])


def test_a_kind_that_this_release_does_not_know_holds_up_nothing_else() -> None:
    unknown, known = (submitted("diagnostics", [make_agent()]).command for _ in range(2))
    Command.objects.filter(pk=unknown.pk).update(kind="of_a_newer_release")
    say(flying(known)[0], "done", sequence=2)
    dispatch.advance(now=T0 + timedelta(seconds=10))
    unknown.refresh_from_db()
    known.refresh_from_db()
    assert (unknown.state, known.state) == (Command.State.RUNNING, Command.State.DONE)


def test_only_what_changes_a_node_is_bound_to_its_boot() -> None:
    node = make_agent(boot_id="boot-7")
    told = [body_of(flying(submitted(kind, [node]).command)[0]).preconditions.boot_id for kind in ("diagnostics", "drain")]
    assert told == ["", "boot-7"]


def test_orders_rise_with_every_body_that_is_signed() -> None:
    node = make_agent()
    orders = [body_of(flying(submitted("diagnostics", [node]).command)[0]).sequence for _ in range(3)]
    assert orders == sorted(set(orders))


def test_three_disruptive_acts_a_day_are_enough() -> None:
    node = make_agent()
    for _ in range(2):
        (target,) = flying(submitted("drain", [node]).command)
        say(target, "done", sequence=2)
        uncordon(node, T0 + timedelta(seconds=1))
    with pytest.raises(commands.CommandRefused, match="2 times within 24 h"):
        submitted("drain", [node])
