"""Controls on GPUs: set a clock range with an end, see desired against observed, withdraw."""

from typing import Any

import django_filters
from django.db.models import CharField, Q, QuerySet
from django.db.models.functions import Cast
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.exceptions import PermissionDenied, ValidationError
from rest_framework.generics import get_object_or_404
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right
from console.api.base import ApiView, ApiViewSet
from console.api.problems import Conflict, SourceUnavailable, Unprocessable, request_id
from console.api.scopes import token_may
from console.api.strict import ReadOnlySerializer, ReasonSerializer, StrictSerializer
from console.filters import AnyOfFilter
from fleet.control import controls
from fleet.control.observed import controls_of
from fleet.control.signing import SigningUnavailable
from fleet.models import Gpu, Node, ObjectKind, ObservedControl, Policy

IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key", OpenApiTypes.STR, OpenApiParameter.HEADER, required=True, description="1 to 80 characters; the same key with the same body acts once."
)


def idempotency_key(request: Request) -> str:
    """The request's key. Raises ValidationError when it is missing."""
    key = request.headers.get("Idempotency-Key", "").strip()
    if not key:
        raise ValidationError({"Idempotency-Key": "The header is required: any text of 1 to 80 characters, new for each request and the same for its retries."})
    return key


class ClockRangeSerializer(StrictSerializer):
    min_mhz = serializers.IntegerField()
    max_mhz = serializers.IntegerField()
    ends_at = serializers.DateTimeField()
    reason = serializers.CharField(max_length=300)


class NewControlSerializer(StrictSerializer):
    control = serializers.CharField(max_length=40)
    parameters = serializers.JSONField()
    reason = serializers.CharField(max_length=300)
    ends_at = serializers.DateTimeField(required=False, allow_null=True, default=None)


def set_control(request: Request, target: Gpu | Node) -> Response:
    """Hold a control on a GPU or node. 201 when set, 200 when this key had set it before. A token needs write:controls, wherever this stands."""
    if not token_may(request.auth, "write", "controls"):
        raise PermissionDenied("The token lacks the scope write:controls.")
    key = idempotency_key(request)
    body = NewControlSerializer(data=request.data)
    body.is_valid(raise_exception=True)
    done = submitted(
        lambda: controls.submit_control(
            target=target, user=user_of(request), idempotency_key=key, now=timezone.now(), request_id=request_id(), **body.validated_data
        )
    )
    policy = Policy.objects.select_related("created_by", "withdrawn_by").get(pk=done.policy.pk)
    return Response(PolicySerializer(policy).data, status=201 if done.created else 200)


class ObservedSerializer(ReadOnlySerializer):
    class Meta:
        model = ObservedControl
        fields = ["gpu_uuid", "control", "version", "state", "observed", "detail", "at", "received_at"]


class PolicySerializer(ReadOnlySerializer):
    created_by: Any = serializers.SlugRelatedField(slug_field="username", read_only=True)
    withdrawn_by: Any = serializers.SlugRelatedField(slug_field="username", read_only=True)

    class Meta:
        model = Policy
        fields = [
            "id",
            "control",
            "scope_kind",
            "scope_key",
            "parameters",
            "reason",
            "starts_at",
            "ends_at",
            "created_by",
            "created_at",
            "withdrawn_at",
            "withdrawn_by",
        ]


class ControlViewSerializer(serializers.Serializer[Any]):
    """Desired against observed of one control on one GPU."""

    control = serializers.CharField()
    state = serializers.CharField(help_text="`pending` (the agent has not answered the newest document), `applied`, `drifted`, `failed`, `refused` or `ended`.")
    in_force = PolicySerializer(source="policy", allow_null=True, help_text="Null: nothing is desired now.")
    observed = ObservedSerializer(allow_null=True, help_text="What the GPU's node read back last; null before its first report.")
    agent_connected = serializers.BooleanField()
    document_refused_because = serializers.CharField(source="refusal", help_text="Why the agent did not take the newest document; empty when it did.")


class PolicyFilter(django_filters.FilterSet):
    control = AnyOfFilter(field_name="control")
    gpu = AnyOfFilter(method="on_gpu")
    in_force = django_filters.BooleanFilter(method="now_in_force")

    def on_gpu(self, queryset: QuerySet[Any], name: str, value: list[str]) -> QuerySet[Any]:
        return queryset.filter(scope_kind=ObjectKind.GPU, scope_key__in=value) if value else queryset

    def now_in_force(self, queryset: QuerySet[Any], name: str, value: bool) -> QuerySet[Any]:
        current = Policy.objects.in_force(timezone.now()).values("pk")
        return queryset.filter(pk__in=current) if value else queryset.exclude(pk__in=current)


