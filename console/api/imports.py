"""Imports of inventory: upload, map columns, see errors and differences, choose rows, apply, undo, read the result."""

import json
from typing import Any

import django_filters
from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.generics import get_object_or_404
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right
from console.api.base import ApiViewSet
from console.api.jobs import JobSerializer, accepted
from console.api.problems import Conflict
from console.api.strict import ReadOnlySerializer, ReasonSerializer, StrictJSONParser, StrictSerializer, TooLarge, refuse_unusable
from console.downloads import download
from console.filters import AnyOfFilter, choice_boxes
from fleet import jobs
from fleet.inventory.importing import pipeline
from fleet.inventory.importing.columns import KINDS
from fleet.inventory.importing.read import FORMATS, MAX_BYTES, UnreadableFile
from fleet.models import ImportRow, InventoryImport, Job

_FORM_OVERHEAD = 1024 * 1024  # of the other parts of the upload


def refused(act: Any) -> Any:
    """Run an act of `pipeline`: 400 for what is wrong with the request, 409 for what the import is not ready for."""
    try:
        return act()
    except pipeline.Refused as error:
        raise ValidationError({field or "non_field_errors": text for field, text in error.errors.items()}) from error
    except (jobs.NotPossible, UnreadableFile) as error:
        raise Conflict(str(error)) from error


class ColumnMapField(serializers.JSONField):
    """`{column of the file: field, or "" to leave it out}`; in a form as JSON text."""

    def to_internal_value(self, data: Any) -> dict[str, str]:
        if isinstance(data, str):
            try:
                data = json.loads(data)
            except (ValueError, RecursionError) as error:
                raise serializers.ValidationError(f"Not JSON: {error}") from error
        if not isinstance(data, dict) or not all(isinstance(value, str) for value in data.values()):
            raise serializers.ValidationError('An object {"column": "field"}; "" leaves a column out.')
        refuse_unusable(data)
        return data


class UploadSerializer(StrictSerializer):
    file = serializers.FileField()
    kind = serializers.ChoiceField(choices=list(KINDS))
    format = serializers.ChoiceField(choices=list(FORMATS), required=False, help_text="By default what the file's name ends in.")
    on_duplicate = serializers.ChoiceField(choices=InventoryImport.OnDuplicate.choices, default=InventoryImport.OnDuplicate.UPDATE)
    column_map = ColumnMapField(required=False)

    def to_internal_value(self, data: Any) -> Any:
        # The parser gives a multi-valued form; a field may stand there once.
        repeated = [name for name in data if hasattr(data, "getlist") and len(data.getlist(name)) > 1]
        if repeated:
            raise ValidationError(dict.fromkeys(repeated, "Given more than once."))
        return super().to_internal_value(data.dict() if hasattr(data, "dict") else data)


class MapSerializer(StrictSerializer):
    column_map = ColumnMapField()


class SelectSerializer(StrictSerializer):
    numbers = serializers.ListField(child=serializers.IntegerField(min_value=1, max_value=2**31 - 1), min_length=1, max_length=10_000)
    selected = serializers.BooleanField()


class ApplySerializer(StrictSerializer):
    reason = serializers.CharField(max_length=300)
    skip_errors = serializers.BooleanField(default=False, help_text="Apply the rows that are right although others are not.")


class ImportSerializer(ReadOnlySerializer):
    id = serializers.UUIDField(source="pk", read_only=True)
    job = JobSerializer(read_only=True)
    decided_by: Any = serializers.SlugRelatedField(slug_field="username", read_only=True)

    class Meta:
        model = InventoryImport
        fields = [
            "id",
            "kind",
            "format",
            "file_name",
            "on_duplicate",
            "column_map",
            "counts",
            "skip_errors",
            "reason",
            "decided_by",
            "applied_at",
            "undone_at",
            "job",
        ]


class ImportFilter(django_filters.FilterSet):
    kind = AnyOfFilter(field_name="kind")
    state = choice_boxes(Job.State.choices, field_name="job__state")


