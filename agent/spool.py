"""What the agent has to tell and nobody has stored yet: events, and metering per workload and hour. Bounded in age and in number.

Beyond the bound detail goes first, the oldest first, then the oldest of the rest; how much went is counted and told.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import uuid4

from agent.protocol import LocalEvent
from agent.protocol.wire import dump_canonical, printable
from agent.store import Store

KEEP_SECONDS = 7 * 24 * 3600.0
MAX_EVENTS = 50_000
# At most so many events within so many seconds: a backlog of days must not flood the link.
BATCH, BATCH_SECONDS = 50, 10.0
TELL_AGAIN_SECONDS = 30.0
HOUR_SECONDS = 3600
_SCHEMA = """
CREATE TABLE IF NOT EXISTS event (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, at REAL NOT NULL, subject TEXT NOT NULL, detail TEXT NOT NULL,
    is_detail INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS event_at ON event (at);
CREATE INDEX IF NOT EXISTS event_drop ON event (is_detail DESC, number);
CREATE TABLE IF NOT EXISTS metering (
    hour INTEGER NOT NULL, uid TEXT NOT NULL, id TEXT NOT NULL, namespace TEXT NOT NULL, pod TEXT NOT NULL, tenant TEXT NOT NULL,
    seconds REAL NOT NULL, gpu_seconds REAL NOT NULL, slice_seconds REAL NOT NULL, vram_gib_seconds REAL NOT NULL, energy_joules REAL NOT NULL,
    vram_unknown_seconds REAL NOT NULL, energy_unknown_seconds REAL NOT NULL, PRIMARY KEY (hour, uid)
);
CREATE TABLE IF NOT EXISTS dropped (is_detail INTEGER PRIMARY KEY, count INTEGER NOT NULL, since REAL NOT NULL);
"""
Detail = Mapping[str, int | float | str | bool | None]


@dataclass(frozen=True)
class Metered:
    """What one workload had within one short span of time. `vram_gib` and `energy_joules` None: not known."""

    uid: str
    namespace: str
    pod: str
    tenant: str
    seconds: float
    gpus: float
    slices: int
    vram_gib: float | None
    energy_joules: float | None


class Spool:
    def __init__(self, store: Store, *, max_events: int = MAX_EVENTS, keep_seconds: float = KEEP_SECONDS) -> None:
        self._store = store
        self._max_events = max_events
        self._keep_seconds = keep_seconds
        self._told: dict[str, float] = {}
        self._recent: list[float] = []
        store.create(_SCHEMA)

    def add(self, kind: str, at: float, subject: str, detail: Detail, *, is_detail: bool = False, event_id: str = "") -> None:
        """`at` is when it happened, Unix seconds. `is_detail`: what may be dropped first."""
        clean = {name: printable(value) if isinstance(value, str) else value for name, value in detail.items()}
        with self._store.transaction():
            self._store.write(
                "INSERT OR IGNORE INTO event (id, kind, at, subject, detail, is_detail) VALUES (?, ?, ?, ?, ?, ?)",
                (event_id or str(uuid4()), kind, at, printable(subject, 400), dump_canonical(clean).decode(), int(is_detail)),
            )
            self._bound(at)

    def _bound(self, now: float) -> None:
        old = self._store.rows("SELECT number, is_detail FROM event WHERE at < ?", (now - self._keep_seconds,))
        surplus = int(self._store.value("SELECT count(*) FROM event")) - len(old) - self._max_events
        if surplus > 0:
            gone = {number for number, _ in old}
            rows = self._store.rows("SELECT number, is_detail FROM event ORDER BY is_detail DESC, number LIMIT ?", (surplus + len(old),))
            old += [row for row in rows if row[0] not in gone][:surplus]
        for number, is_detail in old:
            self._store.write("DELETE FROM event WHERE number = ?", (number,))
            self._store.write("INSERT INTO dropped VALUES (?, 1, ?) ON CONFLICT (is_detail) DO UPDATE SET count = count + 1", (is_detail, now))

    def due(self, now: float) -> tuple[LocalEvent, ...]:
        """The oldest events that were not told within the last half minute, within the rate of the link."""
        self._told = {name: at for name, at in self._told.items() if 0 <= now - at < TELL_AGAIN_SECONDS}
        self._recent = [at for at in self._recent if 0 <= now - at < BATCH_SECONDS]
        self._tell_dropped(now)
        rows = self._store.rows("SELECT id, kind, at, subject, detail FROM event ORDER BY number LIMIT ?", (len(self._told) + BATCH,))
        events = [LocalEvent(id=row[0], kind=row[1], at=row[2], subject=row[3], detail=json.loads(row[4])) for row in rows if row[0] not in self._told]
        events = events[: max(0, BATCH - len(self._recent))]
        self._told.update((event.id, now) for event in events)
        self._recent += [now] * len(events)
        return tuple(events)

    def _tell_dropped(self, now: float) -> None:
        """What was dropped becomes one event as soon as there is somebody to hear it."""
        for is_detail, count, since in self._store.rows("SELECT is_detail, count, since FROM dropped"):
            with self._store.transaction():
                self._store.write("DELETE FROM dropped WHERE is_detail = ?", (is_detail,))
                self.add("spool_dropped", now, "", {"events": count, "since": since, "detail_only": bool(is_detail)})

    def forget_told(self) -> None:
        """A new connection: what was told on the old one may not have arrived."""
        self._told.clear()

    def acknowledge(self, ids: Iterable[str]) -> None:
        with self._store.transaction():
            for name in ids:
                self._store.write("DELETE FROM event WHERE id = ?", (name,))
                self._told.pop(name, None)

    def count(self) -> int:
        return int(self._store.value("SELECT count(*) FROM event"))

    # Metering.

    def meter(self, samples: Iterable[Metered], now: float) -> None:
        """Add what was used up to `now` to its hour, and turn the hours that are over into events with the id that they had from the start."""
        hour = int(now // HOUR_SECONDS) * HOUR_SECONDS
        with self._store.transaction():
            for sample in samples:
                self._store.write(
                    "INSERT INTO metering VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (hour, uid) DO UPDATE SET"
                    " seconds = seconds + excluded.seconds, gpu_seconds = gpu_seconds + excluded.gpu_seconds,"
                    " slice_seconds = slice_seconds + excluded.slice_seconds, vram_gib_seconds = vram_gib_seconds + excluded.vram_gib_seconds,"
                    " energy_joules = energy_joules + excluded.energy_joules,"
                    " vram_unknown_seconds = vram_unknown_seconds + excluded.vram_unknown_seconds,"
                    " energy_unknown_seconds = energy_unknown_seconds + excluded.energy_unknown_seconds",
                    (
                        hour,
                        sample.uid,
                        str(uuid4()),
                        sample.namespace,
                        sample.pod,
                        sample.tenant,
                        sample.seconds,
                        sample.gpus * sample.seconds,
                        sample.slices * sample.seconds,
                        (sample.vram_gib or 0.0) * sample.seconds,
                        sample.energy_joules or 0.0,
                        0.0 if sample.vram_gib is not None else sample.seconds,
                        0.0 if sample.energy_joules is not None else sample.seconds,
                    ),
                )
            self._close_hours(hour)

    def _close_hours(self, hour: int) -> None:
        columns = "seconds, gpu_seconds, slice_seconds, vram_gib_seconds, energy_joules, vram_unknown_seconds, energy_unknown_seconds"
        rows = self._store.rows(f"SELECT hour, id, namespace, pod, uid, tenant, {columns} FROM metering WHERE hour < ?", (hour,))  # noqa: S608 - constant
        for start, name, namespace, pod, uid, tenant, *amounts in rows:
            detail: dict[str, int | float | str | bool | None] = {"hour": start, "namespace": namespace, "pod": pod, "pod_uid": uid, "tenant": tenant}
            detail.update(zip(columns.split(", "), (round(amount, 3) for amount in amounts), strict=True))
            self.add("metering", float(start + HOUR_SECONDS), f"{namespace}/{pod}", detail, event_id=name)
        if rows:
            self._store.write("DELETE FROM metering WHERE hour < ?", (hour,))
