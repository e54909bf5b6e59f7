"""The browsable page of the API, served from our own origin, and the answer for paths that do not exist."""

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe

from console.api.problems import MEDIA_TYPE, problem


@login_required
@require_safe
def docs(request: HttpRequest) -> HttpResponse:
    return render(request, "api/docs.html", {"schema_url": reverse("api-schema")})


@csrf_exempt
def not_found(request: HttpRequest, rest: str) -> JsonResponse:
    return JsonResponse(problem(404, code="not_found", detail="No such resource."), status=404, content_type=MEDIA_TYPE)
