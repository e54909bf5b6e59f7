"""One agent of one node: its link, its work on the hardware, and what passes between them.

The event loop carries messages; everything that touches hardware or journal runs in `pool`, one step at a time. A process may hold
hundreds of agents on one loop and one pool.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import ssl
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor as ThreadPool
from dataclasses import dataclass, replace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agent.backends.base import Backend
from agent.backends.cluster import Cluster
from agent.config import Enrolment
from agent.converge import Converger
from agent.executor import NEVER, Executor, Pass
from agent.executor import Message as CommandMessage
from agent.inspection import inspect
from agent.journal import Journal
from agent.link import Backoff, Link
from agent.local.loop import LocalLoop
from agent.local.opening import Local
from agent.phy import Phy
from agent.protocol import (
    Ack,
    AgentMessage,
    CommandAck,
    CommandUpdate,
    EventAck,
    GatewayMessage,
    HealthReport,
    Heartbeat,
    InventoryReport,
    Observation,
    ObservedReport,
    Resend,
    SignedCancel,
    SignedCommand,
    SignedDocument,
    SignedSwitch,
    Welcome,
)
from agent.protocol.messages import MAX_OBSERVATIONS
from agent.protocol.wire import dump_canonical

log = logging.getLogger("masthead_agent")
INVENTORY_SECONDS = 900.0
HEALTH_SECONDS = 300.0
# How long an update of a command waits for the console's word that it is stored before it is sent again.
REPEAT_SECONDS = 15.0
MAX_COMMAND_MESSAGES = 1000


@dataclass(frozen=True)
class _Step:
    """What one step in the pool brought."""

    acks: list[Ack]
    observations: tuple[Observation, ...]
    due_at: float
    reports: tuple[InventoryReport, HealthReport] | None


class NodeAgent:
    """`clock` gives Unix seconds. Call `run()` on an event loop; cancel it to stop; then `close()`."""

    def __init__(
        self,
        *,
        enrolment: Enrolment,
        key: Ed25519PrivateKey,
        backend: Backend,
        journal: Journal,
        pool: ThreadPool,
        tls: ssl.SSLContext | None = None,
        backoff: Backoff | None = None,
        converge_seconds: float = 10.0,
        inspect_seconds: float = 30.0,
        clock: Callable[[], float] = time.time,
        cluster: Cluster | None = None,
        local: Local | None = None,
        repeat_seconds: float = REPEAT_SECONDS,
    ) -> None:
        self._backend = backend
        self._cluster = cluster
        self._journal = journal
        self._pool = pool
        self._clock = clock
        self._converge_seconds = converge_seconds
        self._inspect_seconds = inspect_seconds
        self._repeat_seconds = repeat_seconds
        keys, node_id = enrolment.console_keys, enrolment.node_id
        self._converger = Converger(backend=backend, journal=journal, node_id=node_id, trusted_keys=keys, cluster=cluster)
        self._executor = Executor(backend=backend, cluster=cluster, journal=journal, node_id=node_id, trusted_keys=keys)
        self.link = Link(url=enrolment.gateway_url, key=key, handler=self, tls=tls, backoff=backoff, clock=clock)
        self._boot_id = backend.boot_id()
        self._work = asyncio.Event()
        self._documents: deque[SignedDocument] = deque(maxlen=8)
        self._acks: deque[Ack] = deque(maxlen=16)
        self._observations: dict[tuple[str, str], Observation] = {}
        self._latest: dict[str, InventoryReport | HealthReport] = {}
        self._unsent: set[str] = set()
        self._sent: dict[str, tuple[str, float]] = {}
        self._tell_all = False
        # Acts on the hardware are one at a time, whoever asks for them.
        self._hardware = asyncio.Lock()
        self._command_work = asyncio.Event()
        self._command_messages: deque[CommandMessage] = deque(maxlen=MAX_COMMAND_MESSAGES)
        self._updates: dict[int, CommandUpdate] = {}
        self._unstored: dict[int, tuple[CommandUpdate, float]] = {}
        self._tell_commands = False
        self._clock_offset: float | None = None
        self._local_control = local.control if local else None
        self._local = self._local_loop(local) if local else None

    def _local_loop(self, local: Local) -> LocalLoop:
        return LocalLoop(
            local.control,
            desired=lambda: self._converger.desired,
            hardware=self._hardware,
            pool=self._pool,
            wake=self.link.wake,
            connected=lambda: self.link.connected,
            urgent=local.urgent,
            depths=local.depths,
            clock=self._clock,
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.link.run())
            tasks.create_task(self._work_loop())
            tasks.create_task(self._command_loop())
            if self._local is not None:
                tasks.create_task(self._local.run())

    def close(self) -> None:
        if self._local_control is not None:
            self._local_control.close()
        self._journal.close()
        self._backend.close()
        if self._cluster is not None:
            self._cluster.close()

    # Handler of the link: never blocks.

    def have_version(self) -> int:
        return self._converger.have_version

    def opened(self, welcome: Welcome) -> None:
        self._clock_offset = self._clock() - welcome.server_time
        if self._local is not None:
            self._local.opened()
        self._tell_everything()

    def received(self, message: GatewayMessage) -> None:
        if isinstance(message, SignedDocument):
            self._documents.append(message)
            self._work.set()
        elif isinstance(message, SignedCommand | SignedCancel | CommandAck):
            if isinstance(message, CommandAck) and (sent := self._unstored.get(message.target)) and sent[0].sequence <= message.sequence:
                del self._unstored[message.target]
            self._command_messages.append(message)
            self._command_work.set()
        elif isinstance(message, SignedSwitch | EventAck):
            if self._local is not None:
                self._local.received(message)
        elif isinstance(message, Resend):
            self._tell_everything()

    def take_outgoing(self) -> list[AgentMessage]:
        messages: list[AgentMessage] = []
        while self._acks:
            messages.append(self._acks.popleft())
        for kind in sorted(self._unsent):
            messages.append(self._latest[kind])
            self._sent[kind] = (_digest(self._latest[kind]), self._clock())
        self._unsent.clear()
        observations = list(self._observations.values())
        self._observations.clear()
        for start in range(0, len(observations), MAX_OBSERVATIONS):
            messages.append(ObservedReport(controls=tuple(observations[start : start + MAX_OBSERVATIONS])))
        sent_at = self._clock()
        for update in self._updates.values():
            messages.append(update)
            self._unstored[update.target] = (update, sent_at)
        self._updates.clear()
        if self._local is not None:
            messages += self._local.take_outgoing()
        return messages

    def heartbeat(self, clock_offset_seconds: float) -> Heartbeat:
        return Heartbeat(at=self._clock(), boot_id=self._boot_id, clock_offset_seconds=clock_offset_seconds, applied_version=self._converger.applied_version)

    def _tell_everything(self) -> None:
        self._unsent.update(self._latest)
        self._tell_all = True
        self._work.set()
        self._tell_commands = True
        self._command_work.set()

    # Work on the hardware.

    async def _work_loop(self) -> None:
        loop = asyncio.get_running_loop()
        inspect_at = 0.0
        while True:
            self._work.clear()
            documents = list(self._documents)
            self._documents.clear()
            tell_all, self._tell_all = self._tell_all, False
            inspect_now = loop.time() >= inspect_at
            try:
                async with self._hardware:
                    step = await loop.run_in_executor(self._pool, self._step, documents, inspect_now, tell_all)
            except Exception:
                # A fault of ours or of the disk must not silence the node: say so, and try again with the next pass.
                log.exception("a pass over the node failed")
                self._documents.extendleft(reversed(documents))
                self._tell_all = self._tell_all or tell_all
                await asyncio.sleep(self._converge_seconds)
                continue
            if inspect_now:
                inspect_at = loop.time() + self._inspect_seconds
            self._collect(step)
            pause = min(max(0.0, step.due_at - self._clock()), max(0.0, inspect_at - loop.time()), self._converge_seconds)
            try:
                async with asyncio.timeout(pause):
                    await self._work.wait()
            except TimeoutError:
                continue

    def _step(self, documents: list[SignedDocument], inspect_now: bool, tell_all: bool) -> _Step:
        """Runs in the pool."""
        now = self._clock()
        acks = [self._converger.accept(document, now) for document in documents]
        outcome = self._converger.converge(now, longest=self._converge_seconds)
        reports = inspect(self._backend, self._journal, now) if inspect_now else None
        if inspect_now:
            self._boot_id = self._backend.boot_id()  # in a container or on simulated hardware an agent may outlive a boot
        observations = self._converger.observations() if tell_all else outcome.observations
        return _Step(acks=acks, observations=observations, due_at=outcome.due_at, reports=reports)

    def _accepted(self, acks: list[Ack]) -> None:
        self._acks.extend(acks)
        if self._local is not None:
            self._local.documents_changed()

    def _collect(self, step: _Step) -> None:
        if step.acks:
            self._accepted(step.acks)
        for observation in step.observations:
            self._observations[(observation.control, observation.gpu_uuid)] = observation
        if step.reports is not None:
            inventory, health = step.reports
            self._consider(inventory, INVENTORY_SECONDS)
            self._consider(health, HEALTH_SECONDS)
        if self._acks or self._observations or self._unsent:
            self.link.wake()

    def _consider(self, report: InventoryReport | HealthReport, longest: float) -> None:
        """Send `report` when it differs from what was sent last, or when that is `longest` seconds ago."""
        self._latest[report.type] = report
        digest, sent_at = self._sent.get(report.type, ("", 0.0))
        if digest != _digest(report) or self._clock() - sent_at > longest:
            self._unsent.add(report.type)

    # One-shot commands.

    async def _command_loop(self) -> None:
        loop = asyncio.get_running_loop()
        due_at = self._clock()
        while True:
            pause = max(0.0, min(due_at, self._repeat_at()) - self._clock())
            try:
                async with asyncio.timeout(None if pause == NEVER else pause):
                    await self._command_work.wait()
            except TimeoutError:
                pass
            self._command_work.clear()
            self._repeat_unstored()
            messages = list(self._command_messages)
            self._command_messages.clear()
            tell_all, self._tell_commands = self._tell_commands, False
            if not messages and not tell_all and self._clock() < due_at:
                continue
            documents: list[SignedDocument] = []
            try:
                async with self._hardware:
                    # What belongs to the radio comes before what could touch it.
                    documents = list(self._documents)
                    self._documents.clear()
                    found, outcome = await loop.run_in_executor(self._pool, self._command_step, documents, messages, tell_all)
            except Exception:
                # A disk that fails must not silence the node. Orders that were not journalled come again: nobody was told that they are taken.
                log.exception("a pass over the commands failed")
                self._documents.extendleft(reversed(documents))
                self._tell_commands = self._tell_commands or tell_all
                due_at = self._clock() + self._converge_seconds
                continue
            if found:
                self._accepted(found)
                self._work.set()
            due_at = outcome.due_at
            self._updates.update((update.target, update) for update in outcome.updates)
            if self._updates or self._acks:
                self.link.wake()

    def _command_step(self, documents: list[SignedDocument], messages: list[CommandMessage], tell_all: bool) -> tuple[list[Ack], Pass]:
        """Runs in the pool."""
        acks = [self._converger.accept(document, self._clock()) for document in documents]
        if self._clock_offset is not None:
            self._executor.set_clock_offset(self._clock_offset)
        for message in messages:
            self._executor.take(message, self._clock())
        outcome = self._executor.work(Phy.of(self._converger.desired), self._clock())
        return acks, Pass(updates=self._executor.untold(), due_at=outcome.due_at) if tell_all else outcome

    def _repeat_at(self) -> float:
        """When to look again at what was sent, or is about to be, and is not stored yet."""
        waiting = [sent_at for _, sent_at in self._unstored.values()] + ([self._clock()] if self._updates else [])
        return min(waiting, default=NEVER) + self._repeat_seconds

    def _repeat_unstored(self) -> None:
        """What the console has not said to have stored is told again; without a connection a new one tells everything anyhow."""
        now = self._clock()
        for target, (update, sent_at) in list(self._unstored.items()):
            if now >= sent_at + self._repeat_seconds:
                del self._unstored[target]
                self._updates.setdefault(target, update)
        if self._updates and self.link.connected:
            self.link.wake()


def _digest(report: InventoryReport | HealthReport) -> str:
    """The same for two reports that differ only in their time."""
    return hashlib.sha256(dump_canonical(replace(report, at=0.0).to_json())).hexdigest()
