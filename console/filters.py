"""Filters of the standard lists. One FilterSet a kind feeds the page, the API, exports and saved views, so the names are the same everywhere.

Values may be repeated (`?state=down&state=unknown`) or given with commas. A value that names nothing finds nothing; a value of the wrong kind is an error
that names the filter.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import django_filters
from django import forms
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils.translation import gettext_lazy as _
from drf_spectacular.utils import extend_schema_field

from fleet.catalogue import SKUS
from fleet.models import AgentIdentity, Disagreement, Finding, Gpu, HealthState, MigSlice, Node, ObjectKind, ProtectedPlacement, Region, Site, Workload

MAX_VALUES = 200


class TextsWidget(forms.TextInput):
    """One text box for several values; reads repeated parameters as well."""

    def value_from_datadict(self, data: Any, files: Any, name: str) -> list[str]:
        return list(data.getlist(name)) if hasattr(data, "getlist") else [value for value in [data.get(name)] if value is not None]

    def format_value(self, value: Any) -> str | None:
        return ", ".join(value) if isinstance(value, list | tuple) else value


class TextsField(forms.Field):
    """Any of several texts, split at commas."""

    widget = TextsWidget

    def to_python(self, value: Iterable[str] | None) -> list[str]:
        texts = [part.strip() for text in value or [] for part in text.split(",")]
        texts = [text for text in texts if text]
        if len(texts) > MAX_VALUES:
            raise forms.ValidationError(_("At most 200 values."))
        if any("\x00" in text for text in texts):
            raise forms.ValidationError(_("A value holds a character that no name has."))
        return texts


@extend_schema_field({"type": "string", "description": "One value, or several with commas."})
class AnyOfFilter(django_filters.Filter):
    """`field IN (values)`."""

    field_class = TextsField

    def filter(self, qs: QuerySet, value: list[str]) -> QuerySet:
        return qs.filter(**{f"{self.field_name}__in": value}) if value else qs


class NumbersField(TextsField):
    def to_python(self, value: Iterable[str] | None) -> list[int]:  # type: ignore[override]
        texts = super().to_python(value)
        if any(not (text.isascii() and text.isdecimal() and len(text) <= 15) for text in texts):
            raise forms.ValidationError(_("Whole numbers only."))
        return [int(text) for text in texts]


class AnyOfNumbersFilter(AnyOfFilter):
    field_class = NumbersField


class StateFilter(django_filters.MultipleChoiceFilter):
    """Health states; a thing without a health row has never reported and is unknown."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(choices=HealthState.choices, label=_("State"), widget=forms.CheckboxSelectMultiple, **kwargs)

    def filter(self, qs: QuerySet, value: list[str]) -> QuerySet:
        if not value:
            return qs
        wanted = Q(health__state__in=value)
        return qs.filter(wanted | Q(health__isnull=True) if HealthState.UNKNOWN in value else wanted)


class YesNoFilter(django_filters.ChoiceFilter):
    """`yes` or `no` (`true` and `false` are read too): rows for which `condition` holds, or does not."""

    def __init__(self, condition: Q | Exists, **kwargs: Any) -> None:
        self.condition = Q(condition)
        super().__init__(choices=[("yes", _("Yes")), ("no", _("No")), ("true", _("Yes")), ("false", _("No"))], empty_label=_("Any"), **kwargs)
        self.extra["widget"] = forms.Select(choices=[("", _("Any")), ("yes", _("Yes")), ("no", _("No"))])

    def filter(self, qs: QuerySet, value: str) -> QuerySet:
        if not value:
            return qs
        return qs.filter(self.condition) if value in ("yes", "true") else qs.exclude(self.condition)


def choice_boxes(choices: Iterable[tuple[Any, Any]], **kwargs: Any) -> django_filters.MultipleChoiceFilter:
    return django_filters.MultipleChoiceFilter(choices=choices, widget=forms.CheckboxSelectMultiple, **kwargs)


class ListFilter(django_filters.FilterSet):
    """Base: an empty value is no filter; `q` is the quick filter."""

    q = django_filters.CharFilter(method="quick", label=_("Quick filter"), max_length=200)
    id = AnyOfNumbersFilter(field_name="pk", label=_("Chosen rows"))

    def quick(self, queryset: QuerySet, name: str, value: str) -> QuerySet:
        raise NotImplementedError

    @property
    def active(self) -> dict[str, Any]:
        """Filters in force with their cleaned values, `q` too. Empty when the parameters are wrong."""
        return {name: value for name, value in self.form.cleaned_data.items() if value not in (None, "", [])} if self.form.is_valid() else {}


class RegionFilter(ListFilter):
    area = AnyOfFilter(field_name="area__slug", label=_("Area"))
    kind = choice_boxes(Region.Kind.choices, label=_("Kind"))

    class Meta:
        model = Region
        fields: list[str] = []

    def quick(self, queryset: QuerySet, name: str, value: str) -> QuerySet:
        return queryset.filter(Q(slug__icontains=value) | Q(name__icontains=value))


