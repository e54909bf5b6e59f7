"""Commands from preview to decision: what is refused, what is frozen, who may say yes, and that a double click is one command."""

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from fleet.control import commands, dispatch
from fleet.control.action_facts import Wanted
from fleet.control.commands import CommandRefused, KeyReused, PreviewDrifted
from fleet.models import AuditEntry, Command, CommandTarget, Freeze, Gpu
from tests.builders import T0, make_gpu, make_phy_gpu, make_region, make_user
from tests.fleet.command_world import body_of, key, make_agent, make_agents, previewed, states, submitted  # noqa: F401 (fixture)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("key")]


def refusal(**values: Any) -> dict[str, str]:
    node = make_agent()
    given: dict[str, Any] = {"kind": "drain", "parameters": {}, "wanted": [Wanted(node.pk)], "now": T0}
    with pytest.raises(CommandRefused) as caught:
        commands.preview(**{**given, **values})
    return caught.value.errors


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"kind": "explode"}, "kind"),
        ({"kind": None}, "kind"),
        ({"parameters": []}, "parameters"),
        ({"parameters": {"deadline_seconds": "60"}}, "parameters.deadline_seconds"),
        ({"parameters": {"deadline_seconds": float("nan")}}, "parameters.deadline_seconds"),
        ({"parameters": {"deadline_seconds": float("inf")}}, "parameters.deadline_seconds"),
        ({"parameters": {"deadline_seconds": 5}}, "parameters.deadline_seconds"),
        ({"parameters": {"grace_seconds": True}}, "parameters.grace_seconds"),
        ({"parameters": {"force": True}}, "parameters"),
        ({"kind": "evict", "parameters": {}}, "parameters"),
        ({"kind": "evict", "parameters": {"namespace": "A b", "pod": "p", "uid": "u"}}, "parameters.namespace"),
        ({"wanted": []}, "targets"),
        ({"wanted": [Wanted(999_999)]}, "targets"),
        ({"kind": "gpu_reset"}, "targets"),
        ({"wanted": [Wanted(1, "GPU-x")]}, "targets"),
    ],
)
def test_a_bad_preview_is_refused_with_its_field(values: dict[str, Any], field: str) -> None:
    assert field in refusal(**values)
    assert (Command.objects.count(), AuditEntry.objects.count()) == (0, 0)


def test_one_node_is_drained_at_once_and_the_body_says_what_was_previewed() -> None:
    node, user = make_agent(), make_user("anna")
    command = submitted("drain", [node], user, {"deadline_seconds": 600}).command
    assert (command.state, command.risk, command.approvals_needed) == (Command.State.RUNNING, 1, 0)
    target = command.targets.get()
    body = body_of(target)
    assert (body.id, body.target, body.kind, body.node, body.gpu_uuid) == (str(command.pk), target.pk, "drain", node.pk, "")
    assert body.parameters == {"deadline_seconds": 600, "grace_seconds": -1, "allow_local_data": False, "allow_unmanaged": False}
    assert (body.preconditions.boot_id, body.not_after, body.reaches_phy) == ("boot-1", command.not_after.timestamp(), False)
    entries = list(AuditEntry.objects.filter(kind="command", object_key=str(command.pk)).order_by("pk").values_list("action", "actor"))
    assert entries[0] == ("command.submitted", "anna")
    assert ("command.released", "console") in entries


def test_many_nodes_await_another_person_and_their_phrase() -> None:
    nodes = make_agents(3, region=make_region())
    anna, bert = make_user("anna"), make_user("bert")
    with pytest.raises(CommandRefused, match="Type “drain 3 nodes”"):
        submitted("drain", nodes, anna, confirm="drain 2 nodes")
    command = submitted("drain", nodes, anna).command
    assert (command.state, command.waves, states(command)) == (Command.State.AWAITING, [1, 2], {"pending": 3})
    assert dispatch.advance(now=T0) == 0
    with pytest.raises(CommandRefused, match="Who asked for it"):
        commands.decide(command_id=command.pk, approve=True, reason="fine", user=anna, now=T0)
    decided = commands.decide(command_id=command.pk, approve=True, reason="fine", user=bert, now=T0)
    assert (decided.state, decided.wave) == (Command.State.RUNNING, 0)
    assert command.targets.filter(released_at__isnull=False).count() == 1, "the canary"


