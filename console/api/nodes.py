"""Nodes: inventory, agent contact, what its exporters last said."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db.models import Prefetch, QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from agent.protocol import fingerprint_of
from console.access import Right
from console.api.base import WritableViewSet
from console.api.controls import IDEMPOTENCY_KEY, ControlViewSerializer, NewControlSerializer, PolicySerializer, set_control
from console.api.health import HealthField, NodeHealthSerializer
from console.api.history import HistoryMixin
from console.api.places import ScopedSlugField
from console.api.strict import ReadOnlySerializer, StrictModelSerializer
from console.filters import NodeFilter
from console.list_kinds import NODES, node_rows, ranked
from fleet.control.observed import controls_of_node
from fleet.models import AgentConnection, AgentIdentity, DesiredDocument, EnrolmentToken, KeyChangeRequest, Node, ObjectKind, ServiceReading


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


class EnrolmentField(serializers.Field[Any, Any, Any, Any]):
    """Key, open token, key change that waits, newest document; each null when there is none."""

    def __init__(self) -> None:
        super().__init__(read_only=True, source="*")

    def to_representation(self, node: Any) -> dict[str, Any]:
        key, token, change, document = (next(iter(rows), None) for rows in (node.live_keys, node.open_tokens, node.open_changes, node.newest_document))
        return {
            "key": key and {"fingerprint": fingerprint_of(bytes(key.public_key)), "enrolled_at": key.enrolled_at},
            "open_token": token and {"expires_at": token.expires_at},
            "key_change": change and {"id": change.pk, "requested_at": change.requested_at},
            "document": document and {"version": document.version, "created_at": document.created_at},
        }

    @staticmethod
    def prefetches(now: datetime) -> "list[Prefetch[Any, Any, Any]]":
        documents = DesiredDocument.objects.order_by("node_id", "-version").distinct("node_id").only("node", "version", "created_at")
        tokens = EnrolmentToken.objects.filter(used_at__isnull=True, expires_at__gt=now).order_by("-expires_at")
        return [
            Prefetch("agent_identities", AgentIdentity.objects.filter(revoked_at__isnull=True), to_attr="live_keys"),
            Prefetch("enrolment_tokens", tokens, to_attr="open_tokens"),
            Prefetch("key_change_requests", KeyChangeRequest.objects.filter(decided_at__isnull=True), to_attr="open_changes"),
            Prefetch("desired_documents", documents, to_attr="newest_document"),
        ]


class GpuCountsField(serializers.Field[Any, Any, Any, Any]):
    """GPUs that are there, of those that the inventory knows on the node."""

    def __init__(self) -> None:
        super().__init__(read_only=True, source="*")

    def to_representation(self, node: Any) -> dict[str, int]:
        return {"present": node.gpus_present, "known": node.gpus_known}


class NodeViewSet(HistoryMixin, WritableViewSet):
    """Nodes. `expand=` takes health, agent, enrolment, gpus (counts), services (node-exporter, Triton, vLLM) and topology."""

    scope_area = "nodes"
    history_kind = ObjectKind.NODE
    serializer_class = NodeSerializer
    filterset_class = NodeFilter
    ordering_fields = {**NODES.orderings, "id": "pk"}
    default_ordering = "host_name"
    expandable = {
        "health": lambda: HealthField(NodeHealthSerializer),
        "agent": AgentField,
        "enrolment": EnrolmentField,
        "gpus": GpuCountsField,
        "services": lambda: ServiceReadingSerializer(many=True, read_only=True, source="service_readings"),
        "topology": lambda: serializers.JSONField(read_only=True),
    }

    def get_queryset(self) -> QuerySet[Node]:
        expand = self._words("expand")
        queryset = node_rows(self.access) if "gpus" in expand else ranked(self.access.nodes().select_related("site", "health", "agent_connection"))
        if "services" in expand:
            queryset = queryset.prefetch_related("service_readings")
        return queryset.prefetch_related(*EnrolmentField.prefetches(timezone.now())) if "enrolment" in expand else queryset

    @extend_schema(responses=ControlViewSerializer(many=True))
    @action(detail=True, methods=["get"], filter_backends=[], pagination_class=None)
    def controls(self, request: Request, **kwargs: Any) -> Response:
        """The node's own controls (cordon), in force or reported: desired against observed, with drift."""
        return Response(ControlViewSerializer(controls_of_node(self.get_object(), now=timezone.now()), many=True).data)

    @extend_schema(request=NewControlSerializer, responses={201: PolicySerializer, 200: PolicySerializer}, parameters=[IDEMPOTENCY_KEY])
    @controls.mapping.post
    def set_control(self, request: Request, **kwargs: Any) -> Response:
        """Cordon the node in the console's name, until `ends_at` or until it is withdrawn."""
        node = self.get_object()
        self.require(Right.OPERATE, node.site.region_id)
        return set_control(request, node)

    def allow_write(self, instance: Any, values: Mapping[str, Any]) -> None:
        if instance is not None:
            self.require(Right.IMPORT, instance.site.region_id)
        if "site" in values:
            self.require(Right.IMPORT, values["site"].region_id)
