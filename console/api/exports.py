"""The inventory as a file: CSV, XLSX, YAML or JSON, filtered and ordered as the list. What comes out can be imported again."""

from typing import Any, ClassVar

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

from console.api.base import ApiViewSet
from console.api.gpus import GpuViewSet
from console.api.nodes import NodeViewSet
from console.api.pagination import KeysetPagination
from console.api.places import SiteViewSet
from console.downloads import download
from console.list_kinds import ranked
from fleet.inventory.export import CONTENT_TYPES, About, export_rows, file_name

_MEDIA_TYPES = [content_type.split(";")[0] for content_type in CONTENT_TYPES.values()]


class ExportViewSet(ApiViewSet):
    """Base: `kind` names the columns and the querysets of the caller's scope."""

    kind: ClassVar[str]
    extra_parameters = ("format",)
    list_parameters = frozenset({"ordering"})

    def get_queryset(self) -> QuerySet[Any]:
        found: QuerySet[Any] = getattr(self.access, self.kind)()
        return ranked(found)

    @extend_schema(
        parameters=[
            OpenApiParameter("format", OpenApiTypes.STR, enum=list(CONTENT_TYPES), default="csv"),
            OpenApiParameter("ordering", OpenApiTypes.STR, description="As in the list."),
        ],
        filters=True,
        responses={(200, media_type): OpenApiTypes.BINARY for media_type in _MEDIA_TYPES},
    )
    def export(self, request: Request) -> Any:
        """All rows that the filters leave, streamed; the file says which filter, when and by whom."""
        file_format = request.query_params.get("format", "csv")
        if file_format not in CONTENT_TYPES:
            raise ValidationError({"format": f"One of {', '.join(CONTENT_TYPES)}."})
        rows = KeysetPagination.ordering_of(request, self)[1].apply(self.filter_queryset(self.get_queryset()))
        params = request.query_params.copy()
        params.pop("format", None)
        now = timezone.now()
        about = About(filter=params.urlencode(), made_at=now, made_by=request.user.get_username())
        chunks = export_rows(self.kind, rows, file_format, about)
        return download(request._request, chunks, content_type=CONTENT_TYPES[file_format], file_name=file_name(self.kind, file_format, now))


class SiteExport(ExportViewSet):
    kind = "sites"
    scope_area = "sites"
    serializer_class = SiteViewSet.serializer_class
    filterset_class = SiteViewSet.filterset_class
    ordering_fields = SiteViewSet.ordering_fields
    default_ordering = "code"


class NodeExport(ExportViewSet):
    kind = "nodes"
    scope_area = "nodes"
    serializer_class = NodeViewSet.serializer_class
    filterset_class = NodeViewSet.filterset_class
    ordering_fields = NodeViewSet.ordering_fields
    default_ordering = "host_name"


class GpuExport(ExportViewSet):
    kind = "gpus"
    scope_area = "gpus"
    serializer_class = GpuViewSet.serializer_class
    filterset_class = GpuViewSet.filterset_class
    ordering_fields = GpuViewSet.ordering_fields
    default_ordering = "uuid"
