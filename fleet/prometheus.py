"""The one door to Prometheus (or Thanos, Mimir, VictoriaMetrics behind the same HTTP API): instant and range queries.

An answer tells apart what others mix up: a value, no value, a partial answer, a fault of our query, and a source that cannot be reached.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import requests
from django.conf import settings
from prometheus_api_client import PrometheusConnect
from urllib3.util.retry import Retry

from fleet.request_deadline import Line, LineAdapter

WHOLE_ANSWER = 3.0  # timeouts
MAX_POINTS = 11_000  # Prometheus refuses a range query with more points per series.


class FaultKind(StrEnum):
    BAD_QUERY = "bad_query"  # our query is at fault: the same again will fail again
    RETRY = "retry"  # the source is busy: later, with back-off
    SOURCE_ERROR = "source_error"  # not reachable, too slow, or not Prometheus at all


class SourceFault(Exception):
    """Prometheus did not answer the question. `kind` says what to do about it, `reason` is a sentence for people."""

    def __init__(self, kind: FaultKind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


@dataclass(frozen=True)
class Histogram:
    """A native histogram: observations and their sum. `mean` is None without observations."""

    count: float
    sum: float

    @property
    def mean(self) -> float | None:
        return self.sum / self.count if self.count else None


@dataclass(frozen=True)
class Series:
    """One series of an answer. `points` holds (Unix seconds, value); a value that is NaN or infinite is None: no value."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float | None], ...] = ()
    histograms: tuple[tuple[float, Histogram], ...] = ()

    @property
    def last(self) -> float | None:
        return self.points[-1][1] if self.points else None


@dataclass(frozen=True)
class Answer:
    """What a query gave. `warnings` make it partial: what is missing from it may still exist. `infos` are only remarks."""

    series: tuple[Series, ...]
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()
    refused_values: int = field(default=0, compare=False)

    @property
    def complete(self) -> bool:
        return not self.warnings


def number_or_none(text: str) -> float | None:
    """A sample value as Prometheus writes it. NaN in any capitalisation and the infinities are no value."""
    value = float(text)
    return value if math.isfinite(value) else None


def read_answer(body: Mapping[str, Any]) -> Answer:
    """Parse the JSON of /api/v1/query or /api/v1/query_range.

    :raises SourceFault: bad_query or retry for an error answer, source_error for anything that is not Prometheus' form.
    """
    if body.get("status") == "error":
        raise _fault(str(body.get("errorType", "")), str(body.get("error", "")))
    try:
        data = body["data"]
        result = [{"metric": {}, "value": data["result"]}] if data["resultType"] == "scalar" else data["result"]
        series = tuple(_read_series(item) for item in result)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SourceFault(FaultKind.SOURCE_ERROR, "The answer is not in the form of Prometheus' HTTP API.") from error
    refused = sum(1 for one in series for _, value in one.points if value is None)
    return Answer(series, tuple(map(str, body.get("warnings") or ())), tuple(map(str, body.get("infos") or ())), refused)


def _read_series(item: Mapping[str, Any]) -> Series:
    points = [item["value"]] if "value" in item else item.get("values", [])
    histograms = [item["histogram"]] if "histogram" in item else item.get("histograms", [])
    return Series(
        labels={str(key): str(value) for key, value in item["metric"].items()},
        points=tuple((float(time), number_or_none(value)) for time, value in points),
        histograms=tuple((float(time), Histogram(float(one["count"]), float(one["sum"]))) for time, one in histograms),
    )


def _fault(error_type: str, reason: str) -> SourceFault:
    if error_type in {"bad_data", "execution", "not_found"}:
        return SourceFault(FaultKind.BAD_QUERY, f"Prometheus refused the query: {reason}")
    if error_type in {"timeout", "canceled", "unavailable", "too_many_requests"}:
        return SourceFault(FaultKind.RETRY, f"Prometheus is busy: {reason}")
    return SourceFault(FaultKind.SOURCE_ERROR, f"Prometheus failed: {reason or error_type}")


def read_response(status: int, content_type: str, body: Any) -> Answer:
    """Parse a whole HTTP answer; `body` is its decoded JSON, or None where it is not JSON."""
    if not content_type.startswith("application/json") or not isinstance(body, Mapping):
        if status in {429, 502, 503, 504}:
            raise SourceFault(FaultKind.RETRY, f"Prometheus (or a proxy before it) answered {status}.")
        raise SourceFault(
            FaultKind.SOURCE_ERROR, f"The address answered {status} with {content_type or 'no content type'}: is it Prometheus, and are we signed in?"
        )
    if status in {429, 502, 503, 504} and body.get("status") != "error":
        raise SourceFault(FaultKind.RETRY, f"Prometheus answered {status}.")
    return read_answer(body)


