"""The browsable page of the API, served from our own origin, and the answer for paths that do not exist."""

from urllib.parse import quote

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import Resolver404, resolve, reverse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe

from console.api.problems import MEDIA_TYPE, problem


@login_required
@require_safe
def docs(request: HttpRequest) -> HttpResponse:
    return render(request, "api/docs.html", {"schema_url": reverse("api-schema")})


@csrf_exempt
def not_found(request: HttpRequest, rest: str) -> HttpResponse:
    """404 as a problem; a path that only lacks its last slash, or has one too many, leads on to the right one with method and body kept."""
    other = request.path.removesuffix("/") if request.path.endswith("/") else f"{request.path}/"
    try:
        known = resolve(other).func is not not_found
    except Resolver404:
        known = False
    if known:
        query = request.META.get("QUERY_STRING", "")
        answer = HttpResponse(status=308)
        answer["Location"] = f"{quote(other)}?{query}" if query else quote(other)
        return answer
    return JsonResponse(problem(404, code="not_found", detail="No such resource."), status=404, content_type=MEDIA_TYPE)
