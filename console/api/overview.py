"""The fleet in a few figures, as `/` shows it: counts with their n of m, findings by cause, the worst regions, who is silent, power."""

from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.fields import SkipField
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Access
from console.api.base import ApiView
from console.api.strict import FiniteFloatField
from console.summary import Scope, finding_groups, health_counts, incomplete, power_by_area, silent_sites, worst_regions
from console.tenant_summary import tenant_summary

MOST_LINES = 100


class SiteCountsSerializer(serializers.Serializer[Any]):
    total = serializers.IntegerField(source="sites")
    reporting = serializers.IntegerField(help_text="In contact now.")
    never = serializers.IntegerField(help_text="Never in contact.")
    oldest_contact_at = serializers.DateTimeField(allow_null=True, help_text="The oldest last contact of those that are out of contact.")
    by_state = serializers.SerializerMethodField()

    def get_by_state(self, counts: Any) -> dict[str, int]:
        return {one.state: one.count for one in counts.by_state}


class CauseSerializer(serializers.Serializer[Any]):
    code = serializers.CharField()
    title = serializers.CharField()
    severity = serializers.CharField(source="severity_key")
    state = serializers.CharField(help_text="What it does to health.")
    sites = serializers.IntegerField()
    objects = serializers.IntegerField()
    since = serializers.DateTimeField()
    summary = serializers.CharField(help_text="Of the only one, else empty.")
    advised_action = serializers.CharField()
    site = serializers.CharField(source="site_code", help_text="The only site, else empty.")


class FindingsSerializer(serializers.Serializer[Any]):
    open = serializers.IntegerField()
    by_cause = CauseSerializer(many=True, help_text=f"The gravest and widest first, at most {MOST_LINES}.")


class RegionLineSerializer(serializers.Serializer[Any]):
    region = serializers.CharField(source="slug")
    name = serializers.CharField()
    area = serializers.CharField()
    sites = serializers.IntegerField()
    reporting = serializers.IntegerField()
    worst = serializers.CharField()
    by_state = serializers.DictField(source="counts", child=serializers.IntegerField())


class SilentSiteSerializer(serializers.Serializer[Any]):
    site = serializers.CharField(source="code")
    region = serializers.CharField(source="region.slug")
    last_contact_at = serializers.DateTimeField(source="health.last_contact_at", allow_null=True)
    out_of_contact_since = serializers.DateTimeField(source="health.out_of_contact_since")


class SilentSerializer(serializers.Serializer[Any]):
    total = serializers.IntegerField()
    sites = SilentSiteSerializer(many=True, help_text=f"The longest silent first, at most {MOST_LINES}.")


class PowerSerializer(serializers.Serializer[Any]):
    area = serializers.CharField()
    watts = FiniteFloatField(allow_null=True, help_text="Of the sites that report it; null when none does.")
    sites_with_power = serializers.IntegerField()
    sites = serializers.IntegerField()
    fed_watts = FiniteFloatField(allow_null=True, help_text="Draw of the sites that have both a draw and a feed.")
    feed_watts = serializers.IntegerField(allow_null=True, help_text="Feed of the same sites.")


class TenantLineSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    workloads = serializers.IntegerField(help_text="Running now.")
    pods = serializers.IntegerField()
    namespaces = serializers.IntegerField()
    touched = serializers.IntegerField(help_text="On a GPU that is not ok.")


class IncompleteSerializer(serializers.Serializer[Any]):
    reason = serializers.CharField(help_text="What the last pull lacked, in its source's words.")
    last_at = serializers.DateTimeField()
    site_codes = serializers.ListField(child=serializers.CharField(), help_text="The sites that lack something. Empty: any of them may.")

    def get_attribute(self, instance: Any) -> Any:
        if self.field_name not in instance:  # a tenant's figures: not even null
            raise SkipField
        return super().get_attribute(instance)


class OverviewSerializer(serializers.Serializer[Any]):
    """A tenant's user gets `at` and `tenants`, everybody else all but `tenants`."""

    at = serializers.DateTimeField()
    sites = SiteCountsSerializer(required=False)
    findings = FindingsSerializer(required=False)
    worst_regions = RegionLineSerializer(many=True, required=False)
    silent = SilentSerializer(required=False)
    power = PowerSerializer(many=True, required=False)
    incomplete = IncompleteSerializer(required=False, allow_null=True, help_text="Why these totals lack something at present; null when they are whole.")
    tenants = TenantLineSerializer(many=True, required=False)


class OverviewView(ApiView):
    scope_area = "health"

    @extend_schema(operation_id="overview", responses=OverviewSerializer)
    def get(self, request: Request) -> Response:
        """The figures of the caller's scope, read in one go."""
        self.refuse_parameters()
        if not self.access.is_operator_side:
            lines = tenant_summary(self.access, limit=0).tenants
            return Response(OverviewSerializer({"at": timezone.now(), "tenants": lines}).data)
        return Response(OverviewSerializer(figures(self.access)).data)


def figures(access: Access) -> dict[str, Any]:
    scope = Scope(access)
    groups, open_total = finding_groups(scope, MOST_LINES)
    silent, silent_total = silent_sites(scope, MOST_LINES)
    now = timezone.now()
    return {
        "at": now,
        "incomplete": incomplete(scope, now=now),
        "sites": health_counts(scope),
        "findings": {"open": open_total, "by_cause": groups},
        "worst_regions": worst_regions(scope, MOST_LINES),
        "silent": {"total": silent_total, "sites": silent},
        "power": power_by_area(scope),
    }
