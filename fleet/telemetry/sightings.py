"""Who runs where, as the series' labels say: noticed once, handed to the inventory in batches. Pure: no Django, no clock, no I/O.

An identity is everything a `SeriesSeen` holds but the time. A row (a GPU's, or a slice's) keeps the digest of the identity it has; another one
replaces it once the old one no longer comes. Several that come with one scrape share the place (time-slicing, MPS): all of them are told together,
whenever one joins or leaves. A workload ends when its place goes on without it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from fleet.telemetry.fields import SeriesSeen
from fleet.telemetry.live_state import Columns, Floats, LiveState

_ARRIVAL_SECONDS = 2.0  # the series of one scrape arrive within this time
_SCRAPE_SECONDS = 1.0  # sample times that differ by no more are of one scrape
MAX_UNKNOWN = 200_000
MAX_SHARERS = 64  # of one place


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
                seen.sharing,
            )
        )
        or 1
    )


@dataclass(slots=True)
class _Sharer:
    """One more identity of a place that has one."""

    seen: SeriesSeen
    at: float
    arrived_at: float
    joined: bool = False


class _Rows:
    """The identities of GPU rows or of slice rows, [n] each."""

    identity: NDArray[np.int64]
    identity_at: Floats  # newest sample time that showed it
    candidate: NDArray[np.int64]
    candidate_at: Floats
    candidate_arrived_at: Floats
    busy: NDArray[np.bool_]  # a workload is known to run there
    several: NDArray[np.bool_]  # another identity was seen beside the row's own: look closer

    def __init__(self) -> None:
        self._columns = Columns()
        for name in ("identity", "candidate"):
            self._columns.add_column(name, "i8", 0)
        for name in ("identity_at", "candidate_at", "candidate_arrived_at"):
            self._columns.add_column(name, "f8", float("nan"))
        for name in ("busy", "several"):
            self._columns.add_column(name, "?", False)
        self._renew_views()
        self.seen: dict[int, SeriesSeen] = {}  # the candidate's
        self.own: dict[int, SeriesSeen] = {}  # the row's own identity, where there are several
        self.sharers: dict[int, dict[int, _Sharer]] = {}
        self.untold: set[int] = set()  # rows whose set of identities changed

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
        if len(other):
            self._note_others(held, other, rows, identities, times, read, now)
        for index in np.flatnonzero(same & held.several[rows]).tolist():
            if int(rows[index]) not in held.own:
                held.own[int(rows[index])] = read(index)

    @staticmethod
    def _note_others(
        held: _Rows,
        other: NDArray[np.int64],
        rows: NDArray[np.int64],
        identities: NDArray[np.int64],
        times: Floats,
        read: Callable[[int], SeriesSeen],
        now: float,
    ) -> None:
        """Samples `other` [m] of those [n] came under an identity that is not their row's."""
        with np.errstate(invalid="ignore"):
            other = other[~(times[other] < held.identity_at[rows[other]] - _SCRAPE_SECONDS)]
        expected = held.candidate[rows[other]] == identities[other]
        waiting = other[expected]
        _newest(held.candidate_at, rows[waiting], times[waiting])
        for index in other[~expected].tolist():
            row, identity, at = int(rows[index]), int(identities[index]), float(times[index])
            if held.candidate[row] == identity:
                continue
            sharers = held.sharers.get(row, {})
            if identity in sharers:
                sharers[identity].at = max(sharers[identity].at, at)
            elif row in held.seen and at - held.candidate_at[row] <= _SCRAPE_SECONDS:
                if at >= held.candidate_at[row] - _SCRAPE_SECONDS and len(sharers) < MAX_SHARERS:
                    held.sharers.setdefault(row, {})[identity] = _Sharer(read(index), at, now)
            else:
                held.seen[row] = read(index)
                held.candidate[row], held.candidate_at[row], held.candidate_arrived_at[row] = identity, at, now
                held.several[row] = True

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
            self._settle_sharers(held, now)
        self._end_workloads()
        for held in (self._gpus, self._slices):
            self._tell_sharers(held)
        while limit < len(self._queue) and _place(self._queue[limit]) == _place(self._queue[limit - 1]):
            limit += 1  # those that share a place are told together
        batch, self._queue = self._queue[:limit], self._queue[limit:]
        return batch

    def _settle(self, held: _Rows, now: float, limit: int) -> None:
        for row, seen in list(islice(held.seen.items(), limit)):
            at, known_at = float(held.candidate_at[row]), float(held.identity_at[row])
            arrived_at = float(held.candidate_arrived_at[row])
            if not np.isnan(known_at) and now - arrived_at < _ARRIVAL_SECONDS:
                continue
            if abs(at - known_at) <= _SCRAPE_SECONDS:  # both came with that scrape
                held.sharers.setdefault(row, {})[int(held.candidate[row])] = _Sharer(seen, at, arrived_at)
            elif not at < known_at:
                held.identity[row], held.identity_at[row] = held.candidate[row], at
                held.busy[row] = bool(seen.pod)
                if row in held.sharers:
                    held.own[row] = seen
                    held.untold.add(row)
                else:
                    held.own.pop(row, None)
                    self._queue.append(seen)
            del held.seen[row]
            held.candidate[row] = 0
            held.several[row] = row in held.sharers

    def _settle_sharers(self, held: _Rows, now: float) -> None:
        """Who shares a place came with its last scrapes; who no longer comes has left it."""
        for row, sharers in list(held.sharers.items()):
            newest = max([float(held.identity_at[row]), *(sharer.at for sharer in sharers.values())])
            if newest - held.identity_at[row] > self._silent_after:
                first = max(sharers, key=lambda identity: sharers[identity].at)
                heir = sharers.pop(first)
                held.identity[row], held.identity_at[row], held.own[row] = first, heir.at, heir.seen
                held.busy[row] = bool(heir.seen.pod)
                held.untold.add(row)
            for identity, sharer in list(sharers.items()):
                if newest - sharer.at > (self._silent_after if sharer.joined else _SCRAPE_SECONDS):
                    del sharers[identity]
                    if sharer.joined:
                        held.untold.add(row)
                elif not sharer.joined and now - sharer.arrived_at >= _ARRIVAL_SECONDS:
                    sharer.joined = True
                    held.busy[row] |= bool(sharer.seen.pod)
                    held.untold.add(row)
            if not sharers and row not in held.untold:
                self._alone(held, row)

    def _tell_sharers(self, held: _Rows) -> None:
        """All that run at each place whose set changed."""
        for row in list(held.untold):
            own, sharers = held.own.get(row), held.sharers.get(row, {})
            if own is None or not all(sharer.joined for sharer in sharers.values()):
                continue  # the next scrape says it again
            held.untold.discard(row)
            at = max([float(held.identity_at[row]), *(sharer.at for sharer in sharers.values())])
            members = [own, *(sharer.seen for sharer in sharers.values())]
            running = {(one.namespace, one.pod, one.container): one for one in members if one.pod}
            alone = "mig" if held is self._slices else "whole"
            told = list(running.values()) or members[:1]
            sharing = next((one.sharing for one in told if one.sharing), "time_sliced" if len(told) > 1 else alone)
            self._queue += [replace(one, at=at, sharing=one.sharing or sharing) for one in told]
            held.busy[row] = bool(running)
            if not sharers:
                self._alone(held, row)

    @staticmethod
    def _alone(held: _Rows, row: int) -> None:
        held.sharers.pop(row, None)
        held.own.pop(row, None)
        held.several[row] = row in held.seen

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
        shared = held.sharers.pop(row, None) is not None
        held.own.pop(row, None)
        held.untold.discard(row)
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
                sharing="" if not shared else "mig" if held is self._slices else "whole",
            )
        )


def _place(seen: SeriesSeen) -> tuple[str, int | None]:
    return seen.gpu_uuid, seen.gpu_instance_id


def _newest(target: Floats, rows: NDArray[np.int64], times: Floats) -> None:
    """target[rows] = the newest of times, where that is newer."""
    if len(rows):
        order = np.argsort(times, kind="stable")
        rows, times = rows[order], times[order]
        with np.errstate(invalid="ignore"):
            newer = ~(times <= target[rows])
        target[rows[newer]] = times[newer]
