"""The commands' part of the agent's journal: every order that was taken, how far it came, and what of it the console has not stored yet.

An order is written down before it is answered, and a step's intent before the step. Orders are forgotten only when they are over, stored by the
console and so long expired that they could not begin again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from agent.journal import Journal
from agent.protocol.command import CommandBody, CommandCode, CommandState, CommandUpdate
from agent.protocol.wire import dump_canonical

KEEP_SECONDS = 7 * 86_400.0
_SCHEMA = (
    """
    CREATE TABLE IF NOT EXISTS command (
        target INTEGER PRIMARY KEY, body BLOB NOT NULL, subject TEXT NOT NULL, sequence INTEGER NOT NULL, received_at REAL NOT NULL,
        begun_at REAL, memo TEXT NOT NULL, cancelled INTEGER NOT NULL, state TEXT NOT NULL, code TEXT NOT NULL, detail TEXT NOT NULL,
        progress TEXT NOT NULL, blocked TEXT NOT NULL, output TEXT NOT NULL, at REAL NOT NULL, told INTEGER NOT NULL, stored INTEGER NOT NULL
    )
    """,
    "CREATE INDEX IF NOT EXISTS command_open ON command (state) WHERE state IN ('accepted', 'running')",
    "CREATE INDEX IF NOT EXISTS command_untold ON command (target) WHERE told > stored",
    "CREATE TABLE IF NOT EXISTS command_begun (subject TEXT PRIMARY KEY, sequence INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS command_clock (only_one INTEGER PRIMARY KEY CHECK (only_one = 1), offset_seconds REAL NOT NULL)",
)
_COLUMNS = "target, body, subject, sequence, received_at, begun_at, memo, cancelled, state, code, detail, progress, blocked, output, at, told, stored"


@dataclass(frozen=True)
class CommandEntry:
    """One order to this node. `subject`: kind and what it is about; `body` None: an order that could not be read, or a cancel whose order never came: kept for its answer.

    `told` is the sequence of the newest update about it, `stored` the newest that the console has.
    """

    target: int
    body: CommandBody | None
    subject: str
    sequence: int
    received_at: float
    state: CommandState
    begun_at: float | None = None
    memo: dict[str, Any] = field(default_factory=dict)
    cancelled: bool = False
    code: CommandCode = CommandCode.NONE
    detail: str = ""
    progress: dict[str, int | float | str | bool | None] = field(default_factory=dict)
    blocked: tuple[str, ...] = ()
    output: str = ""
    at: float = 0.0
    told: int = 0
    stored: int = 0

    def update(self) -> CommandUpdate:
        return CommandUpdate(
            target=self.target,
            state=self.state,
            code=self.code,
            detail=self.detail,
            at=self.at,
            sequence=self.told,
            progress=self.progress,
            blocked=self.blocked,
            output=self.output,
        )


class CommandJournal:
    """Shares the agent's journal file. Raises what sqlite3 raises when the disk fails: then nothing is done."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        with journal.transaction() as db:
            for statement in _SCHEMA:
                db.execute(statement)
            self._newest = int(db.execute("SELECT coalesce(max(told), 0) FROM command").fetchone()[0])

    def find(self, target: int) -> CommandEntry | None:
        return next(iter(self._read("WHERE target = ?", target)), None)

    def unfinished(self) -> list[CommandEntry]:
        """In the order in which they were given."""
        return self._read("WHERE state IN ('accepted', 'running') ORDER BY sequence, target")

    def untold(self) -> list[CommandEntry]:
        """What the console has not stored yet, oldest first."""
        return self._read("WHERE told > stored ORDER BY told")

    def newest_begun(self, subject: str) -> int:
        """The highest sequence that has begun of this subject, 0 when none has."""
        with self._journal.transaction() as db:
            row = db.execute("SELECT sequence FROM command_begun WHERE subject = ?", (subject,)).fetchone()
        return int(row[0]) if row else 0

    def write(self, entry: CommandEntry) -> CommandEntry:
        """Without telling the console."""
        with self._journal.transaction() as db:
            self._write(db, entry)
            if entry.begun_at is not None:
                db.execute(
                    "INSERT INTO command_begun VALUES (?, ?) ON CONFLICT (subject) DO UPDATE SET sequence = max(sequence, excluded.sequence)",
                    (entry.subject, entry.sequence),
                )
        return entry

    def tell(self, entry: CommandEntry, now: float) -> CommandEntry:
        """Write `entry` as a new update: its sequence is higher than all before, also than those of a lost journal."""
        self._newest = max(self._newest + 1, int(now * 1000))
        return self.write(replace(entry, at=now, told=self._newest))

    def acknowledge(self, target: int, sequence: int) -> None:
        with self._journal.transaction() as db:
            db.execute("UPDATE command SET stored = max(stored, min(told, ?)) WHERE target = ?", (sequence, target))

    def repeat(self, target: int) -> None:
        """Its newest update is told again, though the console has had it."""
        with self._journal.transaction() as db:
            db.execute("UPDATE command SET stored = told - 1 WHERE target = ? AND stored >= told", (target,))

    def clock_offset(self) -> float:
        """This node's clock minus the console's in seconds, as last heard; 0 when it never was."""
        with self._journal.transaction() as db:
            row = db.execute("SELECT offset_seconds FROM command_clock").fetchone()
        return float(row[0]) if row else 0.0

    def set_clock_offset(self, seconds: float) -> None:
        with self._journal.transaction() as db:
            db.execute("INSERT OR REPLACE INTO command_clock VALUES (1, ?)", (seconds,))

    def forget_old(self, now: float) -> None:
        """Orders that are over and stored are kept a week after their last update, and as long as they could still begin."""
        before = now - KEEP_SECONDS
        with self._journal.transaction() as db:
            rows = db.execute("SELECT target, body FROM command WHERE state NOT IN ('accepted', 'running') AND told <= stored AND at < ?", (before,)).fetchall()
            old = [(target,) for target, body in rows if not body or CommandBody.from_bytes(body).not_after < before]
            db.executemany("DELETE FROM command WHERE target = ?", old)

    def _read(self, where: str, *values: Any) -> list[CommandEntry]:
        with self._journal.transaction() as db:
            rows = db.execute(f"SELECT {_COLUMNS} FROM command {where}", values).fetchall()  # noqa: S608 - constants
        return [_entry(row) for row in rows]

    @staticmethod
    def _write(db: Any, entry: CommandEntry) -> None:
        db.execute(
            f"INSERT OR REPLACE INTO command ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - constants
            (
                entry.target,
                entry.body.to_bytes() if entry.body else b"",
                entry.subject,
                entry.sequence,
                entry.received_at,
                entry.begun_at,
                dump_canonical(entry.memo).decode(),
                int(entry.cancelled),
                entry.state,
                entry.code,
                entry.detail,
                dump_canonical(entry.progress).decode(),
                dump_canonical(list(entry.blocked)).decode(),
                entry.output,
                entry.at,
                entry.told,
                entry.stored,
            ),
        )


def _entry(row: Iterable[Any]) -> CommandEntry:
    target, body, subject, sequence, received_at, begun_at, memo, cancelled, state, code, detail, progress, blocked, output, at, told, stored = row
    return CommandEntry(
        target=target,
        body=CommandBody.from_bytes(body) if body else None,
        subject=subject,
        sequence=sequence,
        received_at=received_at,
        begun_at=begun_at,
        memo=json.loads(memo),
        cancelled=bool(cancelled),
        state=CommandState(state),
        code=CommandCode(code),
        detail=detail,
        progress=json.loads(progress),
        blocked=tuple(json.loads(blocked)),
        output=output,
        at=at,
        told=told,
        stored=stored,
    )
