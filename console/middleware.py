"""Per request: the signed-in user's time zone."""

from __future__ import annotations

from collections.abc import Callable
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from console.models import User


class TimeZoneMiddleware:
    """Times on pages are shown in the zone that the user chose."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        user = request.user
        with timezone.override(_zone(user.time_zone) if isinstance(user, User) else None):
            return self.get_response(request)


def _zone(name: str) -> ZoneInfo:
    """UTC when the name is no longer known to the system's zone data."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        return ZoneInfo("UTC")
