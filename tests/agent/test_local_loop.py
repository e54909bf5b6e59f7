"""A whole agent with its own work: a switch that comes over the socket is answered read back, what it did alone is told until it is stored."""

import asyncio
import hashlib
import json
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from websockets.asyncio.server import ServerConnection, serve

from agent.__main__ import main
from agent.config import Config, ConfigError, Enrolment, LocalConfig, load_config
from agent.journal import Journal
from agent.link import Backoff
from agent.local.control import LocalControl
from agent.local.opening import open_local
from agent.node_agent import NodeAgent
from agent.protocol import (
    AdmissionRules,
    AgentMessage,
    EventAck,
    FrontEnd,
    LocalEvent,
    LocalRules,
    SignedSwitch,
    SwitchState,
    SwitchUpdate,
    parse_agent_message,
)
from agent.store import Store
from tests.agent.documents import CONSOLE_KEY, NODE, SWITCH_ID, T0, document, signed_switch, switch
from tests.agent.local_world import AI_SLICE, PHY_SLICE, PROTECTED, RULES, Gpus, Pods, World, desired, pod
from tests.agent.test_link import greet, until

OTHER_ID = "0c1f7a3e-7d3c-4f0e-9c55-1f6f2f1f0a02"
FAST = Backoff(first_seconds=0.01, cap_seconds=0.05, refused_seconds=0.05)
ADMITS = LocalRules(
    operator_namespaces=RULES.operator_namespaces,
    workloads=RULES.workloads,
    admission=AdmissionRules(front_ends=(FrontEnd(hashlib.sha256(b"of-a").hexdigest(), "a"),)),
)


class Gateway:
    """Says what is in `script` on every connection, acknowledges events if told to, and keeps all that it hears."""

    def __init__(self) -> None:
        self.script: list[SignedSwitch] = []
        self.heard: list[AgentMessage] = []
        self.acknowledges = True
        self.socket: ServerConnection | None = None

    async def __call__(self, socket: ServerConnection) -> None:
        await greet(socket)
        self.socket = socket
        for message in self.script:
            await socket.send(json.dumps(message.to_json()))
        async for data in socket:
            told = parse_agent_message(data)
            self.heard.append(told)
            if isinstance(told, LocalEvent) and self.acknowledges:
                await socket.send(json.dumps(EventAck((told.id,)).to_json()))

    def updates(self) -> list[SwitchUpdate]:
        return [message for message in self.heard if isinstance(message, SwitchUpdate)]

    def kills(self) -> list[LocalEvent]:
        return [message for message in self.heard if isinstance(message, LocalEvent) and message.kind == "kill"]


