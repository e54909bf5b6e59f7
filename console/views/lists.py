"""What people keep of a standard list: saved views, columns, density."""

from __future__ import annotations

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import path, reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from console import list_choices
from console.access import Access
from console.guards import operator_page
from console.list_choices import ViewRefused, keep_columns, plain_query
from console.list_kinds import KINDS
from console.lists import ListKind
from console.models import SavedView, User


def _kind(name: str) -> ListKind:
    if name not in KINDS:
        raise Http404
    return KINDS[name]


def _back(kind: ListKind, query: str) -> HttpResponse:
    """To the list as it was."""
    text = plain_query(query)
    return redirect(reverse(kind.name) + (f"?{text}" if text else ""))


def _user(request: HttpRequest) -> User:
    return get_object_or_404(User, pk=request.user.pk)


@require_POST
@operator_page
def save_view(request: HttpRequest, access: Access, name: str) -> HttpResponse:
    """Keep filters and order under a name; the same name of the same person is overwritten."""
    kind, query = _kind(name), request.POST.get("query", "")
    try:
        view = list_choices.save_view(
            owner=_user(request), kind=kind, name=request.POST.get("name", ""), query=query, shared=request.POST.get("shared") == "yes"
        )
    except ViewRefused as refused:
        messages.error(request, str(refused))
    else:
        messages.success(request, _("The view “%(name)s” is saved.") % {"name": view.name})
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
    kind = _kind(name)
    chosen = None if request.POST.get("reset") else request.POST.getlist("column")
    keep_columns(user=_user(request), kind=kind, chosen=chosen, density=request.POST.get("density", ""))
    return _back(kind, request.POST.get("query", ""))


urlpatterns = [
    path("lists/<slug:name>/views", save_view, name="list_view_save"),
    path("lists/<slug:name>/views/delete", delete_view, name="list_view_delete"),
    path("lists/<slug:name>/columns", set_columns, name="list_columns"),
]
