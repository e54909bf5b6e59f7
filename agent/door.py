"""The admission door: HTTP on 127.0.0.1 and on a Unix socket, for front ends on this node. Usable as Envoy's HTTP `ext_authz`.

`/ext_authz…` (any method) takes the request's headers, `POST /admit` the same as a JSON object; both need `X-Masthead-Credential`.
200 lets the request pass, 503 with Retry-After holds it off; every other answer says what is wrong with the question.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import httptools

from agent.admission import Ask, Decision, Gate, Reason
from agent.protocol.rules import HIGHEST_PRIORITY
from agent.protocol.wire import ProtocolError, Reader, load_object

log = logging.getLogger("masthead_agent.door")
MAX_HEADER_BYTES = 16 * 1024
MAX_HEADERS = 100
MAX_BODY_BYTES = 16 * 1024
MAX_CONNECTIONS = 1000
REQUEST_SECONDS = 15.0
IDLE_SECONDS = 120.0
RETRY_SECONDS = 5.0
_CREDENTIAL, _MODEL, _PRIORITY = b"x-masthead-credential", b"x-masthead-model", b"x-masthead-priority"
_FIVE_QI, _SLICE_TYPE = b"x-masthead-5qi", b"x-masthead-slice-type"
_ASKED = frozenset({_CREDENTIAL, _MODEL, _PRIORITY, _FIVE_QI, _SLICE_TYPE})
_STATUS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    503: "Service Unavailable",
}
DepthOf = Callable[[str], int | None]


class Refused(Exception):
    """The question cannot be answered: HTTP status, the bad field ("" for none), and why."""

    def __init__(self, status: int, field: str, problem: str) -> None:
        super().__init__(problem)
        self.status = status
        self.field = field


def ask_from_headers(tenant: str, headers: dict[bytes, bytes]) -> Ask:
    """Raises Refused naming the header."""
    model = _text(headers, _MODEL)
    if not model:
        raise Refused(400, _MODEL.decode(), "is missing")
    if len(model) > 200:
        raise Refused(400, _MODEL.decode(), "is longer than 200 characters")
    slice_type = _text(headers, _SLICE_TYPE)
    if len(slice_type) > 40:
        raise Refused(400, _SLICE_TYPE.decode(), "is longer than 40 characters")
    return Ask(
        tenant=tenant,
        model=model,
        priority=_number(headers, _PRIORITY, HIGHEST_PRIORITY) or 0,
        five_qi=_number(headers, _FIVE_QI, 255),
        slice_type=slice_type,
    )


def _text(headers: dict[bytes, bytes], name: bytes) -> str:
    try:
        return headers.get(name, b"").decode("utf-8").strip()
    except UnicodeDecodeError:
        raise Refused(400, name.decode(), "is not UTF-8 text") from None


def _number(headers: dict[bytes, bytes], name: bytes, highest: int) -> int | None:
    text = _text(headers, name)
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and int(text) <= highest):
        raise Refused(400, name.decode(), f"is not a whole number within 0..{highest}")
    return int(text)


def ask_from_json(tenant: str, body: bytes) -> Ask:
    """Raises Refused naming the field."""
    try:
        reader = Reader(load_object(body, limit=MAX_BODY_BYTES))
        found = Ask(
            tenant=tenant,
            model=reader.text("model", longest=200),
            priority=reader.optional("priority", lambda name: reader.integer(name, high=HIGHEST_PRIORITY)) or 0,
            five_qi=reader.optional("five_qi", lambda name: reader.integer(name, high=255)),
            slice_type=reader.optional("slice_type", lambda name: reader.text(name, longest=40, empty=True)) or "",
        )
        reader.done()
    except ProtocolError as error:
        raise Refused(400, error.field, error.problem) from None
    return found


class Door:
    """`gate` is replaced by whoever enforces; `depth_of` tells how many requests wait for a model. `clock` gives Unix seconds.

    `port` 0 is a free one, None none; `socket_path` None none.
    """

    def __init__(self, *, depth_of: DepthOf, port: int | None = None, socket_path: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        self.gate = Gate(None)
        self.depth_of = depth_of
        self.clock = clock
        self._port = port
        self._socket_path = socket_path
        self.connections: set[_Connection] = set()
        self.refused_connections = 0
        self._servers: list[asyncio.Server] = []

    async def open(self) -> None:
        """Listen. Raises OSError when an address cannot be had."""
        loop = asyncio.get_running_loop()
        if self._port is not None:
            self._servers.append(await loop.create_server(lambda: _Connection(self), "127.0.0.1", self._port, backlog=1024))
        if self._socket_path is not None:
            self._servers.append(await loop.create_unix_server(lambda: _Connection(self), str(self._socket_path), backlog=1024))
            # Front ends run under users of their own; what they may say is decided by their credential.
            os.chmod(self._socket_path, 0o666)  # noqa: S103

    async def serve(self) -> None:
        """Listen until cancelled. An address that cannot be had is tried again, so that the agent itself goes on."""
        try:
            while True:
                try:
                    await self.open()
                    break
                except OSError as error:
                    log.error("the admission door cannot be opened, will be tried again: %s", error)
                    await self.close()
                    await asyncio.sleep(RETRY_SECONDS)
            await asyncio.Event().wait()
        finally:
            await self.close()

    @property
    def port(self) -> int | None:
        """The TCP port that is listened on."""
        found = [address for server in self._servers for socket in server.sockets if isinstance(address := socket.getsockname(), tuple)]
        return int(found[0][1]) if found else None

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for connection in list(self.connections):
            connection.drop()
        self._servers.clear()
        if self._socket_path is not None:
            with contextlib.suppress(OSError):
                self._socket_path.unlink()

    def answer(self, method: bytes, path: bytes, headers: dict[bytes, bytes], body: bytes) -> tuple[Decision, int]:
        """The decision and the seconds to retry after. Raises Refused."""
        gate = self.gate
        as_json = path == b"/admit"
        if not as_json and not path.startswith(b"/ext_authz"):
            raise Refused(404, "", "only /admit and /ext_authz are here")
        if as_json and method != b"POST":
            raise Refused(405, "", "/admit takes POST")
        if gate.rules is None:
            return Decision(False, Reason.NO_RULES), 5
        tenant = gate.tenant_of(hashlib.sha256(headers.get(_CREDENTIAL, b"")).hexdigest())
        if tenant is None:
            raise Refused(401, _CREDENTIAL.decode(), "is not known on this node")
        ask = ask_from_json(tenant, body) if as_json else ask_from_headers(tenant, headers)
        return gate.decide(ask, self.depth_of, self.clock()), gate.rules.retry_after_seconds


class _Connection(asyncio.Protocol):
    """One connection with one request after the other. All work is done at once, in the loop: nothing waits in between."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._deadline: asyncio.TimerHandle | None = None
        self._clear()

    def _clear(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._header_bytes = 0
        self._header_count = 0
        self._body = b""
        self._failed: Refused | None = None

    # Of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if len(self._door.connections) >= MAX_CONNECTIONS:
            self._door.refused_connections += 1
            transport.abort()
            return
        self._door.connections.add(self)
        self._wait(IDLE_SECONDS)

    def connection_lost(self, error: Exception | None) -> None:
        self._door.connections.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._end()
        except Refused as refused:
            self._fail(refused)
        except httptools.HttpParserError as error:
            found = error.__context__
            self._fail(found if isinstance(found, Refused) else Refused(400, "", "this is not HTTP/1.1"))

    def pause_writing(self) -> None:
        """Who does not read its answers is asked no more."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _wait(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(seconds, self.drop)

    def _end(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _fail(self, refused: Refused) -> None:
        self._write(refused.status, {"error": str(refused), "field": refused.field}, close=True)
        self._end()

    # Of the parser.

    def on_message_begin(self) -> None:
        self._clear()
        self._wait(REQUEST_SECONDS)

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        self._header_count += 1
        if self._header_count > MAX_HEADERS:
            raise Refused(413, "", f"the request has more than {MAX_HEADERS} headers")
        name = name.lower()
        if name in _ASKED:
            if name in self._headers:
                self._failed = self._failed or Refused(400, name.decode(), "is there twice")
            self._headers[name] = value

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > MAX_HEADER_BYTES:
            raise Refused(413, "", f"the headers have more than {MAX_HEADER_BYTES} bytes")

    def on_body(self, body: bytes) -> None:
        if len(self._body) + len(body) > MAX_BODY_BYTES:
            raise Refused(413, "", f"the body has more than {MAX_BODY_BYTES} bytes")
        self._body += body

    def on_message_complete(self) -> None:
        close = not self._parser.should_keep_alive()
        try:
            if self._failed is not None:
                raise self._failed
            decision, retry_after = self._door.answer(self._parser.get_method(), self._url.partition(b"?")[0], self._headers, self._body)
            values: dict[str, str] = {"decision": "allow" if decision.allowed else "refuse", "reason": decision.reason.value}
            self._write(200 if decision.allowed else 503, values, close=close, retry_after=None if decision.allowed else retry_after)
        except Refused as refused:
            self._write(refused.status, {"error": str(refused), "field": refused.field}, close=close)
        if close:
            self._end()
        self._wait(IDLE_SECONDS)

    def _write(self, status: int, values: dict[str, str], *, close: bool, retry_after: int | None = None) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        body = json.dumps(values).encode()
        head = f"HTTP/1.1 {status} {_STATUS[status]}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        if retry_after is not None:
            head += f"Retry-After: {retry_after}\r\n"
        if "reason" in values:
            head += f"X-Masthead-Admission: {values['reason']}\r\n"
        if close:
            head += "Connection: close\r\n"
        self._transport.write(head.encode() + b"\r\n" + body)
