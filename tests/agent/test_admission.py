"""The admission decision as a table and as properties, and the door as its front ends see it: TCP, Unix socket, Envoy's headers, JSON, and garbage."""

import asyncio
import contextlib
import hashlib
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.admission import Ask, Gate, Reason, decide
from agent.door import MAX_BODY_BYTES, Door
from agent.protocol import AdmissionRules, FrontEnd, Grant, ScopeKind
from tests.agent.documents import T0, switch

RULES = AdmissionRules(
    front_ends=(FrontEnd(hashlib.sha256(b"of-a").hexdigest(), "a"), FrontEnd(hashlib.sha256(b"of-b").hexdigest(), "b")),
    grants=(Grant("a", "llm", 9, urllc=True), Grant("a", "asr", 6)),
)
GRANT = RULES.grants[0]
KILL = (switch(),)
DEPTHS = {"llm": 10, "deep": 900}


@pytest.mark.parametrize(
    ("ask", "grant", "kills", "depth", "allowed", "reason"),
    [
        (Ask("a", "llm", 9), GRANT, (), 0, True, Reason.ROOM),
        (Ask("a", "llm", 0), GRANT, (), 799, True, Reason.ROOM),
        (Ask("a", "llm", 0), GRANT, (), 800, False, Reason.BUSY),
        (Ask("a", "llm", 4), GRANT, (), 800, False, Reason.BUSY),
        (Ask("a", "llm", 5), GRANT, (), 800, True, Reason.ROOM),
        (Ask("a", "llm", 9), GRANT, (), 999, True, Reason.ROOM),
        (Ask("a", "llm", 9), GRANT, (), 1000, False, Reason.FULL),
        (Ask("a", "llm", 9), GRANT, (), None, True, Reason.UNKNOWN_DEPTH),
        (Ask("a", "llm", 4), GRANT, (), None, False, Reason.UNKNOWN_DEPTH),
        # Priority counts only as far as it is granted.
        (Ask("a", "llm", 10), None, (), 800, False, Reason.BUSY),
        (Ask("a", "llm", 10), None, (), None, False, Reason.UNKNOWN_DEPTH),
        (Ask("a", "llm", 10), Grant("a", "llm", 4), (), 800, False, Reason.BUSY),
        # URLLC passes every depth, when it is granted.
        (Ask("a", "llm", 0, five_qi=82), GRANT, (), 5000, True, Reason.URLLC),
        (Ask("a", "llm", 0, five_qi=90), GRANT, (), None, True, Reason.URLLC),
        (Ask("a", "llm", 0, five_qi=81), GRANT, (), None, False, Reason.UNKNOWN_DEPTH),
        (Ask("a", "llm", 0, slice_type="URLLC"), GRANT, (), 5000, True, Reason.URLLC),
        (Ask("a", "llm", 0, slice_type="2"), GRANT, (), 5000, True, Reason.URLLC),
        (Ask("a", "llm", 0, slice_type="eMBB"), GRANT, (), 5000, False, Reason.FULL),
        (Ask("a", "llm", 0, five_qi=82), Grant("a", "llm", 9), (), 5000, False, Reason.FULL),
        (Ask("a", "llm", 0, five_qi=82), None, (), 10, True, Reason.ROOM),
        # A kill beats everything within its reach.
        (Ask("a", "llm", 9, five_qi=82), GRANT, KILL, 0, False, Reason.KILL),
        (Ask("a", "llm", 9), GRANT, (switch(tenant="a"),), 0, False, Reason.KILL),
        (Ask("a", "llm", 9), GRANT, (switch(tenant="b"),), 0, True, Reason.ROOM),
        (Ask("a", "llm", 9), GRANT, (switch(model="llm"),), 0, False, Reason.KILL),
        (Ask("a", "llm", 9), GRANT, (switch(model="asr"),), 0, True, Reason.ROOM),
        (Ask("a", "llm", 9), GRANT, (switch(tenant="a", model="asr"),), 0, True, Reason.ROOM),
        (Ask("a", "llm", 9), GRANT, (switch(ends_at=T0),), 0, True, Reason.ROOM),
        (Ask("a", "llm", 9), GRANT, (switch(ends_at=T0 + 1),), 0, False, Reason.KILL),
    ],
)
def test_the_decision(ask: Ask, grant: Grant | None, kills: tuple[object, ...], depth: int | None, allowed: bool, reason: Reason) -> None:
    found = decide(ask, grant=grant, kills=kills, depth=depth, rules=RULES, now=T0)  # type: ignore[arg-type]
    assert (found.allowed, found.reason) == (allowed, reason)


