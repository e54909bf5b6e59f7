"""Metrics of the console itself: what the database and the queue hold, for `/metrics`."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import prometheus_client
from django.conf import settings
from django.db import DatabaseError
from django.db.models import Count, Max, Min, Sum
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from redis import Redis
from redis.exceptions import RedisError

from fleet.control.audit_seal import newest_seal, unsealed
from fleet.control.audit_verify import last_check
from fleet.models import DataQuality, GpuReading, HealthState, Job, Site, SiteHealth

CELERY_QUEUE = "celery"


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


FLEET = prometheus_client.CollectorRegistry()
FLEET.register(FleetCollector())
