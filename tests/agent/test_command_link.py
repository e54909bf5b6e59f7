"""A real agent and a gateway that the test plays: orders come in by the socket, answers go out until they are stored, also over a lost connection."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from websockets.asyncio.server import ServerConnection, serve

from agent.config import Enrolment
from agent.journal import Journal
from agent.link import Backoff
from agent.node_agent import NodeAgent
from agent.protocol import Auth, Challenge, CommandAck, CommandState, CommandUpdate, ProtectedSpan, Welcome, parse_agent_message
from tests.agent.documents import CONSOLE_KEY, NODE, T0, A, document
from tests.agent.node_cluster import NodeCluster, pod
from tests.agent.orders import cancel_of, order
from tests.agent.test_command_crash import Machine
from tests.agent.test_link import until

FAST = Backoff(first_seconds=0.01, cap_seconds=0.05, refused_seconds=0.05)


class Gateway:
    """`heard` are all updates in the order in which they came; `stores` False: nothing is acknowledged."""

    def __init__(self) -> None:
        self.heard: list[CommandUpdate] = []
        self.stores = True
        self.connections = 0
        self.sockets: set[ServerConnection] = set()
        self.server_time = T0

    async def serve(self, socket: ServerConnection) -> None:
        await socket.send(json.dumps(Challenge(bytes(32)).to_json()))
        assert isinstance(parse_agent_message(await socket.recv()), Auth)
        await socket.send(json.dumps(Welcome(NODE, 0.2, self.server_time, 0).to_json()))
        self.sockets.add(socket)
        self.connections += 1
        try:
            async for data in socket:
                message = parse_agent_message(data)
                if isinstance(message, CommandUpdate):
                    self.heard.append(message)
                    if self.stores:
                        await socket.send(json.dumps(CommandAck(message.target, message.sequence).to_json()))
        finally:
            self.sockets.discard(socket)

    async def send(self, *messages: Any) -> None:
        (socket,) = self.sockets
        for message in messages:
            await socket.send(json.dumps(message.to_json()))

    def states(self, target: int) -> list[CommandState]:
        return [update.state for update in self.heard if update.target == target]


@pytest.fixture
async def gateway() -> Gateway:
    return Gateway()


@asynccontextmanager
async def running(gateway: Gateway, folder: Path, machine: Machine, cluster: NodeCluster, port: int) -> AsyncIterator[NodeAgent]:
    """One life of the agent."""
    began = time.monotonic()
    with ThreadPoolExecutor(max_workers=1) as pool:
        agent = NodeAgent(
            enrolment=Enrolment(NODE, f"ws://127.0.0.1:{port}/agent", (CONSOLE_KEY,)),
            key=Ed25519PrivateKey.generate(),
            backend=machine,
            journal=Journal(folder / "journal.sqlite3"),
            pool=pool,
            backoff=FAST,
            converge_seconds=0.2,
            inspect_seconds=0.2,
            clock=lambda: T0 + time.monotonic() - began,
            cluster=cluster,
            repeat_seconds=0.1,
        )
        task = asyncio.create_task(agent.run())
        try:
            await until(lambda: gateway.sockets)
            yield agent
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    agent.close()


@asynccontextmanager
async def listening(gateway: Gateway) -> AsyncIterator[int]:
    async with serve(gateway.serve, "127.0.0.1", 0, compression=None) as server:
        yield next(iter(server.sockets)).getsockname()[1]


async def test_an_agent_that_outlives_a_boot_tells_the_new_one(gateway: Gateway, tmp_path: Path) -> None:
    machine = Machine([A])
    async with listening(gateway) as port, running(gateway, tmp_path, machine, NodeCluster(), port) as agent:
        assert agent.heartbeat(0.0).boot_id == "boot-1"
        machine.boot = "boot-2"
        await until(lambda: agent.heartbeat(0.0).boot_id == "boot-2")


async def test_an_order_comes_by_the_socket_and_its_result_goes_back_until_it_is_stored(gateway: Gateway, tmp_path: Path) -> None:
    machine, cluster = Machine([A]), NodeCluster([pod("vision")])
    gateway.stores = False
    async with listening(gateway) as port, running(gateway, tmp_path, machine, cluster, port):
        await gateway.send(document(1))
        await gateway.send(order(1, "diagnostics"), order(2, "gpu_reset", gpu_uuid=A))
        await until(lambda: gateway.heard and {1, 2} <= {update.target for update in gateway.heard if update.state is CommandState.DONE})
        assert machine.resets == [A]
        before = len(gateway.heard)
        (socket,) = gateway.sockets
        await socket.close()
        await until(lambda: gateway.connections == 2)
        await until(lambda: {1, 2} <= {update.target for update in gateway.heard[before:]})
    gateway.stores = True
    before = len(gateway.heard)
    async with listening(gateway) as port, running(gateway, tmp_path, machine, cluster, port):
        await until(lambda: {1, 2} <= {update.target for update in gateway.heard[before:]})
        assert {update.state for update in gateway.heard[before:]} == {CommandState.DONE}, "told over a restart too"
    before = len(gateway.heard)
    async with listening(gateway) as port, running(gateway, tmp_path, machine, cluster, port):
        await gateway.send(order(2, "gpu_reset", gpu_uuid=A))
        await until(lambda: gateway.heard[before:])
        assert gateway.states(1)[-1] is CommandState.DONE
        assert {update.target for update in gateway.heard[before:]} == {2}, "what was stored is told when it is asked for, and not else"
    assert machine.resets == [A]


async def test_a_cancel_by_the_socket_and_phy_by_the_document(gateway: Gateway, tmp_path: Path) -> None:
    machine, cluster = Machine([A]), NodeCluster([pod("held")])
    cluster.lingers = {"held"}
    async with listening(gateway) as port, running(gateway, tmp_path, machine, cluster, port):
        await gateway.send(order(1, "gpu_reset", gpu_uuid=A))
        await until(lambda: gateway.states(1)[-1:] == [CommandState.ACCEPTED])
        assert machine.resets == [], "no document yet: what is PHY is not known"
        await gateway.send(document(1, protected=(ProtectedSpan(A, 0, 3),)), order(2, "gpu_reset", gpu_uuid=A), order(3))
        await until(lambda: gateway.states(1)[-1:] == [CommandState.FAILED])
        await until(lambda: CommandState.RUNNING in gateway.states(3))
        assert gateway.states(2)[-1] is CommandState.FAILED
        await gateway.send(cancel_of(3))
        await until(lambda: gateway.states(3)[-1] is CommandState.CANCELLED)
    assert machine.resets == []


async def test_what_is_not_stored_is_told_again_on_the_same_connection(gateway: Gateway, tmp_path: Path) -> None:
    gateway.stores = False
    async with listening(gateway) as port, running(gateway, tmp_path, Machine([A]), NodeCluster(), port):
        await gateway.send(order(1, "diagnostics"))
        await until(lambda: gateway.states(1).count(CommandState.DONE) > 2)
        assert gateway.connections == 1
