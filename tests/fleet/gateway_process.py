"""A real gateway in a process of its own, PostgreSQL and Redis behind doors that a test can shut, and agents that speak to it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.conf import settings as django_settings
from django.db import connection
from django.utils import timezone
from pytest_django import Settings
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from agent.config import Enrolment
from agent.enrol import enrol
from agent.journal import Journal
from agent.keys import public_bytes
from agent.link import Backoff
from agent.node_agent import NodeAgent
from agent.protocol import Auth, Bundle, Challenge, GatewayMessage, authentication_statement, parse_gateway_message
from console.models import User
from fleet.agents import enrolment
from fleet.control import signing
from fleet.models import Node
from script.servers import free_port, port_answers, wait_until
from tests.agent.hardware import Hardware
from tests.builders import make_user
from tests.tcp_door import TcpDoor

HEARTBEAT_SECONDS = 1


def until(true: Callable[[], Any], seconds: float = 15.0) -> Any:
    """The first truthy answer of `true`, asked again and again; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if answer := true():
            return answer
        time.sleep(0.03)
    raise AssertionError(f"not within {seconds} s: {true}")


class GatewayProcess:
    def __init__(self, folder: Path) -> None:
        config = connection.settings_dict
        redis_url = urlsplit(django_settings.REDIS_URL)
        self.postgres, self.redis = TcpDoor(int(config["PORT"])), TcpDoor(redis_url.port or 6379)
        self.port = free_port()
        self.log = folder / "gateway.log"
        self._environment = {
            **os.environ,
            "MASTHEAD_DATABASE_URL": f"postgresql://{config['USER']}@127.0.0.1:{self.postgres.port}/{config['NAME']}",
            "MASTHEAD_REDIS_URL": f"redis://127.0.0.1:{self.redis.port}{redis_url.path}",
            "MASTHEAD_HEARTBEAT_SECONDS": str(HEARTBEAT_SECONDS),
            "MASTHEAD_SIGNING_KEY_FILE": "",
        }
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/agent"

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def run_to_end(self, **environment: str) -> str:
        """Start it with another environment, in which it must not run: what it wrote until it gave up."""
        done = subprocess.run(self._command(), env={**self._environment, **environment}, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode != 0
        return done.stderr + done.stdout

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._command(), env=self._environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        wait_until(lambda: port_answers(self.port), timeout_seconds=60, what="The gateway", log=self.log)

    def _command(self) -> list[str]:
        command = [sys.executable, "-m", "uvicorn", "fleet.gateway:application", "--host", "127.0.0.1", "--port", str(self.port)]
        command += [
            "--ws",
            "websockets-sansio",
            "--ws-per-message-deflate",
            "false",
            "--ws-max-size",
            "1048576",
            "--ws-ping-interval",
            "0",
            "--log-level",
            "info",
        ]
        return command

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(20)
            self.process = None

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(20)
            self.process = None

    def metrics(self) -> dict[str, float]:
        text = httpx.get(f"{self.http}/metrics").text
        return {line.split()[0]: float(line.split()[1]) for line in text.splitlines() if line and not line.startswith("#")}


@pytest.fixture(scope="session")
def gateway_process(tmp_path_factory: pytest.TempPathFactory, django_db_setup: None) -> Iterator[GatewayProcess]:
    gateway = GatewayProcess(tmp_path_factory.mktemp("gateway"))
    gateway.start()
    yield gateway
    gateway.stop()
    gateway.postgres.close()
    gateway.redis.close()
    text = gateway.log.read_text()
    assert "Traceback" not in text, text


@pytest.fixture
def gateway(gateway_process: GatewayProcess, transactional_db: None, tmp_path: Path, settings: Settings) -> Iterator[GatewayProcess]:
    """A running gateway with both doors open, and a signing key for this process, which is web and worker."""
    key = tmp_path / "signing.pem"
    signing.create_key_file(key)
    settings.SIGNING_KEY_FILE = str(key)
    settings.GATEWAY_URL = gateway_process.url
    yield gateway_process
    gateway_process.postgres.reopen()
    gateway_process.redis.reopen()
    if gateway_process.process is None:
        gateway_process.start()
    until(lambda: gateway_process.metrics()["masthead_gateway_sockets"] == 0)


class Wire:
    """An agent's socket by hand: what a test says is sent as it is."""

    def __init__(self, gateway: GatewayProcess, key: Ed25519PrivateKey | None = None, *, have_version: int = 0, origin: str | None = None) -> None:
        self._opening = connect(gateway.url, compression=None, proxy=None, origin=Origin(origin) if origin else None)
        self._key = key
        self._have_version = have_version

    def __enter__(self) -> Wire:
        self.socket: ClientConnection = self._opening.__enter__()
        challenge = self.receive()
        assert isinstance(challenge, Challenge)
        self.nonce = challenge.nonce
        if self._key is not None:
            self.authenticate(self._key, have_version=self._have_version)
        return self

    def __exit__(self, *error: Any) -> None:
        self._opening.__exit__(*error)

    def authenticate(self, key: Ed25519PrivateKey, *, nonce: bytes | None = None, have_version: int = 0) -> None:
        signature = key.sign(authentication_statement(nonce or self.nonce))
        self.send(Auth(public_bytes(key), signature, "test", have_version).to_json())

    def send(self, message: dict[str, Any] | str | bytes) -> None:
        self.socket.send(json.dumps(message) if isinstance(message, dict) else message)

    def receive(self, seconds: float = 15) -> GatewayMessage:
        return parse_gateway_message(self.socket.recv(seconds))


def bundle_for(node: Node, user: User | None = None) -> Bundle:
    (issued,) = enrolment.issue_bundles(nodes=[node], user=user or make_user(), now=timezone.now())
    return Bundle.decode(issued.text)


def enrolled(node: Node) -> tuple[Ed25519PrivateKey, Enrolment]:
    """A key that speaks for `node`, registered through the real gateway."""
    key = Ed25519PrivateKey.generate()
    return key, enrol(bundle_for(node), key)


class RunningAgent:
    """The product's agent in a thread, with hardware in memory."""

    def __init__(self, key: Ed25519PrivateKey, enrolment: Enrolment, hardware: Hardware, journal: Path | str = ":memory:") -> None:
        self.hardware = hardware
        self._key, self._enrolment, self._journal = key, enrolment, journal
        self._stop: Callable[[], object] | None = None
        self._ready = threading.Event()
        self.agent: NodeAgent | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self) -> None:
        with ThreadPoolExecutor(max_workers=1) as pool:
            self.agent = NodeAgent(
                enrolment=self._enrolment,
                key=self._key,
                backend=self.hardware,
                journal=Journal(self._journal),
                pool=pool,
                backoff=Backoff(first_seconds=0.05, cap_seconds=0.3, refused_seconds=0.3),
                converge_seconds=0.2,
                inspect_seconds=0.2,
            )
            task = asyncio.create_task(self.agent.run())
            loop = asyncio.get_running_loop()
            self._stop = partial(loop.call_soon_threadsafe, task.cancel)
            self._ready.set()
            await asyncio.gather(task, return_exceptions=True)
        self.agent.close()

    def __enter__(self) -> RunningAgent:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._stop is not None
        self._stop()
        self._thread.join(10)
        assert not self._thread.is_alive()
