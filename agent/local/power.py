"""The power schedule: which clock bound holds at an hour and a load. Pure."""

from __future__ import annotations

import math
from datetime import datetime
from enum import StrEnum
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from agent.protocol import PowerSchedule


class Level(StrEnum):
    ECO = "eco"
    BASE = "base"
    BOOST = "boost"


class UnknownZone(Exception):
    """The site's time zone is not known on this node."""


def local_hour(now: float, time_zone: str) -> int:
    """The hour 0..23 at the site. Raises UnknownZone."""
    try:
        return datetime.fromtimestamp(now, ZoneInfo(time_zone)).hour
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise UnknownZone(f"{time_zone!r} is no time zone that this node knows") from error


def level_at(hour: int, load: float | None, schedule: PowerSchedule) -> Level:
    """Which level holds. `load` is a ratio 0..1, None when it is not known. Raises ValueError for NaN and what is no ratio.

    An unknown load is neither low nor high: by night and by day it gives the base level, so that a silent exporter never slows
    a busy GPU down nor speeds one up. In the hours between night and day the level is eco by the clock alone.
    """
    if load is not None and not (math.isfinite(load) and 0 <= load <= 1):
        raise ValueError(f"load: {load} is not a ratio within 0..1")
    if schedule.night_from <= hour < schedule.night_to:
        return Level.ECO if load is not None and load < schedule.night_below_ratio else Level.BASE
    if schedule.day_from <= hour < schedule.day_to:
        return Level.BOOST if load is not None and load > schedule.day_above_ratio else Level.BASE
    return Level.ECO


def bound_mhz(level: Level, schedule: PowerSchedule) -> int:
    return {Level.ECO: schedule.eco_mhz, Level.BASE: schedule.base_mhz, Level.BOOST: schedule.boost_mhz}[level]
