"""What people keep of a standard list: saved views, columns, density."""

from __future__ import annotations

from collections.abc import Collection

from django.http import QueryDict
from django.utils.text import slugify
from django.utils.translation import gettext as _

from console.lists import ListKind
from console.models import SavedView, User

LONGEST_QUERY = 2000
LONGEST_NAME = 80
DENSITIES = ("comfortable", "compact")


class ViewRefused(Exception):
    """The view was not kept; the text says why."""


def plain_query(text: str) -> str:
    """Parameters read and written again, so that nothing else gets into an address."""
    return QueryDict(text.removeprefix("?")[:LONGEST_QUERY]).urlencode()


def save_view(*, owner: User, kind: ListKind, name: str, query: str, shared: bool) -> SavedView:
    """Keep filters and order under a name; the same name of the same person is overwritten. Raises ViewRefused."""
    name = name.strip()[:LONGEST_NAME]
    if not name or "\x00" in name or len(query) > LONGEST_QUERY:
        raise ViewRefused(_("A view needs a name of at most 80 letters, and filters of at most 2,000 characters."))
    kept = {"name": name, "query": f"?{plain_query(query)}", "shared": shared}
    view, _created = SavedView.objects.update_or_create(owner=owner, page=kind.name, slug=slugify(name)[:60] or "view", defaults=kept)
    return view


def keep_columns(*, user: User, kind: ListKind, chosen: Collection[str] | None, density: str) -> None:
    """The columns that a person wants to see (None: the default set; the heading always stays), and how dense. An unknown density changes nothing."""
    if chosen is None:
        user.list_columns.pop(kind.name, None)
    else:
        user.list_columns[kind.name] = [column.key for column in kind.columns if column.key in chosen or column.card == "main"]
    if density in DENSITIES:
        user.density = density
    user.save(update_fields=["list_columns", "density"])
