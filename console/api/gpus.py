"""GPUs, their slices, last values and charts; workloads."""

from typing import Any

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right
from console.api.base import ApiViewSet
from console.api.charts import CHART_PATH, chart_answer, chart_schema
from console.api.controls import IDEMPOTENCY_KEY, ControlViewSerializer, NewControlSerializer, PolicySerializer, set_control
from console.api.health import GpuHealthSerializer, HealthField
from console.api.history import HistoryMixin
from console.api.strict import ReadOnlySerializer
from console.filters import GpuFilter, TenantWorkloadFilter, WorkloadFilter
from console.list_kinds import GPUS, ranked
from fleet.control.observed import controls_of
from fleet.models import Gpu, GpuReading, LastKnownReading, MigSlice, ObjectKind, ProtectedPlacement, SliceReading, Workload


class MigSliceSerializer(ReadOnlySerializer):
    class Meta:
        model = MigSlice
        fields = ["gpu_instance_id", "compute_instance_id", "mig_uuid", "profile", "start", "size", "purpose", "created_at", "ended_at"]


class ProtectedPlacementSerializer(ReadOnlySerializer):
    class Meta:
        model = ProtectedPlacement
        fields = ["start", "size"]


class GpuSerializer(ReadOnlySerializer):
    site = serializers.CharField(source="node.site.code", read_only=True)
    protected_placements = ProtectedPlacementSerializer(many=True, read_only=True)
    carries_phy = serializers.BooleanField(read_only=True)
    replaced_by: Any = serializers.SlugRelatedField(slug_field="uuid", read_only=True)

    class Meta:
        model = Gpu
        fields = [
            "uuid",
            "node",
            "site",
            "sku",
            "index",
            "pci_bus_id",
            "serial",
            "mig_enabled",
            "presence",
            "power_limit_watts",
            "first_seen_at",
            "missing_since",
            "retired_at",
            "replaced_by",
            "carries_phy",
            "protected_placements",
        ]


class GpuReadingSerializer(ReadOnlySerializer):
    class Meta:
        model = GpuReading
        exclude = ["gpu"]


class SliceReadingSerializer(ReadOnlySerializer):
    class Meta:
        model = SliceReading
        exclude = ["id", "gpu"]


class LastKnownSerializer(ReadOnlySerializer):
    class Meta:
        model = LastKnownReading
        fields = ["sampled_at", "values", "slices"]


class RelatedRow(serializers.Field[Any, Any, Any, Any]):
    """A one-to-one row, null when there is none: no value, not zeros."""

    def __init__(self, name: str, serializer: type[serializers.ModelSerializer[Any]]) -> None:
        super().__init__(read_only=True, source="*")
        self.name, self.shown = name, serializer()  # one for all rows: making one costs more than using it

    def to_representation(self, gpu: Gpu) -> Any:
        row = getattr(gpu, self.name, None)
        return None if row is None else self.shown.to_representation(row)


class LiveSlices(serializers.Field[Any, Any, Any, Any]):
    """Slices that exist now (`slices` prefetched)."""

    def __init__(self) -> None:
        super().__init__(read_only=True, source="*")
        self.shown = MigSliceSerializer()

    def to_representation(self, gpu: Gpu) -> Any:
        return [self.shown.to_representation(one) for one in gpu.slices.all() if one.ended_at is None]


_PREFETCHED = {"slices": "slices", "slice_readings": "slice_readings"}


