"""A wall signs in with a device token: named, read-only, revocable, without an idle time-out. Its session sees the wall and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from django.contrib.auth import login, logout
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone

from console.live.identity import DEVICE_TOKEN_KEY
from console.models import ApiToken
from console.tokens import find_token

WALL_SCOPE = "read:wall"
BACKEND = "allauth.account.auth_backends.AuthenticationBackend"
# What a wall may open, by prefix; everything else sends it back to its wall.
OPEN_PATHS = ("/wall", "/live/", "/static/", "/healthz", "/readyz", "/livez")


def sign_in_device(request: HttpRequest, secret: str, *, now: datetime) -> ApiToken | None:
    """Exchange a device token for a session that lives as long as the token. None when the token is not a wall's, or not valid."""
    token = find_token(secret, now=now)
    if token is None or WALL_SCOPE not in token.scopes:
        return None
    login(request, token.user, backend=BACKEND)
    request.session[DEVICE_TOKEN_KEY] = token.pk
    request.session.set_expiry(token.expires_at)
    return token


def device_token(request: HttpRequest) -> ApiToken | None:
    """The token behind a wall's session, still valid; None for a person's session. One query for walls, none for people."""
    pk = request.session.get(DEVICE_TOKEN_KEY) if hasattr(request, "session") else None
    return None if pk is None else ApiToken.objects.filter(pk=pk, revoked_at__isnull=True, expires_at__gt=timezone.now(), user__is_active=True).first()


def is_device(request: HttpRequest) -> bool:
    return hasattr(request, "session") and DEVICE_TOKEN_KEY in request.session


class WallSessionMiddleware:
    """Keeps a wall's session to the wall, reading only; ends it when its token was revoked or has expired."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if not is_device(request):
            return self.get_response(request)
        if device_token(request) is None:
            logout(request)
            return HttpResponseRedirect(reverse("wall_sign_in"))
        signing = request.path == reverse("wall_sign_in")
        if not signing and (request.method not in ("GET", "HEAD") or not request.path.startswith(OPEN_PATHS)):
            return (
                HttpResponseRedirect(reverse("wall"))
                if request.method in ("GET", "HEAD")
                else HttpResponse("A wall only reads.", status=403, content_type="text/plain")
            )
        return self.get_response(request)
