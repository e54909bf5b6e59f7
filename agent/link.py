"""The agent's one connection: dials out to the gateway, proves its key, and stays until it breaks; then dials again.

A proxy from the environment (HTTPS_PROXY, SOCKS too) is honoured, TLS is verified. This loop carries messages and runs no action.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI, ProxyError

from agent import VERSION
from agent.keys import public_bytes
from agent.protocol import (
    MAX_MESSAGE_BYTES,
    PROTOCOL_VERSION,
    AgentMessage,
    Auth,
    Challenge,
    CloseCode,
    GatewayMessage,
    Heartbeat,
    ProtocolError,
    Refusal,
    Welcome,
    authentication_statement,
    parse_gateway_message,
)

log = logging.getLogger("masthead_agent.link")
ANSWER_SECONDS = 15.0
STEADY_SECONDS = 30.0
# A link that is open on one side only is noticed within a minute; heartbeats are one-way and do not tell.
PING_SECONDS, PONG_SECONDS = 40.0, 20.0


class HandshakeRefused(Exception):
    """The gateway did not take us; the text is its own."""


@dataclass(frozen=True)
class Backoff:
    """Full jitter: a random share of a bound that doubles up to `cap_seconds`. `refused_seconds` is the bound after a refusal.

    `spread_seconds` is one after a connection that was steady: a gateway that ends is lost by thousands of agents in one moment.
    """

    first_seconds: float = 1.0
    cap_seconds: float = 60.0
    refused_seconds: float = 30.0

    def pause(self, failures: int, *, refused: bool, share: float, spread_seconds: float = 0.0) -> float:
        """Seconds to wait after the `failures`-th failure in a row (1 is the first); `share` is uniform in 0..1."""
        bound = min(self.cap_seconds, self.first_seconds * 2.0 ** min(failures - 1, 30))
        return share * max(bound, self.refused_seconds if refused else 0.0, min(spread_seconds, self.cap_seconds))


class Handler(Protocol):
    """What the link carries messages for. All calls come from the event loop and must not block."""

    def have_version(self) -> int: ...

    def opened(self, welcome: Welcome) -> None:
        """A connection is up: everything worth telling must be told again."""

    def received(self, message: GatewayMessage) -> None: ...

    def take_outgoing(self) -> list[AgentMessage]: ...

    def heartbeat(self, clock_offset_seconds: float) -> Heartbeat: ...


class Link:
    def __init__(
        self,
        *,
        url: str,
        key: Ed25519PrivateKey,
        handler: Handler,
        tls: ssl.SSLContext | None = None,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._url = url
        self._key = key
        self._handler = handler
        self._tls = tls
        self._backoff = backoff or Backoff()
        self._clock = clock
        self._outgoing = asyncio.Event()
        self._allowed = asyncio.Event()
        self._allowed.set()
        self._socket: ClientConnection | None = None
        self._heartbeat_seconds = 0.0
        self.connected = False
        self.trouble = ""  # why the last connection ended or did not come about

    def wake(self) -> None:
        """There is something to send."""
        self._outgoing.set()

    def cut(self) -> None:
        """Drop the connection and dial no more until `mend()`."""
        self._allowed.clear()
        if self._socket is not None:
            self._socket.transport.abort()

    def mend(self) -> None:
        self._allowed.set()

    async def run(self) -> None:
        """Until cancelled."""
        failures = 0
        while True:
            await self._allowed.wait()
            started = time.monotonic()
            refused = False
            try:
                await self._connection()
            except HandshakeRefused as error:
                refused = True
                self.trouble = str(error)
                log.warning("refused by the gateway: %s", error)
            except ConnectionClosed as error:
                received = error.rcvd
                refused = received is not None and received.code in (CloseCode.BAD_MESSAGE, CloseCode.NOT_AUTHENTICATED, CloseCode.REVOKED)
                self.trouble = str(error)
                log.info("connection closed: %s", error)
            except (OSError, TimeoutError, InvalidHandshake, InvalidURI, ProxyError, ProtocolError) as error:
                self.trouble = str(error)
                log.info("no connection to %s: %s", self._url, error)
            except Exception:
                # Nothing that a gateway or a proxy sends may end the agent: it goes on alone and dials again.
                log.exception("the connection to %s failed in an unforeseen way", self._url)
            finally:
                self._socket = None
                self.connected = False
            steady = time.monotonic() - started > STEADY_SECONDS
            failures = 1 if steady else failures + 1
            spread = self._heartbeat_seconds if steady else 0.0
            await asyncio.sleep(self._backoff.pause(failures, refused=refused, share=random.random(), spread_seconds=spread))  # noqa: S311 - jitter

    async def _connection(self) -> None:
        async with connect(
            self._url,
            ssl=self._tls,
            compression=None,
            max_size=MAX_MESSAGE_BYTES,
            max_queue=4,
            open_timeout=ANSWER_SECONDS,
            close_timeout=2,
            ping_interval=PING_SECONDS,
            ping_timeout=PONG_SECONDS,
            user_agent_header=f"masthead-agent/{VERSION}",
        ) as socket:
            self._socket = socket
            if not self._allowed.is_set():
                return
            welcome = await self._authenticate(socket)
            self.connected = True
            self._heartbeat_seconds = welcome.heartbeat_seconds
            offset = self._clock() - welcome.server_time
            self._handler.opened(welcome)
            sender = asyncio.create_task(self._send_all(socket, welcome.heartbeat_seconds, offset))
            try:
                async for data in socket:
                    message = parse_gateway_message(data)
                    if isinstance(message, Refusal):
                        log.warning("the gateway refuses: %s %s", message.field, message.message)
                    else:
                        self._handler.received(message)
            finally:
                sender.cancel()
                await asyncio.gather(sender, return_exceptions=True)

    async def _authenticate(self, socket: ClientConnection) -> Welcome:
        challenge = await self._answer(socket)
        if not isinstance(challenge, Challenge):
            raise HandshakeRefused("it did not begin with a challenge")
        if challenge.protocol < PROTOCOL_VERSION:
            raise HandshakeRefused(f"it speaks protocol {challenge.protocol}, this agent {PROTOCOL_VERSION}")
        auth = Auth(
            public_key=public_bytes(self._key),
            signature=self._key.sign(authentication_statement(challenge.nonce)),
            agent_version=VERSION,
            have_version=self._handler.have_version(),
        )
        await socket.send(json.dumps(auth.to_json()))
        welcome = await self._answer(socket)
        if not isinstance(welcome, Welcome):
            raise HandshakeRefused("it did not welcome us")
        return welcome

    async def _answer(self, socket: ClientConnection) -> GatewayMessage:
        async with asyncio.timeout(ANSWER_SECONDS):
            message = parse_gateway_message(await socket.recv())
        if isinstance(message, Refusal):
            raise HandshakeRefused(message.message)
        return message

    async def _send_all(self, socket: ClientConnection, heartbeat_seconds: float, offset: float) -> None:
        loop = asyncio.get_running_loop()
        next_beat = loop.time()
        while True:
            self._outgoing.clear()
            for message in self._handler.take_outgoing():
                await socket.send(json.dumps(message.to_json()))
            if loop.time() >= next_beat:
                await socket.send(json.dumps(self._handler.heartbeat(offset).to_json()))
                next_beat = loop.time() + heartbeat_seconds
            try:
                async with asyncio.timeout_at(next_beat):
                    await self._outgoing.wait()
            except TimeoutError:
                continue
