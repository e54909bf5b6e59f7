"""Planned maintenance windows."""

from typing import Any

import django_filters
from django.db.models import CharField, Q, QuerySet
from django.db.models.functions import Cast
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right
from console.api.base import ApiViewSet
from console.api.problems import request_id
from console.api.strict import ReadOnlySerializer, ReasonSerializer, StrictSerializer
from console.filters import AnyOfFilter
from fleet.health import maintenance
from fleet.models import MaintenanceWindow, ObjectKind


class WindowSerializer(ReadOnlySerializer):
    class Meta:
        model = MaintenanceWindow
        fields = ["id", "scope_kind", "scope_key", "starts_at", "ends_at", "ended_at", "ended_by", "reason", "created_by", "created_at"]


class NewWindowSerializer(StrictSerializer):
    scope_kind = serializers.ChoiceField(choices=[(kind.value, kind.label) for kind in maintenance.SCOPES])
    scope_key = serializers.CharField(max_length=80, allow_blank=True)
    starts_at = serializers.DateTimeField()
    ends_at = serializers.DateTimeField()
    reason = serializers.CharField(max_length=300)


class ExtendSerializer(StrictSerializer):
    ends_at = serializers.DateTimeField()
    reason = serializers.CharField(max_length=300)


class WindowFilter(django_filters.FilterSet):
    kind = AnyOfFilter(field_name="scope_kind")
    key = AnyOfFilter(field_name="scope_key")
    active = django_filters.BooleanFilter(method="now_active")

    def now_active(self, queryset: QuerySet[Any], name: str, value: bool) -> QuerySet[Any]:
        current = MaintenanceWindow.objects.active(timezone.now()).values("pk")
        return queryset.filter(pk__in=current) if value else queryset.exclude(pk__in=current)


class MaintenanceViewSet(ApiViewSet):
    """Windows over things in the caller's scope. Inside one an object is `maintenance`, never `down`."""

    scope_area = "maintenance"
    serializer_class = WindowSerializer
    filterset_class = WindowFilter
    ordering_fields = {"starts_at": "starts_at", "ends_at": "ends_at", "id": "pk"}
    default_ordering = "-starts_at"

    def get_queryset(self) -> QuerySet[MaintenanceWindow]:
        windows = MaintenanceWindow.objects.all()
        if self.access.fleet_rank:
            return windows
        if not self.access.is_operator_side:
            return windows.none()
        regions = self.access.regions()
        return windows.filter(
            Q(scope_kind=ObjectKind.FLEET)
            | Q(scope_kind=ObjectKind.AREA, scope_key__in=regions.values("area__slug"))
            | Q(scope_kind=ObjectKind.REGION, scope_key__in=regions.values("slug"))
            | Q(scope_kind=ObjectKind.SITE, scope_key__in=self.access.sites().values("code"))
            | Q(scope_kind=ObjectKind.NODE, scope_key__in=self.access.nodes().annotate(key=Cast("pk", CharField())).values("key"))
            | Q(scope_kind=ObjectKind.GPU, scope_key__in=self.access.gpus().values("uuid"))
        )

    def scope(self, kind: str, key: str) -> maintenance.Scope:
        """The named object if the caller sees it. One outside its regions does not exist (case C36); a scope wider than them needs the right there."""
        found = refused(lambda: maintenance.find_scope(kind, key))
        if found.region_id is not None and not self.access.fleet_rank and found.region_id not in self.access.region_ranks:
            raise ValidationError({"scope_key": f"There is no {kind} {key!r}."})
        self.require(Right.OPERATE, found.region_id)
        return found

    @extend_schema(request=NewWindowSerializer, responses={201: WindowSerializer})
    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Plan a window."""
        self.require_anywhere(Right.OPERATE)
        body = NewWindowSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        values = dict(body.validated_data)
        scope = self.scope(values.pop("scope_kind"), values.pop("scope_key"))
        window = refused(
            lambda: maintenance.create_window(scope=scope, actor=request.user.get_username(), now=timezone.now(), request_id=request_id(), **values)
        )
        return Response(WindowSerializer(window).data, status=201)

    @extend_schema(request=ExtendSerializer, responses=WindowSerializer)
    @action(detail=True, methods=["post"], filter_backends=[], pagination_class=None)
    def extend(self, request: Request, **kwargs: Any) -> Response:
        """Move the end."""
        return self._change(request, ExtendSerializer, maintenance.extend_window)

    @extend_schema(request=ReasonSerializer, responses=WindowSerializer)
    @action(detail=True, methods=["post"], filter_backends=[], pagination_class=None)
    def end(self, request: Request, **kwargs: Any) -> Response:
        """End it now, or call it off."""
        return self._change(request, ReasonSerializer, maintenance.end_window)

    def _change(self, request: Request, serializer: Any, act: Any) -> Response:
        window = self.get_object()
        self.scope(window.scope_kind, window.scope_key)
        body = serializer(data=request.data)
        body.is_valid(raise_exception=True)
        changed = refused(lambda: act(window=window, actor=request.user.get_username(), now=timezone.now(), request_id=request_id(), **body.validated_data))
        return Response(WindowSerializer(changed).data)


def refused(act: Any) -> Any:
    try:
        return act()
    except maintenance.MaintenanceRefused as error:
        raise ValidationError(error.errors) from error
