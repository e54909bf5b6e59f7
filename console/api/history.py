"""The history of one object: its versions with before and after, and the acts on it, as its page shows them."""

from typing import Any, ClassVar

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from console.history import LIMIT, history_of, read_before

LARGEST = 500


class ChangeSerializer(serializers.Serializer[Any]):
    field = serializers.CharField()
    before = serializers.CharField()
    after = serializers.CharField()


class HistoryEntrySerializer(serializers.Serializer[Any]):
    at = serializers.DateTimeField()
    who = serializers.CharField(help_text="Empty when no person is known: telemetry, agents, the console itself.")
    what = serializers.CharField()
    reason = serializers.CharField()
    changes = ChangeSerializer(many=True)


class HistorySerializer(serializers.Serializer[Any]):
    results = HistoryEntrySerializer(many=True)


class HistoryMixin:
    """Adds `…/<key>/history/` to a view set. `history_kind` is the object's kind in the audit."""

    history_kind: ClassVar[str]

    @extend_schema(
        parameters=[
            OpenApiParameter("limit", OpenApiTypes.INT, description=f"Newest entries, 1 to {LARGEST}; by default {LIMIT}."),
            OpenApiParameter("before", OpenApiTypes.DATETIME, description="Only entries before this time: `at` of the last one read, to go on."),
        ],
        responses=HistorySerializer,
    )
    @action(detail=True, methods=["get"], filter_backends=[], pagination_class=None)
    def history(self, request: Request, **kwargs: Any) -> Response:
        """Who changed what, when and why, newest first."""
        view: Any = self
        view.extra_parameters = ("limit", "before")
        instance = view.get_object()
        text = request.query_params.get("limit", str(LIMIT))
        if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= LARGEST):
            raise ValidationError({"limit": f"A whole number from 1 to {LARGEST}."})
        try:
            before = read_before(request.query_params.get("before", ""))
        except ValueError as error:
            raise ValidationError({"before": str(error)}) from error
        key = str(getattr(instance, view.lookup_field))
        entries = history_of(instance, kind=self.history_kind, key=key, before=before, limit=int(text))
        return Response(HistorySerializer({"results": entries}).data)
