"""The audit: who did what, on what, why and when. For administrators and leads, each inside its scope."""

from typing import Any

import django_filters
from django.db.models import CharField, Q, QuerySet
from django.db.models.functions import Cast
from rest_framework.exceptions import PermissionDenied

from console.access import Right
from console.api.base import ApiViewSet
from console.api.strict import ReadOnlySerializer
from console.filters import AnyOfFilter, choice_boxes
from fleet.models import AuditEntry, ObjectKind


class AuditFilter(django_filters.FilterSet):
    kind = choice_boxes(ObjectKind.choices)
    key = AnyOfFilter(field_name="object_key")
    actor = AnyOfFilter(field_name="actor")
    action = AnyOfFilter(field_name="action")
    request_id = AnyOfFilter(field_name="request_id")
    since = django_filters.IsoDateTimeFilter(field_name="at", lookup_expr="gte")
    until = django_filters.IsoDateTimeFilter(field_name="at", lookup_expr="lt")


class AuditSerializer(ReadOnlySerializer):
    class Meta:
        model = AuditEntry
        fields = ["id", "at", "actor", "action", "kind", "object_key", "reason", "outcome", "detail", "request_id"]


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
        if not self.access.may_anywhere(Right.APPROVE):
            raise PermissionDenied("This needs the role lead or administrator.")

    def get_queryset(self) -> QuerySet[AuditEntry]:
        entries = AuditEntry.objects.all()
        if self.access.may(Right.ADMINISTER):
            return entries
        own = Q(actor=self.request.user.get_username())
        if self.access.may(Right.APPROVE):
            return entries.filter(own | ~Q(kind__in=("", ObjectKind.SENDER)))
        regions = [pk for pk in self.access.region_ranks if self.access.may(Right.APPROVE, pk)]
        nodes = self.access.nodes().filter(site__region__in=regions).annotate(key=Cast("pk", CharField()))
        return entries.filter(
            own
            | Q(kind=ObjectKind.REGION, object_key__in=self.access.regions().filter(pk__in=regions).values("slug"))
            | Q(kind=ObjectKind.SITE, object_key__in=self.access.sites().filter(region__in=regions).values("code"))
            | Q(kind=ObjectKind.NODE, object_key__in=nodes.values("key"))
            | Q(kind=ObjectKind.GPU, object_key__in=self.access.gpus().filter(node__site__region__in=regions).values("uuid"))
        )