class ImportViewSet(ApiViewSet):
    """Imports, with their job. They go through the phases map, check, decide, apply; between them the job waits."""

    scope_area = "imports"
    serializer_class = ImportSerializer
    filterset_class = ImportFilter
    parser_classes = [StrictJSONParser]
    lookup_value_regex = "[0-9a-f-]{36}"
    ordering_fields = {"created_at": "job__created_at"}
    default_ordering = "-created_at"

    def get_queryset(self) -> QuerySet[InventoryImport]:
        return self.access.imports()

    def get_parsers(self) -> list[Any]:
        creates = self.action_map.get((self.request.method or "").lower()) == "create" if self.request and self.action_map else False
        return [MultiPartParser()] if creates else super().get_parsers()

    @extend_schema(
        request={"multipart/form-data": UploadSerializer}, responses={202: OpenApiResponse(ImportSerializer, description="`Location` is the job to follow.")}
    )
    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Upload a file. It is checked and compared, and then waits for `apply`; when its columns are not clear it waits for `map` first."""
        self.require_anywhere(Right.IMPORT)
        if int(request.META.get("CONTENT_LENGTH") or 0) > MAX_BYTES + _FORM_OVERHEAD:
            raise TooLarge(f"At most {MAX_BYTES:,} bytes are read.")
        body = UploadSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        values = body.validated_data
        if values["file"].size > MAX_BYTES:
            raise TooLarge(f"At most {MAX_BYTES:,} bytes are read.")
        held = refused(
            lambda: pipeline.start_import(
                owner=request.user,
                kind=values["kind"],
                file_name=values["file"].name,
                content=values["file"].read(),
                on_duplicate=values["on_duplicate"],
                region_ids=self.access.region_ids_with(Right.IMPORT),
                column_map=values.get("column_map"),
                file_format=values.get("format", ""),
            )
        )
        answer = accepted(held.job)
        answer.data = ImportSerializer(held).data
        return answer

    @extend_schema(responses=OpenApiTypes.OBJECT)
    @action(detail=True, methods=["get"], filter_backends=[], pagination_class=None)
    def columns(self, request: Request, **kwargs: Any) -> Response:
        """Columns of the file, how they are mapped now, and the fields that a row of this kind has."""
        held = self.get_object()
        columns = refused(lambda: pipeline.file_columns(held))
        fields = [{"name": one.name, "required": one.required, "help": one.help} for one in KINDS[held.kind].columns]
        return Response({"columns": columns, "column_map": held.column_map, "fields": fields})

    @extend_schema(request=MapSerializer, responses={202: JobSerializer})
    @action(detail=True, methods=["post"], filter_backends=[], pagination_class=None)
    def map(self, request: Request, **kwargs: Any) -> Response:
        """Say which column is which field; the file is checked (again)."""
        held = self.writable()
        body = MapSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        refused(lambda: pipeline.map_columns(held, body.validated_data["column_map"], timezone.now()))
        return accepted(held.job)

    @extend_schema(request=SelectSerializer, responses=OpenApiTypes.OBJECT)
    @action(detail=True, methods=["post"], filter_backends=[], pagination_class=None)
    def select(self, request: Request, **kwargs: Any) -> Response:
        """Choose rows by their numbers, or leave them out. Rows with errors, and those that change nothing, cannot be chosen."""
        held = self.writable()
        body = SelectSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        return Response({"changed": refused(lambda: pipeline.select_rows(held, **body.validated_data))})

    @extend_schema(request=ApplySerializer, responses={202: JobSerializer})
    @action(detail=True, methods=["post"], filter_backends=[], pagination_class=None)
    def apply(self, request: Request, **kwargs: Any) -> Response:
        """Apply the chosen rows as one change set: all of them, or nothing when the inventory changed since the check."""
        held = self.writable()
        body = ApplySerializer(data=request.data)
        body.is_valid(raise_exception=True)
        regions = self.access.region_ids_with(Right.IMPORT)
        refused(lambda: pipeline.queue_apply(held, user=request.user, region_ids=regions, now=timezone.now(), **body.validated_data))
        return accepted(held.job)

    @extend_schema(request=ReasonSerializer, responses={202: JobSerializer})
    @action(detail=True, methods=["post"], filter_backends=[], pagination_class=None)
    def undo(self, request: Request, **kwargs: Any) -> Response:
        """Take an applied import back, in a job of its own; nothing is undone when anything of it was changed or is used since."""
        held = self.writable()
        body = ReasonSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        regions = self.access.region_ids_with(Right.IMPORT)
        return accepted(refused(lambda: pipeline.queue_undo(held, user=request.user, region_ids=regions, **body.validated_data)))

    @extend_schema(request=None, responses=JobSerializer)
    @action(detail=True, methods=["post"], filter_backends=[], pagination_class=None)
    def cancel(self, request: Request, **kwargs: Any) -> Response:
        """Drop it: nothing is applied."""
        held = self.get_object()
        if not jobs.request_cancel(held.job, timezone.now()):
            raise Conflict(f"The import is {held.job.get_state_display().lower()} already.")
        held.job.refresh_from_db()
        return Response(JobSerializer(held.job).data)

    @extend_schema(responses={(200, "text/csv"): OpenApiTypes.BINARY})
    @action(detail=True, methods=["get"], filter_backends=[], pagination_class=None)
    def result(self, request: Request, **kwargs: Any) -> Any:
        """What came of each row, as CSV."""
        held = self.get_object()
        return download(request._request, pipeline.result_file(held), content_type="text/csv; charset=utf-8", file_name=f"import-{held.pk}.csv")

    def writable(self) -> InventoryImport:
        held: InventoryImport = self.get_object()
        self.require_anywhere(Right.IMPORT)
        return held


class ImportRowFilter(django_filters.FilterSet):
    outcome = choice_boxes(ImportRow.Outcome.choices)
    selected = django_filters.BooleanFilter(field_name="selected")
    key = AnyOfFilter(field_name="key")


class ImportRowSerializer(ReadOnlySerializer):
    changes = serializers.SerializerMethodField()

    class Meta:
        model = ImportRow
        fields = ["number", "key", "outcome", "selected", "errors", "changes", "values"]

    def get_changes(self, row: ImportRow) -> list[dict[str, Any]]:
        """What the row would change (or has changed) of an object that exists."""
        return [{"field": name, "before": before, "after": after} for name, before, after in pipeline.changes_of(row)]


class ImportRowViewSet(ApiViewSet):
    """Rows of a file with their errors and differences. Row 0 says what is wrong with the columns."""

    scope_area = "imports"
    serializer_class = ImportRowSerializer
    filterset_class = ImportRowFilter
    queryset = ImportRow.objects.none()
    ordering_fields = {"number": "number"}
    default_ordering = "number"

    def get_queryset(self) -> QuerySet[ImportRow]:
        return ImportRow.objects.filter(inventory_import=get_object_or_404(self.access.imports(), pk=self.kwargs["job"]))
