"""Template tags of all pages: icons, health marks, values with units, times."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from typing import Any
from urllib.parse import urlencode

from django import template
from django.templatetags.static import static
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from console import formats
from console.control_words import asked_for
from fleet.models import HealthState, Policy

register = template.Library()

register.filter("number", formats.number)
register.filter("watts", formats.watts)
register.filter("celsius", formats.celsius)
register.filter("megahertz", formats.megahertz)
register.filter("percent", formats.percent)
register.filter("gibibytes", formats.gibibytes)
register.filter("when", formats.when)
register.filter("since", formats.since)
register.filter("ago", formats.ago)
register.filter("iso", formats.iso)
register.filter("short_number", formats.short_number)
register.filter("short_uuid", formats.short_uuid)


@register.simple_tag
def icon(name: str) -> SafeString:
    """One icon of `static/icons.svg`; decorative, so a control that has only an icon needs a name of its own."""
    return format_html('<svg class="icon" aria-hidden="true"><use href="{}#{}"></use></svg>', static("icons.svg"), name)


@register.simple_tag
def mark(state: str) -> SafeString:
    """The shape of a health state, named for screen readers."""
    return format_html(
        '<svg class="mark mark-{0}" viewBox="0 0 12 12" role="img" aria-label="{1}"><use href="#mark-{0}"></use></svg>', state, state_word(state)
    )


@register.simple_tag
def state(value: str) -> SafeString:
    """Shape and word of a health state."""
    return _state(value, get_language())


@cache
def _state(value: str, language: str | None) -> SafeString:
    return format_html(
        '<span class="state" data-state="{0}"><svg class="mark mark-{0}" viewBox="0 0 12 12" aria-hidden="true"><use href="#mark-{0}"></use></svg>{1}</span>',
        value,
        state_word(value),
    )


def state_word(value: str) -> str:
    return _(HealthState(value).label)


@register.simple_tag
def bar(ratio: float | None, kind: str = "") -> SafeString:
    """A level 0..1 as a thin bar; empty when there is no value."""
    return format_html('<svg class="bar {}" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">{}</svg>', kind, bar_rect(ratio))


def _share(ratio: float | None) -> float:
    return 0.0 if ratio is None or formats.is_missing(ratio) else max(0.0, min(1.0, ratio))


@register.simple_tag
def bar_rect(ratio: float | None) -> SafeString:
    """The inside of a level bar whose `<svg>` stands in the template."""
    return format_html('<rect width="{}" height="6"></rect>', f"{_share(ratio) * 100:.1f}")


@register.simple_tag
def level_rect(ratio: float | None) -> SafeString:
    """The inside of a level that rises from the bottom of a 10 by 10 box."""
    height = _share(ratio) * 10
    return format_html('<rect y="{}" width="10" height="{}"></rect>', f"{10 - height:.2f}", f"{height:.2f}")


@register.simple_tag(takes_context=True)
def query(context: dict[str, Any], **changes: Any) -> str:
    """The page's query string with some parameters changed; an empty value drops one. Begins with "?"."""
    params = context["request"].GET.copy()
    for name, value in changes.items():
        if value in (None, ""):
            params.pop(name, None)
        else:
            params[name] = str(value)
    return "?" + urlencode(list(params.lists()), doseq=True)


@register.filter
def span_text(begin: datetime, end: datetime) -> str:
    return formats.duration(end - begin)


# How a telemetry field reads, by the unit in its name: the formatter here, and the name of the one in static/js/lib/live_page.js.
_UNITS = {
    "_hertz": ("megahertz", formats.megahertz),
    "_celsius": ("celsius", formats.celsius),
    "_watts": ("watts", formats.watts),
    "_ratio": ("percent", formats.percent),
    "_bytes": ("gibibytes", formats.gibibytes),
}


@register.filter
def in_unit_of(value: float | None, field: str) -> str:
    for suffix, (_name, show) in _UNITS.items():
        if field.endswith(suffix):
            return show(value)
    return formats.short_number(value)


@register.filter
def format_of(field: str) -> str:
    return next((name for suffix, (name, _show) in _UNITS.items() if field.endswith(suffix)), "short")


@register.filter
def words(field: str) -> str:
    """A field's name for people: without its unit, which stands by the value."""
    name = field
    for suffix in ("_hertz", "_celsius", "_watts", "_ratio", "_bytes", "_total", "_joules", "_per_second"):
        name = name.removesuffix(suffix)
    text = name.replace("_", " ")
    for word, written in (
        ("gpu", "GPU"),
        ("sm", "SM"),
        ("ecc", "ECC"),
        ("sbe", "single-bit"),
        ("dbe", "double-bit"),
        ("pcie", "PCIe"),
        ("nvlink", "NVLink"),
        ("dram", "DRAM"),
        ("xid", "XID"),
        ("tx", "sent"),
        ("rx", "received"),
    ):
        text = " ".join(written if part == word else part for part in text.split(" "))
    return text[:1].upper() + text[1:]


@register.simple_tag
def keyed(keys: dict[str, str], name: str) -> str:
    return keys[name]


@register.filter
def control_title(control: str) -> str:
    titles = {"clock_range": _("Clock range"), "power_cap": _("Power cap"), "mig_layout": _("MIG layout"), "cordon": _("Cordon")}
    return titles.get(control, control.replace("_", " ").capitalize())


@register.simple_tag
def desired_words(policy: Policy, sku: str) -> str:
    """What a control asks for, in words."""
    return asked_for(policy, sku=sku)


@register.simple_tag
def run_bar(progress: dict[str, int]) -> SafeString:
    """Shares of a run's targets as parts of a bar 100 wide: what is over by how it ended, then what moves. The words stand beside it."""
    parts = [(state, progress[state]) for state in ("done", "failed", "unreachable", "expired", "skipped", "cancelled")]
    parts.append(("moving", progress["accepted"] + progress["running"]))
    return _bar(parts, progress["all"])


@register.simple_tag
def budget_bar(budget: dict[str, int]) -> SafeString:
    """Of a region's limit: what is used by others, and what this run wants."""
    return _bar([("used", budget["used"]), ("wanted", budget["wanted"])], budget["limit"])


def _bar(parts: list[tuple[str, int]], whole: int) -> SafeString:
    drawn, at = [], 0.0
    for name, count in parts:
        width = min(100 - at, 100 * count / whole) if whole else 0
        if width > 0:
            drawn.append((f"{at:.2f}", f"{width:.2f}", name))
        at += width
    return format_html_join("", '<rect x="{}" y="0" width="{}" height="6" class="{}"></rect>', drawn)
