"""Senders of telemetry: which Prometheus may write and discover, for which regions, and its tokens."""

from typing import Any

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from console.api.people import AdministratorViewSet
from console.api.problems import Conflict, request_id
from console.api.strict import ReadOnlySerializer, StrictSerializer
from fleet.models import Region, Sender
from fleet.telemetry import senders


class SenderSerializer(ReadOnlySerializer):
    regions: Any = serializers.SlugRelatedField(slug_field="slug", many=True, read_only=True)

    class Meta:
        model = Sender
        fields = [
            "name",
            "regions",
            "may_write",
            "may_discover",
            "honor_labels",
            "created_at",
            "expires_at",
            "revoked_at",
            "last_used_at",
            "previous_valid_until",
        ]


class NewSenderSerializer(StrictSerializer):
    name = serializers.SlugField(max_length=60)
    regions = serializers.SlugRelatedField(slug_field="slug", queryset=Region.objects.all(), many=True, allow_empty=False)
    may_write = serializers.BooleanField(default=True)
    may_discover = serializers.BooleanField(default=True)
    honor_labels = serializers.BooleanField(default=False)
    expires_at = serializers.DateTimeField(allow_null=True, default=None)


class IssuedSenderSerializer(SenderSerializer):
    token = serializers.CharField(read_only=True)

    class Meta(SenderSerializer.Meta):
        fields = [*SenderSerializer.Meta.fields, "token"]


class SenderViewSet(AdministratorViewSet):
    scope_area = "senders"
    serializer_class = SenderSerializer
    lookup_field = "name"
    ordering_fields = {"name": "name"}
    default_ordering = "name"

    def get_queryset(self) -> QuerySet[Sender]:
        return Sender.objects.prefetch_related("regions")

    @property
    def act(self) -> dict[str, Any]:
        return {"now": timezone.now(), "actor": self.actor.get_username(), "request_id": request_id()}

    @extend_schema(request=NewSenderSerializer, responses={201: IssuedSenderSerializer})
    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """A sender; its token stands in this answer only."""
        body = NewSenderSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        try:
            sender, token = senders.create_sender(**body.validated_data, **self.act)
        except senders.SenderError as error:
            field, _, text = str(error).partition(": ")
            raise ValidationError({field: text}) from error
        return Response(SenderSerializer(sender).data | {"token": token}, status=201)

    @extend_schema(request=None, responses={201: IssuedSenderSerializer})
    @action(detail=True, methods=["post"], filter_backends=[], pagination_class=None)
    def rotate(self, request: Request, **kwargs: Any) -> Response:
        """A new token; the one so far stays valid for 7 days."""
        sender = self.get_object()
        try:
            token = senders.rotate_token(sender, **self.act)
        except senders.SenderError as error:
            raise Conflict(str(error)) from error
        return Response(SenderSerializer(sender).data | {"token": token}, status=201)

    @extend_schema(request=None, responses=SenderSerializer)
    @action(detail=True, methods=["post"], filter_backends=[], pagination_class=None)
    def end_rotation(self, request: Request, **kwargs: Any) -> Response:
        """Only the newest token is valid from now on."""
        sender = self.get_object()
        senders.end_previous_token(sender, **self.act)
        return Response(SenderSerializer(self.get_object()).data)

    @extend_schema(request=None, responses={204: None})
    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Revoke: its writes and discoveries are refused from now on."""
        senders.revoke_sender(self.get_object(), **self.act)
        return Response(status=204)
