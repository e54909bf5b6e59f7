"""The agent's own work on the event loop: switches at once, the cycle each ten seconds, the door all the time. Nothing here needs a connection."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor

from agent.depth import DepthReader
from agent.local.control import LocalControl, LocalRound
from agent.protocol import AgentMessage, DesiredState, EventAck, LocalEvent, SignedSwitch, SwitchUpdate

log = logging.getLogger("masthead_agent.local")
RETRY_SECONDS = 5.0
MAX_UNTOLD = 1000


class LocalLoop:
    """`desired` gives the newest accepted document; `hardware` is held while the cycle acts on the GPUs; `wake` says that there is something to send.

    `urgent` runs switches and kills, `pool` the cycle: where both have a thread of their own, nothing slow delays a kill.
    """

    def __init__(
        self,
        control: LocalControl,
        *,
        desired: Callable[[], DesiredState | None],
        hardware: asyncio.Lock,
        pool: Executor,
        wake: Callable[[], None],
        connected: Callable[[], bool],
        urgent: Executor | None = None,
        depths: DepthReader | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._control = control
        self._desired = desired
        self._hardware = hardware
        self._pool = pool
        self._urgent = urgent or pool
        self._wake = wake
        self._connected = connected
        self._depths = depths
        self._clock = clock
        self._work = asyncio.Event()
        self._arrived = asyncio.Event()
        self._switches: deque[SignedSwitch] = deque(maxlen=MAX_UNTOLD)
        self._acks: deque[str] = deque(maxlen=10 * MAX_UNTOLD)
        self._updates: dict[str, SwitchUpdate] = {}
        self._events: dict[str, LocalEvent] = {}
        self._tell_all = False

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._urgent, self._control.begin, self._desired(), self._clock())
        if self._depths is not None:
            self._depths.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                if self._control.door is not None:
                    tasks.create_task(self._control.door.serve())
                tasks.create_task(self._accept_loop())
                tasks.create_task(self._switch_loop())
                tasks.create_task(self._cycle_loop())
        finally:
            if self._depths is not None:
                self._depths.stop()

    # From the link: never blocks.

    def opened(self) -> None:
        self._updates.clear()
        self._events.clear()
        self._tell_all = True
        self._work.set()

    def documents_changed(self) -> None:
        """The rules or the place may be others now."""
        self._work.set()

    def received(self, message: SignedSwitch | EventAck) -> None:
        if isinstance(message, SignedSwitch):
            self._switches.append(message)
            self._arrived.set()
        else:
            self._acks.extend(message.ids)
            self._work.set()

    def take_outgoing(self) -> list[AgentMessage]:
        messages: list[AgentMessage] = [*self._updates.values(), *self._events.values()]
        self._updates.clear()
        self._events.clear()
        return messages

    # Work.

    async def _accept_loop(self) -> None:
        """In a thread that nothing else keeps busy: admission closes at once, whatever the API server does."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            switches = list(self._switches)
            self._switches.clear()
            try:
                await asyncio.to_thread(self._control.accept, switches, self._desired(), self._clock())
            except Exception:
                # A disk that fails must not silence the node. What was not journalled comes again with the next connection.
                log.exception("switches could not be taken")
                self._switches.extendleft(reversed(switches))
                await asyncio.sleep(RETRY_SECONDS)
                self._arrived.set()
            self._work.set()

    async def _switch_loop(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._work.clear()
            acks = list(self._acks)
            self._acks.clear()
            tell_all, self._tell_all = self._tell_all, False
            try:
                found = await loop.run_in_executor(self._urgent, self._step, acks, tell_all)
            except Exception:
                log.exception("a pass over the switches failed")
                self._tell_all = self._tell_all or tell_all
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._updates.update((update.switch, update) for update in found.updates)
            self._events.update((event.id, event) for event in found.events)
            if self._updates or self._events:
                self._wake()
            try:
                async with asyncio.timeout(max(0.0, min(found.due_at - self._clock(), 60.0))):
                    await self._work.wait()
            except TimeoutError:
                continue

    def _step(self, acks: list[str], tell_all: bool) -> LocalRound:
        """Runs in the pool."""
        self._control.acknowledge(acks)
        return self._control.step(self._desired(), self._clock(), tell_all=tell_all, connected=self._connected())

    async def _cycle_loop(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with self._hardware:
                    due_at = await loop.run_in_executor(self._pool, self._cycle)
            except Exception:
                log.exception("a cycle of local enforcement failed")
                due_at = self._clock() + RETRY_SECONDS
            await asyncio.sleep(max(0.1, min(due_at - self._clock(), 60.0)))

    def _cycle(self) -> float:
        """Runs in the pool."""
        return self._control.cycle(self._desired(), self._clock())