class GpuViewSet(HistoryMixin, ApiViewSet):
    """GPUs by UUID. `expand=` takes health, reading (last values), last_known (of a silent site), slices and slice_readings."""

    scope_area = "gpus"
    history_kind = ObjectKind.GPU
    serializer_class = GpuSerializer
    filterset_class = GpuFilter
    lookup_field = "uuid"
    lookup_value_regex = "[^/]+"
    ordering_fields = GPUS.orderings
    default_ordering = "uuid"
    expandable = {
        "health": lambda: HealthField(GpuHealthSerializer),
        "reading": lambda: RelatedRow("reading", GpuReadingSerializer),
        "last_known": lambda: RelatedRow("last_known", LastKnownSerializer),
        "slices": LiveSlices,
        "slice_readings": lambda: SliceReadingSerializer(many=True, read_only=True),
    }

    def get_queryset(self) -> QuerySet[Gpu]:
        queryset = ranked(self.access.gpus()).select_related("node__site", "replaced_by").prefetch_related("protected_placements")
        expand = self._words("expand")
        one_to_one = [name for name in ("health", "reading", "last_known") if name in expand]
        return queryset.select_related(*one_to_one, "node__site", "replaced_by").prefetch_related(
            *(path for name, path in _PREFETCHED.items() if name in expand)
        )

    @extend_schema(responses=ControlViewSerializer(many=True))
    @action(detail=True, methods=["get"], filter_backends=[], pagination_class=None)
    def controls(self, request: Request, **kwargs: Any) -> Response:
        """Every control that is in force on the GPU, or that its node has reported of: desired against observed, with drift."""
        gpu = self.get_object()
        return Response(ControlViewSerializer(controls_of([gpu], now=timezone.now()).get(gpu.uuid, []), many=True).data)

    @extend_schema(request=NewControlSerializer, responses={201: PolicySerializer, 200: PolicySerializer}, parameters=[IDEMPOTENCY_KEY])
    @controls.mapping.post
    def set_control(self, request: Request, **kwargs: Any) -> Response:
        """Hold a clock range, a power cap or a MIG layout on the GPU, until `ends_at` or until it is withdrawn."""
        gpu = self.get_object()
        self.require(Right.OPERATE, gpu.node.site.region_id)
        return set_control(request, gpu)

    @chart_schema
    @action(detail=True, methods=["get"], url_path=CHART_PATH, filter_backends=[], pagination_class=None)
    def charts(self, request: Request, panel: str, **kwargs: Any) -> Response:
        """Points of one chart (temperature, SM clock, power, engine) with unit, gaps as null, age and one sentence."""
        self.extra_parameters = ("range",)
        gpu = self.get_object()
        return chart_answer(request, panel, {"UUID": gpu.uuid}, gpu=gpu)


class WorkloadSerializer(ReadOnlySerializer):
    gpu = serializers.CharField(source="gpu.uuid", read_only=True)
    site = serializers.CharField(source="gpu.node.site.code", read_only=True)
    gpu_instance_id = serializers.IntegerField(source="slice.gpu_instance_id", default=None, read_only=True)
    profile = serializers.CharField(source="slice.profile", default=None, read_only=True)

    class Meta:
        model = Workload
        fields = [
            "id",
            "namespace",
            "pod",
            "container",
            "tenant_key",
            "sharing",
            "gpu",
            "gpu_instance_id",
            "profile",
            "site",
            "started_at",
            "last_seen_at",
            "ended_at",
        ]


class TenantWorkloadSerializer(WorkloadSerializer):
    """What a tenant sees of its own workload: no site, no GPU identity."""

    class Meta(WorkloadSerializer.Meta):
        fields = ["id", "namespace", "pod", "container", "tenant_key", "sharing", "profile", "started_at", "last_seen_at", "ended_at"]


class WorkloadViewSet(ApiViewSet):
    """Workloads: operators see those of their regions, a tenant's people their own."""

    scope_area = "workloads"
    ordering_fields = {"id": "pk", "started_at": "started_at", "namespace": "namespace"}
    default_ordering = "-started_at"

    @property
    def filterset_class(self) -> Any:
        return WorkloadFilter if self.access.is_operator_side else TenantWorkloadFilter

    def get_serializer_class(self) -> Any:
        return WorkloadSerializer if self.access.is_operator_side else TenantWorkloadSerializer

    def get_queryset(self) -> QuerySet[Workload]:
        return self.access.workloads().select_related("gpu__node__site", "slice")
