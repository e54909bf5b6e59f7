"""Commands from preview to decision: what is shown is frozen, what is submitted is what was shown, and each step stands in the audit in its own transaction.

What happens to a command that runs is `fleet.control.dispatch`. Tenants' and objectives' facts come from the caller as values (`context`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.contrib.auth.models import AbstractUser
from django.db import IntegrityError, transaction

from agent.protocol.wire import dump_canonical
from fleet.control import audit, dispatch
from fleet.control.action_facts import Facts, Wanted, read_facts
from fleet.control.command_kinds import KINDS, CommandKind
from fleet.control.guardrail_settings import limits_of_settings
from fleet.control.guardrails import Limits, Refusal, RiskClass, Verdict, judge
from fleet.models import AuditKind, Command, CommandDecision, CommandTarget

APPROVE_WITHIN = timedelta(hours=1)
LONGEST = timedelta(hours=24)
REASON_LENGTH = 300
SHOWN = 200  # rows of each list in a preview


class CommandRefused(Exception):
    """Nothing was stored. `errors` maps each bad field to its reason; "" stands for the command as a whole."""

    def __init__(self, errors: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{field}: {reason}" if field else reason for field, reason in errors.items()))
        self.errors = dict(errors)


class PreviewDrifted(Exception):
    """What was shown is not what would happen now. `preview` is the new one."""

    def __init__(self, preview: Preview) -> None:
        super().__init__("The fleet has changed since the preview. Look at the new one.")
        self.preview = preview


class KeyReused(Exception):
    """The idempotency key already stands for another request of this user."""


@dataclass(frozen=True)
class Preview:
    """`content` is shown and stored (plain JSON); `hash` names what matters of it: targets, refusals, class, tenants, PHY."""

    content: dict[str, Any]
    hash: str
    verdict: Verdict

    @property
    def risk(self) -> RiskClass:
        return self.verdict.risk


@dataclass(frozen=True)
class Submitted:
    """`created` is false when the same request had been stored before."""

    command: Command
    created: bool


def preview(
    *,
    kind: str,
    parameters: object,
    wanted: Sequence[Wanted],
    now: datetime,
    break_glass: bool = False,
    context: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
) -> Preview:
    """What would happen, nothing of it done. Raises CommandRefused for an unknown kind, bad parameters, or targets that do not fit the kind."""
    found = _kind(kind)
    complete = _parameters(found, parameters)
    errors: dict[str, str] = {}
    if not wanted:
        errors["targets"] = "Choose at least one."
    elif len(wanted) > found.most_targets:
        errors["targets"] = f"At most {found.most_targets} at once."
    elif any(bool(one.gpu_uuid) != found.per_gpu for one in wanted):
        errors["targets"] = f"{found.title} acts on {'GPUs' if found.per_gpu else 'nodes'}."
    if errors:
        raise CommandRefused(errors)
    rules = limits or limits_of_settings()
    facts = read_facts(found, wanted, now=now)
    missing = len({one.key for one in wanted}) - len({target.key for target in facts.targets})
    if missing:
        raise CommandRefused({"targets": f"{missing} of them do not exist."})
    verdict = judge(found.act, facts.targets, sites=facts.sites, regions=facts.regions, limits=rules, break_glass=break_glass)
    content = _content(found, complete, verdict, facts, break_glass=break_glass, context=context or {})
    material = {
        "kind": kind,
        "parameters": complete,
        "break_glass": break_glass,
        "risk": int(verdict.risk),
        "targets": sorted(target.key for target in verdict.allowed),
        "refused": sorted([one.target.key, one.rule.value] for one in (*verdict.refused, *verdict.skipped)),
        "tenants": list(verdict.tenants),
        "phy": verdict.phy_placements,
    }
    return Preview(content=content, hash=hashlib.sha256(dump_canonical(material)).hexdigest(), verdict=verdict)


def submit(
    *,
    kind: str,
    parameters: object,
    wanted: Sequence[Wanted],
    preview_hash: str,
    reason: object,
    user: AbstractUser,
    now: datetime,
    confirm: str = "",
    break_glass: bool = False,
    selection: Mapping[str, Any] | None = None,
    context: Mapping[str, Any] | None = None,
    not_after: object = None,
    pause_seconds: int = 0,
    idempotency_key: str | None = None,
    retry_of: Command | None = None,
    request_id: str = "",
) -> Submitted:
    """Store a command whose preview was seen. Below class 3 it runs at once; class 3 awaits another person, class 4 two.

    Raises CommandRefused, PreviewDrifted, KeyReused.
    """
    found = _kind(kind)
    errors: dict[str, str] = {}
    why = checked_reason(reason, errors)
    end = _not_after(not_after, found, now, errors)
    if idempotency_key is not None and not (0 < len(idempotency_key) <= 80 and idempotency_key.isprintable()):
        errors["idempotency_key"] = "Must be 1 to 80 printable characters."
    if isinstance(pause_seconds, bool) or not 0 <= pause_seconds <= 3600:
        errors["pause_seconds"] = "Must lie within 0..3600 s."
    if errors:
        raise CommandRefused(errors)
    if idempotency_key is not None and (before := _stored(user, idempotency_key, found, parameters, why, preview_hash)) is not None:
        return before
    with_key = {"idempotency_key": idempotency_key} if idempotency_key is not None else {}
    try:
        with transaction.atomic():
            seen = preview(kind=kind, parameters=parameters, wanted=wanted, now=now, break_glass=break_glass, context=context)
            if seen.hash != preview_hash:
                raise PreviewDrifted(seen)
            verdict = seen.verdict
            if not verdict.allowed:
                raise CommandRefused({"": _nothing_left(verdict)})
            if verdict.phrase and confirm != verdict.phrase:
                raise CommandRefused({"confirm": f"Type “{verdict.phrase}”."})
            limits = limits_of_settings()
            command = Command.objects.create(
                kind=kind,
                parameters=seen.content["parameters"],
                selection=dict(selection or {}),
                reason=why,
                risk=int(verdict.risk),
                break_glass=break_glass,
                state=Command.State.AWAITING if verdict.approvals else Command.State.RUNNING,
                preview=seen.content,
                preview_hash=seen.hash,
                waves=list(verdict.waves),
                pause_seconds=pause_seconds,
                failure_share=limits.failure_share,
                approvals_needed=verdict.approvals,
                approve_by=min(end, now + APPROVE_WITHIN) if verdict.approvals else None,
                not_after=end,
                created_by_id=user.pk,
                created_at=now,
                retry_of=retry_of,
                **with_key,
            )
            CommandTarget.objects.bulk_create(_targets(command, found, verdict), batch_size=2000)
            _audit(command, "command.submitted", user, why, now, request_id, detail={"preview": seen.hash, "content": seen.content, "risk": command.risk})
            if command.state == Command.State.RUNNING:
                dispatch.advance(now=now, command_id=command.pk)
                command.refresh_from_db()
    except IntegrityError as error:
        if idempotency_key is not None and (before := _stored(user, idempotency_key, found, parameters, why, preview_hash)) is not None:
            return before
        raise CommandRefused({"": "The command could not be stored."}) from error
    return Submitted(command=command, created=True)


def decide(
    *, command_id: UUID, approve: bool, reason: object, user: AbstractUser, now: datetime, context: Mapping[str, Any] | None = None, request_id: str = ""
) -> Command:
    """One person's word on a command that awaits it. The requester's own does not count; a denial, an expiry and a drift are final.

    Raises CommandRefused. A preview that drifted ends the command: it has to be previewed and asked for anew.
    """
    errors: dict[str, str] = {}
    why = checked_reason(reason, errors)
    if errors:
        raise CommandRefused(errors)
    with transaction.atomic():
        dispatch.lock()
        command = Command.objects.select_for_update(of=("self",)).select_related("created_by").get(pk=command_id)
        if command.state != Command.State.AWAITING:
            raise CommandRefused({"": f"The command is {command.get_state_display().lower()}: nothing is left to decide."})
        if command.approve_by is not None and now >= command.approve_by:
            raise CommandRefused({"": "The time to approve it is over."})
        if command.created_by_id == user.pk:
            raise CommandRefused({"": "Who asked for it cannot decide on it."})
        if command.decisions.filter(person_id=user.pk).exists():
            raise CommandRefused({"": "You have decided already."})
        verdict = CommandDecision.Verdict.APPROVED if approve else CommandDecision.Verdict.DENIED
        CommandDecision.objects.create(command=command, person_id=user.pk, verdict=verdict, reason=why, preview_hash=command.preview_hash, at=now)
        _audit(command, f"command.{verdict.value}", user, why, now, request_id, detail={"preview": command.preview_hash})
        if not approve:
            _finish(command, Command.State.DENIED, now, code="denied", detail=f"Denied by {user.get_username()}.")
            return command
        seen = preview(
            kind=command.kind, parameters=command.parameters, wanted=wanted_of(command), now=now, break_glass=command.break_glass, context=context or {}
        )
        if seen.hash != command.preview_hash:
            _finish(command, Command.State.EXPIRED, now, code="expired", detail="The fleet has changed since the preview.")
            command.paused_because = "The fleet has changed since the preview: ask anew."
            command.save(update_fields=["paused_because"])
            _audit(command, "command.drifted", user, "", now, request_id, detail={"was": command.preview_hash, "is": seen.hash, "content": seen.content})
            return command
        given = command.decisions.filter(verdict=CommandDecision.Verdict.APPROVED, preview_hash=command.preview_hash).count()
        if given >= command.approvals_needed:
            command.state = Command.State.RUNNING
            command.save(update_fields=["state"])
            dispatch.advance(now=now, command_id=command.pk)
            command.refresh_from_db()
        return command


def pause(*, command_id: UUID, reason: object, user: AbstractUser, now: datetime, request_id: str = "") -> Command:
    """No further target begins; those that began go on."""
    return _change(command_id, (Command.State.RUNNING,), Command.State.PAUSED, "command.paused", reason, user, now, request_id)


def resume(*, command_id: UUID, reason: object, user: AbstractUser, now: datetime, request_id: str = "") -> Command:
    return _change(command_id, (Command.State.PAUSED,), Command.State.RUNNING, "command.resumed", reason, user, now, request_id)


def _change(
    command_id: UUID,
    before: tuple[Command.State, ...],
    after: Command.State,
    action: str,
    reason: object,
    user: AbstractUser,
    now: datetime,
    request_id: str,
) -> Command:
    errors: dict[str, str] = {}
    why = checked_reason(reason, errors)
    if errors:
        raise CommandRefused(errors)
    with transaction.atomic():
        command = Command.objects.select_for_update().get(pk=command_id)
        if command.state not in before:
            raise CommandRefused({"": f"The command is {command.get_state_display().lower()}."})
        command.state = after
        command.paused_because = f"{user.get_username()}: {why}"[:REASON_LENGTH] if after == Command.State.PAUSED else ""
        command.save(update_fields=["state", "paused_because"])
        _audit(command, action, user, why, now, request_id)
    return command


def abort(*, command_id: UUID, reason: object, user: AbstractUser, now: datetime, request_id: str = "") -> Command:
    """Nothing further begins, and what is in flight is asked to stop. What an agent did all the same is told by its result."""
    errors: dict[str, str] = {}
    why = checked_reason(reason, errors)
    if errors:
        raise CommandRefused(errors)
    with transaction.atomic():
        command = Command.objects.select_for_update().get(pk=command_id)
        if command.state not in Command.OPEN:
            raise CommandRefused({"": f"The command is {command.get_state_display().lower()}."})
        dispatch.sign_cancels(command, now=now)
        _finish(command, Command.State.ABORTED, now, code="cancelled", detail=f"Aborted by {user.get_username()}.")
        _audit(command, "command.aborted", user, why, now, request_id)
    return command


def retry_targets(command: Command) -> list[Wanted]:
    """What of a finished command did not get done: failed, unreachable, expired and cancelled targets. They are previewed and submitted as a command of its own."""
    missed = (CommandTarget.State.FAILED, CommandTarget.State.UNREACHABLE, CommandTarget.State.EXPIRED, CommandTarget.State.CANCELLED)
    return [Wanted(node_id, gpu) for node_id, gpu in command.targets.filter(state__in=missed).order_by("pk").values_list("node_id", "gpu_uuid")]


def wanted_of(command: Command) -> list[Wanted]:
    """The targets as they were frozen, and those that were refused then: together the plan that was previewed."""
    rows = [*command.preview["plan"]]
    return [Wanted(node_id, gpu) for node_id, gpu in rows]


def checked_reason(value: object, errors: dict[str, str]) -> str:
    text = value.strip() if isinstance(value, str) else ""
    if not text:
        errors["reason"] = "Say why: it stands in the audit."
    elif len(text) > REASON_LENGTH or not text.isprintable():
        errors["reason"] = f"Must be at most {REASON_LENGTH} printable characters."
    return text


def _finish(command: Command, state: Command.State, now: datetime, *, code: str, detail: str) -> None:
    """End a command: what has not been released is cancelled or expired, and what is in flight is told to stop."""
    from_state = CommandTarget.State.EXPIRED if state == Command.State.EXPIRED else CommandTarget.State.CANCELLED
    command.targets.filter(state=CommandTarget.State.PENDING, released_at__isnull=True).update(
        state=from_state, code=code, detail=detail[:300], finished_at=now
    )
    command.state, command.finished_at = state, now
    command.save(update_fields=["state", "finished_at"])


def _kind(name: object) -> CommandKind:
    found = KINDS.get(name) if isinstance(name, str) else None
    if found is None:
        raise CommandRefused({"kind": f"None of {', '.join(KINDS)}."})
    return found


def _parameters(kind: CommandKind, parameters: object) -> dict[str, Any]:
    errors = kind.errors(parameters)
    if errors:
        raise CommandRefused(errors)
    assert isinstance(parameters, dict)
    return kind.complete(parameters)


def _not_after(value: object, kind: CommandKind, now: datetime, errors: dict[str, str]) -> datetime:
    if value is None:
        return now + kind.not_after
    if not isinstance(value, datetime) or value.tzinfo is None:
        errors["not_after"] = "Must be a date and time with its zone."
    elif not now < value <= now + LONGEST:
        errors["not_after"] = f"Must lie ahead, at most {LONGEST.total_seconds() / 3600:.0f} h."
    else:
        return value
    return now


def _stored(user: AbstractUser, key: str, kind: CommandKind, parameters: object, reason: str, preview_hash: str) -> Submitted | None:
    before = Command.objects.filter(created_by_id=user.pk, idempotency_key=key).first()
    if before is None:
        return None
    same = isinstance(parameters, dict) and before.parameters == kind.complete(parameters)
    if not same or (before.kind, before.reason, before.preview_hash) != (kind.name, reason, preview_hash):
        raise KeyReused(f"The idempotency key {key} was used for another request.")
    return Submitted(command=before, created=False)


def _targets(command: Command, kind: CommandKind, verdict: Verdict) -> list[CommandTarget]:
    """Frozen, in waves. Preconditions are filled in when a target is released: what holds then is what the operator saw, or the preview has drifted."""
    rows: list[CommandTarget] = []
    start = 0
    for wave, size in enumerate(verdict.waves):
        rows += [
            CommandTarget(command=command, node_id=target.node_id, gpu_uuid=target.gpu_uuid, wave=wave) for target in verdict.allowed[start : start + size]
        ]
        start += size
    return rows


def _nothing_left(verdict: Verdict) -> str:
    reasons = [one.why for one in (*verdict.refused, *verdict.skipped)]
    return " ".join(dict.fromkeys(reasons[:3])) or "No target is left."


def _refusals(rows: Sequence[Refusal]) -> list[dict[str, str]]:
    return [{"target": one.target.label, "rule": one.rule.value, "why": one.why} for one in rows[:SHOWN]]


def _content(
    kind: CommandKind, parameters: Mapping[str, Any], verdict: Verdict, facts: Facts, *, break_glass: bool, context: Mapping[str, Any]
) -> dict[str, Any]:
    by_region: dict[str, int] = {}
    for target in verdict.allowed:
        by_region[target.region] = by_region.get(target.region, 0) + 1
    return {
        "kind": kind.name,
        "title": kind.title,
        "explains": kind.explains,
        "parameters": dict(parameters),
        "break_glass": break_glass,
        "risk": int(verdict.risk),
        "phrase": verdict.phrase,
        "approvals": verdict.approvals,
        "targets": len(verdict.allowed),
        "plan": [[target.node_id, target.gpu_uuid] for target in facts.targets],
        "by_region": by_region,
        "sites": len({target.site for target in verdict.allowed}),
        "examples": [target.label for target in verdict.allowed[:SHOWN]],
        "refused": _refusals(verdict.refused),
        "refused_count": len(verdict.refused),
        "skipped": _refusals(verdict.skipped),
        "skipped_count": len(verdict.skipped),
        "unreachable": verdict.unreachable,
        "workloads": verdict.workloads,
        "tenants": list(verdict.tenants),
        "phy_placements": verdict.phy_placements,
        "budget": [{"region": one.region, "nodes": one.nodes, "used": one.used, "wanted": one.wanted, "limit": one.limit} for one in verdict.budget[:SHOWN]],
        "waves": list(verdict.waves),
        "undo": kind.undo,
        "context": json.loads(json.dumps(context, allow_nan=False)),
    }


def _audit(command: Command, action: str, user: AbstractUser, reason: str, now: datetime, request_id: str, *, detail: Mapping[str, Any] | None = None) -> None:
    audit.record(
        now=now,
        actor=user.get_username(),
        action=action,
        kind=AuditKind.COMMAND,
        key=str(command.pk),
        reason=reason,
        detail={"kind": command.kind, **(detail or {})},
        request_id=request_id,
    )
