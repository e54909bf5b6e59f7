"""The one door to node agents: `uvicorn fleet.gateway:application`. Bare ASGI, no Django request, no signing key.

WebSocket /agent, POST /enrol, GET /healthz, GET /metrics.
"""

import asyncio
import contextlib
import gc
import json
import os
import resource
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
django.setup()

import structlog  # noqa: E402 - Django has to be set up before its models are imported
from django.conf import settings  # noqa: E402
from django.core.checks import ERROR, Tags, run_checks  # noqa: E402
from prometheus_client import CollectorRegistry, Gauge, generate_latest  # noqa: E402

from agent.protocol import CloseCode, EnrolRequest, ProtocolError  # noqa: E402
from agent.protocol.enrolment import MAX_ENROL_BYTES  # noqa: E402
from fleet.agents.enrolment import EnrolmentRefused  # noqa: E402
from fleet.agents.hub import Hub  # noqa: E402
from fleet.agents.session import Event, Receive, Send, Session  # noqa: E402
from fleet.agents.store import DatabaseAway  # noqa: E402
from fleet.database_role import role_refusal  # noqa: E402

log = structlog.get_logger(__name__)
DESCRIPTORS = 65_536
BODY_SECONDS = 15.0


class Gateway:
    """The ASGI application. One hub lives from lifespan startup to shutdown."""

    def __init__(self) -> None:
        self._hub: Hub | None = None

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        if refusals := unsafe_settings():
            await send({"type": "lifespan.startup.failed", "message": "Refusing to start:\n" + "\n".join(f"- {refusal}" for refusal in refusals)})
            return
        raise_descriptor_limit()
        calm_collector()
        self._hub = Hub(redis_url=settings.REDIS_URL, heartbeat_seconds=settings.HEARTBEAT_SECONDS)
        await self._hub.start()
        log.info("gateway_started", name=self._hub.name)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._hub.stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def _websocket(self, scope: Event, receive: Receive, send: Send) -> None:
        event = await receive()
        if event["type"] != "websocket.connect":
            return
        headers = dict(scope["headers"])
        # Agents send no Origin; a browser does, and no page has any business here.
        if self._hub is None or scope["path"] != "/agent" or b"origin" in headers:
            await send({"type": "websocket.close", "code": int(CloseCode.NOT_AUTHENTICATED)})
            return
        try:
            await send({"type": "websocket.accept"})
        except OSError:
            return
        await Session(self._hub, receive, send).run()

    async def _http(self, scope: Event, receive: Receive, send: Send) -> None:
        route = (scope["method"], scope["path"])
        if route == ("POST", "/enrol"):
            await self._enrol(receive, send)
        elif route == ("GET", "/healthz"):
            await answer(send, 200, {"status": "ok"})
        elif route == ("GET", "/metrics"):
            await respond(send, 200, b"text/plain; version=0.0.4", self._metrics())
        elif scope["path"] in ("/enrol", "/healthz", "/metrics"):
            await problem(send, 405, "Method not allowed", f"{scope['path']} does not take {scope['method']}.")
        else:
            await problem(send, 404, "Not found", "The gateway has /agent (WebSocket), /enrol, /healthz and /metrics.")

    async def _enrol(self, receive: Receive, send: Send) -> None:
        hub = self._hub
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await read_body(receive, limit=MAX_ENROL_BYTES)
        except TimeoutError:
            await problem(send, 408, "Too slow", f"The body did not come within {BODY_SECONDS:g} s.")
            return
        if body is None:
            await problem(send, 413, "Too large", f"An enrolment has at most {MAX_ENROL_BYTES} bytes.")
            return
        try:
            request = EnrolRequest.from_bytes(body)
        except ProtocolError as error:
            await problem(send, 400, "Bad request", str(error), field=error.field)
            return
        try:
            if hub is None:
                raise DatabaseAway
            granted = await hub.enrol(request)
        except EnrolmentRefused as refused:
            await problem(send, refused.status, "Enrolment refused", str(refused))
        except DatabaseAway:
            await problem(send, 503, "Try again later", "The console's database is away.")
        else:
            await answer(send, 200, granted.to_json())

    def _metrics(self) -> bytes:
        registry = CollectorRegistry()
        sockets = Gauge("masthead_gateway_sockets", "Agents connected to this gateway.", registry=registry)
        away = Gauge("masthead_gateway_database_away", "1 while PostgreSQL cannot be reached.", registry=registry)
        if self._hub is not None:
            sockets.set(len(self._hub.sessions))
            away.set(int(self._hub.database_away))
        return generate_latest(registry)


async def read_body(receive: Receive, *, limit: int) -> bytes | None:
    """The whole body, or None when it is longer than `limit`; the rest is then left unread."""
    body = b""
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            return b""
        body += event.get("body", b"")
        if len(body) > limit:
            return None
        if not event.get("more_body"):
            return body


async def respond(send: Send, status: int, content_type: bytes, body: bytes) -> None:
    headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode()), (b"cache-control", b"no-store")]
    with contextlib.suppress(OSError):
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def answer(send: Send, status: int, values: dict[str, Any]) -> None:
    await respond(send, status, b"application/json", json.dumps(values).encode())


async def problem(send: Send, status: int, title: str, detail: str, field: str = "") -> None:
    values: dict[str, Any] = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    if field:
        values["errors"] = [{"pointer": "/" + field.replace(".", "/"), "detail": detail}]
    await respond(send, status, b"application/problem+json", json.dumps(values).encode())


def unsafe_settings() -> list[str]:
    """Every setting under which the gateway must not run, with its fix."""
    found = [f"{message.msg} {message.hint or ''}".strip() for message in run_checks(tags=[Tags.security]) if message.level >= ERROR]
    if refusal := role_refusal():
        found.append(refusal)
    if settings.SIGNING_KEY_FILE:
        found.append("MASTHEAD_SIGNING_KEY_FILE is set: who takes over the gateway could then sign documents. Give the key to web and worker only.")
    return found


def raise_descriptor_limit() -> None:
    """A socket is a descriptor: take as many as the system allows us, up to what a full gateway needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def calm_collector() -> None:
    """Thousands of sockets are millions of objects that stay: looking through them again and again for garbage would cost more than the agents do."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


application = Gateway()
