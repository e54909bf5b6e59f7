"""Charts' numbers: what each panel asks Prometheus, and the answer on a regular grid with gaps as None.

One computation feeds chart, table and API. A panel's value is in the unit that people read (°C, MHz, W, %).
"""

import itertools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from fleet.prometheus import Answer, PrometheusSource, at_unix
from fleet.telemetry import fields

RANGES: Mapping[str, timedelta] = {
    "1h": timedelta(hours=1),
    "3h": timedelta(hours=3),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
}
POINTS = 360  # on a panel some 400 px wide, one point a pixel
MOST_CHUNKS = 60  # of one point: bounds what Prometheus must look at on long ranges
_LABEL_VALUE = re.compile(r'[\\"\n]')


@dataclass(frozen=True)
class Panel:
    """One chart: the field it shows, how GPUs of a selection become one line, and the factor to the shown unit."""

    key: str
    title: str
    unit: str
    field: str
    factor: float
    combine: str  # PromQL aggregation over the GPUs of a selection


PANELS: Mapping[str, Panel] = {
    panel.key: panel
    for panel in (
        Panel("temperature", "Temperature", "°C", "gpu_temperature_celsius", 1.0, "max"),
        Panel("sm_clock", "SM clock", "MHz", "sm_clock_hertz", 1e-6, "avg"),
        Panel("power", "Power", "W", "power_watts", 1.0, "sum"),
        Panel("engine", "Engine active", "%", "utilization_ratio", 100.0, "avg"),
    )
}


@dataclass(frozen=True)
class PanelData:
    """A panel's line: `times` (Unix seconds, regular) and `values` beside them, None where nothing was measured."""

    panel: Panel
    times: tuple[float, ...]
    values: tuple[float | None, ...]
    step_seconds: float
    warnings: tuple[str, ...] = ()

    @property
    def newest(self) -> tuple[float, float] | None:
        """(time, value) of the newest point that has one."""
        return next(((time, value) for time, value in zip(reversed(self.times), reversed(self.values), strict=True) if value is not None), None)

    @property
    def gaps(self) -> int:
        """Stretches without a value between the first and the last point that have one."""
        known = [value is not None for value in self.values]
        if True not in known:
            return 0
        inner = known[known.index(True) : len(known) - known[::-1].index(True)]
        return sum(1 for before, after in itertools.pairwise(inner) if before and not after)


def selector(name: str, labels: Mapping[str, str]) -> str:
    """A vector selector for a metric with exactly these labels (`name!`: other than), values escaped."""
    pairs = (f'{key}="{_LABEL_VALUE.sub(_escape, value)}"' for key, value in sorted(labels.items()))
    return f"{name}{{{','.join(pairs)}}}"


@dataclass(frozen=True)
class Window:
    """How a chart reads its samples, in seconds: a mean over `mean` at each point, of samples that come each `scrape`; `length` is the chart's."""

    mean: float
    scrape: float
    length: float

    @property
    def chunk(self) -> float:
        """What is judged at once: a sample, or on long ranges several."""
        return max(self.scrape, math.ceil(self.mean / MOST_CHUNKS / self.scrape) * self.scrape)


def field_expression(name: str, labels: Mapping[str, str], window: Window) -> str:
    """The mean of a field over a window in our unit, whichever of its metric names the exporters use.

    Blanks and impossible values drop out before the mean is made, and leave the others beside them.
    """
    field = fields.FIELDS[fields.GPU_FIELD_INDEX[name]]
    parts: list[str] = []
    for metric in field.metrics:
        series = selector(metric.name, labels)
        if metric.name in fields.RATIO_OR_PERCENT:
            looked = max(window.length, 86_400.0)
            percent = f"count_over_time(({series} > 1 <= 100)[{_duration(looked)}:{_duration(max(60.0, looked / 1440))}] @ end())"
            parts += [f"({_mean(series, metric.scale / 100, field, window)} and {percent})", f"({_mean(series, metric.scale, field, window)} unless {percent})"]
        else:
            parts.append(_mean(series, metric.scale, field, window))
    return " or ".join(parts)


