"""Error pages: plain words, the problem id to hand on, and a way back. Under /api/ the same as problem+json (RFC 9457)."""

from __future__ import annotations

import sys
from http import HTTPStatus

import structlog
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.utils.translation import gettext as _

from console.guards import MissingRight

RETRY_SECONDS = 5


def problem_id(request: HttpRequest) -> str:
    """The id that the logs carry for this request."""
    return str(structlog.contextvars.get_contextvars().get("request_id") or request.headers.get("X-Request-ID", ""))


def bad_request(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return _answer(request, 400, _("This request cannot be read"), _("The address or the form is not what this page expects."))


def forbidden(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    text = str(exception) if isinstance(exception, MissingRight) else _("Your account may not do this.")
    return _answer(request, 403, _("Not allowed"), text)


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    return _answer(
        request,
        403,
        _("This form is too old or came from elsewhere"),
        _("Nothing was changed. Go back, reload the page and send it again, from this console's own address."),
    )


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return _answer(request, 404, _("Nothing here"), _("There is no such page, or it lies outside what your account sees."))


def server_error(request: HttpRequest) -> HttpResponse:
    """500, or 503 where it was the database. Rendered without the database and without context processors: they may be what failed."""
    if isinstance(sys.exc_info()[1], OperationalError | InterfaceError):
        status, title, text = 503, _("The database does not answer"), _("Nothing was changed. The sites and their radio go on. Try again in some seconds.")
    else:
        status, title, text = 500, _("Something failed on our side"), _("The fault is logged under the problem id below. Nothing was half done.")
    if request.path.startswith("/api/"):
        response: HttpResponse = _problem(status, title, text, problem_id(request))
    else:
        html = render_to_string("errors/bare.html", {"status": status, "heading": title, "text": text, "problem_id": problem_id(request)})
        response = HttpResponse(html, status=status)
    if status == 503:
        response["Retry-After"] = str(RETRY_SECONDS)
    return response


def too_many_requests(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    response = _answer(request, 429, _("Too many requests"), _("Wait a minute, then try again."))
    response["Retry-After"] = "60"
    return response


def _answer(request: HttpRequest, status: int, heading: str, text: str) -> HttpResponse:
    if request.path.startswith("/api/"):
        return _problem(status, heading, text, problem_id(request))
    return render(request, "errors/page.html", {"status": status, "heading": heading, "text": text, "problem_id": problem_id(request)}, status=status)


def _problem(status: int, title: str, detail: str, instance: str) -> JsonResponse:
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": f"{title}. {detail}", "instance": instance}
    return JsonResponse(body, status=status, content_type="application/problem+json")
