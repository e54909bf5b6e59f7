"""What happens to a command that runs: waves begin, targets are released as the guard rails have room, time runs out, runs pause by themselves and end.

`advance` is called in the transaction that made a command run, and each second by a worker. A released target has a signed body; a gateway sends it when the
node is there. Redis only wakes the gateways. Nothing here talks to an agent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet

from agent.protocol import CancelBody, CommandBody, Preconditions, layout_hash_of, sign_cancel, sign_command
from fleet.control import audit, signing
from fleet.control.action_facts import Wanted, read_facts
from fleet.control.command_kinds import KINDS, CommandKind
from fleet.control.desired_state import wake
from fleet.control.guardrail_settings import limits_of_settings
from fleet.control.guardrails import Limits, Reach, Rule, Target, admit, judge, pauses
from fleet.models import AgentConnection, AuditKind, Command, CommandTarget, Gpu, MigSlice
from fleet.stream import publish_notices

State = CommandTarget.State
LOCK = 0x636D6473  # one dispatcher at a time: admission counts what is in flight
# A released target whose node has been away so long is told apart as unreachable, and the run goes on without it.
AWAY = timedelta(seconds=60)
# After the last moment to begin: for an answer that is under way.
LATE = timedelta(seconds=30)
# After an accepted command's own deadline: then it is over for us, whatever became of it.
OVERDUE = timedelta(minutes=10)
RELEASED_AT_ONCE = 5000
FEW_NODES = 1000
SYSTEM = "console"


def advance(*, now: datetime, command_id: UUID | None = None) -> int:
    """Move every running command (or one) on by what can be done now; how many targets were released. In the caller's transaction or one of its own."""
    limits = limits_of_settings()
    released = 0
    with transaction.atomic():
        lock()
        if command_id is None:
            expire_approvals(now=now)
        # A kind that an older release does not know waits for a newer one, and holds up nothing else.
        running = Command.objects.select_for_update(of=("self",)).filter(state=Command.State.RUNNING, kind__in=KINDS).order_by("created_at", "pk")
        if command_id is not None:
            running = running.filter(pk=command_id)
        for command in running:
            released += _advance_one(command, limits, now)
        if command_id is None:
            # Paused and aborted runs release nothing, but what is in flight there runs out too.
            for command in Command.objects.filter(Exists(_in_flight_of(OuterRef("pk")))).exclude(state=Command.State.RUNNING):
                _run_out(command, now)
    return released


