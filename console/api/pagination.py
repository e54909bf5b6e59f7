"""Keyset pages: stable under inserts, as fast on the last page as on the first. `Link` header; `count` exact to 10,000, then estimated."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from django.core.exceptions import ValidationError as DjangoValidationError
from django.db.models import IntegerField, QuerySet
from rest_framework.exceptions import ValidationError
from rest_framework.pagination import BasePagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import remove_query_param, replace_query_param

from console.api.strict import refuse_unusable
from console.counts import bounded_count
from console.ordering import Order, column_of

DEFAULT_SIZE = 50
LARGEST_SIZE = 1_000
LONGEST_CURSOR = 4_096
LARGEST_KEY = 2**63


@dataclass(frozen=True)
class Position:
    """Where a page begins: the values and the key of the row beside it."""

    values: tuple[Any, ...]
    key: Any
    backwards: bool


class KeysetPagination(BasePagination):
    """`?page_size=`, `?ordering=` (a name of the view's `ordering_fields`, `-` for descending) and an opaque `?cursor=`.

    `ordering_fields` maps public names to a model path or annotation, or to several in turn.
    """

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        self.request = request
        self.size = self._size(request)
        name, order = self.ordering_of(request, view)
        self.count, self.count_is_estimate = bounded_count(queryset)
        text = request.query_params.get("cursor")
        at = position_of(text, name, order, queryset) if text else None
        backwards = at is not None and at.backwards
        after = order.beyond(queryset, values=at.values, key=at.key, backwards=backwards) if at else queryset
        found = order.apply(after, backwards=backwards)
        # Sorting wide rows costs more than asking for those of the page by their keys.
        places = list(found.values_list("pk", *order.paths)[: self.size + 1])
        more = len(places) > self.size
        places = places[: self.size]
        if backwards:
            places.reverse()
        has_next = more if not backwards else bool(at)
        has_previous = bool(at) if not backwards else more
        self.next = self._link(name, places[-1], False) if places and has_next else None
        self.previous = self._link(name, places[0], True) if places and has_previous else None
        rows = queryset.in_bulk([place[0] for place in places])
        return [rows[place[0]] for place in places if place[0] in rows]

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
    def ordering_of(request: Request, view: Any) -> tuple[str, Order]:
        """The order that was asked for, and its name."""
        text = request.query_params.get("ordering") or view.default_ordering
        paths = view.ordering_fields.get(text.removeprefix("-"))
        if paths is None:
            raise ValidationError({"ordering": f"One of {', '.join(sorted(view.ordering_fields))}, with - for descending."})
        return text, Order((paths,) if isinstance(paths, str) else tuple(paths), text.startswith("-"))

    def _link(self, name: str, place: Sequence[Any], backwards: bool) -> str:
        key, *values = (_portable(value) for value in place)
        cursor = base64.urlsafe_b64encode(json.dumps([name, values, key, int(backwards)]).encode()).decode().rstrip("=")
        return replace_query_param(remove_query_param(self.request.build_absolute_uri(), "cursor"), "cursor", cursor)


def position_of(text: str, ordering: str, order: Order, queryset: QuerySet[Any]) -> Position:
    """What a cursor says. Anybody may write one: each part is checked against the column that it is compared with. Raises ValidationError."""
    refusal = ValidationError({"cursor": "Not a cursor of this list in this order."})
    if len(text) > LONGEST_CURSOR:
        raise refusal
    try:
        content = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        refuse_unusable(content)
        name, values, key, backwards = content
        if name != ordering or not isinstance(values, list) or len(values) != len(order.paths) or key is None or backwards not in (0, 1):
            raise refusal
        columns = [column_of(queryset, path) for path in order.paths]
        held = tuple(_held(value, column, nullable) for value, (column, nullable) in zip(values, columns, strict=True))
        return Position(held, _held(key, queryset.model._meta.pk, False), bool(backwards))
    except (ValueError, TypeError, OverflowError, RecursionError, DjangoValidationError, ValidationError) as error:
        raise refusal from error


def _held(value: Any, column: Any, nullable: bool) -> Any:
    """A value of a cursor as its column holds it. Raises ValueError, TypeError, OverflowError or Django's ValidationError."""
    if value is None and nullable:
        return None
    if not isinstance(value, str | int | float) or (isinstance(value, int) and not -LARGEST_KEY <= value < LARGEST_KEY):
        raise ValueError("out of range")
    if isinstance(value, float) and isinstance(column, IntegerField):
        raise ValueError("not whole")
    found = column.to_python(value)
    if found is None or (isinstance(found, datetime) and found.tzinfo is None):
        raise ValueError("no value of this column")
    return found.astimezone(UTC) if isinstance(found, datetime) else found


def _portable(value: Any) -> Any:
    """As JSON holds it."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, int | float | str) else str(value)
