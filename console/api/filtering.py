"""List filters: the pages' FilterSets, and nothing else."""

from typing import Any

from django.db.models import QuerySet
from django_filters import MultipleChoiceFilter
from django_filters.rest_framework import DjangoFilterBackend
from rest_framework import exceptions
from rest_framework.request import Request
from rest_framework.views import APIView

LIST_PARAMETERS = frozenset({"cursor", "page_size", "ordering", "fields", "expand"})


class StrictFilterBackend(DjangoFilterBackend):
    """Unknown parameters are errors: a misspelt filter must not return the whole fleet. Several values may be given with commas."""

    def get_filterset_kwargs(self, request: Request, queryset: QuerySet[Any], view: APIView) -> dict[str, Any]:
        kwargs: dict[str, Any] = super().get_filterset_kwargs(request, queryset, view)
        data = request.query_params.copy()
        for name, one in self.get_filterset_class(view, queryset).base_filters.items():
            if name in data and isinstance(one, MultipleChoiceFilter):
                data.setlist(name, [part.strip() for text in data.getlist(name) for part in text.split(",")])
        return kwargs | {"data": data}

    def filter_queryset(self, request: Request, queryset: QuerySet[Any], view: APIView) -> QuerySet[Any]:
        filterset = self.get_filterset(request, queryset, view)
        known = (
            getattr(view, "list_parameters", LIST_PARAMETERS)
            | (set(filterset.form.fields) if filterset else set())
            | set(getattr(view, "extra_parameters", ()))
        )
        unknown = sorted(set(request.query_params) - known)
        if unknown:
            raise exceptions.ValidationError(dict.fromkeys(unknown, "Unknown parameter."))
        filtered: QuerySet[Any] = super().filter_queryset(request, queryset, view)
        return filtered