asks = st.builds(
    Ask,
    tenant=st.sampled_from("ab"),
    model=st.sampled_from(["llm", "asr"]),
    priority=st.integers(0, 10),
    five_qi=st.none() | st.integers(0, 255),
    slice_type=st.sampled_from(["", "urllc", "embb"]),
)
grants = st.none() | st.builds(Grant, tenant=st.just("a"), model=st.just("llm"), priority=st.integers(0, 10), urllc=st.booleans())
depths = st.none() | st.integers(0, 2000)


@given(ask=asks, grant=grants, depth=depths)
def test_a_kill_beats_urllc_and_all_else(ask: Ask, grant: Grant | None, depth: int | None) -> None:
    assert not decide(ask, grant=grant, kills=KILL, depth=depth, rules=RULES, now=T0).allowed


@given(ask=asks, grant=grants, depth=depths)
def test_claims_beyond_the_grant_change_nothing(ask: Ask, grant: Grant | None, depth: int | None) -> None:
    granted = min(ask.priority, grant.priority if grant else 0)
    honest = replace(ask, priority=granted)
    if grant is None or not grant.urllc:
        honest = replace(honest, five_qi=None, slice_type="")
    assert decide(ask, grant=grant, kills=(), depth=depth, rules=RULES, now=T0) == decide(honest, grant=grant, kills=(), depth=depth, rules=RULES, now=T0)


@given(ask=asks, grant=grants, shallow=st.integers(0, 2000), deeper=st.integers(0, 2000))
def test_a_deeper_queue_never_lets_more_through(ask: Ask, grant: Grant | None, shallow: int, deeper: int) -> None:
    if decide(ask, grant=grant, kills=(), depth=shallow + deeper, rules=RULES, now=T0).allowed:
        assert decide(ask, grant=grant, kills=(), depth=shallow, rules=RULES, now=T0).allowed


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    door = Door(depth_of=DEPTHS.get, port=0, socket_path=tmp_path / "door.sock", clock=lambda: T0)
    door.gate = Gate(RULES)
    await door.open()
    yield door
    await door.close()
    await asyncio.sleep(0)


async def exchange(door: Door, data: bytes, *, over: Path | None = None) -> bytes:
    """Everything that comes back until the door closes."""
    if over is not None:
        reader, writer = await asyncio.open_unix_connection(over)
    else:
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
    async with asyncio.timeout(5):
        with contextlib.suppress(ConnectionError):
            writer.write(data)
            await writer.drain()
        answer = b""
        with contextlib.suppress(ConnectionError):
            answer = await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    return answer


def request(*headers: str, method: str = "GET", path: str = "/ext_authz/v1/chat?x=1", body: bytes = b"", credential: str = "of-a") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: node", "Connection: close", f"X-Masthead-Credential: {credential}", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def parts(answer: bytes) -> tuple[int, dict[str, str], dict[str, str]]:
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), dict(line.split(": ", 1) for line in lines), json.loads(body)


def ask_json(**values: object) -> bytes:
    return request("Content-Type: application/json", method="POST", path="/admit", body=json.dumps(values).encode())


async def test_envoys_question_is_answered_on_both_addresses(door: Door, tmp_path: Path) -> None:
    for over in (None, tmp_path / "door.sock"):
        status, headers, body = parts(await exchange(door, request("X-Masthead-Model: llm", "X-Masthead-Priority: 9"), over=over))
        assert (status, headers["X-Masthead-Admission"], body) == (200, "room", {"decision": "allow", "reason": "room"})
        assert "Retry-After" not in headers
        status, headers, body = parts(await exchange(door, request("X-Masthead-Model: deep"), over=over))
        assert (status, headers["Retry-After"], body["reason"]) == (503, "5", "low_priority")
    status, _, body = parts(await exchange(door, request("x-masthead-model: llm", "X-MASTHEAD-5QI: 82", method="PATCH", path="/ext_authz")))
    assert (status, body["reason"]) == (200, "urllc")