class SiteFilter(ListFilter):
    state = StateFilter()
    kind = choice_boxes(Site.Kind.choices, label=_("Kind"))
    area = AnyOfFilter(field_name="region__area__slug", label=_("Area"))
    region = AnyOfFilter(field_name="region__slug", label=_("Region"))
    cause = AnyOfFilter(field_name="health__cause", label=_("Cause"))
    finding = AnyOfFilter(method="with_finding", label=_("Open finding"))
    out_of_contact = YesNoFilter(Q(health__out_of_contact_since__isnull=False), label=_("Out of contact"))
    disagreement = YesNoFilter(Exists(Disagreement.objects.filter(site=OuterRef("pk"), until__isnull=True)), label=_("Sources disagree"))

    class Meta:
        model = Site
        fields: list[str] = []

    def quick(self, queryset: QuerySet, name: str, value: str) -> QuerySet:
        return queryset.filter(Q(code__icontains=value) | Q(name__icontains=value))

    def with_finding(self, queryset: QuerySet, name: str, value: list[str]) -> QuerySet:
        return queryset.filter(pk__in=Finding.objects.open().filter(code__in=value, site__isnull=False).values("site_id")) if value else queryset


class NodeFilter(ListFilter):
    state = StateFilter()
    role = choice_boxes(Node.Role.choices, label=_("Role"))
    area = AnyOfFilter(field_name="site__region__area__slug", label=_("Area"))
    region = AnyOfFilter(field_name="site__region__slug", label=_("Region"))
    site = AnyOfFilter(field_name="site__code", label=_("Site"))
    driver = AnyOfFilter(field_name="driver_version", label=_("Driver"))
    cause = AnyOfFilter(field_name="health__cause", label=_("Cause"))
    connected = YesNoFilter(Q(agent_connection__connected=True), label=_("Agent connected"))
    enrolled = YesNoFilter(Exists(AgentIdentity.objects.filter(node=OuterRef("pk"), revoked_at__isnull=True)), label=_("Agent enrolled"))
    retired = YesNoFilter(Q(retired_at__isnull=False), label=_("Retired"))

    class Meta:
        model = Node
        fields: list[str] = []

    def quick(self, queryset: QuerySet, name: str, value: str) -> QuerySet:
        return queryset.filter(Q(host_name__icontains=value) | Q(site_id__in=Site.objects.filter(code__icontains=value).values("pk")))


class GpuFilter(ListFilter):
    state = StateFilter()
    sku = choice_boxes([(key, sku.name) for key, sku in SKUS.items()], label=_("Model"))
    presence = choice_boxes(Gpu.Presence.choices, label=_("Presence"))
    area = AnyOfFilter(field_name="node__site__region__area__slug", label=_("Area"))
    region = AnyOfFilter(field_name="node__site__region__slug", label=_("Region"))
    site = AnyOfFilter(field_name="node__site__code", label=_("Site"))
    node = AnyOfNumbersFilter(field_name="node_id", label=_("Node (number)"))
    cause = AnyOfFilter(field_name="health__cause", label=_("Cause"))
    xid = AnyOfNumbersFilter(field_name="health__last_xid", label=_("Last XID"))
    finding = AnyOfFilter(method="with_finding", label=_("Open finding"))
    mig = YesNoFilter(Q(mig_enabled=True), label=_("MIG on"))
    phy = YesNoFilter(Exists(ProtectedPlacement.objects.filter(gpu=OuterRef("pk"))), label=_("Carries PHY"))

    class Meta:
        model = Gpu
        fields: list[str] = []

    def quick(self, queryset: QuerySet, name: str, value: str) -> QuerySet:
        nodes = Node.objects.filter(Q(host_name__icontains=value) | Q(site_id__in=Site.objects.filter(code__icontains=value).values("pk"))).values("pk")
        uuid = value if value.upper().startswith("GPU-") else f"GPU-{value}"
        return queryset.filter(Q(uuid__startswith=uuid[:4].upper() + uuid[4:].lower()) | Q(serial=value) | Q(node_id__in=nodes))

    def with_finding(self, queryset: QuerySet, name: str, value: list[str]) -> QuerySet:
        found = Finding.objects.open().filter(code__in=value, kind=ObjectKind.GPU).values("object_key")
        return queryset.filter(uuid__in=found) if value else queryset


class TenantWorkloadFilter(ListFilter):
    """What a tenant may ask of its own workloads: nothing that names a site, a node or another tenant."""

    namespace = AnyOfFilter(field_name="namespace", label=_("Namespace"))
    sharing = choice_boxes(Workload.Sharing.choices, label=_("Sharing"))
    running = YesNoFilter(Q(ended_at__isnull=True), label=_("Running"))

    class Meta:
        model = Workload
        fields: list[str] = []

    def quick(self, queryset: QuerySet, name: str, value: str) -> QuerySet:
        return queryset.filter(Q(pod__icontains=value) | Q(namespace__icontains=value))


class WorkloadFilter(TenantWorkloadFilter):
    tenant = AnyOfFilter(field_name="tenant_key", label=_("Tenant"))
    region = AnyOfFilter(field_name="gpu__node__site__region__slug", label=_("Region"))
    site = AnyOfFilter(field_name="gpu__node__site__code", label=_("Site"))
    gpu = AnyOfFilter(field_name="gpu__uuid", label=_("GPU"))
    purpose = choice_boxes(MigSlice.Purpose.choices, field_name="slice__purpose", label=_("Purpose"))
