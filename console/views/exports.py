"""The lists as files: what a list's filters and order show, streamed."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponseBadRequest
from django.http.response import HttpResponseBase
from django.urls import re_path
from django.utils import timezone

from console.access import Access
from console.downloads import download
from console.guards import operator_page
from console.list_kinds import GPUS, NODES, SITES, gpu_rows, node_rows, site_rows
from console.ordering import Order
from fleet.inventory.export import CONTENT_TYPES, About, export_rows, file_name

_ROWS = {"sites": (SITES, site_rows), "nodes": (NODES, node_rows), "gpus": (GPUS, gpu_rows)}


@operator_page
def export(request: HttpRequest, access: Access, kind: str) -> HttpResponseBase:
    """`?format=csv|xlsx|yaml|json` beside the list's own parameters. Wrong ones are named, and nothing is sent."""
    shown, rows_of = _ROWS[kind]
    params = request.GET.copy()
    file_format = params.pop("format", ["csv"])[-1]
    for unused in ("page", "page_size"):
        params.pop(unused, None)
    if file_format not in CONTENT_TYPES:
        return HttpResponseBadRequest(f"format: one of {', '.join(CONTENT_TYPES)}.", content_type="text/plain; charset=utf-8")
    found = shown.filter_class(params, rows_of(access))
    order = params.get("ordering") or shown.default_order
    paths = shown.orderings.get(order.removeprefix("-"))
    if not found.form.is_valid() or paths is None:
        problems = [f"{name}: {text}" for name, texts in found.form.errors.items() for text in texts] or [f"ordering: one of {', '.join(shown.orderings)}."]
        return HttpResponseBadRequest("\n".join(problems), content_type="text/plain; charset=utf-8")
    ordered = Order(paths, order.startswith("-")).apply(found.qs)
    now = timezone.now()
    about = About(filter=params.urlencode(), made_at=now, made_by=request.user.get_username())
    chunks = export_rows(kind, ordered, file_format, about)
    return download(request, chunks, content_type=CONTENT_TYPES[file_format], file_name=file_name(kind, file_format, now))


urlpatterns = [re_path(r"^exports/(?P<kind>sites|nodes|gpus)$", export, name="export")]
