"""Energy used between readings of a counter that restarts, blinks to 0, or turns into a blank. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class EnergyReading:
    """The counter (joules since the driver was loaded) at a time (Unix seconds). None: no value."""

    at: float
    joules: float | None


@dataclass(frozen=True)
class EnergyInterval:
    """Energy between two readings. `at_least`: the counter restarted in between, what was used before that is not known."""

    since: float
    until: float
    joules: float
    at_least: bool = False


def energy_joules(readings: Iterable[EnergyReading], *, power_limit_watts: float, slack: float = 1.1) -> list[EnergyInterval]:
    """The intervals between the readings that can be true, in the order of time.

    A blank is no reading. A fall is a blink (no reading) when the counter comes back above where it was, and a restart otherwise. No interval exceeds
    `power_limit_watts` × time × `slack`: a step beyond that books the cap, as a lower bound.
    """
    known = [reading for reading in sorted(readings, key=lambda reading: reading.at) if reading.joules is not None]
    intervals: list[EnergyInterval] = []
    last: EnergyReading | None = None
    for index, reading in enumerate(known):
        value = reading.joules or 0.0
        if last is None:
            last = reading
            continue
        before = last.joules or 0.0
        seconds = reading.at - last.at
        if seconds <= 0:
            continue
        cap = power_limit_watts * seconds * slack
        if value < before:
            after = known[index + 1] if index + 1 < len(known) else None
            if value == 0 or (after is not None and _comes_back(last, after, power_limit_watts * slack)):
                continue
            intervals.append(EnergyInterval(last.at, reading.at, min(value, cap), at_least=True))
        else:
            grown = value - before
            intervals.append(EnergyInterval(last.at, reading.at, min(grown, cap), at_least=grown > cap))
        last = reading
    return intervals


def _comes_back(before: EnergyReading, after: EnergyReading, watts: float) -> bool:
    """The counter goes on from where it was before the fall, by no more than the GPU can have used."""
    grown = (after.joules or 0.0) - (before.joules or 0.0)
    return 0 <= grown <= watts * (after.at - before.at)
