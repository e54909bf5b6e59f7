"""The agent's way out: TLS is verified, a proxy is used, pauses grow with jitter, and nothing a gateway sends ends the agent."""

import asyncio
import json
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.server import ServerConnection, serve

from agent.config import tls_context
from agent.link import Backoff, Link
from agent.protocol import (
    AgentMessage,
    Auth,
    Challenge,
    GatewayMessage,
    Heartbeat,
    NoDocument,
    Welcome,
    authentication_statement,
    parse_agent_message,
)

FAST = Backoff(first_seconds=0.01, cap_seconds=0.05, refused_seconds=0.05)


class Carried:
    """What the link carries messages for."""

    def __init__(self) -> None:
        self.welcomes: list[Welcome] = []
        self.messages: list[GatewayMessage] = []
        self.outgoing: list[AgentMessage] = []

    def have_version(self) -> int:
        return 0

    def opened(self, welcome: Welcome) -> None:
        self.welcomes.append(welcome)

    def received(self, message: GatewayMessage) -> None:
        self.messages.append(message)

    def take_outgoing(self) -> list[AgentMessage]:
        taken, self.outgoing = self.outgoing, []
        return taken

    def heartbeat(self, clock_offset_seconds: float) -> Heartbeat:
        return Heartbeat(at=1.0, boot_id="b", clock_offset_seconds=clock_offset_seconds, applied_version=0)


