"""The GPU models that Masthead knows: memory, MIG profiles and placements, limits, each with its source."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.exceptions import NotFound, PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from console.api.base import ApiView
from fleet.catalogue import SKUS


class MigProfileSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    id = serializers.IntegerField()
    max_instances = serializers.IntegerField()
    memory_mib = serializers.IntegerField(allow_null=True)
    multiprocessors = serializers.IntegerField(allow_null=True)
    compute_slices = serializers.IntegerField()
    placements = serializers.ListField(child=serializers.IntegerField(), help_text="Memory positions at which it may start.")
    size = serializers.IntegerField(help_text="Memory positions that it takes.")


class SkuSerializer(serializers.Serializer[Any]):
    """A figure that no source gives is null: unknown, never 0."""

    key = serializers.CharField(help_text="What `sku` of a GPU names.")
    name = serializers.CharField()
    model_names = serializers.ListField(child=serializers.CharField(), help_text="What NVML, DCGM and Kubernetes call the board.")
    architecture = serializers.CharField()
    memory_mib = serializers.IntegerField(allow_null=True)
    multiprocessors = serializers.IntegerField(allow_null=True)
    power_min_watts = serializers.IntegerField(allow_null=True)
    power_max_watts = serializers.IntegerField(allow_null=True)
    sm_clock_min_mhz = serializers.IntegerField(allow_null=True)
    sm_clock_max_mhz = serializers.IntegerField(allow_null=True)
    slowdown_celsius = serializers.IntegerField(allow_null=True)
    shutdown_celsius = serializers.IntegerField(allow_null=True)
    mig_capable = serializers.BooleanField()
    profiles = MigProfileSerializer(many=True)
    sources = serializers.ListField(child=serializers.CharField())
    version = serializers.CharField(help_text="Of the catalogue.")


class SkusSerializer(serializers.Serializer[Any]):
    results = SkuSerializer(many=True)


class SkuView(ApiView):
    """Read-only: the catalogue comes with the console."""

    scope_area = "gpus"

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        self.refuse_parameters()
        if not self.access.is_operator_side:
            raise PermissionDenied("This needs a role on some region.")


class SkuListView(SkuView):
    @extend_schema(operation_id="skus_list", responses=SkusSerializer)
    def get(self, request: Request) -> Response:
        """All boards, by key."""
        return Response({"results": SkuSerializer([SKUS[key] for key in sorted(SKUS)], many=True).data})


class SkuDetailView(SkuView):
    @extend_schema(operation_id="skus_retrieve", responses=SkuSerializer)
    def get(self, request: Request, key: str) -> Response:
        sku = SKUS.get(key)
        if sku is None:
            raise NotFound
        return Response(SkuSerializer(sku).data)
