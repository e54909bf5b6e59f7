"""What the telemetry process says of itself on /metrics, in a registry of its own."""

from collections.abc import Iterator

import numpy as np
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from fleet.remote_write import Receiver
from fleet.telemetry.process import TelemetryProcess
from fleet.telemetry.series_ages import sample_ages


class TelemetryCollector(Collector):
    def __init__(self, process: TelemetryProcess) -> None:
        self._process = process
        self.receiver: Receiver | None = None

    def collect(self) -> Iterator[Metric]:
        process, figures = self._process, self._process.figures
        for name, text, value in (
            ("tick_seconds", "Time that the last evaluation and publication took.", figures.tick_seconds),
            ("flush_seconds", "Time that the last write of changed readings took.", figures.flush_seconds),
            ("last_tick_timestamp_seconds", "When the last tick began.", figures.ticked_at),
            ("last_flush_timestamp_seconds", "When the last successful flush began.", figures.flushed_at),
            ("newest_arrival_timestamp_seconds", "When the newest sample that was taken arrived.", process.state.arrived_at),
            ("series", "Series that are taken.", float(len(process.ingest.table))),
            ("gpus", "GPUs in the live state.", float(process.state.gpu_count)),
            ("slices", "MIG slices in the live state.", float(process.state.slice_count)),
            ("sightings_waiting", "Identities that wait for the inventory.", float(len(process.ingest.sightings))),
            ("health_changes_waiting", "Changes of health that wait to be stored.", float(process.health.pending)),
        ):
            yield GaugeMetricFamily(f"masthead_telemetry_{name}", text, value=value)
        for name, text, count in (
            ("samples", "Samples taken.", process.ingest.samples_total),
            ("ticks", "Ticks.", figures.ticks),
            ("flushes", "Flushes of readings.", figures.flushes),
            ("rows_flushed", "Rows of readings written.", figures.rows_flushed),
            ("table_rewrites", "Times that a reading table lacked rows and was written whole.", figures.rewrites),
        ):
            yield CounterMetricFamily(f"masthead_telemetry_{name}", text, value=count)
        refused = CounterMetricFamily("masthead_telemetry_refused_samples", "Samples not taken, by reason.", labels=["reason"])
        for reason, total in process.ingest.quality.totals.items():
            refused.add_metric([reason.value], total)
        yield refused
        failures = CounterMetricFamily("masthead_telemetry_database_failures", "What the database did not take at once.", labels=["what"])
        for what, total in sorted(figures.failures.items()):
            failures.add_metric([what], total)
        yield failures
        ages = GaugeMetricFamily("masthead_telemetry_sample_age_seconds", "Age of the values held, over series.", labels=["quantile"])
        with process.lock:
            held = sample_ages(process.ingest, now=process.now())
        for share in (0.5, 0.95, 0.99) if len(held) else ():
            ages.add_metric([str(share)], float(np.quantile(held, share)))
        yield ages
        if self.receiver is not None:
            yield GaugeMetricFamily("masthead_remote_write_waiting_bytes", "Bytes of bodies that are being taken.", value=float(self.receiver.waiting_bytes))
            answers = CounterMetricFamily("masthead_remote_write_requests", "Answers, by status.", labels=["status"])
            for status, total in sorted(self.receiver.answers.items()):
                answers.add_metric([str(status)], total)
            yield answers


def make_registry(process: TelemetryProcess) -> tuple[CollectorRegistry, TelemetryCollector]:
    registry = CollectorRegistry()
    collector = TelemetryCollector(process)
    registry.register(collector)
    ProcessCollector(registry=registry)
    return registry, collector
