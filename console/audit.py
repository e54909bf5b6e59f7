"""Acts on what is the console's own (people, tenants, tokens): one entry of the audit each, written in the act's own transaction."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from fleet.control.audit import record
from fleet.models import AuditEntry


def note_act(*, actor: str, action: str, subject: str, now: datetime, reason: str = "", detail: Mapping[str, object] | None = None) -> AuditEntry:
    """Write an entry about `subject`: the name of a user, the key of a tenant, the prefix of a token."""
    return record(actor=actor, action=action, key=subject, now=now, reason=reason, detail={"subject": subject, **(detail or {})})
