"""What follows from two scrapes of a service's item, over the servers that carry it. Pure: no Django, no clock, no I/O."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fleet.telemetry.service_metrics import FIELDS_OF_JOB, TRITON_FAILURE_REASONS, VLLM_FINISH_REASONS, Combine

_COMBINE = {job: {one.name: one.combine for one in fields} for job, fields in FIELDS_OF_JOB.items()}


@dataclass(frozen=True)
class Scrape:
    """The values of one server's part of an item at one time. A field that was not reported is absent."""

    at: float
    values: Mapping[str, float]


Pair = tuple[Scrape, Scrape | None]  # the newest scrape and the one before it


def combine(job: str, scrapes: Sequence[Scrape]) -> dict[str, float]:
    """The values of an item over its parts (case C09: an engine's cache use is never summed)."""
    if len(scrapes) == 1:
        return dict(scrapes[0].values)
    found: dict[str, list[float]] = {}
    for scrape in sorted(scrapes, key=lambda scrape: scrape.at):
        for name, value in scrape.values.items():
            found.setdefault(name, []).append(value)
    total: dict[str, float] = {}
    for name, values in found.items():
        how = _COMBINE[job][name]
        if len(values) == 1 or how is Combine.NEWEST:
            total[name] = values[-1]
        elif how is Combine.SUM:
            total[name] = sum(values)
        elif how is Combine.LOWEST:
            total[name] = min(values)
    return total


class _Growth:
    """How counters grew between the two scrapes of each part."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._pairs = pairs

    def _increases(self, name: str) -> list[tuple[float | None, float]]:
        """(increase, seconds) of each part that reports the counter; None without two scrapes, or when it restarted in between."""
        found: list[tuple[float | None, float]] = []
        for last, previous in self._pairs:
            if name not in last.values:
                continue
            if previous is None or name not in previous.values or last.values[name] < previous.values[name]:
                found.append((None, 0.0))
            else:
                found.append((last.values[name] - previous.values[name], last.at - previous.at))
        return found

    def increase(self, name: str) -> float | None:
        """Over all parts; None when that of one is not known."""
        return _whole([increase for increase, _ in self._increases(name)])

    def per_second(self, name: str) -> float | None:
        return _whole([_ratio(increase, seconds) for increase, seconds in self._increases(name)])

    def reported(self, name: str) -> bool:
        return any(name in last.values for last, _ in self._pairs)


def derive(job: str, pairs: Sequence[Pair]) -> dict[str, float | None]:
    """Rates, means and ratios between two scrapes of the parts of one item. None: no traffic in between, or not known."""
    growth = _Growth(pairs)
    increase, per_second = growth.increase, growth.per_second
    if job == "triton" and growth.reported("requests_ok_total"):
        failures = _known_sum(increase(f"failures_{reason}_total") for reason in (*TRITON_FAILURE_REASONS, "unlisted"))
        good = increase("requests_ok_total")
        return {
            "requests_per_second": per_second("requests_ok_total"),
            "mean_latency_seconds": _ratio(increase("request_seconds_total"), good),
            "mean_queue_seconds": _ratio(increase("queue_seconds_total"), good),
            "mean_batch": _ratio(increase("inferences_total"), increase("executions_total")),
            "failures": failures,
            "success_ratio": _ratio(good, _known_sum((good, failures))) if failures is not None else None,
        }
    if job == "vllm" and any(last.values.keys() - {"up"} for last, _ in pairs):
        values = combine(job, [last for last, _ in pairs])
        return {
            "mean_time_to_first_token_seconds": _ratio(increase("time_to_first_token_seconds_total"), increase("time_to_first_token_count_total")),
            "mean_inter_token_seconds": _ratio(increase("inter_token_seconds_total"), increase("inter_token_count_total")),
            "mean_latency_seconds": _ratio(increase("request_seconds_total"), increase("request_count_total")),
            "mean_queue_seconds": _ratio(increase("queue_seconds_total"), increase("queue_count_total")),
            "generation_tokens_per_second": per_second("generation_tokens_total"),
            "requests_per_second": _known_sum(per_second(f"requests_{reason}_total") for reason in (*VLLM_FINISH_REASONS, "unlisted")),
            "prefix_hit_ratio": _ratio(values.get("prefix_cache_hits_total"), values.get("prefix_cache_queries_total")),
        }
    if job == "node" and growth.reported("network_receive_bytes_total"):
        return {
            "network_receive_bytes_per_second": per_second("network_receive_bytes_total"),
            "network_transmit_bytes_per_second": per_second("network_transmit_bytes_total"),
        }
    return {}


def _ratio(over: float | None, under: float | None) -> float | None:
    return over / under if over is not None and under else None


def _whole(values: Sequence[float | None]) -> float | None:
    """The sum when all are known; None otherwise, and of nothing."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _known_sum(values: Iterable[float | None]) -> float | None:
    """The sum of what is known; None when nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
