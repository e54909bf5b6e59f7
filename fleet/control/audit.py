"""The one way into the audit: an act becomes a row in the transaction of what it records, so that neither stands without the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import structlog

from fleet.bulk import copy_rows
from fleet.models import AuditEntry, AuditOutcome

_COLUMNS = ("at", "actor", "through", "action", "kind", "object_key", "reason", "outcome", "detail", "request_id", "source_address")


@dataclass(frozen=True, kw_only=True)
class Act:
    """One act. `actor` is a user name, `agent:<node id>`, or the part of the console that acted by itself.

    `kind` and `key` name what it was on (`AuditKind`; kind "" for people, tenants, tokens). `before` and `after` are what it changed; `detail` is
    anything else, as JSON. What is left empty of `through`, `request_id` and `source_address` is taken from the request that is being served.
    """

    actor: str
    action: str
    at: datetime
    kind: str = ""
    key: str = ""
    reason: str = ""
    outcome: str = AuditOutcome.DONE
    detail: Mapping[str, Any] = field(default_factory=dict)
    before: Any = None
    after: Any = None
    through: str = ""
    request_id: str = ""
    source_address: str | None = None


def record(
    *,
    actor: str,
    action: str,
    now: datetime,
    kind: str = "",
    key: str = "",
    reason: str = "",
    outcome: str = AuditOutcome.DONE,
    detail: Mapping[str, Any] | None = None,
    before: Any = None,
    after: Any = None,
    through: str = "",
    request_id: str = "",
    source_address: str | None = None,
) -> AuditEntry:
    """Write one act: one INSERT in the caller's transaction. See `Act` for the arguments. Raises ValueError for an outcome that there is not."""
    entry = _entry(
        Act(
            actor=actor,
            action=action,
            at=now,
            kind=kind,
            key=key,
            reason=reason,
            outcome=outcome,
            detail=detail or {},
            before=before,
            after=after,
            through=through,
            request_id=request_id,
            source_address=source_address,
        ),
        structlog.contextvars.get_contextvars(),
    )
    entry.save(force_insert=True)
    return entry


def record_many(acts: Iterable[Act]) -> int:
    """Write many acts in the caller's transaction, by one COPY; how many. Raises ValueError for an outcome that there is not."""
    context = structlog.contextvars.get_contextvars()
    entries = [_entry(act, context) for act in acts]
    return copy_rows(AuditEntry, _COLUMNS, ([getattr(entry, name) for name in _COLUMNS] for entry in entries)) if entries else 0


def _entry(act: Act, context: Mapping[str, Any]) -> AuditEntry:
    token = context.get("token")
    changed = {name: value for name, value in (("before", act.before), ("after", act.after)) if value is not None}
    return AuditEntry(
        at=act.at,
        actor=act.actor[:150],
        through=(act.through or (f"token:{token}" if token else ""))[:80],
        action=act.action,
        kind=act.kind,
        object_key=act.key[:80],
        reason=act.reason.strip()[:300],
        outcome=AuditOutcome(act.outcome),
        detail={**act.detail, **changed},
        request_id=(act.request_id or str(context.get("request_id", "")))[:64],
        source_address=act.source_address or context.get("source_address"),
    )
