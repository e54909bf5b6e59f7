"""Agents of nodes: enrolment bundles, key changes that wait for a person, revocation."""

from datetime import timedelta
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.generics import get_object_or_404
from rest_framework.request import Request
from rest_framework.response import Response

from agent.protocol import fingerprint_of
from console.access import Right
from console.api.base import ApiView, ApiViewSet
from console.api.controls import user_of
from console.api.problems import Conflict, SourceUnavailable, request_id
from console.api.strict import ReadOnlySerializer, ReasonSerializer, StrictSerializer
from fleet.agents import enrolment
from fleet.control.signing import SigningUnavailable
from fleet.models import KeyChangeRequest

MOST_BUNDLES = 1000


class BundlesSerializer(StrictSerializer):
    nodes = serializers.ListField(child=serializers.IntegerField(min_value=1, max_value=2**62), min_length=1, max_length=MOST_BUNDLES)
    valid_days = serializers.IntegerField(min_value=1, max_value=90, default=7)


class EnrolmentBundlesView(ApiView):
    """Enrolment bundles, one a node, shown once."""

    scope_area = "agents"

    @extend_schema(request=BundlesSerializer, responses={201: OpenApiTypes.OBJECT})
    def post(self, request: Request) -> Response:
        """Issue bundles for up to 1,000 nodes. A node outside the caller's scope refuses the whole request like one that does not exist."""
        self.require_anywhere(Right.OPERATE)
        body = BundlesSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        wanted = list(dict.fromkeys(body.validated_data["nodes"]))
        nodes = list(self.access.nodes().filter(pk__in=wanted, retired_at__isnull=True).select_related("site"))
        missing = sorted(set(wanted) - {node.pk for node in nodes})
        if missing:
            raise ValidationError({"nodes": f"No such node: {', '.join(map(str, missing[:20]))}."})
        for region_id in {node.site.region_id for node in nodes}:
            self.require(Right.OPERATE, region_id)
        try:
            issued = enrolment.issue_bundles(
                nodes=nodes, user=user_of(request), now=timezone.now(), valid_for=timedelta(days=body.validated_data["valid_days"]), request_id=request_id()
            )
        except SigningUnavailable as error:
            raise SourceUnavailable(str(error)) from error
        rows = [{"node": one.node.pk, "host_name": one.node.host_name, "bundle": one.text, "expires_at": one.expires_at} for one in issued]
        return Response({"bundles": rows}, status=201)


class RevokeAgentView(ApiView):
    scope_area = "agents"

    @extend_schema(request=ReasonSerializer, responses=OpenApiTypes.OBJECT)
    def post(self, request: Request, pk: int) -> Response:
        """Take a node's key away: its socket ends within seconds and its open enrolment tokens end now."""
        node = get_object_or_404(self.access.nodes().select_related("site"), pk=pk)
        self.require(Right.OPERATE, node.site.region_id)
        body = ReasonSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        revoked = enrolment.revoke_agent(node=node, user=user_of(request), reason=body.validated_data["reason"], now=timezone.now(), request_id=request_id())
        return Response({"revoked": revoked})


class KeyChangeSerializer(ReadOnlySerializer):
    node = serializers.IntegerField(source="node_id", read_only=True)
    host_name = serializers.CharField(source="node.host_name", read_only=True)
    fingerprint = serializers.SerializerMethodField()
    decided_by: Any = serializers.SlugRelatedField(slug_field="username", read_only=True)

    class Meta:
        model = KeyChangeRequest
        fields = ["id", "node", "host_name", "fingerprint", "requested_at", "decided_at", "approved", "decided_by"]

    def get_fingerprint(self, row: KeyChangeRequest) -> str:
        return fingerprint_of(bytes(row.public_key))


class DecisionSerializer(StrictSerializer):
    approve = serializers.BooleanField()
    reason = serializers.CharField(max_length=300)


class KeyChangeViewSet(ApiViewSet):
    """Enrolled nodes that asked for another key."""

    scope_area = "agents"
    serializer_class = KeyChangeSerializer
    ordering_fields = {"requested_at": "requested_at", "id": "pk"}
    default_ordering = "-requested_at"

    def get_queryset(self) -> QuerySet[KeyChangeRequest]:
        return KeyChangeRequest.objects.filter(node__in=self.access.nodes()).select_related("node__site", "decided_by")

    @extend_schema(request=DecisionSerializer, responses=KeyChangeSerializer)
    @action(detail=True, methods=["post"], filter_backends=[], pagination_class=None)
    def decide(self, request: Request, **kwargs: Any) -> Response:
        """Allow or refuse the new key. Decided once."""
        asked = self.get_object()
        self.require(Right.OPERATE, asked.node.site.region_id)
        body = DecisionSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        if asked.decided_at is not None:
            raise Conflict("It was decided already.")
        try:
            decided = enrolment.decide_key_change(request=asked, user=user_of(request), now=timezone.now(), request_id=request_id(), **body.validated_data)
        except enrolment.EnrolmentRefused as refused:
            raise Conflict(str(refused)) from refused
        return Response(KeyChangeSerializer(decided).data)
