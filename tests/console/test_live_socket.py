"""The live socket: who may open it, what it shows, how it heals, and that it never outlives the right to see (cases C40, C42)."""

import asyncio
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.sessions.models import Session
from django.test import Client

from console.live import viewer as viewers
from console.models import RoleGrant
from console.tokens import issue_token
from fleet import frames, stream
from tests.builders import make_area, make_region, make_site, make_tenant, make_user
from tests.console.live_support import ORIGIN, Page, Telemetry, headers, session_cookie

CASES = Path(__file__).parents[1] / "cases"
OK, DOWN = frames.STATE_NUMBERS["ok"], frames.STATE_NUMBERS["down"]
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def empty_redis(settings: Any) -> Iterator[None]:
    settings.ORIGINS = [ORIGIN]
    client = stream.connect()
    client.flushdb()
    yield
    client.flushdb()
    client.close()


def case(name: str, file: str) -> Any:
    return json.loads((CASES / name / file).read_text())


def token_of(user: Any, *scopes: str) -> tuple[Any, str]:
    now = datetime.now(UTC)
    return issue_token(user=user, name="t", scopes=scopes, expires_at=now + timedelta(days=1), now=now)


@sync_to_async
def cast() -> dict[str, Any]:
    """Two regions of one area with a site each, kim who operates both, and a viewer of the whole fleet."""
    area = make_area()
    amber, birch = make_region(area=area), make_region(area=area)
    kim = make_user(role="operator", region=amber)
    RoleGrant.objects.create(user=kim, role="operator", region=birch)
    viewer = make_user(role="viewer")
    return {
        "area": area,
        "amber": amber,
        "birch": birch,
        "kim": kim,
        "kim_cookie": session_cookie(kim),
        "cookie": session_cookie(viewer),
        "viewer": viewer,
        "a": make_site(region=amber),
        "b": make_site(region=birch),
    }


@pytest.mark.parametrize("handshake", case("C40-websocket-origin", "handshakes.json")["handshakes"], ids=lambda one: one["id"])
async def test_c40_handshake(handshake: dict[str, Any], settings: Any) -> None:
    settings.ORIGINS = [case("C40-websocket-origin", "handshakes.json")["allowed_origin"]]
    user = await sync_to_async(make_user)(role="viewer")
    cookie = await sync_to_async(session_cookie)(user) if handshake.get("cookie") else None
    secret = (await sync_to_async(token_of)(user, "read:sites"))[1] if handshake.get("token") else None
    page = Page(headers(cookie=cookie, origin=handshake["origin"], token=secret))
    accepted = await page.open()
    assert accepted is case("C40-websocket-origin", "expect.json")["accept"][handshake["id"]]
    if accepted:
        assert await page.until(lambda page: page.last("hello") is not None)
        await page.close()
    else:
        assert page.socket.output_queue.empty()


async def test_snapshot_then_deltas() -> None:
    made = await cast()
    telemetry = Telemetry()
    a, b = made["a"].pk, made["b"].pk
    await telemetry.publish({a: OK, b: OK})
    page = Page(headers(cookie=made["cookie"]))
    assert await page.open()
    await page.send(op="subscribe", areas="all")
    assert await page.until(lambda page: page.cells == {a: OK, b: OK})
    await telemetry.publish({a: OK, b: DOWN})
    assert await page.until(lambda page: page.cells == {a: OK, b: DOWN})
    assert page.last("hello") == {"op": "hello", "areas": [made["area"].pk], "scope": "fleet", "version": page.messages[0]["version"]}
    await page.close()


async def test_a_viewer_of_one_region_gets_only_its_sites_without_a_gap() -> None:
    made = await cast()
    await sync_to_async(RoleGrant.objects.filter(user=made["kim"], region=made["birch"]).delete)()
    telemetry = Telemetry()
    a, b = made["a"].pk, made["b"].pk
    await telemetry.publish({a: OK, b: OK})
    page = Page(headers(cookie=made["kim_cookie"]))
    assert await page.open()
    await page.send(op="subscribe", areas="all")
    assert await page.until(lambda page: page.cells == {a: OK})
    await telemetry.publish({a: OK, b: DOWN})
    await telemetry.publish({a: DOWN, b: DOWN})
    assert await page.until(lambda page: page.cells.get(a) == DOWN)
    assert page.cells == {a: DOWN}
    await page.close()


async def test_tenants_users_and_strangers_get_no_socket() -> None:
    tenant = await sync_to_async(make_tenant)()
    for user in (await sync_to_async(make_user)(tenant=tenant), await sync_to_async(make_user)()):
        page = Page(headers(cookie=await sync_to_async(session_cookie)(user)))
        assert not await page.open()


