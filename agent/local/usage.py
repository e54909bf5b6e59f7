"""What each device of the node uses now, from its own dcgm-exporter. A value that is not told is None, never 0."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from agent.exposition import Page, PageError, samples
from agent.local.placement import Device

MIB = 1 << 20
# DCGM's blanks are huge numbers of the field's own type; none of these readings comes near.
_BLANK_MIB, _BLANK_MJ = 1 << 30, 9.0e18
_USED, _FREE, _RESERVED = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_RESERVED"
_UTIL, _ACTIVE, _ENERGY = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
_NAMES = frozenset({_USED, _FREE, _RESERVED, _UTIL, _ACTIVE, _ENERGY})
Key = tuple[str, int | None]  # GPU UUID, GPU instance id (None: the whole GPU)


@dataclass(frozen=True)
class DeviceUsage:
    used_bytes: float | None = None
    total_bytes: float | None = None
    active_ratio: float | None = None


@dataclass(frozen=True)
class Usage:
    """One reading of the node at `at` (Unix seconds)."""

    at: float
    devices: Mapping[Key, DeviceUsage] = field(default_factory=dict)
    energy_joules: Mapping[str, float] = field(default_factory=dict)  # by GPU UUID, since the driver was loaded

    def of(self, device: Device) -> DeviceUsage:
        return self.devices.get((device.gpu_uuid, device.gpu_instance_id), DeviceUsage())

    def gpu_load(self, gpu_uuid: str, devices: Mapping[str, Device]) -> float | None:
        """How busy the GPU is, 0..1: its slices weighted by their compute. None as soon as one part is not known."""
        parts = [device for device in devices.values() if device.gpu_uuid == gpu_uuid]
        if not parts:
            return None
        load = 0.0
        for part in parts:
            active = self.of(part).active_ratio
            if active is None:
                return None
            load += active * part.compute_share
        return min(1.0, load)


class UsageReader(Protocol):
    def read(self, now: float) -> Usage | None:
        """None: it cannot be asked now."""

    def close(self) -> None: ...


def usage_in(text: str, now: float) -> Usage:
    values: dict[Key, dict[str, float]] = {}
    energy: dict[str, float] = {}
    for name, labels, value in samples(text, _NAMES):
        gpu_uuid, instance = labels.get("UUID", ""), labels.get("GPU_I_ID", "")
        if not gpu_uuid or value < 0 or not (instance == "" or (instance.isascii() and instance.isdigit())):
            continue
        if name == _ENERGY:
            if value < _BLANK_MJ:
                energy[gpu_uuid] = value / 1000
            continue
        values.setdefault((gpu_uuid, int(instance) if instance else None), {})[name] = value
    return Usage(at=now, devices={key: _device(found) for key, found in values.items()}, energy_joules=energy)


def _device(found: Mapping[str, float]) -> DeviceUsage:
    used, free, reserved = (found.get(name, math.nan) for name in (_USED, _FREE, _RESERVED))
    used = used if used < _BLANK_MIB else math.nan
    free = free if free < _BLANK_MIB else math.nan
    reserved = reserved if reserved < _BLANK_MIB else 0.0
    active = found.get(_ACTIVE, math.nan)
    if not 0 <= active <= 1:
        util = found.get(_UTIL, math.nan)
        active = util / 100 if 0 <= util <= 100 else math.nan
    total = used + free + reserved
    return DeviceUsage(
        used_bytes=None if math.isnan(used) else used * MIB,
        total_bytes=None if math.isnan(total) else total * MIB,
        active_ratio=None if math.isnan(active) else active,
    )


class ExporterUsage:
    """Reads the page of a dcgm-exporter on this node."""

    def __init__(self, url: str) -> None:
        self._page = Page(url, timeout_seconds=5.0)

    def read(self, now: float) -> Usage | None:
        try:
            return usage_in(self._page.read(), now)
        except PageError:
            return None

    def close(self) -> None:
        self._page.close()
