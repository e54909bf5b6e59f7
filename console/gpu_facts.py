"""What pages show of GPUs: values with their age, the strip, workloads with the names of their tenants. A fixed number of statements for any number of GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Prefetch, QuerySet

from console.strip import Strip, draw_strip
from fleet.models import Gpu, GpuReading, MigSlice, SliceReading, Workload
from tenants.models import Tenant

GPU_FIELDS = tuple(column.name for column in GpuReading._meta.concrete_fields if column.name not in ("gpu", "sampled_at"))
SLICE_FIELDS = tuple(column.name for column in SliceReading._meta.concrete_fields if column.name not in ("id", "gpu", "gpu_instance_id", "sampled_at"))


@dataclass(frozen=True)
class Values:
    """Last values of a GPU and of its slices by GPU instance id. `is_last_known`: the copy kept when its site fell silent."""

    sampled_at: datetime | None = None
    gpu: Mapping[str, float | None] = field(default_factory=dict)
    slices: Mapping[int, Mapping[str, float | None]] = field(default_factory=dict)
    is_last_known: bool = False

    def freshness(self, now: datetime) -> str:
        """fresh, stale (older than 2 intervals), old (older than 3) or never."""
        if self.sampled_at is None:
            return "never"
        interval = timedelta(seconds=settings.SCRAPE_INTERVAL_SECONDS)
        age = now - self.sampled_at
        return "fresh" if age <= 2 * interval else "stale" if age <= 3 * interval else "old"


@dataclass(frozen=True)
class GpuFacts:
    gpu: Gpu
    values: Values
    freshness: str
    strip: Strip
    workloads: Sequence[Workload]
    carries_phy: bool


def with_everything(gpus: QuerySet[Gpu]) -> QuerySet[Gpu]:
    """The queryset with all that `facts_of` reads: five statements for any number of rows."""
    return gpus.select_related("node__site__region__area", "health", "reading", "last_known").prefetch_related(
        "protected_placements",
        Prefetch("slices", MigSlice.objects.filter(ended_at__isnull=True).order_by("start", "gpu_instance_id"), to_attr="live_slices"),
        "slice_readings",
        Prefetch("workloads", Workload.objects.filter(ended_at__isnull=True).select_related("slice").order_by("namespace", "pod"), to_attr="running"),
    )


def facts_of(gpus: Sequence[Any], *, now: datetime) -> list[GpuFacts]:
    """Of GPUs read through `with_everything`. One statement for the names of tenants."""
    keys = {workload.tenant_key for gpu in gpus for workload in gpu.running if workload.tenant_key}
    names = dict(Tenant.objects.filter(key__in=keys).values_list("key", "name"))
    facts = []
    for gpu in gpus:
        for workload in gpu.running:
            workload.tenant_name = names.get(workload.tenant_key, workload.tenant_key)
        values = _values(gpu)
        strip = draw_strip(gpu, gpu.live_slices, gpu.protected_placements.all(), gpu.running, values.gpu, values.slices)
        facts.append(GpuFacts(gpu, values, values.freshness(now), strip, gpu.running, gpu.carries_phy))
    return facts


def _values(gpu: Any) -> Values:
    reading = getattr(gpu, "reading", None)
    if reading is not None and reading.sampled_at is not None:
        slices = {row.gpu_instance_id: {name: getattr(row, name) for name in SLICE_FIELDS} for row in gpu.slice_readings.all()}
        return Values(reading.sampled_at, {name: getattr(reading, name) for name in GPU_FIELDS}, slices)
    kept = getattr(gpu, "last_known", None)
    if kept is None:
        return Values()
    slices = {int(key): value for key, value in kept.slices.items() if str(key).isdecimal()}
    return Values(kept.sampled_at, kept.values, slices, is_last_known=True)
