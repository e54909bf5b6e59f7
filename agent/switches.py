"""Wide switches on this node: kept through restarts, reboots and partitions until released, or until the end that their armer set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from agent.protocol import DocumentError, Place, ScopeKind, SignedSwitch, Switch, SwitchKind, SwitchState, SwitchUpdate, verify_switch
from agent.protocol.wire import printable
from agent.store import Store

KEEP_TOLD_SECONDS = 7 * 24 * 3600.0
COUNT_REPORT_SECONDS = 60.0
MAX_SWITCHES = 10_000
_SCHEMA = """
CREATE TABLE IF NOT EXISTS switch (
    switch TEXT PRIMARY KEY, version INTEGER NOT NULL, body BLOB NOT NULL, accepted_at REAL NOT NULL,
    state TEXT NOT NULL DEFAULT '', stopped INTEGER NOT NULL DEFAULT 0, remaining INTEGER, detail TEXT NOT NULL DEFAULT '',
    at REAL NOT NULL DEFAULT 0, sequence INTEGER NOT NULL DEFAULT 0
);
"""


@dataclass(frozen=True)
class Outcome:
    """What enforcing a kill brought, read back. `settling`: what remains was told to stop a moment ago."""

    state: SwitchState
    stopped: int = 0
    remaining: int | None = 0
    detail: str = ""
    settling: bool = False


class Switches:
    """`accept` may run beside everything else: what is held is replaced whole, never changed."""

    def __init__(self, store: Store, *, node_id: int, trusted_keys: tuple[bytes, ...]) -> None:
        self._store = store
        self._node = str(node_id)
        self._trusted_keys = trusted_keys
        store.create(_SCHEMA)
        # The signature was checked when it came. A key that is rotated out later must not release what it had armed.
        self._held = {row[0]: Switch.from_bytes(row[1]) for row in store.rows("SELECT switch, body FROM switch")}

    def accept(self, signed: SignedSwitch, now: float) -> SwitchUpdate | None:
        """Verify and journal. Returns a refusal to tell, or None: then `report` says where it stands."""
        try:
            switch = verify_switch(signed, trusted_keys=self._trusted_keys)
        except DocumentError as error:
            return self._refusal(signed, str(error), now)
        known = self._held.get(switch.switch)
        if known is not None and switch.version < known.version:
            return self._refusal(signed, f"Version {switch.version} is older than {known.version}, which is held.", now)
        if known is not None and switch.version == known.version:
            # Delivered again: told again.
            self._store.write("UPDATE switch SET state = '' WHERE switch = ?", (switch.switch,))
            return None
        with self._store.transaction():
            self._store.write(
                "INSERT INTO switch (switch, version, body, accepted_at) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (switch) DO UPDATE SET version = excluded.version, body = excluded.body, accepted_at = excluded.accepted_at, state = ''",
                (switch.switch, switch.version, signed.body, now),
            )
            self._held = {**self._held, switch.switch: switch}
            self._forget_oldest()
        return None

    def _forget_oldest(self) -> None:
        """Released ones are kept so that a replayed older version stays refused; beyond a bound the oldest are forgotten."""
        if len(self._held) <= MAX_SWITCHES:
            return
        names = [name for (name,) in self._store.rows("SELECT switch FROM switch ORDER BY accepted_at") if not self._held[name].armed]
        for name in names[: len(self._held) - MAX_SWITCHES]:
            self._store.write("DELETE FROM switch WHERE switch = ?", (name,))
            self._held = {other: switch for other, switch in self._held.items() if other != name}

    def _refusal(self, signed: SignedSwitch, detail: str, now: float) -> SwitchUpdate:
        return SwitchUpdate(
            switch=signed.switch,
            version=signed.version,
            state=SwitchState.REFUSED,
            stopped=0,
            remaining=None,
            detail=printable(detail),
            at=now,
            sequence=self._next_sequence(now),
        )

    def covers(self, switch: Switch, place: Place | None) -> bool | None:
        """Whether this node is in its scope; None while the node has no document that says where it stands."""
        if switch.scope_kind is ScopeKind.FLEET:
            return True
        if switch.scope_kind is ScopeKind.NODE:
            return switch.scope_key == self._node
        return None if place is None else place.within(switch.scope_kind, switch.scope_key)

    def active(self, kind: SwitchKind, place: Place | None, now: float) -> tuple[Switch, ...]:
        return tuple(switch for switch in self._held.values() if switch.kind is kind and switch.active(now) and self.covers(switch, place))

    def next_end(self, now: float) -> float | None:
        return min((switch.ends_at for switch in self._held.values() if switch.armed and switch.ends_at is not None and switch.ends_at > now), default=None)

    def report(self, outcomes: Mapping[str, Outcome], place: Place | None, now: float) -> tuple[SwitchUpdate, ...]:
        """Where each switch stands, of those whose standing changed. `outcomes` has one for each active kill."""
        news: list[SwitchUpdate] = []
        held = self._held
        for name, version, old, stopped, remaining, detail, at in self._store.rows("SELECT switch, version, state, stopped, remaining, detail, at FROM switch"):
            switch = held.get(name)
            if switch is None or switch.version != version:
                continue  # It came this moment.
            found = self._outcome(switch, outcomes, place, now, stopped)
            found = replace(found, detail=printable(found.detail))
            if old == SwitchState.APPLIED and found.state is SwitchState.PENDING and found.settling:
                continue  # A pod was made anew and is being stopped: told only if it lasts.
            if (old, detail, remaining) == (found.state, found.detail, found.remaining) and (found.stopped == stopped or now - at < COUNT_REPORT_SECONDS):
                continue
            written = self._store.write(
                "UPDATE switch SET state = ?, stopped = ?, remaining = ?, detail = ?, at = ?, sequence = ? WHERE switch = ? AND version = ?",
                (found.state, found.stopped, found.remaining, found.detail, now, self._next_sequence(now), name, version),
            )
            if written:
                news.append(self._update(name))
        return tuple(news)

    def _outcome(self, switch: Switch, outcomes: Mapping[str, Outcome], place: Place | None, now: float, stopped: int) -> Outcome:
        if not switch.armed:
            return Outcome(SwitchState.RELEASED, stopped=stopped)
        if not switch.active(now):
            return Outcome(SwitchState.RELEASED, stopped=stopped, detail="It ended at the time that was set.")
        covered = self.covers(switch, place)
        if covered is None:
            return Outcome(SwitchState.PENDING, remaining=None, detail="No document says where this node stands.")
        if not covered:
            return Outcome(SwitchState.REFUSED, remaining=None, detail="This node is not in its scope.")
        if switch.kind is SwitchKind.AUTOMATION_OFF:
            return Outcome(SwitchState.APPLIED)
        return outcomes.get(switch.switch, Outcome(SwitchState.PENDING, stopped=stopped, remaining=None, detail="Not enforced yet."))

    def updates(self, now: float) -> tuple[SwitchUpdate, ...]:
        """All that stand, and those that were released within a week, for a new connection."""
        rows = self._store.rows("SELECT switch FROM switch WHERE state <> '' AND (state <> 'released' OR at > ?)", (now - KEEP_TOLD_SECONDS,))
        return tuple(self._update(name) for (name,) in rows)

    def _update(self, name: str) -> SwitchUpdate:
        ((version, state, stopped, remaining, detail, at, sequence),) = self._store.rows(
            "SELECT version, state, stopped, remaining, detail, at, sequence FROM switch WHERE switch = ?", (name,)
        )
        return SwitchUpdate(
            switch=name, version=version, state=SwitchState(state), stopped=stopped, remaining=remaining, detail=detail, at=at, sequence=sequence
        )

    def _next_sequence(self, now: float) -> int:
        """Higher than all before, also than those of a lost journal."""
        newest = self._store.value("SELECT max(sequence) FROM switch") or 0
        return max(int(newest) + 1, int(now * 1000))
