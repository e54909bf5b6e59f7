"""The agents process: real agents on simulated hardware, against a gateway that the test plays at the wire."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from agent.protocol import Auth, Bundle, Challenge, EnrolAnswer, EnrolRequest, EnrolStatus, Heartbeat, Welcome, fingerprint_of, parse_agent_message
from agent.simulator.config import AgentsConfig, PortsConfig, SimulatorConfig, dump_config
from script.servers import free_port
from tests.agent.simulated_fleet import CONFIG

pytestmark = pytest.mark.processes
CUT, OTHER = "gpu-ams-07", "gpu-lax-01"


class PlayedGateway:
    """Enrols by token and welcomes every key that it has enrolled. `sockets` are the nodes that are connected now."""

    def __init__(self) -> None:
        self.port = free_port()
        self.enrolments: list[str] = []
        self.sockets: dict[str, web.WebSocketResponse] = {}
        self.reports: dict[str, list[str]] = {}
        self.boot_ids: dict[str, str] = {}
        self._nodes: dict[bytes, str] = {}
        self.app = web.Application()
        self.app.add_routes([web.post("/enrol", self._enrol), web.get("/agent", self._agent)])

    def bundle(self, host_name: str) -> str:
        key = bytes(32)
        return Bundle(gateway_url=f"ws://127.0.0.1:{self.port}/agent", token=host_name, console_key=key, fingerprint=fingerprint_of(key)).encode()

    async def _enrol(self, request: web.Request) -> web.Response:
        asked = EnrolRequest.from_bytes(await request.read())
        self.enrolments.append(asked.token)
        self._nodes[asked.public_key] = asked.token
        return web.json_response(EnrolAnswer(status=EnrolStatus.ENROLLED, node_id=len(self._nodes)).to_json())

    async def _agent(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_json(Challenge(nonce=bytes(32)).to_json())
        auth = parse_agent_message(await socket.receive_str())
        assert isinstance(auth, Auth)
        host = self._nodes[auth.public_key]
        self.sockets[host] = socket
        await socket.send_json(Welcome(node_id=1, heartbeat_seconds=0.5, server_time=time.time(), newest_version=0).to_json())
        async for message in socket:
            found = parse_agent_message(message.data)
            self.reports.setdefault(host, []).append(found.type)
            if isinstance(found, Heartbeat):
                self.boot_ids[host] = found.boot_id
        if self.sockets.get(host) is socket:
            del self.sockets[host]
        return socket


@pytest.fixture
async def gateway() -> AsyncIterator[PlayedGateway]:
    played = PlayedGateway()
    runner = web.AppRunner(played.app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", played.port).start()
    yield played
    await runner.cleanup()


async def until(ready: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not ready():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)


def make_config(gateway: PlayedGateway) -> SimulatorConfig:
    nodes = tuple(replace(node, exporters=("dcgm",), bundle=gateway.bundle(node.host_name)) for node in CONFIG.nodes[:2])
    ports = PortsConfig(dcgm=free_port(), triton=free_port(), vllm=free_port(), node=free_port())
    agents = AgentsConfig(processes=2, converge_seconds=0.5, inspect_seconds=1)
    return replace(CONFIG, nodes=nodes, control_address=f"127.0.0.1:{free_port()}", ports=ports, agents=agents)


def run(what: str, config_path: Path) -> "subprocess.Popen[str]":
    log = config_path.with_name(f"{what}.log").open("a")
    command = [sys.executable, "-m", "agent.simulator", what, "--config", str(config_path)]
    process = subprocess.Popen(command, stderr=log, text=True, env={**os.environ, "PYTHONFAULTHANDLER": "1"})
    log.close()
    return process


async def test_agents_enrol_report_and_obey_cuts_and_power(gateway: PlayedGateway, tmp_path: Path) -> None:
    config = make_config(gateway)
    path = tmp_path / "simulator.json"
    path.write_text(json.dumps(dump_config(config)))
    hardware, agents = run("hardware", path), run("agents", path)
    try:
        async with aiohttp.ClientSession(config.control_url) as control:
            await until(lambda: set(gateway.sockets) == {CUT, OTHER}, "both agents are connected")
            await until(lambda: {"inventory", "health", "heartbeat"} <= set(gateway.reports.get(CUT, [])), "inventory and health are told")
            await check_a_cut(gateway, control)
            await check_a_boot(gateway, control)
        await check_a_restart(gateway, agents, path)
    finally:
        for process in (agents, hardware):
            process.kill()
            process.wait()


async def check_a_cut(gateway: PlayedGateway, control: aiohttp.ClientSession) -> None:
    """The cut agent's socket breaks and it dials no more; the other stays; both are there again afterwards."""
    kept = gateway.sockets[OTHER]
    answer = await ask(control, "POST", "/scenario", {"name": "link_cut", "site": "AMS-07", "duration_seconds": 300})
    await until(lambda: CUT not in gateway.sockets, "the cut agent has lost its socket")
    before = len(gateway.reports[OTHER])
    await until(lambda: len(gateway.reports[OTHER]) > before + 2, "the other goes on")
    assert CUT not in gateway.sockets
    await ask(control, "DELETE", f"/scenario/{answer['id']}")
    await until(lambda: CUT in gateway.sockets, "the agent is back")
    assert gateway.sockets[OTHER] is kept


async def check_a_boot(gateway: PlayedGateway, control: aiohttp.ClientSession) -> None:
    await until(lambda: CUT in gateway.boot_ids, "it has told its boot")
    old = gateway.boot_ids[CUT]
    await ask(control, "POST", "/scenario", {"name": "node_down", "node": CUT, "duration_seconds": 300})
    await until(lambda: CUT not in gateway.sockets, "the node's agent is gone")
    await ask(control, "DELETE", "/scenario")
    await until(lambda: gateway.boot_ids[CUT] != old, "it is back with another boot id")


async def check_a_restart(gateway: PlayedGateway, agents: "subprocess.Popen[str]", path: Path) -> None:
    agents.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(agents.wait, 20) == 0
    await until(lambda: not gateway.sockets, "all agents are gone")
    again = run("agents", path)
    try:
        await until(lambda: set(gateway.sockets) == {CUT, OTHER}, "both agents are back")
        assert sorted(gateway.enrolments) == [CUT, OTHER]
    finally:
        again.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(again.wait, 20) == 0
    assert "Traceback" not in path.with_name("agents.log").read_text()


async def ask(control: aiohttp.ClientSession, method: str, path: str, body: object = None) -> Any:
    async with control.request(method, path, json=body) as response:
        assert response.status < 300, await response.text()
        return await response.json()
