"""What agents say of commands: stored in batches by condition, so that what comes late, twice or out of order changes nothing that it must not."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from django.db import connection, transaction
from psycopg.types.json import Jsonb

from agent.protocol import CommandUpdate
from fleet.control import audit
from fleet.models import AuditKind, AuditOutcome, CommandTarget
from fleet.stream import publish_notices

State = CommandTarget.State
# An update counts only for a target of the node whose socket it came through, only if it is newer, and only while the target is open, or where our own
# word was that we heard nothing (unreachable, expired) and the agent did something after all.
_STORE = """
    UPDATE fleet_commandtarget target SET
        state = seen.state, code = seen.code, detail = seen.detail, progress = seen.progress, blocked = seen.blocked,
        output = CASE WHEN seen.output = '' THEN target.output ELSE seen.output END, sequence = seen.sequence,
        sent_at = coalesce(target.sent_at, seen.at),
        accepted_at = CASE WHEN seen.began THEN coalesce(target.accepted_at, seen.at) ELSE target.accepted_at END,
        started_at = CASE WHEN seen.state = 'running' OR (seen.final AND seen.began AND target.started_at IS NULL) THEN coalesce(target.started_at, seen.at)
            ELSE target.started_at END,
        finished_at = CASE WHEN seen.final THEN seen.at ELSE NULL END
    FROM unnest(%(node_id)s::bigint[], %(target)s::bigint[], %(state)s::text[], %(code)s::text[], %(detail)s::text[], %(progress)s::jsonb[],
        %(blocked)s::jsonb[], %(output)s::text[], %(at)s::timestamptz[], %(sequence)s::bigint[], %(final)s::boolean[], %(began)s::boolean[])
        AS seen (node_id, target, state, code, detail, progress, blocked, output, at, sequence, final, began)
    WHERE target.id = seen.target AND target.node_id = seen.node_id AND target.released_at IS NOT NULL AND target.sequence < seen.sequence
        AND (target.state IN ('pending', 'sent', 'accepted', 'running') OR (target.state IN ('unreachable', 'expired') AND seen.began))
    RETURNING target.id, target.command_id, target.node_id, target.state, target.code, target.detail, target.finished_at, target.sequence
"""
_NOT_BEGUN = ("expired", "skipped")
_OUTCOMES = {State.FAILED: AuditOutcome.FAILED, State.SKIPPED: AuditOutcome.REFUSED, State.EXPIRED: AuditOutcome.REFUSED}


def record_updates(updates: Iterable[tuple[int, CommandUpdate]], *, now: datetime) -> dict[tuple[int, int], int]:
    """Store pairs of (node id, update), with their audit entries, in one transaction.

    Returns what the agents may stop repeating: {(node id, target): sequence}. Also what changed nothing is theirs to forget: it is known, or not theirs.
    """
    newest: dict[tuple[int, int], CommandUpdate] = {}
    for node_id, update in updates:
        key = (node_id, update.target)
        if key not in newest or newest[key].sequence < update.sequence:
            newest[key] = update
    if not newest:
        return {}
    rows = sorted(newest.items(), key=lambda item: item[0][1])
    found = [update for _, update in rows]
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(
                _STORE,
                {
                    "node_id": [key[0] for key, _ in rows],
                    "target": [update.target for update in found],
                    "state": [update.state.value for update in found],
                    "code": [update.code for update in found],
                    "detail": [update.detail for update in found],
                    "progress": [Jsonb(update.progress) for update in found],
                    "blocked": [Jsonb(list(update.blocked)) for update in found],
                    "output": [update.output for update in found],
                    "at": [datetime.fromtimestamp(min(update.at, now.timestamp()), UTC) for update in found],
                    "sequence": [update.sequence for update in found],
                    "final": [update.state.final for update in found],
                    "began": [update.state.value not in _NOT_BEGUN for update in found],
                },
            )
            stored = cursor.fetchall()
        audit.record_many(
            audit.Act(
                actor=f"agent:{node_id}",
                through=f"agent:{node_id}",
                action=f"command.{state}",
                at=now,
                kind=AuditKind.COMMAND,
                key=str(command_id),
                outcome=_OUTCOMES.get(state, AuditOutcome.DONE),
                detail={"target": target_id, "node": node_id, "code": code, "text": detail},
            )
            for target_id, command_id, node_id, state, code, detail, _, _ in stored
        )
        commands = sorted({str(row[1]) for row in stored})
        transaction.on_commit(lambda: publish_notices([{"type": "command", "key": key, "state": "moved"} for key in commands]))
    return {key: update.sequence for key, update in newest.items()}
