"""Charts of a GPU or a site, as figure, table and one sentence. One computation for page and API."""

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.conf import settings
from django.utils.translation import gettext as _

from console.charts import Event, Limit, draw_panel, summarise
from fleet import catalogue
from fleet.models import Gpu, HealthTransition, ObjectKind, XidEvent
from fleet.prometheus import PrometheusSource, SourceFault
from fleet.telemetry.panels import RANGES, Panel, read_panel

MAX_EVENTS = 12


def chart(
    panel: Panel, labels: dict[str, str], range_word: str, *, zone_name: str, now: datetime, gpu: Gpu | None = None, site_code: str = ""
) -> tuple[int, dict[str, Any]]:
    """(HTTP status, body) of one chart. Without an answer from Prometheus: 503 with the reason, and no line at all."""
    length = RANGES[range_word]
    try:
        with PrometheusSource() as source:
            data = read_panel(source, panel, labels, end=now, length=length, scrape_interval_seconds=settings.SCRAPE_INTERVAL_SECONDS)
    except SourceFault as fault:
        return 503, {"panel": panel.key, "title": panel.title, "unit": panel.unit, "reason": fault.reason, "kind": fault.kind.value}
    zone = _zone(zone_name)
    newest = data.newest
    return 200, {
        "panel": panel.key,
        "title": panel.title,
        "unit": panel.unit,
        "range": range_word,
        "zone": str(zone),
        "step_seconds": data.step_seconds,
        "age_seconds": None if newest is None else max(0.0, round(now.timestamp() - newest[0], 1)),
        "complete": not data.warnings,
        "warnings": list(data.warnings),
        "gaps": data.gaps,
        "summary": summarise(data, now=now),
        "figure": draw_panel(data, zone=zone, limits=_limits(panel, gpu), events=_events(gpu, site_code, now - length)),
        "points": [[time, value] for time, value in zip(data.times, data.values, strict=True)],
    }


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        return ZoneInfo("UTC")


def _limits(panel: Panel, gpu: Gpu | None) -> list[Limit]:
    sku = catalogue.SKUS.get(gpu.sku) if gpu else None
    if sku is None or gpu is None:
        return []
    if panel.key == "temperature" and sku.slowdown_celsius is not None:
        return [Limit(sku.slowdown_celsius, _("slowdown %(n)d °C") % {"n": sku.slowdown_celsius})]
    if panel.key == "power":
        watts = gpu.power_limit_watts or sku.power_max_watts
        return [Limit(watts, _("cap %(n)d W") % {"n": watts})] if watts else []
    return []


def _events(gpu: Gpu | None, site_code: str, since: datetime) -> list[Event]:
    """What happened meanwhile, newest last: XIDs of the GPU, or changes of state of the site."""
    if gpu is not None:
        events = XidEvent.objects.filter(gpu=gpu, last_at__gte=since).order_by("-last_at")[:MAX_EVENTS]
        return [Event(event.last_at, f"XID {event.xid}") for event in reversed(events)]
    changes = HealthTransition.objects.filter(kind=ObjectKind.SITE, object_key=site_code, at__gte=since).order_by("-at")[:MAX_EVENTS]
    return [Event(change.at, change.get_to_state_display()) for change in reversed(changes)]
