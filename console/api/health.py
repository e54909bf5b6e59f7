"""Health as the API shows it: state with since, cause and why; findings, transitions, disagreements, data quality."""

from typing import Any

import django_filters
from django.db.models import Q, QuerySet
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
from console.api.strict import ReadOnlySerializer, ReasonSerializer
from console.filters import AnyOfFilter
from fleet.health import clearing
from fleet.health.xid import table
from fleet.models import DataQuality, Disagreement, Finding, GpuHealth, HealthState, HealthTransition, NodeHealth, SiteHealth, XidEvent

NEVER = {"state": HealthState.UNKNOWN.value, "since": None, "cause": "never_reported", "why": "Has never reported."}


class SiteHealthSerializer(ReadOnlySerializer):
    class Meta:
        model = SiteHealth
        exclude = ["site"]


class NodeHealthSerializer(ReadOnlySerializer):
    class Meta:
        model = NodeHealth
        exclude = ["node"]


class GpuHealthSerializer(ReadOnlySerializer):
    class Meta:
        model = GpuHealth
        exclude = ["gpu"]


class HealthField(serializers.Field[Any, Any, Any, Any]):
    """The health row of a thing; one that never reported is unknown, never absent."""

    def __init__(self, serializer: type[serializers.ModelSerializer[Any]]) -> None:
        super().__init__(read_only=True, source="*")
        self.shown = serializer()

    def to_representation(self, value: Any) -> Any:
        row = getattr(value, "health", None)
        return NEVER if row is None else self.shown.to_representation(row)


class ReadOnlyViewSet(ApiViewSet):
    """Lists and details that nobody writes through the API."""


