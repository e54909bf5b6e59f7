"""`/healthz` (this process), `/readyz` (what it needs), `/metrics` (for Prometheus, by token)."""

from collections.abc import Callable

import prometheus_client
from django.conf import settings
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from redis import Redis
from redis.exceptions import RedisError

from console.own_metrics import FLEET
from console.tokens import find_token

METRICS_SCOPE = "read:metrics"


@never_cache
@require_safe
def healthz(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok\n", content_type="text/plain")


@never_cache
@require_safe
def readyz(request: HttpRequest) -> JsonResponse:
    """200 when database, migrations, cache and queue answer; otherwise 503. The body says which part does not."""
    checks: dict[str, Callable[[], str]] = {"database": _database, "migrations": _migrations, "redis": _redis}
    found = {name: check() for name, check in checks.items()}
    ready = all(word == "ok" for word in found.values())
    return JsonResponse({"ready": ready, "checks": found, "version": settings.VERSION}, status=200 if ready else 503)


def _database() -> str:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError:
        return "does not answer"
    return "ok"


def _migrations() -> str:
    try:
        executor = MigrationExecutor(connection)
        waiting = executor.migration_plan(executor.loader.graph.leaf_nodes())
    except DatabaseError:
        return "unknown: the database does not answer"
    return "ok" if not waiting else f"{len(waiting)} not applied: run manage.py setup_database"


def _redis() -> str:
    try:
        with Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2) as client:
            client.ping()
    except RedisError:
        return "does not answer"
    return "ok"


@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """The console's own metrics. Needs a token with the scope `read:metrics`."""
    word, _, secret = request.headers.get("Authorization", "").partition(" ")
    token = find_token(secret.strip(), now=timezone.now()) if word.lower() == "bearer" else None
    if token is None:
        return HttpResponse("A bearer token is needed.\n", status=401, content_type="text/plain", headers={"WWW-Authenticate": 'Bearer realm="masthead"'})
    if not {METRICS_SCOPE, "read:*"} & set(token.scopes):
        return HttpResponse(f"The token lacks the scope {METRICS_SCOPE}.\n", status=403, content_type="text/plain")
    body = prometheus_client.generate_latest(FLEET) + prometheus_client.generate_latest()
    return HttpResponse(body, content_type=prometheus_client.CONTENT_TYPE_LATEST)
