"""One agent's socket: challenge, proof, then messages in both directions. The socket is the node; no field of a message says so."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from agent.protocol import (
    MAX_MESSAGE_BYTES,
    Ack,
    Auth,
    Challenge,
    CloseCode,
    CommandUpdate,
    Fetch,
    GatewayMessage,
    HealthReport,
    Heartbeat,
    InventoryReport,
    LocalEvent,
    NoDocument,
    ObservedReport,
    ProtocolError,
    Refusal,
    SignedDocument,
    SwitchUpdate,
    Welcome,
    authentication_statement,
    parse_agent_message,
)
from fleet.agents.courier import Courier
from fleet.agents.store import Known

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

AUTH_SECONDS = 15.0
SEND_SECONDS = 10.0
# An agent sends a heartbeat, now and then a report, and after days alone what it did meanwhile: more than this in one heartbeat's time is a fault.
MOST_MESSAGES_PER_BEAT = 500
UNACKED_SECONDS = 30.0


class Closed(Exception):
    """The socket is to be closed with `code`."""

    def __init__(self, code: int, message: str, field: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field


class Keeper(Protocol):
    """Who keeps the sockets and takes what they tell (the gateway's hub). `clock` gives Unix seconds."""

    heartbeat_seconds: float
    clock: Callable[[], float]
    courier: Courier

    async def identify(self, key: bytes) -> Known | None: ...

    async def joined(self, session: Session, agent_version: str) -> None: ...

    def left(self, session: Session) -> None: ...

    def heard(self, session: Session, beat: Heartbeat) -> None: ...

    def observed(self, session: Session, report: ObservedReport) -> None: ...

    def reported(self, session: Session, kind: str, text: str) -> None: ...

    def acknowledged(self, session: Session, ack: Ack) -> None: ...

    def offer(self, node_ids: Iterable[int], *, answer: bool = False) -> None: ...


class Session:
    """`node_id` is 0 until the agent has proven its key."""

    __slots__ = ("_hub", "_receive", "_send", "closing", "key", "known_version", "last_seen", "messages", "node_id", "sent_at", "sent_version", "window_at")

    def __init__(self, hub: Keeper, receive: Receive, send: Send) -> None:
        self._hub = hub
        self._receive = receive
        self._send = send
        self.node_id = 0
        self.key = b""
        self.closing = False
        self.last_seen = 0.0
        self.window_at = 0.0
        self.messages = 0
        # Newest document that the agent said it has or refused; newest that was sent, and when (loop time).
        self.known_version = 0
        self.sent_version = 0
        self.sent_at = 0.0

    async def run(self) -> None:
        """From the accepted handshake to the end of the socket."""
        try:
            await self._authenticate()
            while True:
                self._handle(await self._next())
        except Closed as closed:
            await self.close(closed.code, closed.message, closed.field)
        except ConnectionError:
            pass
        finally:
            if self.node_id:
                self._hub.left(self)

    async def send(self, message: GatewayMessage) -> None:
        """Raises Closed when the agent does not read, ConnectionError when it is gone."""
        await self.send_text(json.dumps(message.to_json()))

    async def send_text(self, text: str) -> None:
        """A message that is written already: the same for many agents. Raises as `send` does."""
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await self._send({"type": "websocket.send", "text": text})
        except TimeoutError:
            raise Closed(CloseCode.TOO_SLOW, "The agent does not read.") from None
        except OSError as error:
            raise ConnectionResetError(str(error)) from error

    async def close(self, code: int, message: str, field: str = "") -> None:
        """Say why, then close. Harmless on a socket that is gone or closing."""
        if self.closing:
            return
        self.closing = True
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await self._send({"type": "websocket.send", "text": json.dumps(Refusal(code=code, message=message[:500], field=field[:200]).to_json())})
                await self._send({"type": "websocket.close", "code": int(code), "reason": message[:100]})
        except (OSError, TimeoutError, RuntimeError):
            return

    async def send_document(self, document: SignedDocument) -> None:
        """Once per version, and again when it was not acknowledged for a while."""
        now = asyncio.get_running_loop().time()
        if document.version <= self.known_version or (document.version <= self.sent_version and now - self.sent_at < UNACKED_SECONDS):
            return
        self.sent_version, self.sent_at = document.version, now
        await self.send(document)

    def wants(self, version: int) -> bool:
        """Whether the agent should be given document `version` now."""
        recent = version <= self.sent_version and asyncio.get_running_loop().time() - self.sent_at < UNACKED_SECONDS
        return version > self.known_version and not recent

    async def _next(self) -> str:
        event = await self._receive()
        if event["type"] == "websocket.disconnect":
            raise ConnectionResetError
        text = event.get("text")
        if not isinstance(text, str):
            raise Closed(CloseCode.BAD_MESSAGE, "Messages are text.")
        if len(text) > MAX_MESSAGE_BYTES:
            raise Closed(CloseCode.BAD_MESSAGE, f"A message has at most {MAX_MESSAGE_BYTES} bytes.")
        return text

    async def _authenticate(self) -> None:
        nonce = secrets.token_bytes(32)
        await self.send(Challenge(nonce=nonce))
        try:
            async with asyncio.timeout(AUTH_SECONDS):
                auth = parse_agent_message(await self._next())
        except TimeoutError:
            raise Closed(CloseCode.NOT_AUTHENTICATED, "No answer to the challenge.") from None
        except ProtocolError as error:
            raise Closed(CloseCode.BAD_MESSAGE, error.problem, error.field) from error
        if not isinstance(auth, Auth):
            raise Closed(CloseCode.NOT_AUTHENTICATED, "The first message must be auth.", "type")
        try:
            Ed25519PublicKey.from_public_bytes(auth.public_key).verify(auth.signature, authentication_statement(nonce))
        except (InvalidSignature, ValueError):
            raise Closed(CloseCode.NOT_AUTHENTICATED, "The signature is not over this connection's nonce.", "signature") from None
        known = await self._hub.identify(auth.public_key)
        if known is None:
            raise Closed(CloseCode.NOT_AUTHENTICATED, "This key speaks for no node: enrol first.", "public_key")
        self.node_id, self.key, self.known_version = known.node_id, auth.public_key, auth.have_version
        self.touch()
        await self._hub.joined(self, auth.agent_version)
        await self.send(
            Welcome(
                node_id=known.node_id,
                heartbeat_seconds=self._hub.heartbeat_seconds,
                server_time=self._hub.clock(),
                newest_version=known.newest_version,
            )
        )
        if known.newest_version > auth.have_version:
            self._hub.offer([self.node_id])

    def touch(self) -> None:
        self.last_seen = asyncio.get_running_loop().time()

    def _handle(self, text: str) -> None:
        self.touch()
        if self.last_seen - self.window_at > self._hub.heartbeat_seconds:
            self.window_at, self.messages = self.last_seen, 0
        self.messages += 1
        if self.messages > MOST_MESSAGES_PER_BEAT:
            raise Closed(CloseCode.BAD_MESSAGE, f"More than {MOST_MESSAGES_PER_BEAT} messages within {self._hub.heartbeat_seconds:g} s.")
        try:
            message = parse_agent_message(text)
        except ProtocolError as error:
            raise Closed(CloseCode.BAD_MESSAGE, error.problem, error.field) from error
        if isinstance(message, Heartbeat):
            self._hub.heard(self, message)
        elif isinstance(message, ObservedReport):
            self._hub.observed(self, message)
        elif isinstance(message, InventoryReport | HealthReport):
            self._hub.reported(self, message.type, text)
        elif isinstance(message, Ack):
            self.known_version = max(self.known_version, min(message.version, self.sent_version))
            self._hub.acknowledged(self, message)
        elif isinstance(message, CommandUpdate):
            self._hub.courier.updated(self.node_id, message)
        elif isinstance(message, SwitchUpdate):
            self._hub.courier.answered(self.node_id, message)
        elif isinstance(message, LocalEvent):
            self._hub.courier.happened(self.node_id, message)
        elif isinstance(message, Fetch):
            self.known_version, self.sent_version = message.have_version, 0
            self._hub.offer([self.node_id], answer=True)
        else:
            raise Closed(CloseCode.BAD_MESSAGE, "This socket is authenticated already.", "type")

    async def answer_nothing_newer(self) -> None:
        await self.send(NoDocument(have_version=self.known_version))