class SiteScoped(ReadOnlyViewSet):
    """Rows that belong to a site: those of the caller's sites; rows without a site only for people of the whole fleet."""

    scope_area = "health"

    def in_scope(self, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.access.fleet_rank:
            return queryset
        return queryset.filter(site__region_id__in=self.access.region_ranks)


class ObjectFilter(django_filters.FilterSet):
    kind = AnyOfFilter(field_name="kind")
    key = AnyOfFilter(field_name="object_key")
    site = AnyOfFilter(field_name="site__code")
    region = AnyOfFilter(field_name="site__region__slug")


class FindingFilter(ObjectFilter):
    code = AnyOfFilter(field_name="code")
    severity = AnyOfFilter(field_name="severity")
    open = django_filters.BooleanFilter(method="opened")

    def opened(self, queryset: QuerySet[Any], name: str, value: bool) -> QuerySet[Any]:
        return queryset.filter(until__isnull=value)


class FindingSerializer(ReadOnlySerializer):
    site: Any = serializers.SlugRelatedField(slug_field="code", read_only=True)

    class Meta:
        model = Finding
        fields = [
            "id",
            "kind",
            "object_key",
            "site",
            "code",
            "severity",
            "summary",
            "advised_action",
            "evidence",
            "since",
            "last_at",
            "count",
            "until",
            "ended_because",
        ]


class FindingViewSet(SiteScoped):
    """What was found, with evidence. Open while `until` is null."""

    serializer_class = FindingSerializer
    filterset_class = FindingFilter
    ordering_fields = {"since": "since", "id": "pk"}
    default_ordering = "-since"

    def get_queryset(self) -> QuerySet[Finding]:
        return self.in_scope(Finding.objects.select_related("site"))

    @extend_schema(request=ReasonSerializer, responses=FindingSerializer)
    @action(detail=True, methods=["post"], filter_backends=[], pagination_class=None)
    def clear(self, request: Request, **kwargs: Any) -> Response:
        """End an open finding, also a sticky one; what the newest readings still show opens again. One that is over stays as it is."""
        finding = self.get_object()
        self.require(Right.OPERATE, finding.site.region_id if finding.site else None)
        body = ReasonSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        try:
            done = clearing.clear_finding(
                finding=finding, actor=request.user.get_username(), now=timezone.now(), request_id=request_id()[:64], **body.validated_data
            )
        except clearing.ClearingRefused as refused:
            raise ValidationError(refused.errors) from refused
        return Response(FindingSerializer(done).data)


class TransitionSerializer(ReadOnlySerializer):
    site: Any = serializers.SlugRelatedField(slug_field="code", read_only=True)

    class Meta:
        model = HealthTransition
        fields = ["id", "kind", "object_key", "site", "from_state", "to_state", "cause", "why", "at"]


class TransitionViewSet(SiteScoped):
    """Changes of state, newest first."""

    serializer_class = TransitionSerializer
    filterset_class = ObjectFilter
    ordering_fields = {"at": "at", "id": "pk"}
    default_ordering = "-at"

    def get_queryset(self) -> QuerySet[HealthTransition]:
        return self.in_scope(HealthTransition.objects.select_related("site"))


class DisagreementFilter(ObjectFilter):
    field = AnyOfFilter(field_name="field")
    open = django_filters.BooleanFilter(field_name="until", lookup_expr="isnull")


class DisagreementSerializer(ReadOnlySerializer):
    site: Any = serializers.SlugRelatedField(slug_field="code", read_only=True)

    class Meta:
        model = Disagreement
        fields = ["id", "kind", "object_key", "site", "field", "held_source", "held_value", "seen_source", "seen_value", "since", "last_at", "until"]


class DisagreementViewSet(SiteScoped):
    """Where import, agent and telemetry say different things of one object."""

    serializer_class = DisagreementSerializer
    filterset_class = DisagreementFilter
    ordering_fields = {"since": "since", "id": "pk"}
    default_ordering = "-since"

    def get_queryset(self) -> QuerySet[Disagreement]:
        return self.in_scope(Disagreement.objects.select_related("site"))


class DataQualityFilter(django_filters.FilterSet):
    sender = AnyOfFilter(field_name="sender__name")
    site = AnyOfFilter(field_name="site__code")
    reason = AnyOfFilter(field_name="reason")


class DataQualitySerializer(ReadOnlySerializer):
    site: Any = serializers.SlugRelatedField(slug_field="code", read_only=True)
    sender: Any = serializers.SlugRelatedField(slug_field="name", read_only=True)

    class Meta:
        model = DataQuality
        fields = ["id", "sender", "site", "reason", "count", "first_at", "last_at", "example"]


class DataQualityViewSet(SiteScoped):
    """Samples refused, by sender, site and reason."""

    serializer_class = DataQualitySerializer
    filterset_class = DataQualityFilter

    def get_queryset(self) -> QuerySet[DataQuality]:
        return self.in_scope(DataQuality.objects.select_related("site", "sender"))


class XidEventFilter(django_filters.FilterSet):
    gpu = AnyOfFilter(field_name="gpu__uuid")
    site = AnyOfFilter(field_name="gpu__node__site__code")
    xid = django_filters.NumberFilter(field_name="xid")


class XidEventSerializer(ReadOnlySerializer):
    gpu: Any = serializers.SlugRelatedField(slug_field="uuid", read_only=True)
    known = serializers.SerializerMethodField()
    meaning = serializers.SerializerMethodField()
    advised_action = serializers.SerializerMethodField()
    severity = serializers.SerializerMethodField()

    class Meta:
        model = XidEvent
        fields = [
            "id",
            "gpu",
            "gpu_instance_id",
            "xid",
            "known",
            "meaning",
            "advised_action",
            "severity",
            "first_at",
            "last_at",
            "count",
            "source",
            "message",
        ]

    def get_known(self, event: XidEvent) -> bool:
        """Whether the code stands in the table."""
        return table().rule(event.xid).known

    def get_meaning(self, event: XidEvent) -> str:
        return table().rule(event.xid).meaning

    def get_advised_action(self, event: XidEvent) -> str:
        """NVIDIA's advice in one line; empty when there is nothing to do."""
        return table().rule(event.xid).advised

    def get_severity(self, event: XidEvent) -> str:
        return table().rule(event.xid).severity.value


class XidEventViewSet(ReadOnlyViewSet):
    """XIDs as they happened, repeats within a burst folded into one."""

    scope_area = "health"
    serializer_class = XidEventSerializer
    filterset_class = XidEventFilter
    ordering_fields = {"last_at": "last_at", "id": "pk"}
    default_ordering = "-last_at"

    def get_queryset(self) -> QuerySet[XidEvent]:
        return XidEvent.objects.filter(Q(gpu__in=self.access.gpus())).select_related("gpu")