async def test_a_token_needs_a_scope_that_reads_sites() -> None:
    user = await sync_to_async(make_user)(role="viewer")
    assert not await Page(headers(origin=None, token=(await sync_to_async(token_of)(user, "write:controls"))[1])).open()
    assert not await Page(headers(origin=None, token="mh_0_wrong")).open()
    token, secret = await sync_to_async(token_of)(user, "read:wall")
    page = Page(headers(origin=None, token=secret))
    assert await page.open()
    token.revoked_at = datetime.now(UTC)
    await sync_to_async(token.save)()
    assert await page.until(lambda page: page.closed_with == 4401, 5)


async def test_a_walls_socket_ends_with_its_device_token() -> None:
    user = await sync_to_async(make_user)(role="viewer")
    token, secret = await sync_to_async(token_of)(user, "read:wall")
    wall = Client()
    await sync_to_async(wall.post)("/wall/sign-in", {"token": secret})
    page = Page(headers(cookie=wall.cookies["sessionid"].value))
    assert await page.open()
    token.revoked_at = datetime.now(UTC)
    await sync_to_async(token.save)()
    assert await page.until(lambda page: page.closed_with == 4401, 5)


async def test_c42_the_socket_does_not_outlive_roles_and_session() -> None:
    """The case's tenants are two regions here: what an operator may see is cut by region."""
    made = await cast()
    expect = case("C42-socket-outlives-session", "expect.json")
    grace = expect["grace_s"]
    site = {"amber": made["a"].pk, "birch": made["b"].pk}
    state = dict.fromkeys(site.values(), OK)
    telemetry = Telemetry()
    await telemetry.publish(state)
    page = Page(headers(cookie=made["kim_cookie"]))
    assert await page.open()
    delivered: list[int] = []
    for step in case("C42-socket-outlives-session", "timeline.json"):
        match step["event"].split(":")[0]:
            case "socket open":
                await page.send(op="subscribe", areas="all")
                assert await page.until(lambda page: len(page.cells) == 2)
            case "message for birch" | "message for amber":
                pk = site[step["event"].split()[-1]]
                state[pk] = DOWN if state[pk] == OK else OK
                page.cells.clear()
                await telemetry.publish(state)
                # A message that is not delivered is proved by the beat after it, which carries its sequence.
                before = len(page.messages)
                if await page.until(partial(_answered, pk, state[pk], before), 7):
                    delivered += [step["n"]] if page.cells.get(pk) == state[pk] else []
            case "kim removed from tenant birch":
                await sync_to_async(RoleGrant.objects.filter(user=made["kim"], region=made["birch"]).delete)()
                hellos = sum(message["op"] == "hello" for message in page.messages)
                assert await page.until(partial(_hellos_above, hellos), grace)
            case "kim sends over the socket":
                await page.send(op="cordon", node=1)
                assert await page.until(lambda page: page.last("error") is not None)
            case "kim logs out (or":
                await sync_to_async(Session.objects.filter(session_key=made["kim_cookie"]).delete)()
                assert await page.until(lambda page: page.closed_with is not None, grace)
            case "kim sends":
                assert page.closed_with == 4401
    assert delivered == expect["delivered"]


def _answered(pk: int, state: int, count: int, page: Page) -> bool:
    """The cell came, the socket closed, or a beat after the first `count` messages says that nothing more was to come."""
    return page.cells.get(pk) == state or page.closed_with is not None or any(message["op"] == "beat" for message in page.messages[count:])


def _hellos_above(count: int, page: Page) -> bool:
    return sum(message["op"] == "hello" for message in page.messages) > count


@pytest.mark.parametrize("how", ["suspended", "expired", "password", "sign-out told by the stream"])
async def test_c42_every_end_closes_the_socket(how: str) -> None:
    made = await cast()
    page = Page(headers(cookie=made["cookie"]))
    assert await page.open()
    user = made["viewer"]
    match how:
        case "suspended":
            user.is_active = False
            await sync_to_async(user.save)()
        case "expired":
            await sync_to_async(Session.objects.filter(session_key=made["cookie"]).update)(expire_date=datetime.now(UTC) - timedelta(seconds=1))
        case "password":
            user.set_password("another pass phrase")
            await sync_to_async(user.save)()
        case _:
            await sync_to_async(Session.objects.all().delete)()
            await sync_to_async(stream.publish_access_changed)(user.pk)
    assert await page.until(lambda page: page.closed_with == 4401, 5)
    assert page.last("bye") == {"op": "bye", "reason": "signed out"}


