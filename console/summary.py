"""The fleet in a few figures, for overview and wall: counts with their n of m, the worst, what was found, who is silent, power, quality.

Everything is read inside an `Access` (and for the wall inside a view's regions), in SQL, with a fixed number of statements.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Case, Count, IntegerField, Max, Min, Q, QuerySet, Sum, Value, When
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from console.access import Access
from fleet.health.verdict import WORST_FIRST
from fleet.health.xid import xid_of_code
from fleet.models import DataQuality, Finding, HealthState, MaintenanceWindow, ObjectKind, Region, Site
from fleet.telemetry.completeness import Incomplete, incomplete_now

STATE_ORDER = tuple(HealthState(state.value) for state in WORST_FIRST)
# How much a site in this state counts when regions are put in order (the wall's script has the same weights).
BADNESS = {HealthState.DOWN: 1.0, HealthState.UNKNOWN: 0.8, HealthState.DEGRADED: 0.2}
SEVERITY_ORDER = (Finding.Severity.CRITICAL, Finding.Severity.MAJOR, Finding.Severity.MINOR, Finding.Severity.WARNING, Finding.Severity.INDETERMINATE)
# The mark beside a finding: what it does to health.
SEVERITY_STATE = {
    Finding.Severity.CRITICAL: HealthState.DOWN,
    Finding.Severity.MAJOR: HealthState.DEGRADED,
    Finding.Severity.MINOR: HealthState.DEGRADED,
    Finding.Severity.WARNING: HealthState.DEGRADED,
    Finding.Severity.INDETERMINATE: HealthState.UNKNOWN,
}
CAUSE_WORDS: dict[str, str | Promise] = {
    "agent_silent": _("Agent silent"),
    "driver_error": _("Driver error"),
    "driver_mismatch": _("Driver does not match its library"),
    "ecc_double_bit": _("Double-bit ECC error"),
    "exporter_down": _("Exporter down"),
    "exporter_frozen": _("Exporter frozen"),
    "flapping": _("State changes too often"),
    "gpu_count": _("GPU count differs from expected"),
    "gpu_lost": _("GPU lost"),
    "gpu_missing": _("GPU missing"),
    "health_report_lost": _("Agent's health report lost"),
    "hw_power_brake": _("Power brake"),
    "hw_slowdown": _("Hardware slowdown"),
    "hw_thermal_slowdown": _("Thermal throttling"),
    "inventory_report_lost": _("Agent's inventory report lost"),
    "manual_intervention": _("Out of contact for days"),
    "mig_drift": _("MIG layout differs from the wanted one"),
    "mig_impossible": _("MIG layout that cannot be on its board"),
    "node_down": _("Node down"),
    "nvlink_errors": _("NVLink errors"),
    "out_of_contact": _("Out of contact"),
    "pcie_replay": _("PCIe replays"),
    "profiling_suspect": _("Profiling counters stuck at 0"),
    "region_silent": _("Region silent"),
    "reset_required": _("GPU needs a reset"),
    "row_remap_failure": _("Row remap failed"),
    "row_remap_pending": _("Row remap waits for a reset"),
    "series_missing": _("Series missing"),
    "sw_thermal_slowdown": _("Software thermal slowdown"),
    "thermal_margin_low": _("Thermal margin low"),
    "unexpected_gpu": _("GPU that nobody listed"),
}


def cause_words(code: str) -> str:
    """Words of a finding's code; a code without words reads as itself."""
    xid = xid_of_code(code)
    if xid is not None:
        return f"XID {xid}"
    found = CAUSE_WORDS.get(code)
    return str(found) if found is not None else code.replace("_", " ").capitalize()


@dataclass(frozen=True)
class Scope:
    """What is summed up: an access, perhaps only these regions of it (None: all)."""

    access: Access
    region_ids: tuple[int, ...] | None = None

    @property
    def whole_fleet(self) -> bool:
        return self.access.region_ids is None and self.region_ids is None

    def sites(self) -> QuerySet[Site]:
        sites = self.access.sites()
        return sites if self.region_ids is None else sites.filter(region_id__in=self.region_ids)

    def regions(self) -> QuerySet[Region]:
        regions = self.access.regions()
        return regions if self.region_ids is None else regions.filter(pk__in=self.region_ids)

    def findings(self) -> QuerySet[Finding]:
        """Open findings of the scope's sites; those of no site only for who sees the whole fleet."""
        open_ones = Finding.objects.open()
        if self.whole_fleet:
            return open_ones
        return open_ones.filter(site__region_id__in=self.regions().values("pk"))