def _mean(series: str, scale: float, field: fields.Field, window: Window) -> str:
    # A range has both its ends in older Prometheus: a millisecond less, and nothing is in two of them.
    chunk = f"[{_duration(window.chunk - 0.001)}]"
    valid = f"* {scale:g} <= {field.maximum:g} >= {field.minimum:g}"
    if window.chunk <= window.scrape:
        taken = f"last_over_time({series}{chunk}) {valid}"
    else:
        taken = f"avg_over_time({series}{chunk}) {valid} and max_over_time({series}{chunk}) {valid} and min_over_time({series}{chunk}) {valid}"
    return f"avg_over_time(({taken})[{_duration(window.mean - 0.001)}:{_duration(window.chunk)}])"


def _duration(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"


def _escape(match: re.Match[str]) -> str:
    return {"\\": "\\\\", '"': '\\"', "\n": "\\n"}[match.group()]


def read_panel(
    source: PrometheusSource, panel: Panel, labels: Mapping[str, str], *, end: datetime, length: timedelta, scrape_interval_seconds: float
) -> PanelData:
    """Ask for one panel of the GPUs with these labels ({"UUID": …} or {"site": …}).

    Averages over each step, so that long ranges hide no load, of the samples that are valid; a stretch without samples is a gap, whatever Prometheus' look-back.

    :raises fleet.prometheus.SourceFault: as the query does.
    """
    step = max(math.ceil(length.total_seconds() / POINTS / 5) * 5.0, scrape_interval_seconds)
    window = Window(max(step, 2 * scrape_interval_seconds), scrape_interval_seconds, length.total_seconds())
    last = math.floor(end.timestamp() / step) * step
    start = last - math.floor(length.total_seconds() / step) * step

    def read(expression: str) -> Answer:
        return source.query_range(expression, at_unix(start), at_unix(last), step)

    if panel.field == "utilization_ratio":
        return _utilisation(panel, labels, window, read, _grid(start, last, step), step)
    answer = read(f"{panel.combine}(max by (UUID) ({field_expression(panel.field, labels, window)}))")
    points = dict(answer.series[0].points) if answer.series else {}
    times = _grid(start, last, step)
    return PanelData(panel, times, tuple(_scaled(points.get(time), panel.factor) for time in times), step, answer.warnings)


def _grid(start: float, end: float, step: float) -> tuple[float, ...]:
    return tuple(start + index * step for index in range(round((end - start) / step) + 1))


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else round(value * scale, 3)


def _utilisation(panel: Panel, labels: Mapping[str, str], window: Window, read: Callable[[str], Answer], times: tuple[float, ...], step: float) -> PanelData:
    """Mean use over the GPUs in percent: GPU_UTIL of whole ones, GR_ENGINE_ACTIVE of slices weighted by compute slices of 7 (case C05)."""
    whole = f"max by (UUID) ({field_expression('utilization_ratio', {**labels, 'GPU_I_ID': ''}, window)})"
    engine = field_expression("engine_active_ratio", {**labels, "GPU_I_ID!": ""}, window)
    whole_sum, whole_count = read(f"sum({whole})"), read(f"count({whole})")
    by_profile = read(f"sum by (GPU_I_PROFILE) (max by (UUID, GPU_I_ID, GPU_I_PROFILE) ({engine}))")
    sliced_count = read(f"count(count by (UUID) ({engine}))")
    sums = [
        (1.0, _points(whole_sum)),
        *((fields.compute_slices(one.labels.get("GPU_I_PROFILE", "")) / fields.COMPUTE_SLICES, dict(one.points)) for one in by_profile.series),
    ]
    counts = [_points(whole_count), _points(sliced_count)]
    values: list[float | None] = []
    for time in times:
        gpus = sum(points.get(time) or 0 for points in counts)
        total = sum(weight * (points.get(time) or 0) for weight, points in sums)
        values.append(_scaled(total / gpus, panel.factor) if gpus else None)
    return PanelData(panel, times, tuple(values), step, whole_sum.warnings + by_profile.warnings)


def _points(answer: Answer) -> Mapping[float, float | None]:
    return dict(answer.series[0].points) if answer.series else {}
