"""The standard list: filter, sort, count and page in SQL; the page's URL holds the whole state.

A `ListKind` describes one kind of object; `read_list` turns a request into what `templates/components/list.html` shows, with the same number of
statements whatever the number of rows.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, QueryDict
from django.utils.functional import Promise
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from console import formats
from console.counts import bounded_count
from console.filters import ListFilter
from console.models import SavedView, User
from console.ordering import Order

PAGE_SIZE = 50
PAGE_SIZES = (50, 100, 200)
EXPORT_FORMATS = ("csv", "xlsx", "yaml", "json")
LARGEST_PAGE = 200
Text = str | Promise


@dataclass(frozen=True)
class Column:
    """One column. `cell` makes its content of a row; `sort` names ORM paths (ascending), the first of which says whether it can be sorted."""

    key: str
    label: Text
    cell: Callable[[Any], SafeString | str]
    sort: tuple[str, ...] = ()
    numeric: bool = False
    shown: bool = True  # in the default set
    card: str = ""  # on narrow screens: "main" is the heading, "side" stands beside it, "low" is left out; "clip" takes the room that is left


@dataclass(frozen=True)
class ListKind:
    """One standard list. `rows` gives the queryset of a scope with everything that the cells read."""

    name: str
    title: Text
    columns: Sequence[Column]
    filter_class: type[ListFilter]
    default_order: str
    url_of: Callable[[Any], str]
    key_of: Callable[[Any], str]
    quick_hint: Text
    area_of: Callable[[Any], int] | None = None  # the area whose live frames hold the row's state
    suggest: dict[str, str] = field(default_factory=dict)  # filter name -> kind of /search/suggest
    export_formats: Sequence[str] = EXPORT_FORMATS

    @property
    def orderings(self) -> dict[str, tuple[str, ...]]:
        return {column.key: column.sort for column in self.columns if column.sort}


@dataclass(frozen=True)
class Chip:
    label: str
    value: str
    without: str  # query string


@dataclass(frozen=True)
class Header:
    column: Column
    sort_query: str  # "" when it cannot be sorted
    direction: str  # "", "ascending" or "descending"


@dataclass
class ListState:
    """What the list template shows."""

    kind: ListKind
    filter: ListFilter
    rows: list[Any]
    headers: list[Header]
    body: SafeString
    count: int
    count_is_estimate: bool
    unfiltered_count: str
    page: int
    page_size: int
    has_next: bool
    chips: list[Chip]
    query: str  # filters and order, without the page
    previous_query: str
    next_query: str
    views: list[SavedView]
    errors: list[str]
    shown_keys: set[str]

    @property
    def count_text(self) -> str:
        number = formats.number(self.count)
        return _("about %(n)s") % {"n": formats.number(_rounded(self.count))} if self.count_is_estimate else number

    @property
    def is_filtered(self) -> bool:
        return bool(self.chips)

    @property
    def first(self) -> int:
        return (self.page - 1) * self.page_size + 1

    @property
    def last(self) -> int:
        return (self.page - 1) * self.page_size + len(self.rows)

    @property
    def page_sizes(self) -> Sequence[int]:
        return PAGE_SIZES

    @property
    def export_formats(self) -> Sequence[str]:
        return self.kind.export_formats

    @property
    def spoken(self) -> str:
        return ngettext("%(n)s row", "%(n)s rows", self.count) % {"n": self.count_text}


def read_list(request: HttpRequest, kind: ListKind, queryset: QuerySet[Any]) -> ListState:
    """The list that the request's parameters ask for. Wrong parameters give an empty list with errors that name them."""
    params = request.GET
    errors: list[str] = []
    filter_set = kind.filter_class(params, queryset)
    for name, suggested in kind.suggest.items():
        filter_set.form.fields[name].widget.attrs.update({"data-suggest": suggested, "autocomplete": "off"})
    if not filter_set.form.is_valid():
        errors += [
            f"{filter_set.form.fields[name].label if name in filter_set.form.fields else name}: {text}"
            for name, texts in filter_set.form.errors.items()
            for text in texts
        ]
    order, descending, problem = _order(params.get("ordering") or kind.default_order, kind)
    page, page_problem = _positive(params.get("page"), 1, 10**6, "page")
    page_size, size_problem = _positive(params.get("page_size"), PAGE_SIZE, LARGEST_PAGE, "page_size")
    errors += [text for text in (problem, page_problem, size_problem) if text]
    matching = filter_set.qs if not errors else queryset.none()
    count, estimate = (0, False) if errors else bounded_count(matching)
    keys = list(Order(kind.orderings[order], descending).apply(matching).values_list("pk", flat=True)[(page - 1) * page_size : page * page_size + 1])
    has_next = len(keys) > page_size
    rows = _rows_of(queryset, keys[:page_size])
    columns = _shown_columns(request, kind)
    chips = _chips(filter_set, params)
    return ListState(
        kind=kind,
        filter=filter_set,
        rows=rows,
        headers=[_header(column, params, order, descending) for column in columns],
        body=_body(kind, columns, rows),
        count=count,
        count_is_estimate=estimate,
        unfiltered_count=_count_text(queryset) if chips and not rows else "",
        page=page,
        page_size=page_size,
        has_next=has_next,
        chips=chips,
        query=_query(params, page=None),
        previous_query=_query(params, page=page - 1 if page > 2 else None) if page > 1 else "",
        next_query=_query(params, page=page + 1) if has_next else "",
        views=saved_views(request.user, kind.name),
        errors=errors,
        shown_keys={column.key for column in columns},
    )


