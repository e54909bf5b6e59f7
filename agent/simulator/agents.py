"""The agents process: hundreds of real node agents on one event loop, with the simulated backend. Several such processes share a fleet.

Each node's agent enrols with its bundle, keeps its key, enrolment and journal in a folder of its own, and dials the gateway like any other.
The hardware process says whose link is cut and whose node is down: a cut agent loses its socket and goes on alone; a down node's agent
is stopped, and started anew when its node boots.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from agent.backends.simulated import SimulatedBackend
from agent.backends.simulated_cluster import SimulatedCluster
from agent.config import Config, ConfigError, Enrolment, LocalConfig, tls_context
from agent.enrol import EnrolError, enrol
from agent.journal import Journal
from agent.keys import load_or_create_key
from agent.link import Backoff
from agent.local.opening import open_local
from agent.node_agent import NodeAgent
from agent.protocol import Bundle
from agent.simulator.config import NodeConfig, SimulatorConfig

log = logging.getLogger("masthead.simulator")
POOL_THREADS = 8
RETRY_SECONDS = 2.0
LONG_POLL_SECONDS = 30
# A demo recovers in seconds: the agents of a simulated fleet wait less than real ones between dials.
BACKOFF = Backoff(first_seconds=0.5, cap_seconds=4.0, refused_seconds=10.0)


class SimulatedAgent:
    """One node's agent and its switch: on, off while its node is down, cut while its link is."""

    def __init__(self, config: SimulatorConfig, node: NodeConfig, pool: ThreadPoolExecutor) -> None:
        self._config = config
        self._node = node
        self._pool = pool
        exporter = config.exporter_address(node, "dcgm")
        self._files = Config(
            state_dir=Path(config.agents.state_directory) / node.host_name,
            backend_kind="simulated",
            converge_seconds=config.agents.converge_seconds,
            local=LocalConfig(usage_url=f"http://{exporter}/metrics" if exporter else ""),
        )
        self._agent: NodeAgent | None = None
        self._cut = False
        self._powered = asyncio.Event()
        self._powered.set()
        self._life: asyncio.Task[None] | None = None

    @property
    def can_enrol(self) -> bool:
        return bool(self._node.bundle) or self._files.enrolment_file.exists()

    def set_cut(self, cut: bool) -> None:
        self._cut = cut
        if self._agent is not None:
            self._obey(self._agent)

    def _obey(self, agent: NodeAgent) -> None:
        if self._cut:
            agent.link.cut()
        else:
            agent.link.mend()

    def set_down(self, down: bool) -> None:
        if not down:
            self._powered.set()
        elif self._powered.is_set():
            self._powered.clear()
            if self._life is not None:
                self._life.cancel()

    async def run(self) -> None:
        """Until cancelled: a life of the agent after the other, one per boot of its node."""
        try:
            while True:
                await self._powered.wait()
                self._life = asyncio.create_task(self._live(), name=self._node.host_name)
                await asyncio.wait([self._life])
                if not self._life.cancelled() and (error := self._life.exception()) is not None:
                    log.warning("%s: its agent cannot run: %s", self._node.host_name, error)
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            if self._life is not None and not self._life.done():
                self._life.cancel()
                await asyncio.wait([self._life])

    async def _live(self) -> None:
        loop = asyncio.get_running_loop()
        agent = await loop.run_in_executor(self._pool, self._start, await self._enrolment())
        try:
            self._agent = agent
            self._obey(agent)
            await agent.run()
        finally:
            self._agent = None
            await asyncio.shield(loop.run_in_executor(self._pool, agent.close))

    async def _enrolment(self) -> Enrolment:
        """What an earlier run left, or a new enrolment: asked for until the gateway gives one."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                if not self._cut:
                    return await loop.run_in_executor(self._pool, self._enrol)
            except EnrolError as error:
                log.info("%s: not enrolled yet: %s", self._node.host_name, error)
            await asyncio.sleep(RETRY_SECONDS)

    def _enrol(self) -> Enrolment:
        """Runs in the pool. A kept enrolment follows the bundle's gateway address; another console's key asks for a new one."""
        files = self._files
        if not self._node.bundle:
            return Enrolment.load(files.enrolment_file)
        bundle = Bundle.decode(self._node.bundle)
        files.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(ConfigError):
            kept = Enrolment.load(files.enrolment_file)
            if bundle.console_key in kept.console_keys:
                return replace(kept, gateway_url=bundle.gateway_url)
        enrolment = enrol(bundle, load_or_create_key(files.key_file))
        enrolment.save(files.enrolment_file)
        return enrolment

    def _start(self, enrolment: Enrolment) -> NodeAgent:
        """Runs in the pool, since it asks the hardware and opens the journal."""
        backend = SimulatedBackend(self._config.control_url, self._node.host_name)
        cluster = SimulatedCluster(self._config.control_url, self._node.host_name)
        return NodeAgent(
            enrolment=enrolment,
            key=load_or_create_key(self._files.key_file),
            backend=backend,
            cluster=cluster,
            local=open_local(self._files, enrolment, backend=backend, cluster=cluster),
            journal=Journal(self._files.journal_file),
            pool=self._pool,
            tls=tls_context(enrolment.gateway_url, None),
            backoff=BACKOFF,
            converge_seconds=self._config.agents.converge_seconds,
            inspect_seconds=self._config.agents.inspect_seconds,
        )


async def run_share(config: SimulatorConfig, share: int, shares: int) -> None:
    """Runs the agents of every `shares`-th node from `share` on, until SIGTERM or SIGINT."""
    nodes = config.nodes[share::shares]
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    with ThreadPoolExecutor(max_workers=POOL_THREADS, thread_name_prefix="hardware") as pool:
        agents = {node.host_name: agent for node in nodes if (agent := SimulatedAgent(config, node, pool)).can_enrol}
        told = asyncio.Event()
        tasks = [asyncio.create_task(_run_when(told, agent)) for agent in agents.values()]
        tasks.append(asyncio.create_task(_watch_reachability(config, agents, told)))
        log.info("%d agents in process %d of %d", len(agents), share + 1, shares)
        await stopping.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run_when(told: asyncio.Event, agent: SimulatedAgent) -> None:
    """No agent dials before the hardware has said whose link is cut: a process that starts anew must not mend links."""
    await told.wait()
    await agent.run()


async def _watch_reachability(config: SimulatorConfig, agents: dict[str, SimulatedAgent], told: asyncio.Event) -> None:
    """Follows what the hardware process says about links and nodes. While it cannot be asked, what it said last holds."""
    version = -1
    timeout = aiohttp.ClientTimeout(total=LONG_POLL_SECONDS + 10)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        while True:
            try:
                answer = await _reachability(session, config.control_url, version)
            except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
                log.info("the hardware process cannot be asked: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
                version = -1
                continue
            version = int(answer["version"])
            cut, down = set(answer["cut"]), set(answer["down"])
            for host, agent in agents.items():
                agent.set_cut(host in cut)
                agent.set_down(host in down)
            told.set()


async def _reachability(session: aiohttp.ClientSession, control_url: str, version: int) -> dict[str, Any]:
    query = {"version": str(version), "wait": str(LONG_POLL_SECONDS)}
    async with session.get(f"{control_url}/reachability", params=query) as response:
        response.raise_for_status()
        answer: dict[str, Any] = json.loads(await response.text())
        return answer


async def run_all(config_path: Path, shares: int) -> int:
    """Runs one process per share and ends with them: when one dies the others are stopped, and the exit status is 1."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    command = [sys.executable, "-m", "agent.simulator", "agents", "--config", str(config_path), "--share"]
    children = [await asyncio.create_subprocess_exec(*command, f"{share}/{shares}", start_new_session=True) for share in range(shares)]
    ends = [asyncio.create_task(child.wait()) for child in children]
    stop = asyncio.create_task(stopping.wait())
    await asyncio.wait([stop, *ends], return_when=asyncio.FIRST_COMPLETED)
    asked = stopping.is_set()
    stop.cancel()
    for child in children:
        if child.returncode is None:
            child.terminate()
    await asyncio.gather(*ends)
    return 0 if asked else 1
