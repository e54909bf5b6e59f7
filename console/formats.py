"""Values as text for people: numbers with their unit, durations, times with their zone. `None` and NaN are "not reported", never 0."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from django.utils import formats, timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

GIB = 1024**3


def not_reported() -> SafeString:
    return format_html('<span class="not-reported">{}</span>', _("not reported"))


def is_missing(value: object) -> bool:
    """None, NaN, infinite, or no number at all (templates hand on "" for what is not there)."""
    return isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)


def number(value: float | None, decimals: int = 0) -> str:
    """Grouped by the locale: 28114 is "28,114"."""
    if value is None or is_missing(value):
        return not_reported()
    return formats.number_format(round(value, decimals), decimals, use_l10n=True, force_grouping=True)


def quantity(value: float | None, unit: str, *, scale: float = 1, decimals: int = 0) -> str:
    if value is None or is_missing(value):
        return not_reported()
    return f"{number(value / scale, decimals)}\N{NO-BREAK SPACE}{unit}"


def watts(value: float | None) -> str:
    if value is not None and not is_missing(value) and abs(value) >= 10_000:
        return quantity(value, "kW", scale=1000, decimals=1)
    return quantity(value, "W")


def celsius(value: float | None) -> str:
    return quantity(value, "°C")


def megahertz(value_hertz: float | None) -> str:
    return quantity(value_hertz, "MHz", scale=1e6)


def percent(ratio: float | None) -> str:
    return quantity(ratio, "%", scale=0.01)


def gibibytes(value_bytes: float | None) -> str:
    return quantity(value_bytes, "GiB", scale=GIB, decimals=1)


def duration(span: timedelta) -> str:
    """Two units at most: "4 s", "12 m 5 s", "1 h 55 m", "3 d 4 h"."""
    seconds = max(0, int(span.total_seconds()))
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, seconds = divmod(rest, 60)
    if days:
        return _("%(days)d d %(hours)d h") % {"days": days, "hours": hours} if hours and days < 100 else _("%(days)d d") % {"days": days}
    if hours:
        return _("%(hours)d h %(minutes)d m") % {"hours": hours, "minutes": minutes} if minutes else _("%(hours)d h") % {"hours": hours}
    if minutes:
        return (
            _("%(minutes)d m %(seconds)d s") % {"minutes": minutes, "seconds": seconds}
            if seconds and minutes < 10
            else _("%(minutes)d m") % {"minutes": minutes}
        )
    return _("%(seconds)d s") % {"seconds": seconds}


def iso(value: datetime) -> str:
    """UTC, ISO 8601, for `<time datetime>`."""
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def clock(value: datetime, now: datetime | None = None) -> str:
    """In the active zone with its name: "14:03 UTC" today, "24 Nov 14:03 UTC" this year, else with the year."""
    local = timezone.localtime(value)
    today = timezone.localtime(now or timezone.now())
    if local.date() == today.date():
        pattern = "H:i T"
    elif local.year == today.year:
        pattern = "j M H:i T"
    else:
        pattern = "j M Y H:i T"
    return formats.date_format(local, pattern)


def exact(value: datetime) -> str:
    """To the second, in the active zone with its name: "2026-11-30 15:04:05 CET"."""
    return timezone.localtime(value).strftime("%Y-%m-%d %H:%M:%S %Z")


def when(value: datetime | None, now: datetime | None = None) -> SafeString:
    """`<time>` with the absolute time, to the second on hover."""
    if not isinstance(value, datetime):
        return format_html('<span class="not-reported">{}</span>', _("never"))
    return format_html('<time datetime="{}" title="{}">{}</time>', iso(value), exact(value), clock(value, now))


def since(value: datetime | None, now: datetime | None = None) -> SafeString:
    """Absolute and relative: "11:52 UTC · 1 h 55 m"."""
    if not isinstance(value, datetime):
        return when(None)
    moment = now or timezone.now()
    return format_html('{} <span class="faint">· <span data-age="{}">{}</span></span>', when(value, moment), iso(value), duration(moment - value))


def age(value: datetime | None, now: datetime | None = None) -> SafeString:
    """For lists: how long ago, kept up to date; the absolute time on hover, and while the row has the keyboard (table.css)."""
    if not isinstance(value, datetime):
        return when(None)
    return format_html(
        '<time datetime="{0}" title="{1}"><span data-age="{0}">{2}</span></time>', iso(value), exact(value), duration((now or timezone.now()) - value)
    )


def ago(value: datetime | None, now: datetime | None = None) -> SafeString:
    """Relative first, for fresh things: "2 s ago"; the page keeps it up to date. Absolute on hover and focus."""
    if not isinstance(value, datetime):
        return when(None)
    moment = now or timezone.now()
    text = duration(moment - value) if value <= moment else _("%(span)s ahead of our clock") % {"span": duration(value - moment)}
    return format_html(
        '<time datetime="{0}" title="{1}" tabindex="0"><span data-age="{0}">{2}</span></time>',
        iso(value),
        exact(value),
        text,
    )


def short_uuid(uuid: str) -> str:
    """`GPU-5fb1…c2d9`: enough to tell two apart on a screen; the whole stands behind it."""
    return f"{uuid[:8]}…{uuid[-4:]}" if len(uuid) > 16 else uuid


def short_number(value: float | None) -> str:
    """At most four digits that matter: 12345678 is "12.3 M"."""
    if value is None or is_missing(value):
        return not_reported()
    for limit, scale, sign in ((1e12, 1e12, "T"), (1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e5, 1e3, "k")):
        if abs(value) >= limit:
            return f"{number(value / scale, 1)}\N{NO-BREAK SPACE}{sign}"
    return number(value, 0 if float(value).is_integer() else 3 if abs(value) < 10 else 1)
