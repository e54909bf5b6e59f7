"""Last values by query, for fleets whose Prometheus cannot use remote_write. What was read goes to the telemetry process through its one door.

Asks for range vectors, so that each sample keeps its own time (an instant query stamps the newest sample of the last 5 minutes with the query's).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

import httpx
from django.conf import settings

from fleet.models import Sender
from fleet.prometheus import FaultKind, PrometheusSource, Series, SourceFault, without_replicas
from fleet.telemetry.completeness import Brought, note_incomplete
from fleet.telemetry.fields import FIELD_OF_METRIC, RECOVERY_METRICS, XID_COUNT_METRIC
from fleet.telemetry.prompb import body_of
from fleet.telemetry.senders import digest_token
from fleet.telemetry.service_metrics import SERVICE_FIELDS

T = TypeVar("T")

NAMES_A_QUERY = 8
SERIES_A_BODY = 5_000
WANTED = frozenset(FIELD_OF_METRIC) | {name for field in SERVICE_FIELDS for name in field.metrics} | RECOVERY_METRICS | {XID_COUNT_METRIC, "up"}
_HEADERS = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy", "X-Prometheus-Remote-Write-Version": "0.1.0"}


class PullNotConfigured(Exception):
    """`pull` was asked for without a telemetry process to give to; the text names the setting."""


@dataclass(frozen=True)
class PullReport:
    """What one pull brought. Not `complete`: some series may exist that this answer lacks, and `reasons` say why.

    `partial`: what each of the answers that lacked something did hold. `unanswered`: a whole question got no answer.
    """

    series: int
    refused_values: int
    reasons: tuple[str, ...] = ()
    partial: tuple[Brought, ...] = ()
    unanswered: bool = False

    @property
    def complete(self) -> bool:
        return not self.reasons


def read_last_samples(source: PrometheusSource, *, at: datetime, window_seconds: float, replica_labels: Iterable[str]) -> tuple[list[Series], PullReport]:
    """The newest sample of each wanted series of the last `window_seconds`, one per identity, with its own time.

    A query that is refused or unanswered costs its metrics only; what it would have said stays as it was.

    :raises SourceFault: when the source cannot even list its metrics.
    """
    names = sorted(WANTED & set(source.metric_names(at)))
    found: list[Series] = []
    reasons: list[str] = []
    partial: list[Brought] = []
    refused, unanswered = 0, False
    for some in _batched(names, NAMES_A_QUERY):
        selector = "|".join(re.escape(name) for name in some)
        try:
            answer = source.query(f'{{__name__=~"{selector}"}}[{window_seconds:g}s]', at)
        except SourceFault as fault:
            reasons.append(fault.reason)
            unanswered = True
            if fault.kind is FaultKind.SOURCE_ERROR:
                break
            continue
        reasons += [f"Partial answer: {warning}" for warning in answer.warnings]
        if answer.warnings:
            partial.append(_brought(answer.series))
        refused += answer.refused_values
        found += answer.series
    newest = [Series(one.labels, one.points[-1:]) for one in without_replicas(found, replica_labels) if one.points and one.last is not None]
    return newest, PullReport(len(newest), refused, tuple(dict.fromkeys(reasons)), tuple(partial), unanswered)


def _brought(series: Iterable[Series]) -> Brought:
    labels = [one.labels for one in series]
    return Brought(frozenset(each["site"] for each in labels if each.get("site")), frozenset(each["UUID"] for each in labels if each.get("UUID")))


def _batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def hand_over(series: Sequence[Series], *, url: str, token: str, timeout_seconds: float) -> None:
    """Send samples to the telemetry process as remote_write.

    :raises SourceFault: when it is away or does not take them.
    """
    with httpx.Client(headers={**_HEADERS, "Authorization": f"Bearer {token}"}, timeout=timeout_seconds) as client:
        for some in _batched(series, SERIES_A_BODY):
            body = body_of((one.labels, [(value, time) for time, value in one.points if value is not None]) for one in some)
            try:
                answer = client.post(url, content=body)
            except httpx.HTTPError as error:
                raise SourceFault(FaultKind.SOURCE_ERROR, f"The telemetry process at {url} cannot be reached.") from error
            if answer.status_code == 503:
                raise SourceFault(FaultKind.RETRY, "The telemetry process is overloaded.")
            if answer.is_error:
                raise SourceFault(FaultKind.BAD_QUERY, f"The telemetry process answered {answer.status_code}: {answer.text[:200]}")


def pull(*, now: datetime) -> PullReport:
    """One cycle: read the last samples of the configured Prometheus, hand them to the telemetry process, and keep what was wrong as data quality.

    :raises PullNotConfigured: without MASTHEAD_PULL_TOKEN.
    """
    if not settings.PULL_TOKEN:
        raise PullNotConfigured("MASTHEAD_PULL_TOKEN is not set: make a sender for the regions that are pulled and give its token.")
    window = max(3.0 * settings.SCRAPE_INTERVAL_SECONDS, 60.0)
    try:
        with PrometheusSource() as source:
            series, report = read_last_samples(source, at=now, window_seconds=window, replica_labels=settings.REPLICA_LABELS)
        hand_over(series, url=f"{settings.TELEMETRY_URL}/api/v1/write", token=settings.PULL_TOKEN, timeout_seconds=settings.PROMETHEUS_TIMEOUT_SECONDS)
    except SourceFault as fault:
        report = PullReport(0, 0, (fault.reason,), unanswered=True)
    _note(report, now=now)
    return report


def note_unfinished(*, now: datetime) -> None:
    """A pull was stopped since it took too long: say so, as of any other that is incomplete."""
    _note(PullReport(0, 0, ("The pull was not through in time and was stopped.",), unanswered=True), now=now)


def _note(report: PullReport, *, now: datetime) -> None:
    """Count an incomplete pull against its sender and sites, so that the pages say that and why something may be missing."""
    if not report.complete:
        sender = Sender.objects.filter(token_hash=digest_token(settings.PULL_TOKEN)).first()
        note_incomplete(sender, reason=report.reasons[0], partial=report.partial, everywhere=report.unanswered, now=now)