def lock() -> None:
    """Wait to be the only dispatcher until this transaction ends. Who goes on to lock a command's row and then to `advance` it calls this first."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])


def _in_flight_of(key: OuterRef) -> QuerySet[CommandTarget]:
    return CommandTarget.objects.in_flight().filter(command_id=key)


def expire_approvals(*, now: datetime) -> int:
    """Commands that nobody approved in time end: nothing of them is done."""
    late = list(Command.objects.select_for_update().filter(state=Command.State.AWAITING, approve_by__lte=now))
    for command in late:
        command.targets.update(state=State.EXPIRED, code="expired", detail="Nobody approved it in time.", finished_at=now)
        command.state, command.finished_at = Command.State.EXPIRED, now
        command.save(update_fields=["state", "finished_at"])
        _audit(command, "command.expired", now, "Nobody approved it in time.")
    return len(late)


def _advance_one(command: Command, limits: Limits, now: datetime) -> int:
    kind = KINDS[command.kind]
    _run_out(command, now)
    if now >= command.not_after:
        command.targets.filter(state=State.PENDING, released_at__isnull=True).update(
            state=State.EXPIRED, code="expired", detail="Its turn did not come in time.", finished_at=now
        )
    counts = _counts(command)
    open_now = sum(counts[command.wave][state] for state in State if state not in CommandTarget.TERMINAL) if command.wave >= 0 else 0
    done = sum(counts[wave][State.DONE] for wave in counts)
    failed = sum(counts[wave][State.FAILED] for wave in counts)
    canary = command.wave == 0 and len(command.waves) > 1 and command.waves[0] <= limits.canary_targets
    if (why := pauses(done=done, failed=failed, canary=canary, limits=limits, share=command.failure_share)) and _something_waits(counts):
        command.state, command.paused_because = Command.State.PAUSED, why
        command.save(update_fields=["state", "paused_because"])
        _audit(command, "command.paused", now, why)
        _tell(command)
        return 0
    if not open_now:
        last = command.wave >= len(command.waves) - 1
        if last or not _something_waits(counts):
            command.state, command.finished_at = Command.State.DONE, now
            command.save(update_fields=["state", "finished_at"])
            _audit(command, "command.finished", now, "", detail={state.value: sum(counts[wave][state] for wave in counts) for state in CommandTarget.TERMINAL})
            _tell(command)
            return 0
        if command.wave >= 0 and now < _wave_over_at(command, now) + timedelta(seconds=command.pause_seconds):
            return 0
        command.wave += 1
        command.wave_began_at = now
        command.save(update_fields=["wave", "wave_began_at"])
        _audit(command, "command.wave", now, "", detail={"wave": command.wave})
    return _release(command, kind, limits, now)


def _something_waits(counts: dict[int, dict[State, int]]) -> bool:
    return any(states[State.PENDING] for states in counts.values())


def _wave_over_at(command: Command, now: datetime) -> datetime:
    last = command.targets.filter(wave=command.wave, finished_at__isnull=False).order_by("-finished_at").values_list("finished_at", flat=True).first()
    return last or command.wave_began_at or now


def _counts(command: Command) -> dict[int, dict[State, int]]:
    found: dict[int, dict[State, int]] = defaultdict(lambda: dict.fromkeys(State, 0))
    for wave, state, count in command.targets.values_list("wave", "state").annotate(count=Count("pk")):
        found[wave][State(state)] = count
    return found


def _run_out(command: Command, now: datetime) -> None:
    """Targets that nothing more is heard of: those whose node is away, those whose time to begin is over, and those long past their own deadline."""
    away = AgentConnection.objects.filter(node_id=OuterRef("node_id"), connected=True)
    waiting = command.targets.filter(released_at__isnull=False, state__in=(State.PENDING, State.SENT))
    waiting.filter(released_at__lte=now - AWAY).filter(~Exists(away)).update(
        state=State.UNREACHABLE, code="", detail="The node is out of contact; it will not begin this later than the command's end.", finished_at=now
    )
    if now >= command.not_after + LATE:
        waiting.update(state=State.EXPIRED, code="expired", detail="The agent did not begin in time.", finished_at=now)
    deadline = timedelta(seconds=float(command.parameters.get("deadline_seconds", 0)))
    overdue = command.targets.filter(state__in=(State.ACCEPTED, State.RUNNING), accepted_at__lte=now - deadline - OVERDUE)
    overdue.filter(~Exists(away)).update(state=State.UNREACHABLE, detail="The node is out of contact since it began.", finished_at=now)
    overdue.filter(accepted_at__lte=now - deadline - 2 * OVERDUE).update(state=State.FAILED, code="timeout", detail="No result came.", finished_at=now)


def _release(command: Command, kind: CommandKind, limits: Limits, now: datetime) -> int:
    rows = {
        Wanted(row.node_id, row.gpu_uuid).key: row
        for row in command.targets.filter(wave=command.wave, state=State.PENDING, released_at__isnull=True).order_by("pk")[:RELEASED_AT_ONCE]
    }
    if not rows:
        return 0
    facts = read_facts(kind, [Wanted(row.node_id, row.gpu_uuid) for row in rows.values()], now=now, besides=command.pk)
    verdict = judge(kind.act, facts.targets, sites=facts.sites, regions=facts.regions, limits=limits, break_glass=command.break_glass)
    stopped = {refusal.target.key: refusal.why for refusal in verdict.refused if refusal.rule in (Rule.BREAKER, Rule.FREEZE)}
    for refusal in (*verdict.refused, *verdict.skipped):
        if refusal.target.key in stopped:  # it waits: a person resets a breaker and says what becomes of the backlog, a freeze ends
            continue
        row = rows.pop(refusal.target.key)
        row.state, row.code, row.detail, row.finished_at = State.SKIPPED, refusal.rule.value, refusal.why[:300], now
        row.save(update_fields=["state", "code", "detail", "finished_at"])
    waiting = [target for target in facts.targets if target.key in rows and target.key not in stopped]
    begin, held = admit(kind.act, waiting, sites=facts.sites, regions=facts.regions, limits=limits)
    held |= stopped
    told = [row for key, why in held.items() if (row := rows[key]).waits_for != why[:300]]
    for row in told:
        row.waits_for = held[Wanted(row.node_id, row.gpu_uuid).key][:300]
    CommandTarget.objects.bulk_update(told, ["waits_for"], batch_size=1000)
    return _sign(command, kind, [rows[target.key] for target in begin], begin, now)


def _sign(command: Command, kind: CommandKind, rows: Sequence[CommandTarget], targets: Sequence[Target], now: datetime) -> int:
    """Sign the bodies of these targets, with what must still hold when they begin. Raises `signing.SigningUnavailable` without a key."""
    if not rows:
        return 0
    key = signing.signing_key()
    boots = {row.node_id: row.node.boot_id for row in CommandTarget.objects.filter(pk__in=[row.pk for row in rows]).select_related("node")}
    layouts = _layouts([target.gpu_uuid for target in targets if target.gpu_uuid]) if "mig_layout" in kind.checks else {}
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('fleet_command_order') FROM generate_series(1, %s)", [len(rows)])
        orders = [order for (order,) in cursor.fetchall()]
    for row, order in zip(rows, orders, strict=True):
        preconditions = Preconditions(boot_id=boots[row.node_id] if "boot_id" in kind.checks else "", mig_layout=layouts.get(row.gpu_uuid, ""))
        signed = sign_command(
            CommandBody(
                id=str(command.pk),
                target=row.pk,
                kind=command.kind,
                node=row.node_id,
                gpu_uuid=row.gpu_uuid,
                parameters=command.parameters,
                issued_at=now.timestamp(),
                not_after=command.not_after.timestamp(),
                sequence=order,
                preconditions=preconditions,
                reaches_phy=command.break_glass and kind.act.reach is Reach.DEVICE,
            ),
            key,
        )
        row.order, row.body, row.signature, row.key_id = order, signed.body, signed.signature, signed.key_id
        row.preconditions = {"boot_id": preconditions.boot_id, "mig_layout": preconditions.mig_layout}
        row.released_at, row.waits_for = now, ""
    CommandTarget.objects.bulk_update(rows, ["order", "body", "signature", "key_id", "preconditions", "released_at", "waits_for"], batch_size=1000)
    audit.record_many(
        audit.Act(actor=SYSTEM, action="command.released", at=now, kind=AuditKind.COMMAND, key=str(command.pk), detail=_target_detail(row)) for row in rows
    )
    node_ids = sorted({row.node_id for row in rows})
    transaction.on_commit(lambda: wake(node_ids))
    return len(rows)


def _layouts(uuids: Iterable[str]) -> dict[str, str]:
    """The hash of each GPU's live MIG layout as the inventory has it; "off" without MIG, "" where a placement is not known."""
    found: dict[str, list[tuple[str, int | None]]] = defaultdict(list)
    wanted = list(uuids)
    for uuid, profile, start in MigSlice.objects.filter(gpu__uuid__in=wanted, ended_at__isnull=True).values_list("gpu__uuid", "profile", "start"):
        found[uuid].append((profile, start))
    hashes = {}
    for uuid, mig in Gpu.objects.filter(uuid__in=wanted).values_list("uuid", "mig_enabled"):
        slices = found[uuid]
        known = [(profile, start) for profile, start in slices if start is not None]
        hashes[uuid] = "off" if not mig else layout_hash_of(known) if len(known) == len(slices) else ""
    return hashes


