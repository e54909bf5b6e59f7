"""Freezes: times in which nobody acts on a scope, but by break-glass."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.contrib.auth.models import AbstractUser
from django.db import transaction

from fleet.control import audit
from fleet.control.commands import CommandRefused, checked_reason
from fleet.control.switches import find_switch_scope
from fleet.models import Freeze

LONGEST = timedelta(days=90)


def freeze(
    *, scope_kind: str, scope_key: str, starts_at: object, ends_at: object, reason: object, user: AbstractUser, now: datetime, request_id: str = ""
) -> Freeze:
    """Freeze the fleet, an area, a region, a site or a node for a time. Raises CommandRefused naming the field."""
    errors: dict[str, str] = {}
    why = checked_reason(reason, errors)
    times: list[datetime] = []
    for name, value in (("starts_at", starts_at), ("ends_at", ends_at)):
        if not isinstance(value, datetime) or value.tzinfo is None:
            errors[name] = "Must be a date and time with its zone."
        else:
            times.append(value)
    if len(times) == 2:
        if not times[0] < times[1] <= times[0] + LONGEST:
            errors["ends_at"] = f"Must come after the start, at most {LONGEST.days} days."
        elif times[1] <= now:
            errors["ends_at"] = "Must lie ahead."
    if errors:
        raise CommandRefused(errors)
    scope = find_switch_scope(scope_kind, scope_key)
    with transaction.atomic():
        made = Freeze.objects.create(
            scope_kind=scope.kind.value, scope_key=scope.key, starts_at=times[0], ends_at=times[1], reason=why, created_by=user.get_username(), created_at=now
        )
        _audit(made, "freeze.set", user, why, now, request_id)
    return made


def end(*, freeze_id: int, reason: object, user: AbstractUser, now: datetime, request_id: str = "") -> Freeze:
    """End a freeze before its time; one that is over stays as it is. Raises CommandRefused without a reason."""
    errors: dict[str, str] = {}
    why = checked_reason(reason, errors)
    if errors:
        raise CommandRefused(errors)
    with transaction.atomic():
        if Freeze.objects.filter(pk=freeze_id, ended_at__isnull=True, ends_at__gt=now).update(ended_at=now):
            _audit(Freeze.objects.get(pk=freeze_id), "freeze.ended", user, why, now, request_id)
    return Freeze.objects.get(pk=freeze_id)


def _audit(made: Freeze, action: str, user: AbstractUser, reason: str, now: datetime, request_id: str) -> None:
    detail = {"freeze": made.pk, "starts_at": made.starts_at.isoformat(), "ends_at": made.ends_at.isoformat()}
    audit.record(
        actor=user.get_username(), action=action, now=now, kind=made.scope_kind, key=made.scope_key, reason=reason, detail=detail, request_id=request_id
    )
