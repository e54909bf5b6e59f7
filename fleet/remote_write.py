"""The one door from Prometheus (push): remote_write by HTTP, as a bare ASGI application beside the live state.

An answer says what the sender must do: 204 goes on, 4xx drops the batch (only for what can never be taken), 503 sends it again later.
A sample that is refused is counted, and the rest of its batch taken.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any

import structlog
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from fleet.telemetry.ingest import Ingest
from fleet.telemetry.protobuf_wire import DecodeError
from fleet.telemetry.remote_write_decoder import TooLarge, inflate
from fleet.telemetry.resolver import SenderScope
from fleet.telemetry.senders import SenderDirectory

log = structlog.get_logger(__name__)

WRITE_PATH = "/api/v1/write"
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Answered(Exception):
    """The request ends here with this status and sentence."""

    def __init__(self, status: int, text: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = headers


class Receiver:
    """The ASGI application. `executor` has one thread: bodies are taken one at a time, under `lock`."""

    def __init__(
        self,
        ingest: Ingest,
        senders: SenderDirectory,
        *,
        executor: Executor,
        lock: AbstractContextManager[object],
        registry: CollectorRegistry,
        clock: Callable[[], float] = time.time,
        used_senders: set[int] | None = None,
        max_body_bytes: int = 8 << 20,
        max_inflated_bytes: int = 64 << 20,
        max_waiting_bytes: int = 64 << 20,
        body_seconds: float = 15.0,
    ) -> None:
        self._ingest = ingest
        self._senders = senders
        self._executor = executor
        self._lock = lock
        self._registry = registry
        self._clock = clock
        self.max_body_bytes = max_body_bytes
        self.max_inflated_bytes = max_inflated_bytes
        self.max_waiting_bytes = max_waiting_bytes
        self.body_seconds = body_seconds
        self.waiting_bytes = 0
        self.answers: dict[int, int] = {}
        self.used_senders = set() if used_senders is None else used_senders
        self.accepting = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            status, body, headers = await self._answer(scope, receive)
        except Answered as answer:
            status, body, headers = answer.status, answer.text.encode() + b"\n", answer.headers
        if scope["path"] == WRITE_PATH:
            self.answers[status] = self.answers.get(status, 0) + 1
        start = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
        names = {name for name, _ in headers}
        await send({"type": "http.response.start", "status": status, "headers": [pair for pair in start if pair[0] not in names] + list(headers)})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, bytes, tuple[tuple[bytes, bytes], ...]]:
        path, method = scope["path"], scope["method"]
        if path in ("/healthz", "/metrics"):
            if method not in ("GET", "HEAD"):
                raise Answered(405, "only GET", ((b"allow", b"GET, HEAD"),))
            if path == "/healthz":
                return 200, b"ok\n", ()
            return 200, generate_latest(self._registry), ((b"content-type", CONTENT_TYPE_LATEST.encode()),)
        if path != WRITE_PATH:
            raise Answered(404, "not found")
        if method != "POST":
            raise Answered(405, "only POST", ((b"allow", b"POST"),))
        headers = {name.lower(): value for name, value in scope["headers"]}
        if not self.accepting:  # senders are not known yet, and a 401 would make Prometheus drop the batch
            raise Answered(503, "starting: send it again later", ((b"retry-after", b"2"),))
        sender = self._sender_of(headers)
        self._check_kind(headers)
        size = self._announced_size(headers)
        if self.waiting_bytes + size > self.max_waiting_bytes:
            raise Answered(503, "too much is waiting: send it again later", ((b"retry-after", b"2"),))
        self.waiting_bytes += size
        try:
            body = await self._read_in_time(receive)
            await asyncio.get_running_loop().run_in_executor(self._executor, self._take, body, sender)
        finally:
            self.waiting_bytes -= size
        self.used_senders.add(sender.id)
        return 204, b"", ()

    def _sender_of(self, headers: dict[bytes, bytes]) -> SenderScope:
        kind, _, token = headers.get(b"authorization", b"").partition(b" ")
        found = self._senders.find(token.strip().decode("latin-1"), now=datetime.fromtimestamp(self._clock(), tz=UTC)) if kind.lower() == b"bearer" else None
        if found is None:
            raise Answered(401, "a valid sender's token is needed: Authorization: Bearer …", ((b"www-authenticate", b'Bearer realm="remote_write"'),))
        sender, may_write = found
        if not may_write:
            raise Answered(403, f"the sender {sender.name} may not write")
        return sender

    @staticmethod
    def _check_kind(headers: dict[bytes, bytes]) -> None:
        encoding = headers.get(b"content-encoding", b"snappy").strip().lower()
        if encoding != b"snappy":
            raise Answered(415, "Content-Encoding: only snappy")
        kind, _, parameters = headers.get(b"content-type", b"application/x-protobuf").partition(b";")
        proto = parameters.strip().lower().removeprefix(b"proto=").strip(b'"')
        if kind.strip().lower() != b"application/x-protobuf" or proto not in (b"", b"prometheus.writerequest"):
            raise Answered(415, "Content-Type: only application/x-protobuf with prometheus.WriteRequest (remote_write 1.0)")

    def _announced_size(self, headers: dict[bytes, bytes]) -> int:
        """What the body may take: its announced length, or the limit when it does not say."""
        text = headers.get(b"content-length", b"")
        size = int(text) if text.isdigit() and len(text) < 16 else self.max_body_bytes + len(text) // 16
        if size > self.max_body_bytes:
            raise Answered(413, f"Content-Length: {size} bytes is more than {self.max_body_bytes}")
        return size

    async def _read_in_time(self, receive: Receive) -> bytes:
        """A sender whose link was cut in the middle must not hold its share of what may wait for ever. 503: it sends the batch again."""
        try:
            async with asyncio.timeout(self.body_seconds):
                return await self._read(receive)
        except TimeoutError:
            raise Answered(503, f"the body did not come within {self.body_seconds:g} s: send it again", ((b"retry-after", b"2"),)) from None

    async def _read(self, receive: Receive) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Answered(400, "the request ended early")
            part = message.get("body", b"")
            size += len(part)
            if size > self.max_body_bytes:
                raise Answered(413, f"the body is larger than {self.max_body_bytes} bytes")
            parts.append(part)
            if not message.get("more_body"):
                return b"".join(parts)

    def _take(self, body: bytes, sender: SenderScope) -> None:
        """In the ingest thread. Raises Answered for a body that can never be taken."""
        try:
            data = inflate(body, limit=self.max_inflated_bytes)
            with self._lock:
                self._ingest.take_body(data, sender, now=self._clock())
        except TooLarge as error:
            raise Answered(413, str(error)) from error
        except DecodeError as error:
            log.warning("remote_write_undecodable", sender=sender.name, bytes=len(body), error=str(error))
            raise Answered(400, f"the body cannot be decoded: {error}") from error