def saved_views(user: Any, page: str) -> list[SavedView]:
    """One's own and the shared ones of this list, own first."""
    if not isinstance(user, User):
        return []
    views = SavedView.objects.filter(Q(owner=user) | Q(shared=True), page=page).select_related("owner").order_by("name", "pk")
    return sorted(views, key=lambda view: view.owner_id != user.pk)


def _order(text: str, kind: ListKind) -> tuple[str, bool, str]:
    name = text.removeprefix("-")
    if name in kind.orderings:
        return name, text.startswith("-"), ""
    problem = _("ordering: one of %(names)s, with - for descending.") % {"names": ", ".join(kind.orderings)}
    return kind.default_order.removeprefix("-"), False, problem


def _rows_of(queryset: QuerySet[Any], keys: Sequence[Any]) -> list[Any]:
    """The rows with all that their cells read, in this order. A statement of its own: sorting tens of thousands of wide rows costs what this saves."""
    found = queryset.in_bulk(keys)
    return [found[key] for key in keys if key in found]


def _positive(text: str | None, default: int, largest: int, name: str) -> tuple[int, str]:
    if text is None or text == "":
        return default, ""
    if text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= largest:
        return int(text), ""
    return default, _("%(name)s: a whole number from 1 to %(largest)d.") % {"name": name, "largest": largest}


def _shown_columns(request: HttpRequest, kind: ListKind) -> list[Column]:
    chosen = request.user.list_columns.get(kind.name) if isinstance(request.user, User) else None
    if not isinstance(chosen, list):
        return [column for column in kind.columns if column.shown]
    return [column for column in kind.columns if column.key in chosen or column.card == "main"]


def _header(column: Column, params: QueryDict, order: str, descending: bool) -> Header:
    if not column.sort:
        return Header(column, "", "")
    current = column.key == order
    wanted = f"-{column.key}" if current and not descending else column.key
    direction = ("descending" if descending else "ascending") if current else ""
    return Header(column, _query(params, page=None, ordering=wanted), direction)


def _chips(filter_set: ListFilter, params: QueryDict) -> list[Chip]:
    chips = []
    for name, value in filter_set.active.items():
        form_field = filter_set.form.fields[name]
        words = dict(getattr(form_field, "choices", [])) if hasattr(form_field, "choices") else {}
        values = value if isinstance(value, list) else [value]
        text = ", ".join(str(words.get(item, item)) for item in values)
        chips.append(Chip(str(form_field.label), text, _query(params, page=None, **{name: None})))
    return chips


def _query(params: QueryDict, **changes: Any) -> str:
    """The query string with some parameters changed (None drops one). Never empty: "?" is the page without parameters."""
    kept = {name: values for name, values in params.lists() if any(values)}
    for name, value in changes.items():
        if value is None:
            kept.pop(name, None)
        else:
            kept[name] = [str(value)]
    return "?" + urlencode(kept, doseq=True)


def _count_text(queryset: QuerySet[Any]) -> str:
    count, estimate = bounded_count(queryset)
    return _("about %(n)s") % {"n": formats.number(_rounded(count))} if estimate else formats.number(count)


def _rounded(count: int) -> int:
    """Two digits: an estimate should not look exact."""
    return round(count, 2 - len(str(count)))


def _body(kind: ListKind, columns: Sequence[Column], rows: Sequence[Model]) -> SafeString:
    """The table rows. Made here, not in a template: 200 rows of ten cells would cost 50 ms there."""
    heads = [
        f'<td class="{escape(" ".join(part for part in ("num" if column.numeric else "", column.card) if part))}" data-label="{escape(column.label)}">'
        for column in columns
    ]
    cells_of = list(zip(heads, [column.cell for column in columns], strict=True))
    pick = _("Select %(name)s")
    lines = []
    for row in rows:
        key = kind.key_of(row)
        area = f' data-area="{int(kind.area_of(row))}"' if kind.area_of else ""
        cells = "".join([f"{head}{_safe(cell(row))}</td>" for head, cell in cells_of])
        check = (
            f'<td class="check"><label><input type="checkbox" class="pick" value="{escape(row.pk)}" aria-label="{escape(pick % {"name": key})}"></label></td>'
        )
        lines.append(f'<tr data-key="{escape(key)}" data-href="{escape(kind.url_of(row))}"{area}>{check}{cells}</tr>')
    return mark_safe("\n".join(lines))  # noqa: S308 (every part above is escaped or was made safe by its cell)


def _safe(content: SafeString | str) -> str:
    return content if isinstance(content, SafeString) else escape(content)


def escape(content: object) -> str:
    """As `django.utils.html.escape`, without its care for lazy text, which costs more than the escaping."""
    return html.escape(str(content))