async def test_the_same_as_json(door: Door) -> None:
    assert parts(await exchange(door, ask_json(model="llm", priority=9)))[0] == 200
    assert parts(await exchange(door, ask_json(model="deep")))[0] == 503
    assert parts(await exchange(door, ask_json(model="llm", five_qi=82)))[2]["reason"] == "urllc"
    assert parts(await exchange(door, ask_json(model="llm", slice_type="urllc")))[2]["reason"] == "urllc"


async def test_one_connection_carries_many_requests_in_order(door: Door) -> None:
    keep = request("X-Masthead-Model: llm").replace(b"Connection: close\r\n", b"")
    deep = request("X-Masthead-Model: deep").replace(b"Connection: close\r\n", b"")
    answer = await exchange(door, keep + deep + keep + request("X-Masthead-Model: deep"))
    assert re.findall(rb"HTTP/1\.1 (\d+)", answer) == [b"200", b"503", b"200", b"503"]


async def test_tenants_are_their_credentials(door: Door) -> None:
    status, _, body = parts(await exchange(door, request("X-Masthead-Model: llm", credential="guessed")))
    assert (status, body["field"]) == (401, "x-masthead-credential")
    assert parts(await exchange(door, request("X-Masthead-Model: llm", credential="")))[0] == 401
    # The other tenant has no grant: its claims count for nothing.
    assert parts(await exchange(door, request("X-Masthead-Model: deep", "X-Masthead-Priority: 10", "X-Masthead-5QI: 82", credential="of-b")))[0] == 503


async def test_a_kill_closes_at_once_also_on_open_connections(door: Door) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
    ask = request("X-Masthead-Model: llm", "X-Masthead-5QI: 82").replace(b"Connection: close\r\n", b"")
    writer.write(ask)
    assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
    door.gate = Gate(RULES, (switch(scope=(ScopeKind.SITE, "W1")),))
    writer.write(ask)
    answer = await reader.readuntil(b"}")
    assert answer.startswith(b"HTTP/1.1 503")
    assert b"Retry-After: 5" in answer
    writer.close()


async def test_without_a_document_everything_is_held_off(door: Door) -> None:
    door.gate = Gate(None)
    status, headers, body = parts(await exchange(door, request("X-Masthead-Model: llm")))
    assert (status, headers["Retry-After"], body["reason"]) == (503, "5", "no_rules")


@pytest.mark.parametrize(
    ("data", "status", "field"),
    [
        (request(), 400, "x-masthead-model"),
        (request("X-Masthead-Model: " + "m" * 201), 400, "x-masthead-model"),
        (request("X-Masthead-Model: llm", "X-Masthead-Priority: NaN"), 400, "x-masthead-priority"),
        (request("X-Masthead-Model: llm", "X-Masthead-Priority: 11"), 400, "x-masthead-priority"),
        (request("X-Masthead-Model: llm", "X-Masthead-Priority: -1"), 400, "x-masthead-priority"),
        (request("X-Masthead-Model: llm", "X-Masthead-Priority: ١"), 400, "x-masthead-priority"),
        (request("X-Masthead-Model: llm", "X-Masthead-5QI: 1e2"), 400, "x-masthead-5qi"),
        (request("X-Masthead-Model: llm", "X-Masthead-5QI: 256"), 400, "x-masthead-5qi"),
        (request("X-Masthead-Model: llm", "X-Masthead-Slice-Type: " + "s" * 41), 400, "x-masthead-slice-type"),
        (request("X-Masthead-Model: llm", "X-Masthead-Model: asr"), 400, "x-masthead-model"),
        (request("X-Masthead-Model: llm", "X-Masthead-Credential: of-b"), 400, "x-masthead-credential"),
        (request("X-Masthead-Model: llm").replace(b"llm", b"\xff\xfe"), 400, "x-masthead-model"),
        (ask_json(), 400, "model"),
        (ask_json(model=""), 400, "model"),
        (ask_json(model=3), 400, "model"),
        (ask_json(model="llm", priority="9"), 400, "priority"),
        (ask_json(model="llm", priority=True), 400, "priority"),
        (ask_json(model="llm", priority=9.5), 400, "priority"),
        (ask_json(model="llm", tenant="b"), 400, "tenant"),
        (request(method="POST", path="/admit", body=b'{"model": "llm", "priority": NaN}'), 400, ""),
        (request(method="POST", path="/admit", body=b'{"model": "llm", "priority": 1e400}'), 400, "priority"),
        (request(method="POST", path="/admit", body=b'{"model": "llm", "five_qi": "-Infinity"}'), 400, "five_qi"),
        (request(method="POST", path="/admit", body=b"{"), 400, ""),
        (request(method="POST", path="/admit", body=b"[" * 10_000), 400, ""),
        (request(method="POST", path="/admit"), 400, ""),
        (request(method="POST", path="/admit", body=b"x" * (MAX_BODY_BYTES + 1)), 413, ""),
        (request("X-Masthead-Model: llm", "X: " + "y" * 20_000), 413, ""),
        (request("X-Masthead-Model: llm", *(f"X-{number}: y" for number in range(200))), 413, ""),
        (request(path="/admit"), 405, ""),
        (request(path="/"), 404, ""),
        (request(path="/ext_auth"), 404, ""),
        (b"\x16\x03\x01\x02\x00 this is TLS", 400, ""),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, ""),
        (b"GET / HTTP/1.1\r\nHost : node\r\n\r\n", 400, ""),
        (request().replace(b"Host: node", b"Content-Length: 3\r\nContent-Length: 4"), 400, ""),
        (request().replace(b"Host: node", b"Transfer-Encoding: chunked\r\nContent-Length: 4"), 400, ""),
    ],
)
async def test_a_bad_question_gets_a_clear_answer(door: Door, data: bytes, status: int, field: str) -> None:
    found, _, body = parts(await exchange(door, data))
    assert (found, body["field"]) == (status, field)
    assert body["error"]


