"""How rows of a list follow each other, the same on pages, in the API and in exports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Field, Q, QuerySet
from django.db.models.expressions import F, OrderBy


@dataclass(frozen=True)
class Order:
    """By these model paths or annotations in turn; rows without a value come last in both directions, the primary key breaks ties."""

    paths: tuple[str, ...]
    descending: bool

    def apply(self, queryset: QuerySet[Any], *, backwards: bool = False) -> QuerySet[Any]:
        """The queryset in this order, or in exactly the opposite one."""
        downwards = self.descending != backwards
        terms: list[OrderBy | str] = []
        for path in self.paths:
            empty = {"nulls_first" if backwards else "nulls_last": True} if column_of(queryset, path)[1] else {}
            terms.append(F(path).desc(**empty) if downwards else F(path).asc(**empty))
        return queryset.order_by(*terms, "-pk" if downwards else "pk")

    def beyond(self, queryset: QuerySet[Any], *, values: Sequence[Any], key: Any, backwards: bool = False) -> QuerySet[Any]:
        """The rows that come after the one with these values and this primary key, or before it when looking backwards."""
        compare = "lt" if self.descending != backwards else "gt"
        same, found = Q(), Q(pk__in=[])
        for path, value in zip(self.paths, values, strict=True):
            nullable = column_of(queryset, path)[1]
            if value is not None:
                further = Q(**{f"{path}__{compare}": value})
                found |= same & (further | Q(**{f"{path}__isnull": True}) if nullable and not backwards else further)
            elif backwards:
                found |= same & Q(**{f"{path}__isnull": False})
            same &= Q(**{f"{path}__isnull": True}) if value is None else Q(**{path: value})
        found |= same & Q(**{f"pk__{compare}": key})
        if not column_of(queryset, self.paths[0])[1]:  # says again what holds anyway, in words that an index answers
            found &= Q(**{f"{self.paths[0]}__{compare}e": values[0]})
        return queryset.filter(found)


def column_of(queryset: QuerySet[Any], path: str) -> tuple[Field[Any, Any], bool]:
    """The field behind a path or annotation, and whether it may be without a value."""
    annotation: Any = queryset.query.annotations.get(path)
    if annotation is not None:
        return annotation.output_field, True
    model: Any = queryset.model
    column: Any = None
    nullable = False
    for part in path.split("__"):
        column = model._meta.pk if part == "pk" else model._meta.get_field(part)
        nullable = nullable or column.null
        model = column.related_model
    return column, nullable
