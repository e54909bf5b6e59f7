"""`GET /api/v1/sd/<job>?region=`: the list that Prometheus' `http_sd_configs` reads, with a sender's token.

200 only with the complete list (`[]` when there is truly nothing), 503 when the inventory cannot be read: Prometheus then keeps the targets it has.
A plain Django view: it must answer the same whatever the REST API's rendering, throttling and sessions do.
"""

import json

from django.db import Error as DatabaseError
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_safe

from console.api.problems import MEDIA_TYPE, problem
from fleet.inventory.service_discovery import NotListed, list_targets
from fleet.telemetry.senders import verify_token

RETRY_SECONDS = 15


@require_safe
def service_discovery(request: HttpRequest, job: str) -> HttpResponse:
    """401 without a valid token that may discover, 404 for an unknown job or region (also one outside the token's regions)."""
    token = _token(request.headers.get("Authorization", ""))
    unknown = set(request.GET) - {"region"}
    if unknown:
        return _refused(400, "unknown_parameter", f"{sorted(unknown)[0][:40]!r} is no parameter; there is region.")
    try:
        sender = verify_token(token, now=timezone.now()) if token else None
        if sender is None or not sender.may_discover:
            answer = _refused(401, "not_authenticated", "A sender's token that may discover is needed: Authorization: Bearer <token>.")
            answer["WWW-Authenticate"] = 'Bearer realm="service discovery"'
            return answer
        found = list_targets(sender, job, request.GET.get("region", ""))
    except NotListed as error:
        return _refused(404, "not_found", str(error))
    except DatabaseError:
        answer = _refused(503, "source_unavailable", "The inventory cannot be read now. Keep the targets that you have.")
        answer["Retry-After"] = str(RETRY_SECONDS)
        return answer
    if found.etag in [tag.strip().removeprefix("W/") for tag in request.headers.get("If-None-Match", "").split(",")]:
        answer = HttpResponse(status=304)
    else:
        answer = HttpResponse(found.body, content_type="application/json")
    answer["ETag"] = found.etag
    answer["Cache-Control"] = "no-cache"
    answer["Vary"] = "Authorization"
    return answer


def _token(authorization: str) -> str:
    """The token of a header `Bearer <token>`; without a scheme too, since Prometheus up to 2.42 leaves it out where the configuration does."""
    scheme, _, token = authorization.strip().rpartition(" ")
    return token if scheme.strip().lower() in ("", "bearer") else ""


def _refused(status: int, code: str, detail: str) -> HttpResponse:
    answer = HttpResponse(json.dumps(problem(status, code=code, detail=detail)), status=status, content_type=MEDIA_TYPE)
    answer["Cache-Control"] = "no-store"
    return answer
