"""`/live/layout` and `/live/frames`: what wall and map draw, and the frames of the socket by polling."""

from __future__ import annotations

from functools import cache

import redis
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBadRequest, HttpResponseBase, JsonResponse
from django.urls import path
from django.utils.cache import patch_vary_headers
from django.views.decorators.http import require_safe

from console.access import Access
from console.guards import request_access
from console.live.layout import layout_of, layout_version
from console.live.scopes import RegionScope, load_scope, region_key
from fleet import frames, stream

AREAS_PER_REQUEST = 200


def _operator_access(request: HttpRequest) -> Access | None:
    """None for who is not signed in: a script gets 401, not the sign-in page."""
    if not request.user.is_authenticated:
        return None
    access = request_access(request)
    if not access.is_operator_side:
        raise Http404
    return access


@require_safe
def live_layout(request: HttpRequest) -> HttpResponseBase:
    access = _operator_access(request)
    if access is None:
        return JsonResponse({"detail": "Not signed in."}, status=401)
    version = layout_version(access)
    tag = f'W/"{version}"'
    unchanged = request.headers.get("If-None-Match") == tag
    response = HttpResponse(status=304) if unchanged else HttpResponse(content_type="application/json")
    if not unchanged:
        layout = layout_of(access, version)
        packed = "gzip" in request.headers.get("Accept-Encoding", "")
        response.content = layout.packed if packed else layout.body
        if packed:
            response["Content-Encoding"] = "gzip"
    response["ETag"] = tag
    response["Cache-Control"] = "private, no-cache"
    patch_vary_headers(response, ["Accept-Encoding", "Cookie"])
    return response


@require_safe
def live_frames(request: HttpRequest) -> HttpResponseBase:
    """Frames of `?area=<id>` (repeat; left out: all of the scope) back to back: the deltas after `?seq=<n>` (one per area, in order), else a snapshot."""
    access = _operator_access(request)
    if access is None:
        return JsonResponse({"detail": "Not signed in."}, status=401)
    if request.GET.getlist("area") == ["none"]:  # a page without frames asks whether we answer
        return HttpResponse(status=204)
    scope = load_scope(region_key(access))
    try:
        area_ids = [int(text) for text in request.GET.getlist("area")] or sorted(scope.area_ids)
        seqs = [int(text) for text in request.GET.getlist("seq")]
    except ValueError:
        return HttpResponseBadRequest("area, seq: whole numbers.")
    if len(area_ids) > AREAS_PER_REQUEST or (seqs and len(seqs) != len(area_ids)):
        return HttpResponseBadRequest("area, seq: one seq per area, at most 200 areas.")
    if not scope.area_ids.issuperset(area_ids):
        raise Http404
    try:
        found = [data for area_id, seq in zip(area_ids, seqs or [-1] * len(area_ids), strict=True) for data in _frames(scope, area_id, seq)]
    except (redis.RedisError, OSError):
        response = HttpResponse("No live data: Redis does not answer.", status=503, content_type="text/plain")
        response["Retry-After"] = "2"
        return response
    response = HttpResponse(b"".join(found), content_type="application/octet-stream")
    response["Cache-Control"] = "no-store"
    return response


def _frames(scope: RegionScope, area_id: int, seq: int) -> list[bytes]:
    client = _client()
    deltas = stream.frames_since(client, area_id, seq) if seq >= 0 else None
    if deltas is None:
        whole = stream.read_area(client, area_id)
        deltas = [] if whole is None else [whole]
    return [frames.encode(frames.Frame(one.kind, one.area_id, one.made_at, one.seq, scope.cut(one.columns))) for one in deltas]


@cache
def _client() -> redis.Redis:
    return stream.connect()


urlpatterns = [
    path("live/layout", live_layout, name="live_layout"),
    path("live/frames", live_frames, name="live_frames"),
]
