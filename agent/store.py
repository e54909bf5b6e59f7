"""One SQLite file of the agent, or ":memory:": opened with what makes it survive a power cut. Safe to use from several threads, one at a time."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent.journal import JournalError


class Store:
    """Raises JournalError when the file cannot be opened."""

    def __init__(self, path: Path | str) -> None:
        self._lock = threading.RLock()
        self._inside = False
        try:
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
        except sqlite3.Error as error:
            raise JournalError(f"{path}: {error}") from error

    def create(self, schema: str) -> None:
        with self._lock:
            self._db.executescript(schema)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing; one inside another is part of the outer one."""
        with self._lock:
            if self._inside:
                yield
                return
            self._db.execute("BEGIN IMMEDIATE")
            self._inside = True
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            else:
                self._db.execute("COMMIT")
            finally:
                self._inside = False

    def write(self, statement: str, values: tuple[Any, ...] = ()) -> int:
        """Returns how many rows changed."""
        with self._lock:
            return self._db.execute(statement, values).rowcount

    def rows(self, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._db.execute(statement, values).fetchall()

    def value(self, statement: str, values: tuple[Any, ...] = ()) -> Any:
        """The first column of the first row, or None."""
        found = self.rows(statement, values)
        return found[0][0] if found else None

    def close(self) -> None:
        with self._lock:
            self._db.close()
