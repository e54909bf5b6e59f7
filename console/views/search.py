"""`/search` over all kinds, and the suggestions of the palette and of search-as-you-type fields."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import render
from django.urls import path

from console.access import Access
from console.guards import operator_page
from console.search import KINDS, suggest

PAGE_LIMIT = 50
SUGGESTIONS = 20


@operator_page
def search_page(request: HttpRequest, access: Access) -> HttpResponse:
    text = request.GET.get("q", "").strip()
    kinds = [kind for kind in request.GET.getlist("kind") if kind in KINDS] or list(KINDS)
    hits = suggest(access, text, kinds=kinds, limit=PAGE_LIMIT)
    if len(hits) == 1 and request.GET.get("go"):
        return HttpResponseRedirect(hits[0].url)
    return render(
        request, "search/page.html", {"nav": "search", "text": text, "hits": hits, "kinds": kinds, "all_kinds": KINDS, "full": len(hits) == PAGE_LIMIT}
    )


@operator_page
def search_suggest(request: HttpRequest, access: Access) -> JsonResponse:
    kinds = [kind for kind in request.GET.getlist("kind") if kind in KINDS] or list(KINDS)
    hits = suggest(access, request.GET.get("q", ""), kinds=kinds, limit=SUGGESTIONS)
    return JsonResponse({"results": [{"kind": hit.kind, "key": hit.key, "label": hit.label, "hint": hit.hint, "url": hit.url} for hit in hits]})


urlpatterns = [
    path("search", search_page, name="search"),
    path("search/suggest", search_suggest, name="search_suggest"),
]