async def test_losing_every_role_closes_the_socket_at_once_when_told() -> None:
    made = await cast()
    page = Page(headers(cookie=made["cookie"]))
    assert await page.open()
    await page.send(op="subscribe", areas="all")
    assert await page.until(lambda page: page.last("hello") is not None)
    await sync_to_async(RoleGrant.objects.filter(user=made["viewer"]).delete)()
    await sync_to_async(stream.publish_access_changed)(made["viewer"].pk)
    assert await page.until(lambda page: page.closed_with == 4403, 2)


async def test_watched_sites_and_notices_stay_inside_the_scope() -> None:
    made = await cast()
    await sync_to_async(RoleGrant.objects.filter(user=made["kim"], region=made["birch"]).delete)()
    page = Page(headers(cookie=made["kim_cookie"]))
    assert await page.open()
    await page.send(op="watch", site=made["b"].code)
    assert await page.until(lambda page: page.last("error") is not None)
    await page.send(op="watch", site=made["a"].code)
    client = stream.connect()
    assert await _eventually(lambda: stream.watched_sites(client, 0) == {made["a"].code})
    details = [(made["b"].code, {"at": 1, "gpus": {}}), (made["a"].code, {"at": 2, "gpus": {"GPU-1": {"xid": 79}}})]
    notices = [
        {"type": "of birch", "region_id": made["birch"].pk},
        {"type": "of the fleet"},
        {"type": "of another user", "user_id": made["viewer"].pk},
        {"type": "own", "user_id": made["kim"].pk},
        {"type": "of amber", "region_id": made["amber"].pk},
    ]
    await sync_to_async(stream.publish_details)(client, details)
    await sync_to_async(stream.publish_notices)(notices)
    assert await page.until_notice("of amber")
    assert [message["type"] for message in page.messages if message["op"] == "notice"] == ["own", "of amber"]
    assert page.last("detail") == {"op": "detail", "site": made["a"].code, "at": 2, "gpus": {"GPU-1": {"xid": 79}}}
    client.close()
    await page.close()


async def _eventually(holds: Any, seconds: float = 5) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if await sync_to_async(holds)():
            return True
        await asyncio.sleep(0.02)
    return False


async def test_a_beat_carries_the_newest_sequences() -> None:
    made = await cast()
    telemetry = Telemetry()
    await telemetry.publish({made["a"].pk: OK, made["b"].pk: OK})
    page = Page(headers(cookie=made["cookie"]))
    assert await page.open()
    await page.send(op="subscribe", areas="all")
    assert await page.until(lambda page: bool(page.cells))
    assert await page.until(lambda page: page.last("beat") is not None, 8)
    beat = page.last("beat")
    assert beat is not None
    assert beat["seq"] == {str(made["area"].pk): page.wholes[made["area"].pk].seq}
    await page.close()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        "{}",
        '{"op":7}',
        '{"op":"subscribe"}',
        '{"op":"subscribe","areas":[true]}',
        '{"op":"watch","site":"\\u0000"}',
        "[" * 9000,
        "x" * 20_000,
    ],
)
async def test_bad_messages_get_an_error_and_change_nothing(text: str) -> None:
    made = await cast()
    page = Page(headers(cookie=made["cookie"]))
    assert await page.open()
    await page.socket.send_input({"type": "websocket.receive", "text": text})
    assert await page.until(lambda page: page.last("error") is not None)
    await page.close()


async def test_too_many_messages_close_the_socket() -> None:
    made = await cast()
    page = Page(headers(cookie=made["cookie"]))
    assert await page.open()
    for _ in range(70):
        await page.send(op="resync", area=1)
    assert await page.until(lambda page: page.closed_with == 4429)


async def test_unknown_path_is_refused() -> None:
    made = await cast()
    page = Page(headers(cookie=made["cookie"]))
    page.socket.scope["path"] = "/live/other"
    assert not await page.open()


async def test_a_slow_viewer_loses_its_queue_and_gets_a_snapshot_instead() -> None:
    sent: list[dict[str, Any]] = []
    gate = asyncio.Event()

    async def send(message: dict[str, Any]) -> None:
        await gate.wait()
        sent.append(message)

    one = viewers.Viewer(identity=None, access=None, send=send)  # type: ignore[arg-type]
    task = asyncio.create_task(one.run(lambda _: [{"whole": True}]))
    for number in range(viewers.QUEUE_LIMIT + 5):
        one.offer({"n": number})
        await asyncio.sleep(0)
    gate.set()
    for _ in range(10):
        await asyncio.sleep(0)
    task.cancel()
    assert sent == [{"n": 0}, {"whole": True}]
    assert one.resyncs == 1
