"""Nodes: inventory, agent contact, what its exporters last said."""

from collections.abc import Mapping
from typing import Any

from django.db.models import QuerySet
from rest_framework import serializers

from console.access import Right
from console.api.base import WritableViewSet
from console.api.health import HealthField, NodeHealthSerializer
from console.api.history import HistoryMixin
from console.api.places import ScopedSlugField
from console.api.strict import ReadOnlySerializer, StrictModelSerializer
from console.filters import NodeFilter
from console.list_kinds import NODES, ranked
from fleet.models import AgentConnection, Node, ObjectKind, ServiceReading


class NodeSerializer(StrictModelSerializer):
    site = ScopedSlugField("sites", slug_field="code")

    class Meta:
        model = Node
        fields = [
            "id",
            "site",
            "host_name",
            "role",
            "driver_version",
            "cuda_version",
            "kubelet_version",
            "agent_version",
            "boot_id",
            "numa_nodes",
            "expected_gpus",
            "exporter_address",
            "triton_address",
            "vllm_address",
            "node_exporter_address",
            "retired_at",
        ]
        read_only_fields = ["driver_version", "cuda_version", "kubelet_version", "agent_version", "boot_id", "numa_nodes", "retired_at"]
        validators: list[Any] = []


class AgentConnectionSerializer(ReadOnlySerializer):
    class Meta:
        model = AgentConnection
        fields = ["connected", "connected_at", "disconnected_at", "heartbeat_at", "reported_at"]


class ServiceReadingSerializer(ReadOnlySerializer):
    class Meta:
        model = ServiceReading
        fields = ["job", "item", "sampled_at", "values"]


class AgentField(serializers.Field[Any, Any, Any, Any]):
    """The node's agent; null when none ever connected."""

    def __init__(self) -> None:
        super().__init__(read_only=True, source="*")

    def to_representation(self, node: Node) -> Any:
        connection = getattr(node, "agent_connection", None)
        return None if connection is None else AgentConnectionSerializer(connection).data


class NodeViewSet(HistoryMixin, WritableViewSet):
    """Nodes. `expand=` takes health, agent, services (node-exporter, Triton, vLLM) and topology."""

    scope_area = "nodes"
    history_kind = ObjectKind.NODE
    serializer_class = NodeSerializer
    filterset_class = NodeFilter
    ordering_fields = {**NODES.orderings, "id": "pk"}
    default_ordering = "host_name"
    expandable = {
        "health": lambda: HealthField(NodeHealthSerializer),
        "agent": AgentField,
        "services": lambda: ServiceReadingSerializer(many=True, read_only=True, source="service_readings"),
        "topology": lambda: serializers.JSONField(read_only=True),
    }

    def get_queryset(self) -> QuerySet[Node]:
        queryset = ranked(self.access.nodes().select_related("site", "health", "agent_connection"))
        return queryset.prefetch_related("service_readings") if "services" in self._words("expand") else queryset

    def allow_write(self, instance: Any, values: Mapping[str, Any]) -> None:
        if instance is not None:
            self.require(Right.IMPORT, instance.site.region_id)
        if "site" in values:
            self.require(Right.IMPORT, values["site"].region_id)
