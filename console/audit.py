"""Who did what: one entry for each act of the console, written in the act's own transaction."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import structlog

from fleet.models import AuditEntry


def note_act(
    *, actor: str, action: str, subject: str, now: datetime, kind: str = "", reason: str = "", detail: Mapping[str, object] | None = None
) -> AuditEntry:
    """Write an entry about `subject` (a user, tenant or token; with `kind` the key of an object of the fleet).

    The request's id, and the prefix of the token that it came with, are taken from the log context.
    """
    context = structlog.contextvars.get_contextvars()
    by_token = {"by_token": context["token"]} if "token" in context else {}
    return AuditEntry.objects.create(
        at=now,
        actor=actor,
        action=action,
        kind=kind,
        object_key=subject[:80],
        reason=reason[:300],
        detail={"subject": subject, **by_token, **(detail or {})},
        request_id=str(context.get("request_id", ""))[:64],
    )
