"""Per request: the signed-in user's time zone, and what the change history says of the request."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import structlog
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from pghistory.middleware import HistoryMiddleware

from console.errors import problem_id
from console.models import User

REASON_HEADER = "X-Reason"


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


class SourceAddressMiddleware:
    """Where a request came from, for the audit: the peer of its connection. Behind a proxy the server has put the caller's there (docs/operations.md)."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        structlog.contextvars.bind_contextvars(source_address=_address(request.META.get("REMOTE_ADDR", "")))
        return self.get_response(request)


def _address(text: str) -> str | None:
    """None for what is no address: a Unix socket has none."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None


class HistoryContextMiddleware(HistoryMiddleware):
    """Every change of a request carries its user (also when a token brought it), its id, and the reason that the header `X-Reason` gives."""

    def get_context(self, request: HttpRequest) -> dict[str, Any]:
        context: dict[str, Any] = super().get_context(request) | {"request_id": problem_id(request)[:64]}
        reason = request.headers.get(REASON_HEADER, "").strip()
        if reason:
            # Headers come as latin-1; what people write is UTF-8.
            context["reason"] = reason.encode("latin-1", "replace").decode("utf-8", "replace")[:300]
        return context
