"""Saved views of lists and of the wall: one's own, and those that others share."""

from collections.abc import Mapping
from typing import Any

import django_filters
from django.db.models import Q, QuerySet
from django.http import QueryDict
from django.utils.text import slugify
from rest_framework import serializers
from rest_framework.exceptions import PermissionDenied, ValidationError

from console.api.base import WritableViewSet
from console.api.strict import StrictModelSerializer
from console.filters import AnyOfFilter, YesNoFilter
from console.list_kinds import KINDS
from console.models import SavedView

WALL = "wall"
PAGES = (*KINDS, WALL)
_WALL_PARAMETERS = {"area", "region"}
LONGEST_QUERY = 1900


class SavedViewFilter(django_filters.FilterSet):
    page = AnyOfFilter(field_name="page")
    shared = YesNoFilter(Q(shared=True))


class SavedViewSerializer(StrictModelSerializer):
    page = serializers.ChoiceField(choices=PAGES)
    slug = serializers.SlugField(max_length=60, required=False, help_text="By default made of the name. The address of a wall view.")
    query = serializers.CharField(max_length=LONGEST_QUERY, allow_blank=True, default="", help_text="Parameters of the list, without the question mark.")
    owner: Any = serializers.SlugRelatedField(slug_field="username", read_only=True)

    class Meta:
        model = SavedView
        fields = ["id", "page", "slug", "name", "query", "shared", "owner"]
        validators: list[Any] = []

    def validate_query(self, value: str) -> str:
        return QueryDict(value.removeprefix("?")).urlencode()

    def validate(self, attrs: Any) -> Any:
        page = attrs.get("page", self.instance and self.instance.page)
        query = attrs.get("query", self.instance.query.removeprefix("?") if self.instance else "")
        params = QueryDict(query)
        known = _WALL_PARAMETERS if page == WALL else {*KINDS[page].filter_class.base_filters, "ordering", "page_size"}
        if unknown := sorted(set(params) - known):
            raise ValidationError({"query": f"{', '.join(unknown)[:200]}: no parameter of {page}."})
        if page != WALL and not KINDS[page].filter_class(params).form.is_valid():
            errors = KINDS[page].filter_class(params).form.errors
            raise ValidationError({"query": "; ".join(f"{name}: {' '.join(texts)}" for name, texts in errors.items())})
        if not self.instance:
            attrs["slug"] = attrs.get("slug") or slugify(attrs["name"])[:60] or "view"
        # The wall reads plain parameters; lists link to theirs.
        return attrs | {"query": query if page == WALL else f"?{query}"}

    def to_representation(self, instance: SavedView) -> Any:
        data = super().to_representation(instance)
        return data | {"query": data["query"].removeprefix("?")}


class SavedViewViewSet(WritableViewSet):
    """Only its owner changes a view; a shared one is for everybody on the operators' side."""

    scope_area = "views"
    create_right = None
    serializer_class = SavedViewSerializer
    filterset_class = SavedViewFilter
    ordering_fields = {"id": "pk", "name": "name", "page": "page"}
    default_ordering = "name"

    def get_queryset(self) -> QuerySet[SavedView]:
        views = SavedView.objects.select_related("owner")
        if not self.access.is_operator_side:
            return views.none()
        return views.filter(Q(owner_id=self.access.user_id) | Q(shared=True))

    def allow_write(self, instance: Any, values: Mapping[str, Any]) -> None:
        if not self.access.is_operator_side:
            raise PermissionDenied("Views are for people of the operators' side.")
        if instance is not None and instance.owner_id != self.access.user_id:
            raise PermissionDenied("Only its owner changes a view.")

    def perform_create(self, serializer: serializers.BaseSerializer[Any]) -> Any:
        return serializer.save(owner=self.request.user)
