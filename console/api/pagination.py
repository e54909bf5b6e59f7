"""Keyset pages: stable under inserts, as fast on the last page as on the first. `Link` header; `count` exact to 10,000, then estimated."""

import base64
import json
from datetime import date, datetime
from typing import Any
from uuid import UUID

from django.core.exceptions import ValidationError as DjangoValidationError
from django.db.models import Model, Q
from rest_framework.exceptions import ValidationError
from rest_framework.pagination import BasePagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import remove_query_param, replace_query_param

from console.counts import bounded_count

DEFAULT_SIZE = 50
LARGEST_SIZE = 1_000


class KeysetPagination(BasePagination):
    """`?page_size=`, `?ordering=` (a name of the view's `ordering_fields`, `-` for descending) and an opaque `?cursor=`.

    `ordering_fields` maps public names to non-null model paths; the primary key breaks ties.
    """

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        self.request = request
        self.size = self._size(request)
        name, path, descending = self.ordering_of(request, view)
        self.count, self.count_is_estimate = bounded_count(queryset)
        backwards = False
        after = request.query_params.get("cursor")
        if after:
            value, key, backwards = self._decode(after, name)
            compare = "lt" if descending != backwards else "gt"
            try:
                queryset = queryset.filter(Q(**{f"{path}__{compare}": value}) | Q(**{path: value, f"pk__{compare}": key}))
            except (ValueError, TypeError, DjangoValidationError) as error:
                raise ValidationError({"cursor": "Not a cursor of this list."}) from error
        sign = "-" if descending != backwards else ""
        rows = list(queryset.order_by(f"{sign}{path}", f"{sign}pk")[: self.size + 1])
        more = len(rows) > self.size
        rows = rows[: self.size]
        if backwards:
            rows.reverse()
        has_next = more if not backwards else bool(after)
        has_previous = bool(after) if not backwards else more
        self.next = self._link(name, path, rows[-1], False) if rows and has_next else None
        self.previous = self._link(name, path, rows[0], True) if rows and has_previous else None
        return rows

    def get_paginated_response(self, data: Any) -> Response:
        links = [f'<{url}>; rel="{word}"' for word, url in (("next", self.next), ("prev", self.previous)) if url]
        body = {"count": self.count, "count_is_estimate": self.count_is_estimate, "next": self.next, "previous": self.previous, "results": data}
        return Response(body, headers={"Link": ", ".join(links)} if links else None)

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        link = {"type": ["string", "null"], "format": "uri"}
        return {
            "type": "object",
            "required": ["count", "count_is_estimate", "next", "previous", "results"],
            "properties": {"count": {"type": "integer"}, "count_is_estimate": {"type": "boolean"}, "next": link, "previous": link, "results": schema},
        }

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        names = sorted(view.ordering_fields)
        choices = [sign + name for name in names for sign in ("", "-")]
        return [
            {"name": "cursor", "in": "query", "schema": {"type": "string"}, "description": "From `next` or `previous`."},
            {"name": "page_size", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": LARGEST_SIZE, "default": DEFAULT_SIZE}},
            {"name": "ordering", "in": "query", "schema": {"type": "string", "enum": choices}},
        ]

    @staticmethod
    def _size(request: Request) -> int:
        text = request.query_params.get("page_size", str(DEFAULT_SIZE))
        if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= LARGEST_SIZE):
            raise ValidationError({"page_size": f"A whole number from 1 to {LARGEST_SIZE}."})
        return int(text)

    @staticmethod
    def ordering_of(request: Request, view: Any) -> tuple[str, str, bool]:
        text = request.query_params.get("ordering") or view.default_ordering
        path = view.ordering_fields.get(text.removeprefix("-"))
        if path is None:
            raise ValidationError({"ordering": f"One of {', '.join(sorted(view.ordering_fields))}, with - for descending."})
        return text, path, text.startswith("-")

    def _link(self, ordering: str, path: str, row: Model, backwards: bool) -> str:
        value: Any = row
        for part in path.split("__"):
            value = getattr(value, part)
        text = value.isoformat() if isinstance(value, datetime | date) else str(value) if isinstance(value, UUID) else value
        key = str(row.pk) if isinstance(row.pk, UUID) else row.pk
        cursor = base64.urlsafe_b64encode(json.dumps([ordering, text, key, int(backwards)]).encode()).decode().rstrip("=")
        return replace_query_param(remove_query_param(self.request.build_absolute_uri(), "cursor"), "cursor", cursor)

    @staticmethod
    def _decode(text: str, ordering: str) -> tuple[Any, Any, bool]:
        try:
            name, value, key, backwards = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        except ValueError as error:
            raise ValidationError({"cursor": "Not a cursor of this list."}) from error
        if name != ordering or not isinstance(value, str | int | float) or not isinstance(key, str | int):
            raise ValidationError({"cursor": "Not a cursor of this list in this order."})
        return value, key, bool(backwards)
