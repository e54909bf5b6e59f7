"""Signed-in sessions: list, revoke, and tell open sockets to check again."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from allauth.usersessions.models import UserSession
from django.contrib.sessions.models import Session
from django.db import transaction

from console.models import User
from fleet.stream import publish_access_changed


def live_sessions(user: User, *, now: datetime) -> list[UserSession]:
    """This user's sessions that can still be used, the last seen first. One query."""
    alive = Session.objects.filter(expire_date__gt=now).values("session_key")
    return list(UserSession.objects.filter(user=user, session_key__in=alive).order_by("-last_seen_at"))


def revoke_sessions(user: User, *, now: datetime, only: Iterable[int] | None = None, except_key: str | None = None) -> int:
    """End sessions of `user` (all, those with these ids, or all but one) and the sockets opened by them. How many ended."""
    sessions = UserSession.objects.filter(user=user)
    if only is not None:
        sessions = sessions.filter(pk__in=list(only))
    if except_key is not None:
        sessions = sessions.exclude(session_key=except_key)
    with transaction.atomic():
        keys = list(sessions.values_list("session_key", flat=True))
        Session.objects.filter(session_key__in=keys).delete()
        UserSession.objects.filter(session_key__in=keys).delete()
        if keys:
            note_access_change(user, now=now)
    return len(keys)


def note_access_change(user: User, *, now: datetime) -> None:
    """Roles, membership, activity or sessions of `user` changed: open sockets re-check once the change is committed."""
    User.objects.filter(pk=user.pk).update(access_changed_at=now)
    transaction.on_commit(lambda: publish_access_changed(user.pk))
