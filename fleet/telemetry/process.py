"""The telemetry process: samples in, a tick each second, a flush each ten. `manage.py telemetry` runs it.

Three threads work beside the receiver: one ticks (evaluate, publish), one flushes, one tells the inventory what was seen. What they share is guarded by one lock that is never held over
the database or Redis. Either of those may be away: the state stays, what could not be written is written later.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
import structlog
from django.conf import settings
from django.db import Error, InterfaceError, OperationalError, connection

from fleet import stream
from fleet.health.store import HealthStore
from fleet.inventory import seen
from fleet.telemetry.fields import SeriesSeen
from fleet.telemetry.ingest import Ingest
from fleet.telemetry.kept import add_quality, forget_ended_services, keep_last_known, last_known_of, set_missing, store_services
from fleet.telemetry.live_detail import DetailWatch
from fleet.telemetry.live_inventory import Version, apply_heartbeats, apply_inventory, find_areas, read_heartbeats, read_inventory, read_version
from fleet.telemetry.live_state import LiveState
from fleet.telemetry.reading_store import Flushed, ReadingStore
from fleet.telemetry.senders import SenderDirectory
from fleet.telemetry.series_ages import count_missing
from fleet.telemetry.service_state import ServiceState

log = structlog.get_logger(__name__)

TICK_SECONDS = 1.0
FLUSH_SECONDS = 10.0
INVENTORY_SECONDS = 5.0
SENDERS_SECONDS = 5.0
MISSING_SECONDS = 60.0
SWEEP_SECONDS = 600.0
FORGET_SERIES_SECONDS = 1800.0
TELL_SECONDS = 3.0
SIGHTINGS_AT_ONCE = 4_000
SIGHTING_BATCHES = 10
LAST_KNOWN_PER_FLUSH = 5_000


@dataclass
class Figures:
    """What the process says of itself on /metrics."""

    tick_seconds: float = 0.0
    flush_seconds: float = 0.0
    ticks: int = 0
    flushes: int = 0
    ticked_at: float = 0.0
    flushed_at: float = 0.0
    rows_flushed: int = 0
    rewrites: int = 0
    failures: dict[str, int] = field(default_factory=dict)

    def fail(self, what: str) -> None:
        self.failures[what] = self.failures.get(what, 0) + 1


class TelemetryProcess:
    """All parts of one process. `areas`: slugs of the areas it covers; empty for the whole fleet."""

    def __init__(self, *, areas: list[str], clock: Callable[[], float] = time.time) -> None:
        self.lock = threading.Lock()
        self.state = LiveState(slice_silent_seconds=3.0 * settings.SCRAPE_INTERVAL_SECONDS)
        self.services = ServiceState(silent_seconds=3.0 * settings.SCRAPE_INTERVAL_SECONDS)
        self.ingest = Ingest(self.state, self.services, silent_after_seconds=1.5 * settings.SCRAPE_INTERVAL_SECONDS)
        self.senders = SenderDirectory()
        self.figures = Figures()
        self.health = HealthStore()
        self.used_senders: set[int] = set()  # filled by the receiver
        self._areas = areas
        self._area_ids: list[int] | None = None
        self._clock = clock
        self._readings = ReadingStore(self.state, self.lock)
        self._redis = stream.connect()
        self._publisher = stream.FramePublisher(self._redis)
        self._details = DetailWatch(self.state)
        self._version: Version | None = None
        self._read_at = {"inventory": 0.0, "senders": 0.0, "missing": 0.0, "sweep": 0.0}
        self._heartbeats_since = 0.0
        self._silent_kept: set[int] = set()
        self._missing_told: set[tuple[int, int | None]] = set()

    def now(self) -> float:
        return self._clock()

    # Start

    def load(self) -> None:
        """Read everything that the process must know before it takes samples. Raises the database's errors."""
        now = self._clock()
        self._area_ids = find_areas(self._areas)
        self._refresh_inventory(now)
        self._refresh_senders(now)
        seeded = self._readings.seed()
        self._refresh_heartbeats(now - 600)
        self.health.seed(self.state, now)
        log.info("telemetry_loaded", sites=len(self.state.site_code), gpus=self.state.gpu_count, seeded=seeded)

    # Each second

    def tick(self) -> None:
        """Bring in what others wrote, evaluate, and tell the live pages. Never raises for the database or Redis."""
        now = self._clock()
        began = time.monotonic()
        self._attempt("inventory", lambda: self._refresh_inventory(now), due=self._due("inventory", now, INVENTORY_SECONDS))
        self._attempt("senders", lambda: self._refresh_senders(now), due=self._due("senders", now, SENDERS_SECONDS))
        self._attempt("heartbeats", lambda: self._refresh_heartbeats(now - 60))
        with self.lock:
            self.state.derive()
            arrived_at = self.state.arrived_at
        changes = self.health.tick(self.state, now)
        cells, area_ids = self.health.frame_cells(self.state)
        self._publisher.publish(cells, area_ids, now=now, newest_arrival=arrived_at)
        if changes.notices:
            stream.publish_notices(changes.notices)
        watched = stream.watched_sites(self._redis, now)
        with self.lock:
            details = list(self._details.changes(watched, now=now))
        if details:
            stream.publish_details(self._redis, details)
        figures = self.figures
        figures.tick_seconds, figures.ticked_at, figures.ticks = time.monotonic() - began, now, figures.ticks + 1

    def _due(self, what: str, now: float, seconds: float) -> bool:
        if now - self._read_at[what] < seconds:
            return False
        self._read_at[what] = now
        return True

    def _attempt(self, what: str, act: Callable[[], object], *, due: bool = True) -> bool:
        """Do it; a database that is away is logged and the connection dropped. True when it was done."""
        if not due:
            return False
        try:
            act()
        except Error as error:
            self.figures.fail(what)
            log.warning("telemetry_database_failed", what=what, error=str(error))
            connection.close()
            return False
        return True

    def _refresh_inventory(self, now: float) -> None:
        version = read_version()
        if version == self._version:
            return
        found = read_inventory(self._area_ids)
        with self.lock:
            apply_inventory(self.state, found, self.ingest)
        self._version = found.version

    def _refresh_senders(self, now: float) -> None:
        changed = self.senders.refresh(now=_moment(now))
        with self.lock:
            for sender_id in changed:
                self.ingest.table.forget_sender(sender_id)

    def _refresh_heartbeats(self, since: float) -> None:
        beats = read_heartbeats(self._area_ids, max(since, self._heartbeats_since))
        with self.lock:
            apply_heartbeats(self.state, beats)
        if beats:
            self._heartbeats_since = max(at for _, at in beats) - 2.0  # gateways write in batches: a little of what was read may come late

    # Each ten seconds

    def flush(self) -> Flushed | None:
        """Write what changed. Never raises for the database: what was not written stays marked. None when the readings were not written."""
        now = self._clock()
        flushed: list[Flushed] = []
        self._attempt("readings", lambda: flushed.append(self._readings.flush()))
        if flushed:
            figures = self.figures
            figures.flush_seconds, figures.flushed_at, figures.flushes = flushed[0].seconds, now, figures.flushes + 1
            figures.rows_flushed += flushed[0].gpus + flushed[0].slices
            figures.rewrites += flushed[0].rewrote
            if flushed[0].rewrote:
                with self.lock:
                    self.services.mark_all_changed()
        self._flush_services(now)
        self._flush_quality(now)
        self._keep_silent_sites(now)
        used = [self.used_senders.pop() for _ in range(len(self.used_senders))]
        self._attempt("senders", lambda: self.senders.record_use(used, now=_moment(now)), due=bool(used))
        if self._due("sweep", now, SWEEP_SECONDS):
            with self.lock:
                self.ingest.sweep(older_than=now - FORGET_SERIES_SECONDS)
            self._attempt("services", forget_ended_services)
        return flushed[0] if flushed else None

    def _flush_services(self, now: float) -> None:
        with self.lock:
            changed = self.services.take_changed(now=now)
            node_ids = self.state.node_id.copy()
        if changed and not self._attempt("services", lambda: store_services([row for row, _ in changed], node_ids)):
            with self.lock:
                self.services.keep_changed([key for _, key in changed])

    def _flush_quality(self, now: float) -> None:
        with self.lock:
            tallies = self.ingest.quality.take()
        if not self._attempt("quality", lambda: add_quality(tallies), due=bool(tallies)):
            with self.lock:
                self.ingest.quality.put_back(tallies)
        if self._due("missing", now, MISSING_SECONDS):
            with self.lock:
                missing = count_missing(self.ingest, now=now, after_seconds=self.health.evaluator.thresholds.unknown_seconds)
            counts = {**dict.fromkeys(self._missing_told, 0), **missing}
            if self._attempt("quality", lambda: set_missing(counts, now=now)):
                self._missing_told = set(missing)

    def _keep_silent_sites(self, now: float) -> None:
        """A site that falls silent leaves its last values in a logged table."""
        after = self.health.evaluator.thresholds.unknown_seconds
        with self.lock:
            state = self.state
            with np.errstate(invalid="ignore"):
                silent = set(np.flatnonzero(state.site_active & (now - state.site_last_contact > after)).tolist())
            self._silent_kept &= silent
            fresh = sorted(silent - self._silent_kept)
            if not fresh:
                return
            rows = np.flatnonzero(np.isin(state.gpu_site_row, fresh) & state.gpu_active)[:LAST_KNOWN_PER_FLUSH].tolist()
            readings = last_known_of(state, rows)
            homes = state.gpu_site_row
            done = set(fresh) if len(rows) < LAST_KNOWN_PER_FLUSH else {int(homes[row]) for row in rows} - {int(homes[rows[-1]])}
        if self._attempt("last_known", lambda: keep_last_known(readings, now=now)):
            self._silent_kept |= done

    # Every few seconds, in a thread of its own: after a start a large fleet has much to tell

    def tell_inventory(self) -> None:
        """Identities that were first seen or changed go to the inventory; what it cannot take now comes again. Never raises for the database."""
        now = self._clock()
        for _ in range(SIGHTING_BATCHES):
            with self.lock:
                batch = self.ingest.sightings.take(now=now, limit=SIGHTINGS_AT_ONCE)
            if not batch or not self._reconcile(batch, now) or len(batch) < SIGHTINGS_AT_ONCE:
                return

    def _reconcile(self, batch: list[SeriesSeen], now: float) -> bool:
        """False when the database is away: the batch comes again."""
        try:
            seen.reconcile_telemetry(batch, _moment(now))
        except (OperationalError, InterfaceError) as error:
            self.figures.fail("inventory")
            log.warning("telemetry_database_failed", what="sightings", error=str(error))
            connection.close()
            with self.lock:
                self.ingest.sightings.put_back(batch)
            return False
        except Exception as error:
            # One sighting in it cannot be taken in: find it, so that it neither holds up the others for ever nor takes them with it.
            if len(batch) == 1:
                self.figures.fail("sighting")
                log.error("telemetry_sighting_dropped", seen=repr(batch[0]), error=str(error))
                return True
            half = len(batch) // 2
            return all([self._reconcile(batch[:half], now), self._reconcile(batch[half:], now)])
        return True


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, tz=UTC)
