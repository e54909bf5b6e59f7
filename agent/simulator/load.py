"""How busy each part of the fleet is at a time: closed form, so that the same seed and time give the same values whatever happened before.

A part is what a workload runs on: a MIG slice, or a whole GPU without slices.
"""

import hashlib
import zoneinfo
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Keys = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1, _MIX2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def key_of(seed: int, name: str) -> int:
    """A 64-bit key that stands for `name` under this seed."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest())


def uniform(keys: Keys, draw: int | npt.NDArray[np.uint64]) -> Floats:
    """Numbers in 0..1 for each key and draw: SplitMix64, the same on every machine. `draw` is one number or one per key."""
    with np.errstate(over="ignore"):
        mixed = keys + np.asarray(draw, dtype=np.uint64) * _GOLDEN
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX1
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX2
        mixed = mixed ^ (mixed >> np.uint64(31))
    drawn: Floats = (mixed >> np.uint64(11)).astype(np.float64) / float(1 << 53)
    return drawn


def smooth_noise(keys: Keys, now: float, period_seconds: float, salt: int) -> Floats:
    """Noise in -1..1 that wanders with this period, each key on its own phase."""
    place = now / period_seconds + uniform(keys, salt)
    bucket = np.floor(place)
    part = place - bucket
    eased = part * part * (3 - 2 * part)
    number = bucket.astype(np.uint64) * np.uint64(2) + np.uint64(salt << 40)
    before, after = uniform(keys, number), uniform(keys, number + np.uint64(2))
    mixed: Floats = 2 * (before + (after - before) * eased) - 1
    return mixed


class LocalTime:
    """Hour of the day (0..24) per row, by each row's time zone."""

    def __init__(self, zone_names: list[str]) -> None:
        names = sorted(set(zone_names))
        self._zones = [zoneinfo.ZoneInfo(name) for name in names]
        self._zone_of_row = np.array([names.index(name) for name in zone_names], dtype=np.int64)

    def hours(self, now: float) -> Floats:
        moment = datetime.fromtimestamp(now, UTC)
        offsets = [zone.utcoffset(moment.astimezone(zone)) for zone in self._zones]
        hours = np.array([(now + (offset.total_seconds() if offset else 0.0)) / 3600 % 24 for offset in offsets])
        found: Floats = hours[self._zone_of_row] if len(hours) else np.zeros(0)
        return found


@dataclass(frozen=True)
class Character:
    """How a kind of workload behaves: activity `base` + `swing` × time of day, and what an active part does to memory and pipes."""

    base: float
    swing: float
    peak_hour: float
    noise: float
    memory: float
    dram: float
    tensor: float


CHARACTERS = {
    "none": Character(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    "phy": Character(0.30, 0.38, 20.0, 0.05, 0.55, 0.30, 0.35),
    "service": Character(0.18, 0.50, 15.0, 0.16, 0.55, 0.42, 0.55),
    "language": Character(0.52, 0.36, 14.0, 0.08, 0.84, 0.45, 0.58),
}


class Load:
    """Demand of every part. `kinds` names a character per part, `names` seeds it."""

    def __init__(self, seed: int, names: list[str], kinds: list[str], zones: list[str]) -> None:
        self.keys: Keys = np.array([key_of(seed, name) for name in names], dtype=np.uint64)
        self._time = LocalTime(zones)
        characters = [CHARACTERS[kind] for kind in kinds]

        def column(field: str) -> Floats:
            return np.array([getattr(character, field) for character in characters], dtype=np.float64)

        spread = 0.75 + 0.5 * uniform(self.keys, 1)
        self.busy = np.array([kind != "none" for kind in kinds], dtype=bool)
        self._base, self._swing, self._noise = column("base") * spread, column("swing") * spread, column("noise")
        self._peak = column("peak_hour") + 3 * (uniform(self.keys, 2) - 0.5)
        self.memory_share = np.clip(column("memory") * (0.8 + 0.4 * uniform(self.keys, 3)), 0, 0.92)
        self.dram_share = column("dram") * (0.8 + 0.4 * uniform(self.keys, 4))
        self.tensor_share = column("tensor") * (0.8 + 0.4 * uniform(self.keys, 5))

    def demand(self, now: float) -> Floats:
        """Wanted activity 0..1 of each part at full clock."""
        day = 0.5 + 0.5 * np.cos((self._time.hours(now) - self._peak) / 24 * 2 * np.pi)
        wander = self._noise * (smooth_noise(self.keys, now, 420, 6) + 0.6 * smooth_noise(self.keys, now, 45, 7))
        wanted: Floats = np.clip(self._base + self._swing * day**1.5 + wander, 0.02, 0.98)
        return np.where(self.busy, wanted, 0.0)

    def memory(self, now: float) -> Floats:
        """Share 0..1 of its memory that each part's workload holds."""
        wander: Floats = self.memory_share * (1 + 0.06 * smooth_noise(self.keys, now, 900, 8))
        return wander