@dataclass(frozen=True)
class StateCount:
    state: str
    label: str
    count: int


@dataclass(frozen=True)
class Counts:
    """Sites by health. `reporting` of `sites` are in contact; `oldest_contact_at` is the oldest last contact of the others."""

    by_state: list[StateCount]
    sites: int
    reporting: int
    never: int
    oldest_contact_at: datetime | None

    @property
    def missing(self) -> int:
        return self.sites - self.reporting


# A site without a row of health has never been judged: unknown, not ok.
def _in_state(state: HealthState) -> Q:
    return Q(health__state=state) | Q(health__isnull=True) if state == HealthState.UNKNOWN else Q(health__state=state)


_IN_CONTACT = Q(health__last_contact_at__isnull=False, health__out_of_contact_since__isnull=True)


def health_counts(scope: Scope) -> Counts:
    found = scope.sites().aggregate(
        sites=Count("pk"),
        reporting=Count("pk", filter=_IN_CONTACT),
        never=Count("pk", filter=Q(health__isnull=True) | Q(health__last_contact_at__isnull=True)),
        oldest=Min("health__last_contact_at", filter=Q(health__out_of_contact_since__isnull=False)),
        **{state.value: Count("pk", filter=_in_state(state)) for state in HealthState},
    )
    by_state = [StateCount(state.value, str(state.label), found[state.value]) for state in HealthState]
    return Counts(by_state=by_state, sites=found["sites"], reporting=found["reporting"], never=found["never"], oldest_contact_at=found["oldest"])


@dataclass(frozen=True)
class RegionLine:
    slug: str
    name: str
    area: str
    sites: int
    reporting: int
    counts: dict[str, int]
    worst: str

    @property
    def bad(self) -> list[StateCount]:
        return [StateCount(state.value, str(state.label), self.counts[state.value]) for state in STATE_ORDER[:-1] if self.counts[state.value]]


def worst_regions(scope: Scope, limit: int) -> list[RegionLine]:
    """Regions with anything but ok, the worst first: by share of sites, down weighing most, then unknown, then degraded."""
    rows = (
        scope.regions()
        .annotate(
            site_count=Count("sites"),
            reporting_count=Count("sites", filter=Q(sites__health__last_contact_at__isnull=False, sites__health__out_of_contact_since__isnull=True)),
            **{f"n_{state.value}": Count("sites", filter=Q(sites__health__state=state)) for state in HealthState},
        )
        .filter(site_count__gt=0)
        .values_list("slug", "name", "area__name", "site_count", "reporting_count", *(f"n_{state.value}" for state in HealthState))
    )
    lines: list[RegionLine] = []
    for slug, name, area, sites, reporting, *numbers in rows:
        counts = {state.value: number for state, number in zip(HealthState, numbers, strict=True)}
        counts[HealthState.UNKNOWN.value] += sites - sum(counts.values())
        worst = next((state.value for state in STATE_ORDER if counts[state.value]), HealthState.OK.value)
        if worst != HealthState.OK:
            lines.append(RegionLine(slug, name, area, sites, reporting, counts, worst))
    lines.sort(key=lambda line: (-sum(weight * line.counts[state.value] for state, weight in BADNESS.items()) / line.sites, line.slug))
    return lines[:limit]


@dataclass(frozen=True)
class FindingGroup:
    """Open findings with one cause."""

    code: str
    title: str
    state: str
    severity: str
    sites: int
    objects: int
    kind: str
    since: datetime
    summary: str
    advised_action: str
    site_code: str  # of the only site, else empty
    severity_key: str


def finding_groups(scope: Scope, limit: int) -> tuple[list[FindingGroup], int]:
    """Open findings by cause, the gravest and widest first, and how many findings are open in all. Three statements at most."""
    rank = Case(*(When(severity=severity, then=Value(order)) for order, severity in enumerate(SEVERITY_ORDER)), default=Value(9), output_field=IntegerField())
    rows = list(
        scope.findings()
        .values("code")
        .annotate(
            rank=Min(rank),
            site_count=Count("site", distinct=True),
            found=Count("pk"),
            first=Min("since"),
            kind=Min("kind"),
            newest=Max("pk"),
            only_site=Min("site__code"),
        )
        .order_by("rank", "-site_count", "first")
    )
    total = sum(row["found"] for row in rows)
    newest = {one.pk: one for one in Finding.objects.filter(pk__in=[row["newest"] for row in rows[:limit]])}
    groups = []
    for row in rows[:limit]:
        example = newest.get(row["newest"])
        if example is None:  # ended in between
            continue
        severity = SEVERITY_ORDER[row["rank"]] if row["rank"] < len(SEVERITY_ORDER) else Finding.Severity.INDETERMINATE
        groups.append(
            FindingGroup(
                code=row["code"],
                title=cause_words(row["code"]),
                state=SEVERITY_STATE[severity].value,
                severity=str(severity.label),
                sites=row["site_count"],
                objects=row["found"],
                kind=str(ObjectKind(row["kind"]).label),
                since=row["first"],
                summary=example.summary if row["found"] == 1 else "",
                advised_action=example.advised_action,
                site_code=row["only_site"] if row["site_count"] == 1 else "",
                severity_key=severity.value,
            )
        )
    return groups, total


