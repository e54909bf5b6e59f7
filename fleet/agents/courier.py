"""Commands, switches and what comes back of them, between PostgreSQL and the sockets of one gateway.

PostgreSQL says what is due; a wake only says when to look. What agents say is kept in bounded buffers until it is stored, and acknowledged after that.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Protocol, TypeVar

from agent.protocol import CommandAck, CommandUpdate, EventAck, GatewayMessage, LocalEvent, SignedCancel, SignedCommand, SwitchUpdate
from fleet.agents.store import DatabaseAway
from fleet.control import dispatch, results, switches
from fleet.control.switches import Relayed
from fleet.models import CommandTarget

T = TypeVar("T")
POLL_SECONDS = 5.0
GATHER_SECONDS = 0.02
# Not acknowledged for so long: sent again.
UNACKED_SECONDS = 15.0
MOST_UPDATES = 200_000
BATCH = 5000
# Senders of one switch to many sockets: one that does not read holds up one of them, for the time that a send may take.
SENDERS = 64
SENT_AT_ONCE = 50


class Socket(Protocol):
    node_id: int

    async def send(self, message: GatewayMessage) -> None: ...

    async def send_text(self, text: str) -> None: ...


class Carrier(Protocol):
    """What the courier needs of the hub that it works for."""

    @property
    def sockets(self) -> Mapping[int, Socket]: ...

    def now(self) -> datetime: ...

    async def in_database(self, work: Callable[[], T]) -> T: ...

    async def deliver(self, node_id: int, sending: Awaitable[None]) -> None: ...


class Courier:
    """`loops` are run for ever by the hub; everything else returns at once."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self._due: set[int] = set()
        self._look = asyncio.Event()
        self._sent: dict[int, dict[tuple[int, bool], float]] = {}  # by node: (target, is a cancel) -> loop time
        self._updates: dict[tuple[int, int], CommandUpdate] = {}
        self._answers: dict[tuple[int, str], SwitchUpdate] = {}
        self._events: dict[str, tuple[int, LocalEvent]] = {}
        self._told = asyncio.Event()
        self._switches: dict[str, Relayed] = {}
        self._switches_stale = True
        self._joined: set[int] = set()
        self._behind: set[tuple[int, str]] = set()  # (node, switch) of an answer to an older version than is known here
        self._look_at_switches = asyncio.Event()
        self._places: dict[int, dict[str, str]] = {}

    @property
    def loops(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        return (self._command_loop, self._switch_loop, self._result_loop, self._poll_loop)

    # What the hub tells

    def joined(self, node_id: int) -> None:
        """A node's socket is there: it gets what is due and every switch of its scope."""
        self._joined.add(node_id)
        self._look_at_switches.set()
        self._sent.pop(node_id, None)
        self.wake([node_id])

    def left(self, node_id: int) -> None:
        self._places.pop(node_id, None)
        self._sent.pop(node_id, None)
        self._joined.discard(node_id)

    def wake(self, node_ids: Iterable[int]) -> None:
        self._due.update(node_ids)
        self._look.set()

    def wake_switches(self) -> None:
        self._switches_stale = True
        self._look_at_switches.set()

    def updated(self, node_id: int, update: CommandUpdate) -> None:
        key = (node_id, update.target)
        held = self._updates.get(key)
        if held is None and len(self._updates) >= MOST_UPDATES:
            return  # it is not acknowledged, so the agent says it again
        if held is None or held.sequence < update.sequence:
            self._updates[key] = update
        self._told.set()

    def answered(self, node_id: int, update: SwitchUpdate) -> None:
        self._answers[(node_id, update.switch)] = update
        self._told.set()
        known = self._switches.get(update.switch)
        if known is not None and update.version < known.signed.version:
            self._behind.add((node_id, update.switch))
            self._look_at_switches.set()

    def happened(self, node_id: int, event: LocalEvent) -> None:
        if len(self._events) < MOST_UPDATES:
            self._events[event.id] = (node_id, event)
            self._told.set()

    # Loops: one pass each

    async def _poll_loop(self) -> None:
        """Redis may have lost a wake."""
        await asyncio.sleep(POLL_SECONDS)
        self.wake(self._carrier.sockets)
        self.wake_switches()

    async def _command_loop(self) -> None:
        await self._look.wait()
        self._look.clear()
        due, self._due = self._due & self._carrier.sockets.keys(), set()
        if not due:
            return
        try:
            rows = await self._carrier.in_database(lambda: dispatch.due_for(due))
        except DatabaseAway:
            self._due |= due
            self._look.set()
            raise
        now = asyncio.get_running_loop().time()
        sendings = [sending for row in rows for sending in self._sendings(row, now)]
        await asyncio.gather(*sendings)
        fresh = [row.pk for row in rows if row.state == CommandTarget.State.PENDING and row.node_id in self._carrier.sockets]
        if fresh:
            at = self._carrier.now()
            await self._carrier.in_database(lambda: dispatch.mark_sent(fresh, now=at))

    def _sendings(self, row: CommandTarget, now: float) -> list[Awaitable[None]]:
        socket = self._carrier.sockets.get(row.node_id)
        if socket is None or row.signature is None or row.body is None:
            return []
        sent = self._sent[row.node_id] = {key: at for key, at in self._sent.get(row.node_id, {}).items() if now - at < UNACKED_SECONDS}
        found: list[Awaitable[None]] = []
        if row.state in (CommandTarget.State.PENDING, CommandTarget.State.SENT) and (row.pk, False) not in sent:
            sent[(row.pk, False)] = now
            order = SignedCommand(target=row.pk, body=bytes(row.body), signature=bytes(row.signature), key_id=row.key_id)
            found.append(self._carrier.deliver(socket.node_id, socket.send(order)))
        if row.cancel_body is not None and row.cancel_signature is not None and (row.pk, True) not in sent:
            sent[(row.pk, True)] = now
            cancel = SignedCancel(target=row.pk, body=bytes(row.cancel_body), signature=bytes(row.cancel_signature), key_id=row.key_id)
            found.append(self._carrier.deliver(socket.node_id, socket.send(cancel)))
        return found

    async def _switch_loop(self) -> None:
        await self._look_at_switches.wait()
        self._look_at_switches.clear()
        before = self._switches
        if self._switches_stale:
            self._switches_stale = False
            at = self._carrier.now()
            try:
                self._switches = await self._carrier.in_database(lambda: switches.relayed(now=at))
            except DatabaseAway:
                self._switches_stale = True
                self._look_at_switches.set()
                raise
        new = [found for key, found in self._switches.items() if key not in before or before[key].signed.version < found.signed.version]
        joined, self._joined = self._joined, set()
        behind, self._behind = self._behind, set()
        try:
            if new:
                await self._relay(new, self._carrier.sockets.keys() - joined)
            if joined and self._switches:
                # Which released ones they need not hear of again: after an outage all join at once, with all the switches of a month.
                over = await self._carrier.in_database(lambda: switches.released_at(joined)) if any(not one.armed for one in self._switches.values()) else set()
                await self._relay(self._switches.values(), joined, besides=over)
            for node_id, name in behind:
                if (one := self._switches.get(name)) is not None:
                    await self._relay([one], [node_id])
        except DatabaseAway:
            self._switches, self._switches_stale = before, True
            self._joined |= joined
            self._behind |= behind
            self._look_at_switches.set()
            raise

    async def _relay(self, found: Collection[Relayed], node_ids: Collection[int], *, besides: Collection[tuple[int, str]] = frozenset()) -> None:
        """Hand each switch to those of these nodes that its scope covers, but for the pairs in `besides`. The agents check the scope again, by their own signed document."""
        unknown = [node_id for node_id in node_ids if node_id not in self._places]
        if unknown:
            self._places.update(await self._carrier.in_database(lambda: switches.places(unknown)))
        sendings = self._switch_sendings([(one, json.dumps(one.signed.to_json())) for one in found], list(node_ids), besides)
        await asyncio.gather(*(_send_all(sendings) for _ in range(min(SENDERS, len(found) * len(node_ids)))))

    def _switch_sendings(
        self, found: Collection[tuple[Relayed, str]], node_ids: Collection[int], besides: Collection[tuple[int, str]]
    ) -> Iterator[Awaitable[None]]:
        """One after the other as they are asked for: a fleet's worth of them at once would be a task and a message for each of its nodes."""
        for node_id in node_ids:
            place = self._places.get(node_id, {})
            for one, text in found:
                socket = self._carrier.sockets.get(node_id)
                if socket is not None and place.get(one.scope_kind) == one.scope_key and (node_id, one.signed.switch) not in besides:
                    yield self._carrier.deliver(socket.node_id, socket.send_text(text))

    async def _result_loop(self) -> None:
        await self._told.wait()
        await asyncio.sleep(GATHER_SECONDS)
        self._told.clear()
        updates = {key: self._updates.pop(key) for key in list(self._updates)[:BATCH]}
        answers, self._answers = self._answers, {}
        events = {key: self._events.pop(key) for key in list(self._events)[:BATCH]}
        if self._updates or self._events:
            self._told.set()
        now = self._carrier.now()

        def store() -> tuple[dict[tuple[int, int], int], dict[int, list[str]]]:
            switches.record_answers(((key[0], update) for key, update in answers.items()), now=now)
            stored = results.record_updates(((key[0], update) for key, update in updates.items()), now=now)
            return stored, switches.record_events(events.values(), now=now)

        try:
            stored, known = await self._carrier.in_database(store)
        except DatabaseAway:
            for key, update in updates.items():
                if key not in self._updates or self._updates[key].sequence < update.sequence:
                    self._updates[key] = update
            self._answers = answers | self._answers
            self._events = events | self._events
            self._told.set()
            raise
        acks: list[tuple[int, GatewayMessage]] = [(node_id, CommandAck(target=target, sequence=sequence)) for (node_id, target), sequence in stored.items()]
        acks += [(node_id, EventAck(ids=tuple(ids[first : first + 1000]))) for node_id, ids in known.items() for first in range(0, len(ids), 1000)]
        for node_id, ack in acks:
            socket = self._carrier.sockets.get(node_id)
            if socket is not None:
                with contextlib.suppress(ConnectionError):
                    await self._carrier.deliver(socket.node_id, socket.send(ack))


async def _send_all(sendings: Iterator[Awaitable[None]]) -> None:
    """Take from what several of these share until nothing is left; now and then the sockets are read in between."""
    for count, sending in enumerate(sendings, 1):
        await sending
        if count % SENT_AT_ONCE == 0:
            await asyncio.sleep(0)
