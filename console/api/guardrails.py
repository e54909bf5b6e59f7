"""Guard rails by the API: the numbers in force, breakers and freezes."""

from dataclasses import asdict
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right
from console.api.base import ApiView, ApiViewSet
from console.api.commands import answered
from console.api.controls import user_of
from console.api.problems import request_id
from console.api.strict import ReadOnlySerializer, ReasonSerializer, StrictSerializer
from console.guard_rails import breaker_region, visible_breakers, visible_freezes
from console.switch_scope import require_in_scope
from fleet.control import breakers, freezes
from fleet.control.guardrail_settings import limits_of_settings
from fleet.models import Breaker, Freeze


class GuardRailView(ApiView):
    """The limits in force; each is a field of the setting MASTHEAD_GUARDRAILS."""

    scope_area = "commands"

    @extend_schema(operation_id="guard_rails", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request) -> Response:
        if not self.access.is_operator_side:
            raise PermissionDenied
        return Response({"limits": asdict(limits_of_settings())})


class BreakerSerializer(ReadOnlySerializer):
    class Meta:
        model = Breaker
        fields = ["id", "rule", "scope_kind", "scope_key", "why", "evidence", "tripped_at", "reset_at", "reset_by", "reset_reason", "backlog"]


class ResetSerializer(StrictSerializer):
    reason = serializers.CharField(max_length=300)
    backlog = serializers.ChoiceField(choices=["skip", "replay"])


class BreakerViewSet(ApiViewSet):
    """Breakers over the caller's regions, open and reset. While one is open, disruptive acts of its scope wait."""

    scope_area = "commands"
    serializer_class = BreakerSerializer
    ordering_fields = {"tripped_at": "tripped_at", "id": "pk"}
    default_ordering = "-tripped_at"

    def get_queryset(self) -> QuerySet[Breaker]:
        return visible_breakers(self.access)

    @extend_schema(request=ResetSerializer, responses=BreakerSerializer)
    @action(detail=True, methods=["post"], filter_backends=[], pagination_class=None)
    def reset(self, request: Request, **kwargs: Any) -> Response:
        """Let acts go on; what waited is skipped or goes on."""
        breaker = self.get_object()
        self.require(Right.APPROVE, breaker_region(breaker))
        body = ResetSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        done = answered(
            lambda: breakers.reset(breaker_id=breaker.pk, user=user_of(request), now=timezone.now(), request_id=request_id(), **body.validated_data)
        )
        return Response(BreakerSerializer(done).data)


class FreezeSerializer(ReadOnlySerializer):
    class Meta:
        model = Freeze
        fields = ["id", "scope_kind", "scope_key", "starts_at", "ends_at", "ended_at", "reason", "created_by", "created_at"]


class NewFreezeSerializer(StrictSerializer):
    scope_kind = serializers.CharField(max_length=8)
    scope_key = serializers.CharField(max_length=80, default="", allow_blank=True)
    starts_at = serializers.DateTimeField()
    ends_at = serializers.DateTimeField()
    reason = serializers.CharField(max_length=300)


class FreezeViewSet(ApiViewSet):
    """Times in which nobody acts on a scope, but by break-glass."""

    scope_area = "commands"
    serializer_class = FreezeSerializer
    ordering_fields = {"starts_at": "starts_at", "id": "pk"}
    default_ordering = "-starts_at"

    def get_queryset(self) -> QuerySet[Freeze]:
        return visible_freezes(self.access)

    def require_over(self, kind: str, key: str) -> None:
        self.require(Right.APPROVE, answered(lambda: require_in_scope(self.access, kind, key)).region_id)

    @extend_schema(request=NewFreezeSerializer, responses={201: FreezeSerializer})
    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Freeze a scope for a time."""
        self.require_anywhere(Right.APPROVE)
        body = NewFreezeSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        self.require_over(body.validated_data["scope_kind"], body.validated_data["scope_key"])
        made = answered(lambda: freezes.freeze(user=user_of(request), now=timezone.now(), request_id=request_id(), **body.validated_data))
        return Response(FreezeSerializer(made).data, status=201)

    @extend_schema(request=ReasonSerializer, responses=FreezeSerializer)
    @action(detail=True, methods=["post"], filter_backends=[], pagination_class=None)
    def end(self, request: Request, **kwargs: Any) -> Response:
        """End it before its time."""
        found = self.get_object()
        self.require_over(found.scope_kind, found.scope_key)
        body = ReasonSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        done = answered(
            lambda: freezes.end(freeze_id=found.pk, reason=body.validated_data["reason"], user=user_of(request), now=timezone.now(), request_id=request_id())
        )
        return Response(FreezeSerializer(done).data)