async def until(true: Callable[[], object], seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110 - what is waited for is no event of ours
            await asyncio.sleep(0.01)


async def greet(socket: ServerConnection, *, heartbeat_seconds: float = 0.1) -> Auth:
    """A gateway's side of the handshake; the signature must be over this connection's nonce."""
    nonce = bytes(range(32))
    await socket.send(json.dumps(Challenge(nonce).to_json()))
    auth = parse_agent_message(await socket.recv())
    assert isinstance(auth, Auth)
    Ed25519PublicKey.from_public_bytes(auth.public_key).verify(auth.signature, authentication_statement(nonce))
    await socket.send(json.dumps(Welcome(7, heartbeat_seconds, 1000.0, 0).to_json()))
    return auth


@asynccontextmanager
async def linked(
    gateway: Callable[[ServerConnection], Awaitable[None]],
    *,
    server_tls: ssl.SSLContext | None = None,
    client_tls: ssl.SSLContext | None = None,
    host: str = "127.0.0.1",
) -> AsyncIterator[tuple[Link, Carried]]:
    """A link that dials a scripted gateway on loopback."""
    carried = Carried()
    async with serve(gateway, "127.0.0.1", 0, ssl=server_tls, compression=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        link = Link(
            url=f"{'wss' if client_tls else 'ws'}://{host}:{port}/agent",
            key=Ed25519PrivateKey.generate(),
            handler=carried,
            tls=client_tls,
            backoff=FAST,
            clock=lambda: 1002.5,
        )
        task = asyncio.create_task(link.run())
        try:
            yield link, carried
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


async def test_proves_its_key_beats_and_tells_the_clock_offset() -> None:
    beats: list[Heartbeat] = []

    async def gateway(socket: ServerConnection) -> None:
        await greet(socket)
        await socket.send(json.dumps(NoDocument(3).to_json()))
        async for data in socket:
            message = parse_agent_message(data)
            if isinstance(message, Heartbeat):
                beats.append(message)

    async with linked(gateway) as (link, carried):
        await until(lambda: len(beats) >= 3)
        assert link.connected
    assert beats[0].clock_offset_seconds == 2.5
    assert carried.messages == [NoDocument(3)]


@pytest.mark.parametrize(
    "first",
    ["garbage", "{}", json.dumps(NoDocument(1).to_json()), json.dumps({**Challenge(bytes(32)).to_json(), "protocol": 0}), b"\x00", "x" * 2_000_000],
    ids=["garbage", "empty", "other message", "no protocol", "binary", "too long"],
)
async def test_a_gateway_that_speaks_nonsense_is_left_and_dialled_again(first: str | bytes) -> None:
    calls = 0

    async def gateway(socket: ServerConnection) -> None:
        nonlocal calls
        calls += 1
        if calls < 3:
            await socket.send(first)
            await socket.wait_closed()
        else:
            await greet(socket)
            await socket.wait_closed()

    async with linked(gateway) as (_, carried):
        await until(lambda: carried.welcomes)
    assert calls == 3


async def test_a_cut_link_stays_down_until_it_is_mended() -> None:
    calls = 0

    async def gateway(socket: ServerConnection) -> None:
        nonlocal calls
        calls += 1
        await greet(socket)
        await socket.wait_closed()

    async with linked(gateway) as (link, carried):
        await until(lambda: len(carried.welcomes) == 1)
        link.cut()
        await until(lambda: not link.connected)
        await asyncio.sleep(0.2)
        assert calls == 1
        link.mend()
        await until(lambda: len(carried.welcomes) == 2)


def certificate(folder: Path, name: str) -> Path:
    """A self-signed certificate for `name` and 127.0.0.1, with its key, in one PEM file."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    names = x509.SubjectAlternativeName([x509.DNSName(name)] + ([x509.IPAddress(IPv4Address("127.0.0.1"))] if name == "localhost" else []))
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{name}.pem"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + made.public_bytes(Encoding.PEM))
    return path


@pytest.mark.parametrize(("name", "trusted", "welcome"), [("localhost", True, True), ("localhost", False, False), ("elsewhere.example", True, False)])
async def test_tls_is_verified_by_certificate_and_host_name(tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, trusted: bool, welcome: bool) -> None:
    pem = certificate(tmp_path, name)
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_tls.load_cert_chain(pem)
    reached = 0

    async def gateway(socket: ServerConnection) -> None:
        nonlocal reached
        reached += 1
        await greet(socket)
        await socket.wait_closed()

    client_tls = tls_context("wss://localhost", pem if trusted else None)
    async with linked(gateway, server_tls=server_tls, client_tls=client_tls, host="localhost") as (link, carried):
        if welcome:
            await until(lambda: carried.welcomes)
        else:
            await until(lambda: "certificate verify failed" in link.trouble)
            assert (carried.welcomes, reached) == ([], 0)


@pytest.fixture
def proxied() -> Iterator[tuple[int, list[str]]]:
    """An HTTP proxy that knows only CONNECT: its port, and the targets that it was asked for."""
    asked: list[str] = []
    loop = asyncio.new_event_loop()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, target, _ = head.split(" ", 2)
        asked.append(f"{method} {target}")
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", int(target.rsplit(":", 1)[1]))
        writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
        await asyncio.gather(pump(reader, there_writer), pump(there_reader, writer), return_exceptions=True)

    server = loop.run_until_complete(asyncio.start_server(proxy, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield server.sockets[0].getsockname()[1], asked

    def stop() -> None:
        server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.call_later(0.1, loop.stop)

    loop.call_soon_threadsafe(stop)
    thread.join(10)
    loop.close()


async def test_a_proxy_from_the_environment_is_used(proxied: tuple[int, list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    port, asked = proxied
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
    pem = certificate(tmp_path, "gateway.example")
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_tls.load_cert_chain(pem)

    async def gateway(socket: ServerConnection) -> None:
        await greet(socket)
        await socket.wait_closed()

    async with linked(gateway, server_tls=server_tls, client_tls=tls_context("wss://g", pem), host="gateway.example") as (_, carried):
        await until(lambda: carried.welcomes)
    assert asked[0].startswith("CONNECT gateway.example:")


@given(st.integers(1, 200), st.floats(0, 1), st.booleans())
def test_pauses_are_a_random_share_of_a_bound_that_doubles_to_a_cap(failures: int, share: float, refused: bool) -> None:
    backoff = Backoff(first_seconds=1, cap_seconds=60, refused_seconds=30)
    bound = max(min(60.0, 2.0 ** (min(failures, 8) - 1)), 30.0 if refused else 0.0)
    assert backoff.pause(failures, refused=refused, share=share) == pytest.approx(share * bound)


@pytest.mark.parametrize(("heartbeat", "bound"), [(0.0, 1.0), (30.0, 30.0), (3600.0, 60.0)])
def test_after_a_steady_connection_the_first_pause_is_spread_over_a_heartbeats_time(heartbeat: float, bound: float) -> None:
    assert Backoff().pause(1, refused=False, share=0.5, spread_seconds=heartbeat) == pytest.approx(0.5 * bound)