@asynccontextmanager
async def running(folder: Path, gateway: Gateway, pods: Pods, gpus: Gpus) -> AsyncIterator[tuple[NodeAgent, LocalControl, Path]]:
    """An agent with a document in its journal, against the gateway on loopback, with its door on a Unix socket."""
    journal = Journal(folder / "journal.sqlite3")
    journal.store_document(document(1, rules=ADMITS, protected=PROTECTED))
    door = folder / "door.sock"
    config = Config(state_dir=folder, converge_seconds=0.2, local=LocalConfig(admission_socket=door))
    async with serve(gateway, "127.0.0.1", 0, compression=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        enrolment = Enrolment(node_id=NODE, gateway_url=f"ws://127.0.0.1:{port}/agent", console_keys=(CONSOLE_KEY,))
        with ThreadPoolExecutor(1) as pool, ThreadPoolExecutor(1) as urgent:
            local = open_local(config, enrolment, backend=gpus, cluster=pods, urgent=urgent)  # type: ignore[arg-type]
            agent = NodeAgent(
                enrolment=enrolment,
                key=Ed25519PrivateKey.generate(),
                backend=gpus,  # type: ignore[arg-type]
                journal=journal,
                pool=pool,
                backoff=FAST,
                converge_seconds=0.2,
                local=local,
            )
            task = asyncio.create_task(agent.run())
            try:
                yield agent, local.control, door
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        agent.close()


async def ask(door: Path) -> bytes:
    reader, writer = await asyncio.open_unix_connection(door)
    writer.write(
        b"GET /ext_authz HTTP/1.1\r\nHost: n\r\nX-Masthead-Credential: of-a\r\nX-Masthead-Model: llm\r\nX-Masthead-Priority: 9\r\nConnection: close\r\n\r\n"
    )
    answer = await reader.read()
    writer.close()
    return answer


async def test_a_kill_over_the_socket_is_answered_and_outlives_the_connection_and_the_agent(tmp_path: Path) -> None:
    gateway = Gateway()
    pods, gpus = Pods(running=[pod("llm", AI_SLICE), pod("du", PHY_SLICE, namespace="ran-phy")]), Gpus()
    async with running(tmp_path, gateway, pods, gpus) as (agent, _, door):
        await until(lambda: gateway.socket and door.exists())
        # Without depths only what is not low passes, and nothing is granted here.
        assert b"depth_unknown" in await ask(door)
        assert gateway.socket is not None
        await gateway.socket.send(json.dumps(signed_switch().to_json()))
        await until(lambda: any(update.state is SwitchState.APPLIED for update in gateway.updates()))
        assert (gateway.updates()[-1].stopped, gateway.updates()[-1].remaining) == (1, 0)
        assert [each.name for each in pods.running] == ["du"]
        await until(lambda: len(gateway.kills()) == 1)
        assert b"kill_switch" in await ask(door)
        # Out of contact it goes on; on the new connection it says again where it stands.
        agent.link.cut()
        await until(lambda: not agent.link.connected)
        pods.running.append(pod("llm-2", AI_SLICE))
        await until(lambda: len(pods.running) == 1)
        heard = len(gateway.updates())
        agent.link.mend()
        await until(lambda: len(gateway.updates()) > heard)
        await until(lambda: [event.subject for event in gateway.kills()] == ["tenant-a/llm", "tenant-a/llm-2"])
    gateway.socket = None
    pods.running.append(pod("llm-3", AI_SLICE))
    async with running(tmp_path, gateway, pods, gpus) as (_, _, door):
        await until(door.exists)
        assert b"kill_switch" in await ask(door)
        await until(lambda: len(pods.running) == 1)
        gateway.script = [signed_switch(switch(2, armed=False))]
        await until(lambda: gateway.socket)
        assert gateway.socket is not None
        await gateway.socket.send(json.dumps(gateway.script[0].to_json()))
        await until(lambda: any(update.state is SwitchState.RELEASED for update in gateway.updates()))
        assert b"kill_switch" not in await ask(door)
    assert not door.exists()


async def test_an_event_is_told_again_on_a_new_connection_until_it_is_stored(tmp_path: Path) -> None:
    gateway = Gateway()
    gateway.acknowledges = False
    gateway.script = [signed_switch()]
    async with running(tmp_path, gateway, Pods(running=[pod("llm", AI_SLICE)]), Gpus()) as (agent, control, _):
        await until(gateway.kills)
        agent.link.cut()
        await until(lambda: not agent.link.connected)
        gateway.acknowledges = True
        agent.link.mend()
        await until(lambda: len(gateway.kills()) == 2)
        assert gateway.kills()[0] == gateway.kills()[1]
        await until(lambda: control.spool.count() == 0)


async def test_an_api_server_that_hangs_keeps_no_door_open(tmp_path: Path) -> None:
    gateway, hangs = Gateway(), threading.Event()
    pods = Pods(running=[pod("llm", AI_SLICE)], hangs=hangs)
    gateway.script = [signed_switch(switch(tenant="b"))]
    async with running(tmp_path, gateway, pods, Gpus()) as (_, control, door):
        await until(lambda: pods.asked and gateway.socket and door.exists())
        assert gateway.socket is not None
        await gateway.socket.send(json.dumps(signed_switch(switch(tenant="a", switch_id=OTHER_ID)).to_json()))
        await until(lambda: control.door and len(control.door.gate.kills) == 2)
        assert b"kill_switch" in await ask(door)
        assert all(update.state is SwitchState.PENDING for update in gateway.updates()), "nothing was read back yet"
        hangs.set()
        await until(lambda: {update.switch: update.state for update in gateway.updates()} == dict.fromkeys((SWITCH_ID, OTHER_ID), SwitchState.APPLIED))
        assert pods.running == []


@pytest.mark.parametrize(
    ("lines", "field"),
    [
        ("admission_port = 0", "local.admission_port"),
        ("admission_port = '8471'", "local.admission_port"),
        ("depth_urls = 'http://x'", "local.depth_urls"),
        ("depth_urls = ['https://x']", "local.depth_urls"),
        ("usage_url = 'file:///etc/passwd'", "local.usage_url"),
        ("admission = true", "local.admission"),
    ],
)
def test_a_bad_configuration_is_named(tmp_path: Path, lines: str, field: str) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(f"[local]\n{lines}\n")
    with pytest.raises(ConfigError, match=field.replace(".", r"\.")):
        load_config(path)


def test_status_shows_the_switches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "agent.toml").write_text(f'state_dir = "{tmp_path}"\n')
    Enrolment(node_id=NODE, gateway_url="ws://127.0.0.1:1/agent", console_keys=(CONSOLE_KEY,)).save(tmp_path / "enrolment.json")
    world = World(store=Store(tmp_path / "local.sqlite3"))
    world.agent.accept([signed_switch()], None, T0)
    world.agent.step(desired(), T0)
    world.store.close()
    assert main(["status", "--config", str(tmp_path / "agent.toml")]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["switches"]
    assert (shown["switch"], shown["state"]) == (SWITCH_ID, "applied")
