"""Search over all kinds, as the search page and the palette do it."""

from dataclasses import asdict
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.exceptions import PermissionDenied, ValidationError
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from console.api.base import ApiView
from console.api.scopes import token_may
from console.search import KINDS, suggest

DEFAULT, LARGEST = 20, 50
_AREAS = {"site": "sites", "region": "sites", "node": "nodes", "gpu": "gpus", "workload": "workloads"}


class HitSerializer(serializers.Serializer[Any]):
    kind = serializers.ChoiceField(choices=KINDS)
    key = serializers.CharField(help_text="What a filter or a path takes for it.")
    label: Any = serializers.CharField()
    hint = serializers.CharField()
    state = serializers.CharField(help_text="Health, where the kind has one.")
    url = serializers.CharField(help_text="Its page.")


class SearchSerializer(serializers.Serializer[Any]):
    results = HitSerializer(many=True)


class SearchView(ApiView):
    """A token finds the kinds that it may read."""

    permission_classes = [IsAuthenticated]

    @extend_schema(
        operation_id="search",
        parameters=[
            OpenApiParameter("q", OpenApiTypes.STR, required=True, description="What people type: a code, name, host, UUID, serial number, pod."),
            OpenApiParameter("kind", OpenApiTypes.STR, many=True, enum=KINDS),
            OpenApiParameter("limit", OpenApiTypes.INT, description=f"1 to {LARGEST}; by default {DEFAULT}."),
        ],
        responses=SearchSerializer,
    )
    def get(self, request: Request) -> Response:
        """Exact identifiers first, then names that begin so, then that contain it."""
        params = request.query_params
        if unknown := sorted(set(params) - {"q", "kind", "limit"}):
            raise ValidationError(dict.fromkeys(unknown, "Unknown parameter."))
        text, limit = params.get("q", "").strip(), params.get("limit", str(DEFAULT))
        if not text or len(text) > 100 or "\x00" in text:
            raise ValidationError({"q": "1 to 100 characters."})
        if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= LARGEST):
            raise ValidationError({"limit": f"A whole number from 1 to {LARGEST}."})
        wanted = params.getlist("kind") or list(KINDS)
        if wrong := sorted(set(wanted) - set(KINDS)):
            raise ValidationError({"kind": f"{', '.join(wrong)}: one of {', '.join(KINDS)}."})
        kinds = [kind for kind in wanted if token_may(request.auth, "read", _AREAS[kind])]
        if not kinds:
            raise PermissionDenied(f"The token lacks the scope {', '.join(sorted({f'read:{_AREAS[kind]}' for kind in wanted}))}.")
        hits = suggest(self.access, text, kinds=kinds, limit=int(limit))
        return Response(SearchSerializer({"results": [asdict(hit) for hit in hits]}).data)
