"""Errors as RFC 9457 `application/problem+json`: type, title, status, detail, instance (the request id) and `errors[]` with JSON pointers."""

from http import HTTPStatus
from typing import Any

import structlog
from django.db import DataError, IntegrityError, InterfaceError, OperationalError
from django.db.models import ProtectedError, RestrictedError
from drf_standardized_errors.formatter import ExceptionFormatter
from drf_standardized_errors.handler import ExceptionHandler
from drf_standardized_errors.types import ErrorResponse
from rest_framework import exceptions, status
from rest_framework.response import Response

MEDIA_TYPE = "application/problem+json"


class Conflict(exceptions.APIException):
    status_code = status.HTTP_409_CONFLICT
    default_detail = "The request contradicts the present state."
    default_code = "conflict"


class Unprocessable(exceptions.APIException):
    status_code = status.HTTP_422_UNPROCESSABLE_ENTITY
    default_detail = "The request cannot be carried out."
    default_code = "unprocessable"


class PreconditionFailed(exceptions.APIException):
    status_code = status.HTTP_412_PRECONDITION_FAILED
    default_detail = "The object has changed since it was read. Read it again."
    default_code = "precondition_failed"


class PreconditionRequired(exceptions.APIException):
    status_code = status.HTTP_428_PRECONDITION_REQUIRED
    default_detail = "If-Match is required: send the ETag of the version that you mean to change."
    default_code = "precondition_required"


class SourceUnavailable(exceptions.APIException):
    status_code = status.HTTP_503_SERVICE_UNAVAILABLE
    default_detail = "A source that this answer needs cannot be reached."
    default_code = "source_unavailable"
    wait = 5  # seconds, sent as Retry-After


def request_id() -> str:
    return str(structlog.contextvars.get_contextvars().get("request_id", ""))


def problem(status_code: int, *, code: str, detail: str, errors: list[dict[str, str]] | None = None) -> dict[str, Any]:
    """The body of a problem answer."""
    return {
        "type": f"urn:masthead:problem:{code}",
        "title": HTTPStatus(status_code).phrase,
        "status": status_code,
        "detail": detail,
        "instance": f"urn:masthead:request:{request_id()}",
        "errors": errors or [],
    }


def pointer(attribute: str | None) -> str:
    """The JSON pointer of a field path such as `regions.0`; empty for the whole body."""
    if not attribute or attribute == "non_field_errors":
        return ""
    return "/" + "/".join(part.replace("~", "~0").replace("/", "~1") for part in attribute.split("."))


class ProblemFormatter(ExceptionFormatter):
    def format_error_response(self, error_response: ErrorResponse) -> dict[str, Any]:
        errors = [{"pointer": pointer(error.attr), "code": error.code, "detail": error.detail} for error in error_response.errors]
        is_validation = isinstance(self.exc, exceptions.ValidationError)
        detail = "; ".join(
            f"{error.attr}: {error.detail}" if error.attr and error.attr != "non_field_errors" else error.detail for error in error_response.errors
        )
        code = "validation" if is_validation else str(error_response.errors[0].code)
        return problem(self.exc.status_code, code=code, detail=detail, errors=errors if is_validation else [])


class ProblemHandler(ExceptionHandler):
    def convert_known_exceptions(self, exc: Exception) -> Exception:
        if isinstance(exc, ProtectedError | RestrictedError):
            kinds = sorted({str(row._meta.verbose_name_plural) for row in exc.args[1]})
            return Conflict(f"Something still belongs to it: {', '.join(kinds)}.")
        if isinstance(exc, IntegrityError):
            return Conflict("Another request made the same thing at the same time, or a rule of the database forbids it.")
        if isinstance(exc, DataError):
            return exceptions.ValidationError("A value is larger than, or of another kind than, what can be looked up or stored. Nothing was changed.")
        if isinstance(exc, OperationalError | InterfaceError):
            return SourceUnavailable("The database does not answer. Nothing was changed.")
        converted: Exception = super().convert_known_exceptions(exc)
        return converted

    def get_response(self, exc: exceptions.APIException, data: Any) -> Response:
        response: Response = super().get_response(exc, data)
        response.content_type = MEDIA_TYPE
        return response