def test_a_denial_is_final() -> None:
    command = submitted("drain", make_agents(3, region=make_region())).command
    commands.decide(command_id=command.pk, approve=False, reason="not today", user=make_user(), now=T0)
    command.refresh_from_db()
    assert (command.state, states(command)) == (Command.State.DENIED, {"cancelled": 3})
    with pytest.raises(CommandRefused, match="denied"):
        commands.decide(command_id=command.pk, approve=True, reason="after all", user=make_user(), now=T0)
    assert dispatch.advance(now=T0 + timedelta(seconds=5)) == 0


def test_an_approval_that_comes_too_late_does_nothing() -> None:
    command = submitted("drain", make_agents(3, region=make_region())).command
    late = T0 + timedelta(hours=2)
    with pytest.raises(CommandRefused, match="time to approve"):
        commands.decide(command_id=command.pk, approve=True, reason="fine", user=make_user(), now=late)
    dispatch.advance(now=late)
    command.refresh_from_db()
    assert (command.state, states(command)) == (Command.State.EXPIRED, {"expired": 3})


def test_a_fleet_that_changed_since_the_preview_needs_a_new_one() -> None:
    nodes = make_agents(2, region=make_region())
    seen = previewed("drain", nodes)
    Freeze.objects.create(
        scope_kind="site", scope_key=nodes[0].site.code, starts_at=T0, ends_at=T0 + timedelta(hours=1), reason="football", created_by="x", created_at=T0
    )
    with pytest.raises(PreviewDrifted) as drifted:
        submitted("drain", nodes, preview_hash=seen.hash)
    assert [one["rule"] for one in drifted.value.preview.content["refused"]] == ["freeze"]
    assert Command.objects.count() == 0


def test_drift_between_request_and_approval_ends_the_request() -> None:
    nodes = make_agents(3, region=make_region())
    command = submitted("drain", nodes).command
    Freeze.objects.create(scope_kind="fleet", scope_key="", starts_at=T0, ends_at=T0 + timedelta(hours=1), reason="x", created_by="x", created_at=T0)
    commands.decide(command_id=command.pk, approve=True, reason="fine", user=make_user(), now=T0)
    command.refresh_from_db()
    assert (command.state, states(command)) == (Command.State.EXPIRED, {"expired": 3})
    assert AuditEntry.objects.filter(action="command.drifted").exists()


def test_a_gpu_with_phy_is_class_4_and_only_break_glass_with_two_others_reaches_it() -> None:
    node = make_agent()
    other = make_agent(site=node.site)
    gpu, _ = make_phy_gpu(node=node), make_phy_gpu(node=other)
    wanted = [Wanted(node.pk, gpu.uuid)]
    seen = commands.preview(kind="gpu_reset", parameters={}, wanted=wanted, now=T0)
    assert (seen.risk, seen.content["targets"], seen.content["refused"][0]["rule"]) == (4, 0, "phy")
    given: dict[str, Any] = {"kind": "gpu_reset", "parameters": {}, "wanted": wanted, "reason": "x", "now": T0}
    with pytest.raises(CommandRefused, match="carries PHY"):
        commands.submit(**given, preview_hash=seen.hash, user=make_user())
    glass = commands.preview(kind="gpu_reset", parameters={}, wanted=wanted, now=T0, break_glass=True)
    command = commands.submit(**given, preview_hash=glass.hash, user=make_user(), break_glass=True, confirm="reset 1 GPU").command
    assert (command.risk, command.approvals_needed) == (4, 2)
    first = make_user()
    assert commands.decide(command_id=command.pk, approve=True, reason="yes", user=first, now=T0).state == Command.State.AWAITING
    with pytest.raises(CommandRefused, match="decided already"):
        commands.decide(command_id=command.pk, approve=True, reason="yes", user=first, now=T0)
    assert commands.decide(command_id=command.pk, approve=True, reason="yes", user=make_user(), now=T0).state == Command.State.RUNNING
    assert body_of(command.targets.get()).reaches_phy