def safe_step_seconds(start: float, end: float, wanted_seconds: float) -> float:
    """The wanted step, raised to whole ten seconds until the range has at most `MAX_POINTS` points."""
    least = (end - start) / (MAX_POINTS - 1)
    return wanted_seconds if wanted_seconds >= least else math.ceil(least / 10) * 10.0


def without_replicas(series: Iterable[Series], replica_labels: Iterable[str]) -> tuple[Series, ...]:
    """One series per identity where the replicas of a Prometheus pair give several: the one with the newest point."""
    drop = frozenset(replica_labels)
    kept: dict[frozenset[tuple[str, str]], Series] = {}
    for one in series:
        labels = {key: value for key, value in one.labels.items() if key not in drop}
        identity = frozenset(labels.items())
        other = kept.get(identity)
        if other is None or (one.points and (not other.points or one.points[-1][0] > other.points[-1][0])):
            kept[identity] = Series(labels, one.points, one.histograms)
    return tuple(kept.values())


class PrometheusSource:
    """A connection to one Prometheus. Each call has a timeout and explicit time bounds. One thread at a time.

    :param timeout_seconds: without a byte for so long the source counts as unreachable; so it does when an answer is not there in whole after
        `WHOLE_ANSWER` times as long, extra tries included.
    :param retries: extra tries, with back-off, where the source says that it is busy (429, 503).
    """

    def __init__(self, url: str | None = None, *, timeout_seconds: float | None = None, retries: int = 2, headers: Mapping[str, str] | None = None) -> None:
        self.url = (url or settings.PROMETHEUS_URL).rstrip("/")
        self._timeout_seconds = timeout_seconds or float(settings.PROMETHEUS_TIMEOUT_SECONDS)
        self._line = Line()
        self._session = requests.Session()
        self._session.hooks["response"].append(self._read)
        self._answer: Answer | None = None
        self._client = PrometheusConnect(
            url=self.url,
            headers=dict(headers or {}),
            session=self._session,
            timeout=self._timeout_seconds,
        )
        retry = Retry(
            total=retries,
            connect=0,
            read=False,
            status=retries,
            backoff_factor=0.3,
            status_forcelist=[429, 503],
            raise_on_status=False,
            allowed_methods=None,
        )
        self._session.mount(self.url, LineAdapter(self._line, max_retries=retry))

    def __enter__(self) -> "PrometheusSource":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def query(self, expression: str, at: datetime) -> Answer:
        """An instant query at `at`. :raises SourceFault:"""
        return self._ask(lambda: self._client.custom_query(expression, params={"time": f"{at.timestamp():.3f}"}))

    def query_range(self, expression: str, start: datetime, end: datetime, step_seconds: float) -> Answer:
        """A range query from `start` to `end`; the step is raised where Prometheus would refuse the number of points. :raises SourceFault:"""
        step = safe_step_seconds(start.timestamp(), end.timestamp(), step_seconds)
        return self._ask(lambda: self._client.custom_query_range(expression, start_time=start, end_time=end, step=f"{step:g}s"))

    def metric_names(self, at: datetime) -> tuple[str, ...]:
        """Names of all metrics that have a sample around `at`. :raises SourceFault:"""
        answer = self.query('group by (__name__) ({__name__!=""})', at)
        return tuple(sorted(one.labels["__name__"] for one in answer.series if "__name__" in one.labels))

    def _read(self, response: requests.Response, *_: Any, **__: Any) -> None:
        """The client library keeps only the result list; warnings and error types are read here, before it looks."""
        try:
            body = response.json()
        except requests.exceptions.JSONDecodeError:
            body = None
        self._answer = read_response(response.status_code, response.headers.get("Content-Type", ""), body)

    def _ask(self, call: Any) -> Answer:
        self._answer = None
        try:
            with self._line.limit(WHOLE_ANSWER * self._timeout_seconds):
                call()
        except (SourceFault, requests.exceptions.RequestException) as error:
            if self._line.is_cut:
                raise SourceFault(FaultKind.SOURCE_ERROR, f"{self.url} gave no whole answer in time.") from error
            if isinstance(error, SourceFault):
                raise
            late = isinstance(error, requests.exceptions.Timeout)
            raise SourceFault(FaultKind.SOURCE_ERROR, f"{self.url} gave no answer in time." if late else f"{self.url} cannot be reached.") from error
        if self._answer is None:
            raise SourceFault(FaultKind.SOURCE_ERROR, f"{self.url} gave no answer.")
        return self._answer


def at_unix(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
