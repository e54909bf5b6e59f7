"""The audit: who did what, on what, why and when. For administrators and leads, each inside its scope."""

from typing import Any, ClassVar

from django.db.models import Min, QuerySet
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right
from console.api.base import ApiView, ApiViewSet
from console.api.strict import ReadOnlySerializer
from console.audit import may_read_audit, visible_entries
from console.audit_list import AuditFilter
from console.downloads import download
from fleet.control.audit_chain import rows_of
from fleet.control.audit_export import json_lines
from fleet.control.audit_seal import newest_seal, unsealed
from fleet.control.audit_verify import ask_for_verification, last_check
from fleet.models import AuditEntry, AuditStream


class AuditSerializer(ReadOnlySerializer):
    class Meta:
        model = AuditEntry
        fields = [
            "id", "at", "actor", "through", "action", "kind", "object_key", "reason", "outcome", "detail", "request_id", "source_address",
        ]  # fmt: skip


class AuditViewSet(ApiViewSet):
    """Administrators of the fleet see all; leads of the fleet what was done to its objects; a region's leads and administrators what was done
    to the objects of their regions. Everybody among them sees its own acts."""

    scope_area = "audit"
    serializer_class = AuditSerializer
    filterset_class = AuditFilter
    ordering_fields = {"at": "at", "id": "pk"}
    default_ordering = "-at"

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if not may_read_audit(self.access):
            raise PermissionDenied("This needs the role lead or administrator.")

    def get_queryset(self) -> QuerySet[AuditEntry]:
        return visible_entries(self.access, self.request.user.get_username())


class AuditExport(AuditViewSet):
    list_parameters: ClassVar[frozenset[str]] = frozenset()

    @extend_schema(filters=True, responses={(200, "application/jsonl"): OpenApiTypes.BINARY})
    def export(self, request: Request) -> Any:
        """All entries that the filters leave, oldest first, one JSON object a line, streamed. Each line is what its seal is the hash of."""
        rows = rows_of(self.filter_queryset(self.get_queryset()))
        file_name = f"masthead-audit-{timezone.now():%Y%m%dT%H%M%SZ}.jsonl"
        return download(request._request, json_lines(rows), content_type="application/jsonl", file_name=file_name)


class AuditBreakSerializer(serializers.Serializer[Any]):
    seal = serializers.IntegerField()
    entry = serializers.IntegerField(allow_null=True, help_text="Null where it is the seal itself.")
    why = serializers.CharField()
    found_at = serializers.DateTimeField()


class AuditStreamSerializer(ReadOnlySerializer):
    class Meta:
        model = AuditStream
        fields = ["address", "seal_number", "sent_at", "failing_since", "failure"]


class AuditVerificationSerializer(serializers.Serializer[Any]):
    seals = serializers.IntegerField()
    newest_seal = serializers.CharField(help_text="`number:digest`, for `verify_audit --seal`; empty before the first.")
    sealed_at = serializers.DateTimeField(allow_null=True)
    unsealed_since = serializers.DateTimeField(allow_null=True, help_text="Time of the oldest entry that no seal holds yet.")
    checked_at = serializers.DateTimeField(allow_null=True)
    all_checked_at = serializers.DateTimeField(allow_null=True, help_text="When every seal had last been verified.")
    asked_at = serializers.DateTimeField(allow_null=True, help_text="Somebody asked for all of it to be verified, and it has not been done yet.")
    broken = AuditBreakSerializer(allow_null=True)
    streams = AuditStreamSerializer(many=True)


class AuditVerificationView(ApiView):
    scope_area = "audit"

    @extend_schema(responses=AuditVerificationSerializer, operation_id="audit_verification")
    def get(self, request: Request) -> Response:
        """How far the audit is sealed, verified and sent, and the first thing that does not hold. For leads of the whole fleet."""
        self.require(Right.APPROVE)
        return self._answer()

    @extend_schema(request=None, responses={202: AuditVerificationSerializer}, operation_id="audit_verify")
    def post(self, request: Request) -> Response:
        """Have the whole chain verified within a minute. For administrators."""
        self.require(Right.ADMINISTER)
        ask_for_verification(now=timezone.now())
        return self._answer(202)

    def _answer(self, status: int = 200) -> Response:
        seal, check = newest_seal(), last_check()
        broken = None
        if check is not None and check.broken_at is not None:
            broken = {"seal": check.broken_seal, "entry": check.broken_entry, "why": check.broken_why, "found_at": check.broken_at}
        found = {
            "seals": seal.number if seal else 0,
            "newest_seal": f"{seal.number}:{seal.hex}" if seal else "",
            "sealed_at": seal.sealed_at if seal else None,
            "unsealed_since": unsealed(seal).entries().aggregate(oldest=Min("at"))["oldest"],
            "checked_at": check.checked_at if check else None,
            "all_checked_at": check.round_ended_at if check else None,
            "asked_at": check.asked_at if check else None,
            "broken": broken,
            "streams": AuditStream.objects.order_by("address"),
        }
        return Response(AuditVerificationSerializer(found).data, status=status)
