"""Areas, regions and sites."""

from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ValidationError as DjangoValidationError
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from timezone_field import TimeZoneField

from console.access import Right
from console.api.base import WritableViewSet
from console.api.charts import CHART_PATH, chart_answer, chart_schema
from console.api.health import HealthField, SiteHealthSerializer
from console.api.history import HistoryMixin
from console.api.strict import StrictModelSerializer
from console.filters import RegionFilter, SiteFilter
from console.list_kinds import REGIONS, SITES, region_rows, site_rows, sites_unknown
from fleet.models import Area, HealthState, ObjectKind, Region, Site


class ScopedSlugField(serializers.SlugRelatedField[Any]):
    """A related object named by a slug. What lies outside the caller's scope does not exist (case C36)."""

    def __init__(self, kind: str, **kwargs: Any) -> None:
        self.kind = kind
        models: dict[str, Any] = {"regions": Region, "sites": Site}
        super().__init__(**({"queryset": models[kind].objects.none()} | kwargs))

    def get_queryset(self) -> QuerySet[Any]:
        found: QuerySet[Any] = getattr(self.context["view"].access, self.kind)()
        return found


class AreaSerializer(StrictModelSerializer):
    class Meta:
        model = Area
        fields = ["slug", "name"]


class AreaViewSet(HistoryMixin, WritableViewSet):
    """Markets. Changing one needs the right `import` on the whole fleet."""

    scope_area = "sites"
    history_kind = ObjectKind.AREA
    serializer_class = AreaSerializer
    lookup_field = "slug"
    ordering_fields = {"slug": "slug", "name": "name"}
    default_ordering = "slug"

    def get_queryset(self) -> QuerySet[Area]:
        return Area.objects.all() if self.access.fleet_rank else Area.objects.filter(regions__in=self.access.regions()).distinct()

    def allow_write(self, instance: Any, values: Mapping[str, Any]) -> None:
        self.require(Right.IMPORT)


class RegionSerializer(StrictModelSerializer):
    area = serializers.SlugRelatedField(slug_field="slug", queryset=Area.objects.all())
    site_counts = serializers.SerializerMethodField()

    class Meta:
        model = Region
        fields = ["slug", "name", "area", "kind", "site_counts"]

    @extend_schema_field({"type": "object", "additionalProperties": {"type": "integer"}})
    def get_site_counts(self, region: Region) -> dict[str, int] | None:
        """Sites by health and in all; null where the list was not asked with counts."""
        if not hasattr(region, "site_count"):
            return None
        counts = {state: getattr(region, f"sites_{state}") for state in HealthState.values if state != HealthState.UNKNOWN}
        return {"all": region.site_count, HealthState.UNKNOWN.value: sites_unknown(region), **counts}


class RegionViewSet(HistoryMixin, WritableViewSet):
    """Regional edges and the central cloud, with how many of their sites are in which state."""

    scope_area = "sites"
    history_kind = ObjectKind.REGION
    serializer_class = RegionSerializer
    filterset_class = RegionFilter
    lookup_field = "slug"
    ordering_fields = {**REGIONS.orderings, "slug": "slug"}
    default_ordering = "slug"

    def get_queryset(self) -> QuerySet[Region]:
        return region_rows(self.access) if self.action in {"list", "retrieve"} else self.access.regions().select_related("area")

    def etag(self, instance: Any) -> str:
        return super().etag(Region.objects.select_related("area").get(pk=instance.pk))

    def allow_write(self, instance: Any, values: Mapping[str, Any]) -> None:
        self.require(Right.IMPORT)


class TimeZoneName(serializers.CharField):
    """A zone of the IANA database by name."""

    def to_internal_value(self, data: Any) -> Any:
        try:
            return TimeZoneField(use_pytz=False).to_python(super().to_internal_value(data))
        except DjangoValidationError as error:
            raise serializers.ValidationError("Not a time zone of the IANA database.") from error

    def to_representation(self, value: Any) -> str:
        return str(value)


class SiteSerializer(StrictModelSerializer):
    region = ScopedSlugField("regions", slug_field="slug")
    time_zone = TimeZoneName(required=False)

    class Meta:
        model = Site
        fields = ["code", "name", "kind", "region", "latitude", "longitude", "time_zone", "power_feed", "power_feed_watts", "expected_nodes"]


class SiteViewSet(HistoryMixin, WritableViewSet):
    """Sites. `expand=health` adds state, since, why and the roll-up of nodes and GPUs."""

    scope_area = "sites"
    history_kind = ObjectKind.SITE
    serializer_class = SiteSerializer
    filterset_class = SiteFilter
    lookup_field = "code"
    lookup_value_regex = "[^/]+"
    ordering_fields = SITES.orderings
    default_ordering = "code"
    expandable = {"health": lambda: HealthField(SiteHealthSerializer)}

    def get_queryset(self) -> QuerySet[Site]:
        return site_rows(self.access)

    @chart_schema
    @action(detail=True, methods=["get"], url_path=CHART_PATH, filter_backends=[], pagination_class=None)
    def charts(self, request: Request, panel: str, **kwargs: Any) -> Response:
        """Points of one chart over the GPUs of the site: hottest temperature, mean clock, sum of power, mean use."""
        self.extra_parameters = ("range",)
        site = self.get_object()
        return chart_answer(request, panel, {"site": site.code}, site_code=site.code)

    def allow_write(self, instance: Any, values: Mapping[str, Any]) -> None:
        if instance is not None:
            self.require(Right.IMPORT, instance.region_id)
        if "region" in values:
            self.require(Right.IMPORT, values["region"].pk)