def newest_findings(scope: Scope, limit: int) -> list[Finding]:
    return list(scope.findings().select_related("site").order_by("-since", "-pk")[:limit])


def silent_sites(scope: Scope, limit: int) -> tuple[list[Site], int]:
    """Sites out of contact, the longest silent first, and how many there are."""
    silent = scope.sites().filter(health__out_of_contact_since__isnull=False)
    return list(silent.select_related("health", "region").order_by("health__out_of_contact_since", "code")[:limit]), silent.count()


@dataclass(frozen=True)
class PowerLine:
    """Draw of an area, of the sites that report it; `fed_watts` and `feed_watts` are draw and feed of the same sites, those that have both."""

    area: str
    watts: float | None
    sites_with_power: int
    sites: int
    fed_watts: float | None
    feed_watts: int | None

    @property
    def ratio(self) -> float | None:
        return self.fed_watts / self.feed_watts if self.fed_watts is not None and self.feed_watts else None


def power_by_area(scope: Scope) -> list[PowerLine]:
    both = Q(health__power_watts__isnull=False, power_feed_watts__isnull=False)
    rows = (
        scope.sites()
        .values("region__area__slug", "region__area__name")
        .annotate(
            watts=Sum("health__power_watts"),
            with_power=Count("health__power_watts"),
            site_count=Count("pk"),
            fed=Sum("health__power_watts", filter=both),
            feed=Sum("power_feed_watts", filter=both),
        )
        .order_by("region__area__slug")
        .values_list("region__area__name", "watts", "with_power", "site_count", "fed", "feed")
    )
    return [PowerLine(*row) for row in rows]


@dataclass(frozen=True)
class QualityLine:
    reason: str
    count: int
    sites: int
    last_at: datetime


def data_quality(scope: Scope, *, now: datetime, within: timedelta = timedelta(hours=1)) -> list[QualityLine]:
    """Samples refused, by reason, of those that were refused lately; those of no known site only for who sees the whole fleet."""
    lately = DataQuality.objects.filter(last_at__gte=now - within)
    if not scope.whole_fleet:
        lately = lately.filter(site__region_id__in=scope.regions().values("pk"))
    rows = lately.values("reason").annotate(total=Sum("count"), site_count=Count("site", distinct=True), last=Max("last_at")).order_by("-total")
    return [QualityLine(row["reason"].replace("_", " "), row["total"], row["site_count"], row["last"]) for row in rows[:6]]


def incomplete(scope: Scope, *, now: datetime) -> Incomplete | None:
    """What every total of the scope lacks at present, because a pull answered in part; None when all is there. Three statements at most."""
    return incomplete_now(now=now, region_ids=None if scope.whole_fleet else list(scope.regions().values_list("pk", flat=True)))


def maintenance_now(scope: Scope, *, now: datetime, limit: int) -> list[MaintenanceWindow]:
    """Windows in force, the first to end first. With only some regions: those on the fleet, and on these regions or their sites."""
    windows = MaintenanceWindow.objects.active(now).order_by("ends_at")
    if scope.whole_fleet:
        return list(windows[:limit])
    regions = scope.regions()
    slugs, areas = list(regions.values_list("slug", flat=True)), list(regions.values_list("area__slug", flat=True).distinct())
    in_scope = (
        Q(scope_kind=ObjectKind.FLEET)
        | Q(scope_kind=ObjectKind.AREA, scope_key__in=areas)
        | Q(scope_kind=ObjectKind.REGION, scope_key__in=slugs)
        | Q(scope_kind=ObjectKind.SITE, scope_key__in=scope.sites().values("code"))
    )
    return list(windows.filter(in_scope)[:limit])
