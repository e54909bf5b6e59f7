"""The history of one object: every version that the database triggers kept, as changes with before and after, and the acts in the audit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.core.exceptions import BadRequest
from django.db.models import ForeignKey, Model
from django.http import HttpRequest
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

from console.models import User
from fleet.models import AuditEntry

LIMIT = 50
_WORDS = {"insert": "added", "update": "changed", "delete": "deleted"}


@dataclass(frozen=True)
class Change:
    field: str
    before: str
    after: str


@dataclass(frozen=True)
class HistoryEntry:
    """One version of the row, or one act. `who` is "" when no person is known (telemetry, agents, the console itself)."""

    at: datetime
    who: str
    what: str
    reason: str = ""
    changes: list[Change] = field(default_factory=list)


def read_before(text: str) -> datetime | None:
    """The time that a page or request gives as the end of the history; None for none. ValueError when it is not an ISO 8601 time with its zone."""
    if not text:
        return None
    found = parse_datetime(text)
    if found is None or found.tzinfo is None:
        raise ValueError("A time as in ISO 8601, with its zone.")
    return found


@dataclass(frozen=True)
class HistoryPage:
    entries: list[HistoryEntry]
    older: datetime | None  # where to go on; None where there is nothing older


def history_of(row: Model, *, kind: str = "", key: str = "", before: datetime | None = None, limit: int = LIMIT) -> list[HistoryEntry]:
    """The newest `limit` entries of a tracked row, and of the audit when `kind` and `key` name the object; only those before that time. Newest first."""
    return history_page(row, kind=kind, key=key, before=before, limit=limit).entries


def history_page(row: Model, *, kind: str = "", key: str = "", before: datetime | None = None, limit: int = LIMIT) -> HistoryPage:
    """As `history_of`, with where it goes on. Three statements, four with the audit."""
    versions = row.events.select_related("pgh_context").order_by("-pgh_id")  # type: ignore[attr-defined]
    events = list((versions.filter(pgh_created_at__lt=before) if before else versions)[: limit + 1])
    names = _user_names(events)
    fields = [column for column in row._meta.concrete_fields if any(column.name == known.name for known in events[0]._meta.concrete_fields)] if events else []
    labels = _labels(fields, events)
    entries = [
        HistoryEntry(
            at=event.pgh_created_at,
            who=_who(event, names),
            what=_WORDS.get(event.pgh_label, event.pgh_label),
            reason=str((event.pgh_context.metadata if event.pgh_context else {}).get("reason", "")),
            changes=_changes(fields, previous, event, labels),
        )
        for event, previous in zip(events[:limit], [*events[1:], None], strict=False)
    ]
    entries = [entry for entry in entries if entry.changes or entry.what != "changed"]
    reached = events[limit - 1].pgh_created_at if len(events) > limit else None  # versions before it were not looked at
    if kind:
        audited = AuditEntry.objects.filter(kind=kind, object_key=key).order_by("-at")
        acts = list((audited.filter(at__lt=before) if before else audited)[: limit + 1])
        if len(acts) > limit:
            reached = max(acts[limit - 1].at, reached or acts[limit - 1].at)
        entries += [
            HistoryEntry(
                at=act.at,
                who=act.actor,
                what=act.action if act.outcome == "done" else f"{act.action} ({act.outcome})",
                reason=act.reason,
                changes=[Change(name, "", _text(value)) for name, value in sorted(act.detail.items()) if not isinstance(value, dict | list)],
            )
            for act in acts
        ]
        entries = [entry for entry in entries if reached is None or entry.at >= reached]
        entries.sort(key=lambda entry: entry.at, reverse=True)
    if len(entries) > limit:
        reached = entries[limit - 1].at
    return HistoryPage(entries[:limit], reached)


def history_context(request: HttpRequest, row: Model, *, kind: str, key: str) -> dict[str, Any]:
    """What `components/history.html` shows of the object; `?history_before=` goes on to what is older."""
    try:
        before = read_before(request.GET.get("history_before", ""))
    except ValueError as error:
        raise BadRequest from error
    page = history_page(row, kind=kind, key=key, before=before)
    return {"history": page.entries, "history_before": before, "history_older": page.older}


def _user_names(events: Iterable[Any]) -> dict[int, str]:
    ids = {event.pgh_context.metadata.get("user") for event in events if event.pgh_context}
    return dict(User.objects.filter(pk__in=[pk for pk in ids if isinstance(pk, int)]).values_list("pk", "username"))


def _who(event: Any, names: dict[int, str]) -> str:
    metadata = event.pgh_context.metadata if event.pgh_context else {}
    return names.get(metadata.get("user") or 0, "") or str(metadata.get("actor") or metadata.get("source") or "")


def _labels(fields: Iterable[Any], events: list[Any]) -> dict[str, dict[Any, str]]:
    """Words for the foreign keys that the events name, one query a key that changed."""
    found = {}
    for column in fields:
        if isinstance(column, ForeignKey):
            ids = {getattr(event, column.attname) for event in events} - {None}
            if len(ids) > 1:
                found[column.name] = {pk: str(other) for pk, other in column.related_model._default_manager.in_bulk(ids).items()}
    return found


def _changes(fields: Iterable[Any], before: Any, after: Any, labels: dict[str, dict[Any, str]]) -> list[Change]:
    if before is None or after.pgh_label != "update":
        return []
    changes = []
    for column in fields:
        old, new = getattr(before, column.attname, None), getattr(after, column.attname, None)
        if old != new:
            words = labels.get(column.name)
            changes.append(Change(column.name, _text(words.get(old, old) if words else old), _text(words.get(new, new) if words else new)))
    return changes


def _text(value: Any) -> str:
    if value is None or value == "":
        return _("none")
    text = value.isoformat(timespec="seconds") if isinstance(value, datetime) else str(value)
    return text if len(text) <= 120 else f"{text[:117]}…"
