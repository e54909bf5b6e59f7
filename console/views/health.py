"""`/healthz` (this process), `/readyz` (what it needs), `/metrics` (for Prometheus, by token)."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import prometheus_client
from django.conf import settings
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.db.models import Count, Max, Min, Sum
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from redis import Redis
from redis.exceptions import RedisError

from console.tokens import find_token
from fleet.control.audit_seal import newest_seal, unsealed
from fleet.control.audit_verify import last_check
from fleet.models import DataQuality, GpuReading, HealthState, Job, Site, SiteHealth

METRICS_SCOPE = "read:metrics"
CELERY_QUEUE = "celery"


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
    body = prometheus_client.generate_latest(_FLEET) + prometheus_client.generate_latest()
    return HttpResponse(body, content_type=prometheus_client.CONTENT_TYPE_LATEST)


class FleetCollector(Collector):
    """Figures that the database and the queue hold, read at scrape time. What cannot be read is absent, never 0."""

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        try:
            yield from self._database()
        except DatabaseError:
            yield GaugeMetricFamily("masthead_database_up", "1 when the database answers.", value=0)
        yield from self._queue()

    def _database(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        now = datetime.now(UTC)
        states = GaugeMetricFamily("masthead_sites", "Sites by health.", labels=["state"])
        counts = dict.fromkeys(HealthState.values, 0)
        counts.update(SiteHealth.objects.order_by().values_list("state").annotate(n=Count("pk")))
        counts[HealthState.UNKNOWN] += Site.objects.filter(health__isnull=True).count()
        for state, count in counts.items():
            states.add_metric([state], count)
        yield GaugeMetricFamily("masthead_database_up", "1 when the database answers.", value=1)
        yield states
        newest = GpuReading.objects.aggregate(newest=Max("sampled_at"))["newest"]
        if newest is not None:
            yield GaugeMetricFamily("masthead_telemetry_lag_seconds", "Age of the newest sample that the database holds.", value=(now - newest).total_seconds())
        refused = CounterMetricFamily("masthead_samples_refused", "Samples refused, by reason.", labels=["reason"])
        for reason, count in DataQuality.objects.values_list("reason").annotate(n=Sum("count")).order_by("reason"):
            refused.add_metric([reason], count)
        yield refused
        ages = GaugeMetricFamily("masthead_job_age_seconds", "Age of the oldest job that waits or runs.", labels=["state"])
        for state in (Job.State.QUEUED, Job.State.RUNNING):
            oldest = Job.objects.filter(state=state).order_by("created_at").values_list("created_at", flat=True).first()
            ages.add_metric([state], (now - oldest).total_seconds() if oldest else 0)
        yield ages
        yield from self._audit(now)

    def _audit(self, now: datetime) -> Iterator[GaugeMetricFamily]:
        oldest = unsealed(newest_seal()).entries().aggregate(oldest=Min("at"))["oldest"]
        age = max(0.0, (now - oldest).total_seconds()) if oldest else 0
        yield GaugeMetricFamily("masthead_audit_unsealed_seconds", "Age of the oldest entry of the audit that no seal holds yet.", value=age)
        check = last_check()
        if check is not None:
            yield GaugeMetricFamily("masthead_audit_broken", "1 when the last verification of the audit found a break.", value=check.broken_at is not None)

    def _queue(self) -> Iterator[GaugeMetricFamily]:
        try:
            with Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2) as client:
                started = time.perf_counter()
                length = client.llen(CELERY_QUEUE)
                took = time.perf_counter() - started
        except RedisError:
            yield GaugeMetricFamily("masthead_redis_up", "1 when Redis answers.", value=0)
            return
        yield GaugeMetricFamily("masthead_redis_up", "1 when Redis answers.", value=1)
        yield GaugeMetricFamily("masthead_redis_seconds", "Time of one small question to Redis.", value=took)
        yield GaugeMetricFamily("masthead_queue_length", "Tasks that wait for a worker.", value=float(length))


_FLEET = prometheus_client.CollectorRegistry()
_FLEET.register(FleetCollector())