class ControlViewSet(ApiViewSet):
    """Controls that people set, in force or past."""

    scope_area = "controls"
    serializer_class = PolicySerializer
    filterset_class = PolicyFilter
    ordering_fields = {"created_at": "created_at", "id": "pk"}
    default_ordering = "-created_at"

    def get_queryset(self) -> QuerySet[Policy]:
        nodes = self.access.nodes().annotate(key=Cast("pk", CharField())).values("key")
        mine = Q(scope_kind=ObjectKind.GPU, scope_key__in=self.access.gpus().values("uuid")) | Q(scope_kind=ObjectKind.NODE, scope_key__in=nodes)
        return Policy.objects.filter(mine).select_related("created_by", "withdrawn_by")

    @extend_schema(request=ReasonSerializer, responses=PolicySerializer)
    @action(detail=True, methods=["post"], filter_backends=[], pagination_class=None)
    def withdraw(self, request: Request, **kwargs: Any) -> Response:
        """End a control before its time; one that has ended already stays as it is."""
        policy = self.get_object()
        nodes = self.access.nodes().select_related("site")
        node = get_object_or_404(nodes.filter(gpus__uuid=policy.scope_key) if policy.scope_kind == ObjectKind.GPU else nodes.filter(pk=int(policy.scope_key)))
        self.require(Right.OPERATE, node.site.region_id)
        body = ReasonSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        done = submitted(lambda: controls.withdraw(policy=policy, user=user_of(request), now=timezone.now(), request_id=request_id(), **body.validated_data))
        return Response(PolicySerializer(done).data)


class ClockRangeView(ApiView):
    """`/gpus/<uuid>/clock-range`: the newest control of the SM clock, what the node read back; set one."""

    scope_area = "controls"

    def gpu(self, uuid: str) -> Gpu:
        found: Gpu = get_object_or_404(self.access.gpus().select_related("node__site").prefetch_related("protected_placements"), uuid=uuid)
        return found

    @extend_schema(operation_id="gpus_clock_range_retrieve", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, uuid: str) -> Response:
        """Limits, why a control would be refused now (empty: it would not), the control in force, its state and what the node observed."""
        gpu = self.gpu(uuid)
        limits = controls.clock_limits(gpu)
        shown = next((view for view in controls_of([gpu], now=timezone.now()).get(gpu.uuid, []) if view.control == controls.CLOCK_RANGE), None)
        said = ControlViewSerializer(shown).data if shown else {"state": None, "in_force": None, "observed": None, "document_refused_because": ""}
        said.pop("control", None)
        return Response({"limits": {"min_mhz": limits.min_mhz, "max_mhz": limits.max_mhz}, "refused_because": controls.refusal_for(gpu), **said})

    @extend_schema(
        operation_id="gpus_clock_range_create",
        request=ClockRangeSerializer,
        responses={201: PolicySerializer, 200: PolicySerializer},
        parameters=[IDEMPOTENCY_KEY],
    )
    def post(self, request: Request, uuid: str) -> Response:
        """Lock the SM clock between two whole MHz until `ends_at`. 201 when set, 200 when this key had set it before."""
        gpu = self.gpu(uuid)
        self.require(Right.OPERATE, gpu.node.site.region_id)
        key = idempotency_key(request)
        body = ClockRangeSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        done = submitted(
            lambda: controls.submit_clock_range(
                gpu=gpu, user=user_of(request), idempotency_key=key, now=timezone.now(), request_id=request_id(), **body.validated_data
            )
        )
        policy = Policy.objects.select_related("created_by", "withdrawn_by").get(pk=done.policy.pk)
        return Response(PolicySerializer(policy).data, status=201 if done.created else 200)


def user_of(request: Request) -> Any:
    return request.user


def submitted(act: Any) -> Any:
    """Run a control's function; its refusals become problems: 400 for a field, 409 for the state of the target, 422 for a key that was used."""
    try:
        return act()
    except controls.ControlRefused as refused:
        if set(refused.errors) == {""}:
            raise Conflict(refused.errors[""]) from refused
        raise ValidationError({field or "non_field_errors": reason for field, reason in refused.errors.items()}) from refused
    except controls.KeyReused as reused:
        raise Unprocessable(str(reused)) from reused
    except SigningUnavailable as missing:
        raise SourceUnavailable(str(missing)) from missing
