"""When a sign-in ends: so long after the person's last act, and at the latest so long after the sign-in. A wall's session ends with its token instead."""

from __future__ import annotations

import time
from collections.abc import Callable

from django.conf import settings
from django.contrib.auth import logout
from django.http import HttpRequest, HttpResponse

from console.access import Access
from console.guards import AUTOMATIC_HEADER, request_access
from console.wall_session import is_device

STARTED, ENDS = "started_at", "ends_at"  # Unix seconds, in the session
# What pages and programs read by themselves, beside what carries `AUTOMATIC_HEADER`.
NOBODY_ASKED = ("/live/", "/charts/", "/static/", "/accounts/session", "/api/")
RENEW_SECONDS = 60


def idle_seconds(access: Access) -> int:
    """How long a sign-in lasts without an act: long for the NOC, short for others."""
    return settings.SESSION_COOKIE_AGE if access.is_operator_side else settings.TENANT_SESSION_SECONDS


def seconds_left(request: HttpRequest, *, now: float) -> float | None:
    """Seconds until this sign-in ends if nothing is done; None where it has no such end."""
    ends = request.session.get(ENDS) if hasattr(request, "session") else None
    return None if ends is None or is_device(request) else max(0.0, ends - now)


def is_last(request: HttpRequest) -> bool:
    """Whether the sign-in has reached its absolute end and cannot be renewed."""
    started, ends = request.session.get(STARTED), request.session.get(ENDS)
    return started is not None and ends is not None and ends >= started + settings.SESSION_ABSOLUTE_SECONDS - RENEW_SECONDS


def is_act(request: HttpRequest) -> bool:
    """Whether a person asked for this: whatever changes something, and each page that is opened."""
    if request.method not in ("GET", "HEAD", "OPTIONS"):
        return True
    return AUTOMATIC_HEADER not in request.headers and not request.path.startswith(NOBODY_ASKED)


def renew(request: HttpRequest, *, now: float) -> None:
    """The person did something: the sign-in lasts on from now, within its absolute end."""
    started = request.session.setdefault(STARTED, now)
    ends = min(now + idle_seconds(request_access(request)), started + settings.SESSION_ABSOLUTE_SECONDS)
    if ends - request.session.get(ENDS, 0) >= RENEW_SECONDS:
        request.session[ENDS] = ends
        request.session.set_expiry(max(1, int(ends - now)))


class SessionEndMiddleware:
    """Ends a sign-in whose time is over, and renews the one of a person who opens a page or acts. Views answer whoever is signed out."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.user.is_authenticated and not is_device(request):
            now = time.time()
            if seconds_left(request, now=now) == 0:
                logout(request)
            elif is_act(request):
                renew(request, now=now)
        return self.get_response(request)