def sign_cancels(command: Command, *, now: datetime) -> int:
    """Ask the agents of everything in flight to stop. What an agent did before it heard of it, its result tells."""
    rows = list(command.targets.in_flight().filter(cancel_body__isnull=True))
    if not rows:
        return 0
    key = signing.signing_key()
    for row in rows:
        signed = sign_cancel(CancelBody(id=str(command.pk), target=row.pk, node=row.node_id, issued_at=now.timestamp()), key)
        row.cancel_body, row.cancel_signature = signed.body, signed.signature
    CommandTarget.objects.bulk_update(rows, ["cancel_body", "cancel_signature"], batch_size=1000)
    # What was never sent need not be stopped.
    command.targets.filter(pk__in=[row.pk for row in rows], state=State.PENDING).update(
        state=State.CANCELLED, code="cancelled", detail="Cancelled before it was sent.", finished_at=now
    )
    node_ids = sorted({row.node_id for row in rows})
    transaction.on_commit(lambda: wake(node_ids))
    return len(rows)


def due_for(node_ids: Iterable[int]) -> list[CommandTarget]:
    """What a gateway has to send to these nodes: released targets that were not accepted yet, and cancels of what is in flight. In order."""
    waits = Q(state__in=(State.PENDING, State.SENT), body__isnull=False) | Q(cancel_body__isnull=False, finished_at__isnull=True)
    rows = CommandTarget.objects.filter(waits).order_by(F("order").asc(nulls_last=True))
    wanted = set(node_ids)
    if len(wanted) <= FEW_NODES:
        return list(rows.filter(node_id__in=wanted))
    # Of a whole gateway's nodes few have something due: naming them all would cost more than reading what is due.
    return [row for row in rows if row.node_id in wanted]


def mark_sent(target_ids: Iterable[int], *, now: datetime) -> None:
    CommandTarget.objects.filter(pk__in=list(target_ids), state=State.PENDING).update(state=State.SENT, sent_at=now)


def _target_detail(row: CommandTarget) -> dict[str, object]:
    return {"target": row.pk, "node": row.node_id, "gpu": row.gpu_uuid, "order": row.order, **row.preconditions}


def _audit(command: Command, action: str, now: datetime, reason: str, *, detail: dict[str, object] | None = None) -> None:
    audit.record(
        actor=SYSTEM, action=action, now=now, kind=AuditKind.COMMAND, key=str(command.pk), reason=reason, detail={"kind": command.kind, **(detail or {})}
    )


def _tell(command: Command) -> None:
    notice = {"type": "command", "user_id": command.created_by_id, "key": str(command.pk), "state": command.state, "detail": command.paused_because}
    transaction.on_commit(lambda: publish_notices([notice]))
