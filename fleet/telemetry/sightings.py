"""Who runs where, as the series' labels say: noticed once, handed to the inventory in batches. Pure: no Django, no clock, no I/O.

An identity is everything a `SeriesSeen` holds but the time. A row (a GPU's, or a slice's) keeps the digest of the identity it has; another one
replaces it once the old one no longer comes. A workload ends when its place goes on without it.
"""

from collections.abc import Callable
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from fleet.telemetry.fields import SeriesSeen
from fleet.telemetry.live_state import Columns, Floats, LiveState

_ARRIVAL_SECONDS = 2.0  # the series of one scrape arrive within this time
MAX_UNKNOWN = 200_000


def identity_of(seen: SeriesSeen) -> int:
    """Digest of an identity, never 0."""
    return (
        hash(
            (
                seen.site_code,
                seen.node_host,
                seen.gpu_uuid,
                seen.index,
                seen.pci_bus_id,
                seen.model_name,
                seen.driver_version,
                seen.gpu_instance_id,
                seen.profile,
                seen.namespace,
                seen.pod,
                seen.container,
            )
        )
        or 1
    )


class _Rows:
    """The identities of GPU rows or of slice rows, [n] each."""

    identity: NDArray[np.int64]
    identity_at: Floats  # newest sample time that showed it
    candidate: NDArray[np.int64]
    candidate_at: Floats
    candidate_arrived_at: Floats
    busy: NDArray[np.bool_]  # a workload is known to run there

    def __init__(self) -> None:
        self._columns = Columns()
        for name in ("identity", "candidate"):
            self._columns.add_column(name, "i8", 0)
        for name in ("identity_at", "candidate_at", "candidate_arrived_at"):
            self._columns.add_column(name, "f8", float("nan"))
        self._columns.add_column("busy", "?", False)
        self._renew_views()
        self.seen: dict[int, SeriesSeen] = {}

    def _renew_views(self) -> None:
        for name in self._columns.names():
            setattr(self, name, self._columns.view(name))

    def fit(self, count: int) -> None:
        if count > self._columns.count:
            self._columns.append(count - self._columns.count)
            self._renew_views()


class Sightings:
    def __init__(self, state: LiveState, *, silent_after_seconds: float) -> None:
        """`silent_after_seconds`: how long a place may lack its identity, while its GPU goes on reporting, before its workload counts as ended."""
        self._state = state
        self._silent_after = silent_after_seconds
        self._gpus, self._slices = _Rows(), _Rows()
        self._queue: list[SeriesSeen] = []
        self._unknown: set[int] = set()

    def __len__(self) -> int:
        """How many wait to be taken."""
        return len(self._queue) + len(self._gpus.seen) + len(self._slices.seen)

    def note(
        self,
        rows: NDArray[np.int64],
        identities: NDArray[np.int64],
        times: Floats,
        read: Callable[[int], SeriesSeen],
        *,
        slices: bool,
        now: float,
    ) -> None:
        """Samples of these rows came under these identities, [n] each. `read(i)` reads sample i's labels; it is called for identities not met yet."""
        held = self._slices if slices else self._gpus
        held.fit(self._state.slice_count if slices else self._state.gpu_count)
        same = held.identity[rows] == identities
        _newest(held.identity_at, rows[same], times[same])
        other = np.flatnonzero(~same)
        if not len(other):
            return
        with np.errstate(invalid="ignore"):
            other = other[~(times[other] <= held.identity_at[rows[other]])]
        expected = held.candidate[rows[other]] == identities[other]
        waiting = other[expected]
        _newest(held.candidate_at, rows[waiting], times[waiting])
        for index in other[~expected].tolist():
            row = int(rows[index])
            if held.candidate[row] == identities[index] or held.candidate_at[row] > times[index]:
                continue
            held.seen[row] = read(index)
            held.candidate[row], held.candidate_at[row], held.candidate_arrived_at[row] = identities[index], times[index], now

    def note_unknown(self, seen: SeriesSeen) -> None:
        """A GPU that the inventory does not hold: told once per identity."""
        identity = identity_of(seen)
        if identity in self._unknown:
            return
        if len(self._unknown) >= MAX_UNKNOWN:
            self._unknown.clear()
        self._unknown.add(identity)
        self._queue.append(seen)

    def forget_unknown(self) -> None:
        """What the inventory does not hold is told again."""
        self._unknown.clear()

    def put_back(self, batch: list[SeriesSeen]) -> None:
        """The inventory could not take these."""
        self._queue[:0] = batch

    def take(self, *, now: float, limit: int) -> list[SeriesSeen]:
        """At most `limit` sightings for the inventory, in no order: new and changed identities, and workloads that ended (an empty `pod`)."""
        for held in (self._gpus, self._slices):
            self._settle(held, now, limit)
        self._end_workloads()
        batch, self._queue = self._queue[:limit], self._queue[limit:]
        return batch

    def _settle(self, held: _Rows, now: float, limit: int) -> None:
        for row, seen in list(islice(held.seen.items(), limit)):
            at, known_at = float(held.candidate_at[row]), float(held.identity_at[row])
            if at <= known_at:  # the old identity came again with that scrape: several share the place, or the word is old
                pass
            elif np.isnan(known_at) or now - held.candidate_arrived_at[row] >= _ARRIVAL_SECONDS:
                held.identity[row], held.identity_at[row] = held.candidate[row], at
                held.busy[row] = bool(seen.pod)
                self._queue.append(seen)
            else:
                continue
            del held.seen[row]
            held.candidate[row] = 0

    def _end_workloads(self) -> None:
        state = self._state
        with np.errstate(invalid="ignore"):
            gpus, slices = self._gpus, self._slices
            rows = np.flatnonzero(gpus.busy)
            for row in rows[state.gpu_sampled_at[rows] - gpus.identity_at[rows] > self._silent_after].tolist():
                self._end(gpus, row, row, None)
            rows = np.flatnonzero(slices.busy)
            parents = state.slice_gpu_row[rows]
            gone = state.gpu_sampled_at[parents] - slices.identity_at[rows] > self._silent_after
            for row, parent in zip(rows[gone].tolist(), parents[gone].tolist(), strict=True):
                self._end(slices, row, parent, int(state.slice_instance[row]))

    def _end(self, held: _Rows, row: int, gpu_row: int, instance: int | None) -> None:
        """The GPU reports, this place of it does not: its workload is over (and with it, perhaps, the slice: that is the agent's to say)."""
        state = self._state
        held.busy[row] = False
        held.identity[row] = 0
        self._queue.append(
            SeriesSeen(
                site_code=state.site_code[int(state.gpu_site_row[gpu_row])],
                node_host=state.node_host[int(state.gpu_node_row[gpu_row])],
                gpu_uuid=state.gpu_uuid[gpu_row],
                index=None,
                pci_bus_id="",
                model_name="",
                driver_version="",
                gpu_instance_id=instance,
                profile="",
                namespace="",
                pod="",
                container="",
                at=float(state.gpu_sampled_at[gpu_row]),
            )
        )


def _newest(target: Floats, rows: NDArray[np.int64], times: Floats) -> None:
    """target[rows] = the newest of times, where that is newer."""
    if len(rows):
        order = np.argsort(times, kind="stable")
        rows, times = rows[order], times[order]
        with np.errstate(invalid="ignore"):
            newer = ~(times <= target[rows])
        target[rows[newer]] = times[newer]
