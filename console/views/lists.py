"""What people keep of a standard list: saved views, columns, density."""

from __future__ import annotations

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect
from django.urls import path, reverse
from django.utils.text import slugify
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from console.access import Access
from console.guards import operator_page
from console.list_kinds import KINDS
from console.lists import ListKind
from console.models import SavedView, User

QUERY_LIMIT = 2000


def _kind(name: str) -> ListKind:
    if name not in KINDS:
        raise Http404
    return KINDS[name]


def _back(kind: ListKind, query: str) -> HttpResponse:
    """To the list as it was. The query is read and written again, so that nothing else gets into the address."""
    text = QueryDict(query.removeprefix("?")[:QUERY_LIMIT]).urlencode()
    return redirect(reverse(kind.name) + (f"?{text}" if text else ""))


def _user(request: HttpRequest) -> User:
    return get_object_or_404(User, pk=request.user.pk)


@require_POST
@operator_page
def save_view(request: HttpRequest, access: Access, name: str) -> HttpResponse:
    """Keep filters and order under a name; the same name of the same person is overwritten."""
    kind, title, query = _kind(name), request.POST.get("name", "").strip()[:80], request.POST.get("query", "")
    if not title or "\x00" in title or len(query) > QUERY_LIMIT:
        messages.error(request, _("A view needs a name of at most 80 letters, and filters of at most 2,000 characters."))
        return _back(kind, query)
    text = QueryDict(query.removeprefix("?")).urlencode()
    SavedView.objects.update_or_create(
        owner=_user(request),
        page=kind.name,
        slug=slugify(title)[:60] or "view",
        defaults={"name": title, "query": f"?{text}", "shared": request.POST.get("shared") == "yes"},
    )
    messages.success(request, _("The view “%(name)s” is saved.") % {"name": title})
    return _back(kind, query)


@require_POST
@operator_page
def delete_view(request: HttpRequest, access: Access, name: str) -> HttpResponse:
    kind, wanted = _kind(name), request.POST.get("view", "")
    view = get_object_or_404(SavedView, pk=int(wanted) if wanted.isdecimal() and len(wanted) < 19 else 0, owner=_user(request), page=kind.name)
    view.delete()
    messages.success(request, _("The view “%(name)s” is deleted.") % {"name": view.name})
    return _back(kind, request.POST.get("query", ""))


@require_POST
@operator_page
def set_columns(request: HttpRequest, access: Access, name: str) -> HttpResponse:
    kind, user = _kind(name), _user(request)
    chosen = set(request.POST.getlist("column"))
    if request.POST.get("reset"):
        user.list_columns.pop(kind.name, None)
    else:
        user.list_columns[kind.name] = [column.key for column in kind.columns if column.key in chosen or column.card == "main"]
    if request.POST.get("density") in ("comfortable", "compact"):
        user.density = request.POST["density"]
    user.save(update_fields=["list_columns", "density"])
    return _back(kind, request.POST.get("query", ""))


urlpatterns = [
    path("lists/<slug:name>/views", save_view, name="list_view_save"),
    path("lists/<slug:name>/views/delete", delete_view, name="list_view_delete"),
    path("lists/<slug:name>/columns", set_columns, name="list_columns"),
]
