"""Disruptive acts ask for a sign-in that is minutes old: a session that was left open overnight drains nothing."""

from __future__ import annotations

import time
from typing import Any

from allauth.account.internal.flows.login import get_authentication_records
from django.conf import settings

from console.models import ApiToken

FROM_RISK = 3


class StaleSignIn(Exception):
    """The person has to sign in again before this act."""

    def __init__(self) -> None:
        super().__init__("Give your password again first (/accounts/reauthenticate/): this act needs a sign-in that is a few minutes old.")


def is_fresh(request: Any, *, now: float) -> bool:
    """Whether the person proved who it is within the last minutes of this session. A token is its own proof."""
    if isinstance(getattr(request, "auth", None), ApiToken):
        return True
    records = get_authentication_records(getattr(request, "_request", request), request.user)
    return any(now - record["at"] < settings.FRESH_SIGN_IN_SECONDS for record in records)


def require_fresh(request: Any, *, risk: int) -> None:
    """Raises StaleSignIn for an act of class 3 or 4 whose sign-in is too old. Kills never ask."""
    if risk >= FROM_RISK and not is_fresh(request, now=time.time()):
        raise StaleSignIn