def test_a_gpu_that_is_gone_is_refused_by_its_uuid() -> None:
    """Cases C17 and C18: a command is bound to the UUID, whatever stands under the index now."""
    node = make_agent()
    gone = make_gpu(node=node, presence=Gpu.Presence.MISSING)
    make_gpu(node=node, index=0)
    wanted = [Wanted(node.pk, gone.uuid)]
    seen = commands.preview(kind="gpu_reset", parameters={}, wanted=wanted, now=T0)
    with pytest.raises(CommandRefused, match="target not present"):
        commands.submit(kind="gpu_reset", parameters={}, wanted=wanted, preview_hash=seen.hash, reason="x", user=make_user(), now=T0)


def test_the_same_key_is_one_command_and_another_body_is_refused() -> None:
    node, user = make_agent(), make_user()
    first = submitted("drain", [node], user, idempotency_key="k")
    seen = Command.objects.get().preview_hash
    again = commands.submit(kind="drain", parameters={}, wanted=[Wanted(node.pk)], preview_hash=seen, reason="CHG-7", user=user, now=T0, idempotency_key="k")
    assert (again.created, again.command) == (False, first.command)
    with pytest.raises(KeyReused):
        commands.submit(kind="drain", parameters={}, wanted=[Wanted(node.pk)], preview_hash=seen, reason="else", user=user, now=T0, idempotency_key="k")
    assert Command.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_two_clicks_at_once_are_one_command() -> None:
    """Case C39."""
    node, user = make_agent(), make_user()
    seen = previewed("drain", [node])
    meeting, answers = threading.Barrier(4), []

    def click() -> None:
        try:
            meeting.wait(10)
            answers.append(
                commands.submit(
                    kind="drain", parameters={}, wanted=[Wanted(node.pk)], preview_hash=seen.hash, reason="x", user=user, now=T0, idempotency_key="k"
                )
            )
        finally:
            connections.close_all()

    threads = [threading.Thread(target=click) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (sum(one.created for one in answers), {one.command.pk for one in answers}) == (1, {Command.objects.get().pk})
    assert CommandTarget.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_word_on_a_command_waits_for_the_dispatcher_before_it_holds_the_command() -> None:
    command = submitted("drain", make_agents(3, region=make_region())).command
    approver, states_seen = make_user(), []

    def approve() -> None:
        try:
            states_seen.append(commands.decide(command_id=command.pk, approve=True, reason="seen", user=approver, now=T0).state)
        finally:
            connections.close_all()

    thread = threading.Thread(target=approve)
    with transaction.atomic():
        dispatch.lock()
        thread.start()
        thread.join(1)
        assert states_seen == []
        # The dispatcher's own step, which would wait for ever for a row that the other holds while it waits for the dispatcher.
        assert Command.objects.select_for_update(of=("self",), nowait=True).get(pk=command.pk).state == Command.State.AWAITING
    thread.join(10)
    assert states_seen == [Command.State.RUNNING]


def test_the_same_number_of_statements_for_3_and_for_60_targets() -> None:
    counts = []
    for size in (3, 60):
        nodes = make_agents(size, region=make_region())
        with CaptureQueriesContext(connection) as seen:
            previewed("drain", nodes)
        counts.append(len(seen))
    assert counts[0] == counts[1]


def test_pause_resume_and_abort() -> None:
    nodes = make_agents(4, region=make_region())
    command = submitted("diagnostics", nodes).command
    anna = make_user()
    commands.pause(command_id=command.pk, reason="wait", user=anna, now=T0)
    with pytest.raises(CommandRefused, match="paused"):
        commands.pause(command_id=command.pk, reason="wait", user=anna, now=T0)
    commands.resume(command_id=command.pk, reason="go on", user=anna, now=T0)
    commands.abort(command_id=command.pk, reason="enough", user=anna, now=T0)
    command.refresh_from_db()
    assert (command.state, states(command)) == (Command.State.ABORTED, {"cancelled": 4})
    with pytest.raises(CommandRefused, match="aborted"):
        commands.resume(command_id=command.pk, reason="again", user=anna, now=T0)