async def test_a_huge_body_is_cut_off_early(door: Door) -> None:
    head = request(method="POST", path="/admit").replace(b"Connection: close", b"Content-Length: 1000000000")
    assert parts(await exchange(door, head + b"x" * 100_000))[0] == 413
    assert door.connections == set()


async def test_who_does_not_read_is_read_no_more(door: Door) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port, limit=1024)
    asked = request("X-Masthead-Model: llm").replace(b"Connection: close\r\n", b"")
    sent = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.5):
            while sent < 500_000:
                writer.write(asked * 100)
                sent += 100
                await writer.drain()
    assert sent < 500_000
    assert parts(await exchange(door, request("X-Masthead-Model: llm")))[0] == 200
    assert not reader.at_eof()
    writer.transport.abort()


async def test_too_many_connections_are_turned_away(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.door.MAX_CONNECTIONS", 1)
    _, first = await asyncio.open_connection("127.0.0.1", door.port)
    while not door.connections:  # noqa: ASYNC110 - what is waited for is no event of ours
        await asyncio.sleep(0)
    assert await exchange(door, request("X-Masthead-Model: llm")) == b""
    assert door.refused_connections == 1
    first.close()


pieces = st.sampled_from(
    [
        b"GET /ext_authz HTTP/1.1\r\n",
        b"POST /admit HTTP/1.1\r\n",
        b"X-Masthead-Credential: of-a\r\n",
        b"X-Masthead-Model: llm\r\n",
        b"X-Masthead-Priority: 9\r\n",
        b"Content-Length: 5\r\n",
        b"Content-Length: -1\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Upgrade: websocket\r\nConnection: upgrade\r\n",
        b"CONNECT a:1 HTTP/1.1\r\n",
        b"Expect: 100-continue\r\n",
        b"\r\n",
        b"5\r\nhello\r\n",
        b"0\r\n\r\n",
        b'{"model":"llm"}',
        b"\x00\xff",
    ]
)


async def test_anything_at_all_gets_an_answer_or_a_closed_connection_and_never_another_5xx(door: Door) -> None:
    @given(st.lists(pieces | st.binary(max_size=40), max_size=12).map(b"".join))
    @settings(max_examples=150, deadline=None)
    def send(data: bytes) -> None:
        garbage.append(data)

    garbage: list[bytes] = []
    send()
    failures: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
    for data in garbage:
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        with contextlib.suppress(ConnectionError):
            writer.write(data)
            writer.write_eof()
        answer = b""
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionError):
                answer = await reader.read()
        writer.close()
        assert set(re.findall(rb"HTTP/1\.1 (5\d\d)", answer)) <= {b"503"}
    assert failures == []
    assert parts(await exchange(door, request("X-Masthead-Model: llm")))[0] == 200
