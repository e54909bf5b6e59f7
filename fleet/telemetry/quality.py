"""Samples refused, by sender, site and reason, until they are stored. Pure: no Django, no clock, no I/O."""

from collections.abc import Callable
from dataclasses import dataclass

from fleet.telemetry.fields import Refusal


@dataclass
class Tally:
    """How often since the last time it was taken; first and last arrival (Unix seconds); one example."""

    count: int
    first_at: float
    last_at: float
    example: str = ""


Key = tuple[int | None, int | None, Refusal]  # sender id, site id, reason


class Quality:
    def __init__(self) -> None:
        self._tallies: dict[Key, Tally] = {}
        self.totals: dict[Refusal, int] = dict.fromkeys(Refusal, 0)

    def count(self, sender_id: int, site_id: int | None, reason: Refusal, count: int, *, now: float, example: Callable[[], str]) -> None:
        """`site_id` None: the site is not known or not the sender's. `example` is asked for once per tally.

        Metrics that we do not read are no fault of what is sent: they are in `totals` alone.
        """
        self.totals[reason] += count
        if reason is Refusal.UNKNOWN_METRIC:
            return
        key = (sender_id, site_id, reason)
        tally = self._tallies.get(key)
        if tally is None:
            self._tallies[key] = Tally(count, now, now, example())
            return
        tally.count += count
        tally.last_at = max(tally.last_at, now)

    def take(self) -> dict[Key, Tally]:
        """What was counted since the last call."""
        taken, self._tallies = self._tallies, {}
        return taken

    def put_back(self, taken: dict[Key, Tally]) -> None:
        """It could not be stored: it counts with what comes next."""
        newer, self._tallies = self._tallies, taken
        for key, tally in newer.items():
            old = self._tallies.get(key)
            if old is None:
                self._tallies[key] = tally
            else:
                old.count += tally.count
                old.last_at = max(old.last_at, tally.last_at)
