"""Warnings of what the agent sees on its own: the same one is told at most once an hour."""

from __future__ import annotations

from agent.spool import Detail, Spool

AGAIN_SECONDS = 3600.0


class Notices:
    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._said: dict[tuple[str, str], float] = {}

    def warn(self, kind: str, subject: str, detail: Detail, now: float) -> None:
        self._said = {key: at for key, at in self._said.items() if 0 <= now - at < AGAIN_SECONDS}
        if (kind, subject) not in self._said:
            self._said[(kind, subject)] = now
            self._spool.add(kind, now, subject, detail, is_detail=True)
