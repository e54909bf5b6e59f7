"""Wide switches: kill and automation off. Arming asks for no fresh sign-in; everything else is as with other acts."""

from typing import Any

import django_filters
from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.generics import get_object_or_404
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right
from console.api.base import ApiViewSet
from console.api.commands import answered
from console.api.controls import user_of
from console.api.problems import request_id
from console.api.strict import ReadOnlySerializer, ReasonSerializer, StrictSerializer
from console.filters import AnyOfFilter, choice_boxes
from console.switch_scope import require_in_scope, visible_switches
from fleet.control import switches
from fleet.models import Switch, SwitchAnswer


class SwitchScopeSerializer(StrictSerializer):
    kind = serializers.ChoiceField(choices=Switch.Kind.choices)
    scope_kind = serializers.CharField(max_length=8)
    scope_key = serializers.CharField(max_length=80, default="", allow_blank=True)
    tenant = serializers.CharField(max_length=40, default="", allow_blank=True)
    model = serializers.CharField(max_length=200, default="", allow_blank=True)


class ArmSerializer(SwitchScopeSerializer):
    reason = serializers.CharField(max_length=300)
    ends_at = serializers.DateTimeField(required=False, allow_null=True)


class SwitchSerializer(ReadOnlySerializer):
    armed_by: Any = serializers.SlugRelatedField(slug_field="username", read_only=True)
    released_by: Any = serializers.SlugRelatedField(slug_field="username", read_only=True)
    standing = serializers.SerializerMethodField()

    class Meta:
        model = Switch
        fields = [
            "id", "kind", "scope_kind", "scope_key", "tenant_key", "model_name", "version", "armed", "ends_at", "reason", "preview", "armed_by", "armed_at",
            "released_by", "released_at", "release_reason", "standing",
        ]  # fmt: skip

    def get_standing(self, switch: Switch) -> dict[str, int]:
        """Nodes by what they answered; `silent` ones have not, and are never counted as stopped."""
        return dict(switches.standing(switch).__dict__)


class SwitchRowSerializer(SwitchSerializer):
    class Meta(SwitchSerializer.Meta):
        fields = [name for name in SwitchSerializer.Meta.fields if name != "standing"]


class AnswerSerializer(ReadOnlySerializer):
    host_name = serializers.CharField(source="node.host_name", read_only=True)

    class Meta:
        model = SwitchAnswer
        fields = ["node", "host_name", "version", "state", "stopped", "remaining", "detail", "at", "received_at"]


class SwitchFilter(django_filters.FilterSet):
    kind = choice_boxes(Switch.Kind.choices)
    scope_kind = AnyOfFilter(field_name="scope_kind")
    scope_key = AnyOfFilter(field_name="scope_key")
    in_force = django_filters.BooleanFilter(method="now_in_force")

    def now_in_force(self, queryset: QuerySet[Any], name: str, value: bool) -> QuerySet[Any]:
        current = Switch.objects.in_force(timezone.now()).values("pk")
        return queryset.filter(pk__in=current) if value else queryset.exclude(pk__in=current)


class SwitchViewSet(ApiViewSet):
    """Switches in force and past."""

    scope_area = "switches"
    serializer_class = SwitchSerializer
    filterset_class = SwitchFilter
    ordering_fields = {"armed_at": "armed_at", "id": "pk"}
    default_ordering = "-armed_at"

    def get_queryset(self) -> QuerySet[Switch]:
        return visible_switches(self.access).select_related("armed_by", "released_by")

    def get_serializer_class(self) -> Any:
        return SwitchRowSerializer if self.action == "list" else SwitchSerializer

    def require_over(self, kind: str, key: str) -> None:
        """The right to operate on the scope; a scope outside the caller's regions does not exist for it (case C36)."""
        scope = answered(lambda: require_in_scope(self.access, kind, key))
        self.require(Right.OPERATE, scope.region_id)

    @extend_schema(request=SwitchScopeSerializer, responses=OpenApiTypes.OBJECT)
    @action(detail=False, methods=["post"], filter_backends=[], pagination_class=None)
    def preview(self, request: Request, **kwargs: Any) -> Response:
        """What it would reach now."""
        body = SwitchScopeSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        values = body.validated_data
        self.require_over(values["scope_kind"], values["scope_key"])
        found = switches.reached(scope_kind=values["scope_kind"], scope_key=values["scope_key"], tenant=values["tenant"], model=values["model"])
        return Response(found.as_json())

    @extend_schema(request=ArmSerializer, responses={201: SwitchSerializer})
    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Arm it. One that is armed on this scope already is answered as it is."""
        body = ArmSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        values = dict(body.validated_data)
        self.require_over(values["scope_kind"], values["scope_key"])
        switch = answered(lambda: switches.arm(user=user_of(request), now=timezone.now(), request_id=request_id(), **values))
        return Response(SwitchSerializer(switch).data, status=201)

    @extend_schema(request=ReasonSerializer, responses=SwitchSerializer)
    @action(detail=True, methods=["post"], filter_backends=[], pagination_class=None)
    def release(self, request: Request, **kwargs: Any) -> Response:
        """Release it; one that is released stays so."""
        switch = self.get_object()
        self.require_over(switch.scope_kind, switch.scope_key)
        body = ReasonSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reason = body.validated_data["reason"]
        done = answered(lambda: switches.release(switch_id=switch.pk, reason=reason, user=user_of(request), now=timezone.now(), request_id=request_id()))
        return Response(SwitchSerializer(done).data)


class SwitchAnswerViewSet(ApiViewSet):
    """What the nodes of the caller's scope say of one switch."""

    queryset = SwitchAnswer.objects.none()

    scope_area = "switches"
    serializer_class = AnswerSerializer
    ordering_fields = {"id": "pk"}

    def get_queryset(self) -> QuerySet[SwitchAnswer]:
        switch = get_object_or_404(visible_switches(self.access), pk=self.kwargs["switch"])
        return SwitchAnswer.objects.filter(switch=switch, node__in=self.access.nodes()).select_related("node")
