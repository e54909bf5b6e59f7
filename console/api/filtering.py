"""List filters: the pages' FilterSets, and nothing else."""

from typing import Any

from django.db.models import QuerySet
from django_filters.rest_framework import DjangoFilterBackend
from rest_framework import exceptions
from rest_framework.request import Request
from rest_framework.views import APIView

LIST_PARAMETERS = frozenset({"cursor", "page_size", "ordering", "fields", "expand"})


class StrictFilterBackend(DjangoFilterBackend):
    """Unknown parameters are errors: a misspelt filter must not return the whole fleet."""

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
