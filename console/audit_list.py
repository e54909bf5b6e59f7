"""The audit as a standard list: its filters, which the API has as well, and its columns."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Iterator
from typing import Any

import django_filters
from django import forms
from django.db.models import Q, QuerySet
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from console import formats
from console.filters import AnyOfFilter, ListFilter, TextsField, choice_boxes
from console.links import object_url
from console.lists import Column, ListKind
from fleet.models import AuditEntry, AuditKind, AuditOutcome

PAGES: dict[str, str] = {
    AuditKind.REGION: "region",
    AuditKind.SITE: "site",
    AuditKind.NODE: "node",
    AuditKind.GPU: "gpu",
    AuditKind.COMMAND: "command",
    AuditKind.SWITCH: "switch",
}
SHORT = 80


def _time(label: Any, **kwargs: Any) -> django_filters.IsoDateTimeFilter:
    box = forms.TextInput(attrs={"placeholder": "2026-11-30 14:00", "autocomplete": "off"})
    return django_filters.IsoDateTimeFilter(field_name="at", label=label, widget=box, **kwargs)


class AddressesField(TextsField):
    def to_python(self, value: Iterable[str] | None) -> list[str]:
        try:
            return [str(ipaddress.ip_address(text)) for text in super().to_python(value)]
        except ValueError as error:
            raise forms.ValidationError(_("IP addresses only.")) from error


class AddressFilter(AnyOfFilter):
    field_class = AddressesField


class AuditFilter(ListFilter):
    actor = AnyOfFilter(field_name="actor", label=lazy("Who"))
    through = AnyOfFilter(field_name="through", label=lazy("Through (token or agent)"))
    action = AnyOfFilter(field_name="action", label=lazy("What"))
    key = AnyOfFilter(field_name="object_key", label=lazy("On what"))
    since = _time(lazy("Since"), lookup_expr="gte")
    until = _time(lazy("Until"), lookup_expr="lt")
    source = AddressFilter(field_name="source_address", label=lazy("From where"))
    request_id = AnyOfFilter(field_name="request_id", label=lazy("Request"))
    kind = choice_boxes(AuditKind.choices, label=lazy("On what kind"))
    outcome = choice_boxes(AuditOutcome.choices, label=lazy("Outcome"))

    class Meta:
        model = AuditEntry
        fields: list[str] = []

    def quick(self, queryset: QuerySet, name: str, value: str) -> QuerySet:
        wanted = Q(actor__icontains=value) | Q(action__icontains=value) | Q(object_key__icontains=value) | Q(reason__icontains=value)
        return queryset.filter(wanted | Q(request_id=value))


def entry_url(entry: AuditEntry) -> str:
    return object_url("audit_entry", entry.pk)


def subject(entry: AuditEntry) -> SafeString | str:
    """What it was on, with a link where it has a page."""
    if entry.kind == AuditKind.FLEET:
        return _("The whole fleet")
    if not entry.object_key:
        return ""
    kind = format_html('<span class="faint">{}</span> ', entry.get_kind_display()) if entry.kind else ""
    name = formats.short_uuid(entry.object_key) if entry.kind == AuditKind.GPU else entry.object_key
    page = PAGES.get(entry.kind)
    if page is None:
        return format_html("<span>{}{}</span>", kind, name)
    return format_html('<span>{}<a href="{}" title="{}">{}</a></span>', kind, object_url(page, entry.object_key), entry.object_key, name)


def facts(entry: AuditEntry) -> Iterator[tuple[str, str, str]]:
    """(name, before, after) of what it changed, then (name, "", value) of what else is known of it."""
    held = dict(entry.detail)
    before, after = held.pop("before", None), held.pop("after", None)
    if isinstance(before, dict) or isinstance(after, dict):
        left, right = (side if isinstance(side, dict) else {} for side in (before, after))
        yield from ((name, _text(left.get(name)), _text(right.get(name))) for name in sorted(left.keys() | right.keys()))
    elif before is not None or after is not None:
        yield _("value"), _text(before), _text(after)
    yield from ((name, "", _text(value)) for name, value in sorted(held.items()))


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _clipped(text: str) -> str:
    return text if len(text) <= SHORT else f"{text[:SHORT]}…"


def _changes(entry: AuditEntry) -> SafeString:
    shown = [
        format_html('<span class="faint">{}</span> {}{}', name, format_html("<del>{}</del> → ", _clipped(before)) if before else "", _clipped(after))
        for name, before, after in list(facts(entry))[:4]
    ]
    return format_html("<span>{}</span>", format_html_join(" · ", "{}", ((one,) for one in shown))) if shown else SafeString("")


def _actor(entry: AuditEntry) -> SafeString:
    if not entry.through or entry.through == entry.actor:
        return format_html("{}", entry.actor)
    word = _("by token") if entry.through.startswith("token:") else _("by an agent")
    return format_html('<span>{} <span class="faint" title="{}">{}</span></span>', entry.actor, entry.through, word)


def _outcome(entry: AuditEntry) -> SafeString | str:
    word = entry.get_outcome_display()
    return word if entry.outcome == AuditOutcome.DONE else format_html('<span class="tag">{}</span>', word)


AUDIT = ListKind(
    name="audit",
    title=lazy("Audit"),
    filter_class=AuditFilter,
    default_order="-at",
    url_of=entry_url,
    key_of=lambda row: f"{row.action} {row.pk}",
    quick_hint=lazy("Who, what, on what, why"),
    export_formats=("jsonl",),
    columns=(
        Column("action", lazy("What"), lambda row: format_html('<a href="{}">{}</a>', entry_url(row), row.action), ("action",), card="main"),
        Column("at", lazy("When"), lambda row: formats.when(row.at), ("at",), card="side"),
        Column("actor", lazy("Who"), _actor, ("actor",)),
        Column("subject", lazy("On what"), subject, ("object_key",)),
        Column("outcome", lazy("Outcome"), _outcome, ("outcome",)),
        Column("reason", lazy("Why"), lambda row: format_html('<span title="{0}">{0}</span>', row.reason) if row.reason else "", card="clip"),
        Column("changes", lazy("Before and after"), _changes, card="clip"),
        Column("source", lazy("From where"), lambda row: row.source_address or "", card="low"),
        Column("request", lazy("Request"), lambda row: row.request_id, shown=False, card="low"),
    ),
)
