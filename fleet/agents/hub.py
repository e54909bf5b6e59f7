"""All sockets of one gateway process, and the loops that carry between them and PostgreSQL.

PostgreSQL holds what must be delivered and what was reported; Redis only wakes. While PostgreSQL is away the sockets stay, what they
report is kept in bounded buffers (the newest of each kind), and what did not fit is asked for again afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import redis.asyncio
import structlog
from redis.exceptions import RedisError

from agent.protocol import (
    Ack,
    CloseCode,
    EnrolAnswer,
    EnrolRequest,
    HealthReport,
    Heartbeat,
    InventoryReport,
    Observation,
    ObservedReport,
    ProtocolError,
    Resend,
    parse_agent_message,
)
from fleet.agents import enrolment, store
from fleet.agents.courier import Courier
from fleet.agents.session import Closed, Session
from fleet.agents.store import Contact, DatabaseAway, Known
from fleet.control import observed
from fleet.control.desired_state import WAKE_KEY

log = structlog.get_logger(__name__)
T = TypeVar("T")

DATABASE_THREADS = 4
FLUSH_SECONDS = 1.0
RETRY_SECONDS = 1.0
CHECK_SECONDS = 2.0
POLL_SECONDS = 15.0
# So many may be late or lost before a socket counts as dead.
MISSED_HEARTBEATS = 4
AUTH_BATCH = 1000
REPORT_BATCH = 20
MOST_OBSERVATIONS = 200_000
MOST_REPORT_BYTES = 128 * 1024 * 1024


class Hub:
    """`heartbeat_seconds` is what agents are told. `clock` gives Unix seconds."""

    def __init__(self, *, redis_url: str, heartbeat_seconds: float, clock: Callable[[], float] = time.time) -> None:
        self.heartbeat_seconds = heartbeat_seconds
        self.clock = clock
        self.name = f"{socket.gethostname()}:{os.getpid()}"[:80]
        self.sessions: dict[int, Session] = {}
        self.database_away = False
        self._redis_url = redis_url
        self._database = ThreadPoolExecutor(max_workers=DATABASE_THREADS, thread_name_prefix="database")
        self._asking: list[tuple[bytes, asyncio.Future[Known | None]]] = []
        self._asked = asyncio.Event()
        self._contacts: dict[int, Contact] = {}
        self._dirty: set[int] = set()
        self._gone: set[int] = set()
        self._observations: dict[tuple[int, str, str], Observation] = {}
        self._reports: dict[tuple[int, str], str] = {}
        self._report_bytes = 0
        self._reports_wait = asyncio.Event()
        self._resend: set[int] = set()
        self._offers: set[int] = set()
        self._answers: set[int] = set()
        self._offered = asyncio.Event()
        self._to_check: set[int] = set()
        self._look_for_silent_at = 0.0
        self._checked_at = self.now()  # what was revoked before is known
        self._poll_now = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._closings: set[asyncio.Task[None]] = set()
        self.courier = Courier(self)

    @property
    def sockets(self) -> Mapping[int, Session]:
        return self.sessions

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock(), UTC)

    async def start(self) -> None:
        loops = (
            self._identify_loop,
            self._flush_loop,
            self._report_loop,
            self._offer_loop,
            self._wake_loop,
            self._check_loop,
            self._poll_loop,
            *self.courier.loops,
        )
        self._tasks = [asyncio.create_task(self._forever(loop)) for loop in loops]

    async def stop(self) -> None:
        """Store what is still in the buffers, say goodbye to nobody: agents dial again."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._gone.update(self.sessions)
        with contextlib.suppress(DatabaseAway):
            await self._flush()
        await store.close_connections(self._database, threads=DATABASE_THREADS)
        self._database.shutdown(wait=True)

    async def _forever(self, loop: Callable[[], Awaitable[None]]) -> None:
        """Keep one of our loops alive: a fault in one pass is logged, and after a pause the next pass goes on."""
        while True:
            try:
                await loop()
            except DatabaseAway as error:
                if not self.database_away:
                    log.warning("gateway_database_away", error=str(error))
                self.database_away = True
                await asyncio.sleep(RETRY_SECONDS)
            except Exception:
                log.exception("gateway_loop_failed", loop=getattr(loop, "__name__", ""))
                await asyncio.sleep(RETRY_SECONDS)

    async def in_database(self, work: Callable[[], T]) -> T:
        """Run `work` in a database thread. Raises DatabaseAway."""
        result = await asyncio.get_running_loop().run_in_executor(self._database, store.in_database, work)
        self.database_away = False
        return result

    # What sessions tell. None of this waits.

    async def identify(self, key: bytes) -> Known | None:
        """The node that `key` speaks for; asked in batches, since after an outage all agents dial at once."""
        future: asyncio.Future[Known | None] = asyncio.get_running_loop().create_future()
        self._asking.append((key, future))
        self._asked.set()
        try:
            return await future
        except DatabaseAway:
            raise Closed(CloseCode.TRY_LATER, "The console's database is away; try again later.") from None

    async def joined(self, session: Session, agent_version: str) -> None:
        before = self.sessions.get(session.node_id)
        self.sessions[session.node_id] = session
        self._gone.discard(session.node_id)
        self._contacts[session.node_id] = Contact(connected_at=self.now(), agent_version=agent_version)
        self._dirty.add(session.node_id)
        self.courier.joined(session.node_id)
        if before is not None:
            self.close_soon(before, CloseCode.REPLACED, "Another connection speaks for this node.")

    def left(self, session: Session) -> None:
        if self.sessions.get(session.node_id) is session:
            del self.sessions[session.node_id]
            self._gone.add(session.node_id)
            self.courier.left(session.node_id)

    def heard(self, session: Session, beat: Heartbeat) -> None:
        contact = self._contacts.get(session.node_id)
        if contact is None:  # it was given up meanwhile
            return
        contact.heartbeat_at = self.now()
        contact.boot_id = beat.boot_id
        contact.clock_offset_seconds = beat.clock_offset_seconds
        contact.applied_version = beat.applied_version
        self._dirty.add(session.node_id)

    def acknowledged(self, session: Session, ack: Ack) -> None:
        contact = self._contacts.get(session.node_id)
        if contact is None:
            return
        contact.refusal = f"{ack.code}: {ack.detail}" if ack.code and ack.code != "old_version" else ""
        self._dirty.add(session.node_id)
        if contact.refusal:
            log.warning("document_refused", node_id=session.node_id, version=ack.version, reason=contact.refusal)

    def observed(self, session: Session, report: ObservedReport) -> None:
        for observation in report.controls:
            key = (session.node_id, observation.gpu_uuid, observation.control)
            if key not in self._observations and len(self._observations) >= MOST_OBSERVATIONS:
                self._resend.add(session.node_id)
                return
            self._observations[key] = observation

    def reported(self, session: Session, kind: str, text: str) -> None:
        key = (session.node_id, kind)
        held = len(self._reports.pop(key, ""))
        if self._report_bytes - held + len(text) > MOST_REPORT_BYTES:
            self._report_bytes -= held
            self._resend.add(session.node_id)
            return
        self._reports[key] = text
        self._report_bytes += len(text) - held
        self._reports_wait.set()

    def offer(self, node_ids: Iterable[int], *, answer: bool = False) -> None:
        """Have these nodes given their newest document; with `answer`, told when there is none newer."""
        found = [node_id for node_id in node_ids if node_id in self.sessions]
        self._offers.update(found)
        if answer:
            self._answers.update(found)
        if found:
            self._offered.set()

    def close_soon(self, session: Session, code: int, message: str) -> None:
        task = asyncio.create_task(session.close(code, message))
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)

    async def enrol(self, request: EnrolRequest) -> EnrolAnswer:
        return await self.in_database(lambda: enrolment.enrol(request, now=self.now()))

    # Loops: one pass each.

    async def _identify_loop(self) -> None:
        await self._asked.wait()
        self._asked.clear()
        while self._asking:
            batch, self._asking = self._asking[:AUTH_BATCH], self._asking[AUTH_BATCH:]
            try:
                keys = [key for key, _ in batch]
                known = await self.in_database(lambda keys=keys: store.find_nodes(keys))  # type: ignore[misc]
            except Exception as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error if isinstance(error, DatabaseAway) else DatabaseAway(str(error)))
                raise
            for key, future in batch:
                if not future.done():
                    future.set_result(known.get(key))

    async def _flush_loop(self) -> None:
        await asyncio.sleep(FLUSH_SECONDS)
        await self._flush()
        # What did not fit into the buffers is asked for again, now that they empty.
        for node_id in list(self._resend):
            self._resend.discard(node_id)
            if (session := self.sessions.get(node_id)) is not None:
                await self.deliver(session.node_id, session.send(Resend()))

    async def _flush(self) -> None:
        dirty, self._dirty = self._dirty, set()
        gone, self._gone = self._gone, set()
        seen, self._observations = self._observations, {}
        contacts = {node_id: self._contacts[node_id] for node_id in dirty if node_id in self._contacts}
        now = self.now()

        def write() -> None:
            store.write_contacts(contacts, gateway=self.name)
            observed.record_observations(((key[0], observation) for key, observation in seen.items()), now=now)
            store.write_disconnects(gone, gateway=self.name, now=now)

        if not (contacts or gone or seen):
            return
        try:
            await self.in_database(write)
        except DatabaseAway:
            # Newer values that came in the meantime win over these.
            self._dirty |= dirty
            self._gone |= gone - self.sessions.keys()
            self._observations = seen | self._observations
            raise
        for node_id in gone - self.sessions.keys():
            self._contacts.pop(node_id, None)

    async def _report_loop(self) -> None:
        await self._reports_wait.wait()
        self._reports_wait.clear()
        while self._reports:
            batch: list[tuple[int, InventoryReport | HealthReport]] = []
            taken: dict[tuple[int, str], str] = {}
            for key in list(self._reports)[:REPORT_BATCH]:
                taken[key] = self._reports.pop(key)
                self._report_bytes -= len(taken[key])
                with contextlib.suppress(ProtocolError):
                    report = parse_agent_message(taken[key])
                    if isinstance(report, InventoryReport | HealthReport):
                        batch.append((key[0], report))
            now = self.now()

            def take(batch: list[tuple[int, InventoryReport | HealthReport]] = batch, now: datetime = now) -> None:
                for node_id, report in batch:
                    store.take_report(node_id, report, now=now)

            try:
                await self.in_database(take)
            except DatabaseAway:
                for key, text in taken.items():
                    if key not in self._reports:
                        self._reports[key] = text
                        self._report_bytes += len(text)
                self._reports_wait.set()
                raise

    async def _offer_loop(self) -> None:
        await self._offered.wait()
        self._offered.clear()
        offers, self._offers = self._offers, set()
        answers, self._answers = self._answers, set()
        try:
            documents = await self.in_database(lambda: store.documents(offers))
        except DatabaseAway:
            self._offers |= offers
            self._answers |= answers
            self._offered.set()
            raise
        deliveries = []
        for node_id in offers:
            session, document = self.sessions.get(node_id), documents.get(node_id)
            if session is None:
                continue
            if document is not None and session.wants(document.version):
                deliveries.append(self.deliver(session.node_id, session.send_document(document)))
            elif node_id in answers:
                deliveries.append(self.deliver(session.node_id, session.answer_nothing_newer()))
        await asyncio.gather(*deliveries)

    async def deliver(self, node_id: int, sending: Awaitable[None]) -> None:
        """Await a send to a node's socket; one that fails closes the socket, and the agent dials again."""
        try:
            await sending
        except Closed as closed:
            if (session := self.sessions.get(node_id)) is not None:
                await session.close(closed.code, closed.message)
        except ConnectionError:
            return

    async def _wake_loop(self) -> None:
        client = redis.asyncio.Redis.from_url(self._redis_url, socket_timeout=None, socket_connect_timeout=2)
        try:
            newest: Any = await client.xrevrange(WAKE_KEY, count=1)
            last = newest[0][0] if newest else b"0-0"
            # What was not heard before is found by looking.
            self._poll_now.set()
            while True:
                answer: Any = await client.xread({WAKE_KEY: last}, block=5000, count=1000)
                for _, entries in answer or []:
                    last = entries[-1][0]
                    woken = [int(fields[b"n"]) for _, fields in entries if fields.get(b"n", b"").isdigit()]
                    self._to_check.update(node_id for node_id in woken if node_id in self.sessions)
                    self.offer(woken)
                    self.courier.wake(woken)
                    if any(b"s" in fields for _, fields in entries):
                        self.courier.wake_switches()
        except (RedisError, OSError) as error:
            log.warning("gateway_redis_away", error=str(error))
            # Without a wake, looking is all there is: each second then.
            self._poll_now.set()
            await asyncio.sleep(RETRY_SECONDS)
        finally:
            with contextlib.suppress(RedisError, OSError):
                await client.aclose()

    async def _check_loop(self) -> None:
        """Sockets that fell silent, and sockets whose key was revoked: since the last check that came through, and of nodes that were woken for."""
        await asyncio.sleep(CHECK_SECONDS)
        loop_time = asyncio.get_running_loop().time()
        if loop_time >= self._look_for_silent_at:
            self._look_for_silent_at = loop_time + self.heartbeat_seconds / 2
            oldest = loop_time - MISSED_HEARTBEATS * self.heartbeat_seconds
            for session in [session for session in self.sessions.values() if session.last_seen < oldest]:
                self.close_soon(session, CloseCode.TOO_SLOW, "No heartbeat.")
                self.left(session)
        since, started = self._checked_at, self.now()
        to_check, self._to_check = self._to_check, set()
        try:
            revoked = await self.in_database(lambda: store.revoked_keys(since))
            live = await self.in_database(lambda: store.live_keys(to_check)) if to_check else {}
        except DatabaseAway:
            self._to_check |= to_check
            raise
        self._checked_at = started
        suspects = to_check | {node_id for node_id, _ in revoked}
        for session in [self.sessions[node_id] for node_id in suspects if node_id in self.sessions]:
            other_key = session.node_id in to_check and live.get(session.node_id) != session.key
            if other_key or (session.node_id, session.key) in revoked:
                self.close_soon(session, CloseCode.REVOKED, "This key was revoked.")

    async def _poll_loop(self) -> None:
        """Redis may have lost a wake: look for newer documents, and for sockets of gateways that died."""
        self._poll_now.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                await self._poll_now.wait()
        ids = list(self.sessions)
        versions = await self.in_database(lambda: store.newest_versions(ids))
        self.offer(node_id for node_id, version in versions.items() if node_id in self.sessions and self.sessions[node_id].wants(version))
        silent = timedelta(seconds=2 * MISSED_HEARTBEATS * self.heartbeat_seconds)
        await self.in_database(lambda: store.sweep_lost_contacts(older_than=self.now() - silent))
