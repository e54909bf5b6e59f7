"""The agent's memory across restarts: the newest accepted document, and what is in force on which GPU (SQLite).

Every entry is written before the act that it tells of and again after it, so that a crash in between is seen at the next start.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from agent.protocol import Observation, ObservedState, SignedDocument
from agent.protocol.wire import dump_canonical

_SCHEMA = """
CREATE TABLE IF NOT EXISTS document (
    only INTEGER PRIMARY KEY CHECK (only = 1), version INTEGER NOT NULL, body BLOB NOT NULL, signature BLOB NOT NULL, key_id TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS entry (
    control TEXT NOT NULL, gpu_uuid TEXT NOT NULL, phase TEXT NOT NULL, parameters TEXT NOT NULL, version INTEGER NOT NULL,
    since REAL NOT NULL, attempts INTEGER NOT NULL, state TEXT NOT NULL, observed TEXT NOT NULL, detail TEXT NOT NULL, at REAL NOT NULL,
    sequence INTEGER NOT NULL, before TEXT NOT NULL DEFAULT '', PRIMARY KEY (control, gpu_uuid)
);
CREATE TABLE IF NOT EXISTS gpu (uuid TEXT PRIMARY KEY, last_index INTEGER NOT NULL, boot_id TEXT NOT NULL);
"""


class JournalError(Exception):
    """The journal file cannot be opened."""


class Phase(StrEnum):
    APPLYING = "applying"  # about to act, or the agent died while acting
    SETTLING = "settling"  # acted; the hardware does not show it yet
    HELD = "held"
    UNDOING = "undoing"
    OVER = "over"  # nothing of ours is on the hardware


@dataclass(frozen=True)
class Entry:
    """One control on one GPU, or on the node (`gpu_uuid` ""). `since`: when `phase` began. `attempts`: acts since it last held. `state` None: nothing to report yet. `before`: what undo goes back to."""

    control: str
    gpu_uuid: str
    phase: Phase
    parameters: dict[str, int | float | str | bool | None]
    version: int
    since: float
    attempts: int = 0
    state: ObservedState | None = None
    observed: dict[str, int | float | str | bool | None] | None = None
    detail: str = ""
    at: float = 0.0
    sequence: int = 0
    before: str = ""

    def observation(self) -> Observation | None:
        if self.state is None:
            return None
        return Observation(
            gpu_uuid=self.gpu_uuid,
            control=self.control,
            version=self.version,
            state=self.state,
            observed=self.observed or {},
            detail=self.detail,
            at=self.at,
            sequence=self.sequence,
        )


class Journal:
    """One SQLite file, or ":memory:" where surviving is not wanted. Safe to use from several threads, one at a time. Raises JournalError on open."""

    def __init__(self, path: Path | str) -> None:
        self._lock = threading.Lock()
        try:
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.executescript(_SCHEMA)
            if "before" not in {row[1] for row in self._db.execute("PRAGMA table_info(entry)")}:
                self._db.execute("ALTER TABLE entry ADD COLUMN before TEXT NOT NULL DEFAULT ''")
        except sqlite3.Error as error:
            raise JournalError(f"{path}: {error}") from error

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def document(self) -> SignedDocument | None:
        with self._lock:
            row = self._db.execute("SELECT version, body, signature, key_id FROM document").fetchone()
        return SignedDocument(*row) if row else None

    def store_document(self, document: SignedDocument) -> None:
        with self.transaction() as db:
            db.execute(
                "INSERT OR REPLACE INTO document (only, version, body, signature, key_id) VALUES (1, ?, ?, ?, ?)",
                (document.version, document.body, document.signature, document.key_id),
            )

    def entries(self) -> dict[tuple[str, str], Entry]:
        """All entries by (control, GPU UUID)."""
        with self._lock:
            rows = self._db.execute(
                "SELECT control, gpu_uuid, phase, parameters, version, since, attempts, state, observed, detail, at, sequence, before FROM entry"
            ).fetchall()
        return {
            (row[0], row[1]): Entry(
                control=row[0],
                gpu_uuid=row[1],
                phase=Phase(row[2]),
                parameters=json.loads(row[3]),
                version=row[4],
                since=row[5],
                attempts=row[6],
                state=ObservedState(row[7]) if row[7] else None,
                observed=json.loads(row[8]),
                detail=row[9],
                at=row[10],
                sequence=row[11],
                before=row[12],
            )
            for row in rows
        }

    def write(self, entry: Entry) -> Entry:
        with self.transaction() as db:
            db.execute(
                "INSERT OR REPLACE INTO entry (control, gpu_uuid, phase, parameters, version, since, attempts, state, observed, detail, at, sequence, before)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    entry.control,
                    entry.gpu_uuid,
                    entry.phase,
                    dump_canonical(entry.parameters).decode(),
                    entry.version,
                    entry.since,
                    entry.attempts,
                    entry.state or "",
                    dump_canonical(entry.observed or {}).decode(),
                    entry.detail,
                    entry.at,
                    entry.sequence,
                    entry.before,
                ),
            )
        return entry

    def write_observed(self, entry: Entry, now: float) -> Entry:
        """Write `entry` as a new observation: its time is `now`, its sequence higher than all before, also than those of a lost journal."""
        with self._lock:
            newest = self._db.execute("SELECT max(sequence) FROM entry").fetchone()[0] or 0
        return self.write(replace(entry, at=now, sequence=max(newest + 1, int(now * 1000))))

    def forget(self, entry: Entry) -> None:
        with self.transaction() as db:
            db.execute("DELETE FROM entry WHERE control = ? AND gpu_uuid = ?", (entry.control, entry.gpu_uuid))

    def known_gpus(self, boot_id: str) -> dict[str, int]:
        """UUID → index as last enumerated, of all GPUs seen since this boot."""
        with self._lock:
            return dict(self._db.execute("SELECT uuid, last_index FROM gpu WHERE boot_id = ?", (boot_id,)))

    def remember_gpus(self, gpus: dict[str, int], boot_id: str) -> None:
        """Add what was enumerated now; GPUs of an earlier boot are forgotten."""
        with self.transaction() as db:
            db.execute("DELETE FROM gpu WHERE boot_id <> ?", (boot_id,))
            db.executemany("INSERT OR REPLACE INTO gpu VALUES (?, ?, ?)", [(uuid, index, boot_id) for uuid, index in gpus.items()])
