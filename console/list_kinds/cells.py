"""What the standard lists share: the rank of a state, and the cells that every kind has."""

from __future__ import annotations

from typing import Any

from django.db.models import Case, IntegerField, QuerySet, Value, When
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from console import formats
from console.links import object_url
from console.summary import STATE_ORDER
from console.templatetags.masthead import state
from fleet.models import HealthState, Region, Site

STATE_RANKS = {state: rank for rank, state in enumerate(STATE_ORDER)}
state_rank = Case(
    *[When(health__state=value, then=Value(rank)) for value, rank in STATE_RANKS.items()],
    default=Value(STATE_RANKS[HealthState.UNKNOWN]),
    output_field=IntegerField(),
)


def ranked(rows: QuerySet[Any]) -> QuerySet[Any]:
    """With `state_rank`, by which lists of things with health sort."""
    return rows.annotate(state_rank=state_rank)


def health_state(row: Any) -> str:
    health = getattr(row, "health", None)
    return health.state if health else HealthState.UNKNOWN


def state_cell(row: Any) -> SafeString:
    return format_html('<span data-field="{}:state">{}</span>', row.pk, state(health_state(row)))


def why_cell(row: Any) -> SafeString | str:
    health = getattr(row, "health", None)
    if health is None:
        return _("Has never reported.")
    why = health.why if health.state != HealthState.OK else ""
    return format_html('<span data-field="{0}:why" title="{1}">{1}</span>', row.pk, why)


def since_cell(row: Any) -> SafeString:
    health = getattr(row, "health", None)
    return format_html('<span data-field="{}:since">{}</span>', row.pk, formats.age(health.since if health else None))


def link(url: str, text: str, css: str = "") -> SafeString:
    return format_html('<a href="{}" class="{}">{}</a>', url, css, text)


def site_link(site: Site) -> SafeString:
    return link(object_url("site", site.code), site.code)


def region_link(region: Region) -> SafeString:
    return link(object_url("region", region.slug), region.name, "dim")


def n_of_m(n: int | None, m: int | None) -> SafeString | str:
    if m is None:
        return formats.not_reported()
    text = _("%(n)s of %(m)s") % {"n": formats.number(n or 0), "m": formats.number(m)}
    return text if (n or 0) >= m else format_html('<span class="strong">{}</span>', text)


def text_cell(value: str) -> SafeString | str:
    return value or formats.not_reported()
