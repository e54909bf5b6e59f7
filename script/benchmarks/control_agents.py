"""One process of load agents: the agent's own link and signature checks, with a journal in memory and one AI pod and one PHY pod on each node.

A kill is answered after reading back: the pods that it means are chosen as the agent chooses them, stopped, and looked for again. Stopped pods come back
when the kill is released, so that the next shot has something to stop. Speaks JSON lines on standard input and output with `script.benchmarks.control`.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import resource
import signal
import sys
import time
from dataclasses import dataclass

import uvloop
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agent.backends.cluster import Pod
from agent.kill import what_stops
from agent.link import Backoff, Link
from agent.local.placement import Layout
from agent.protocol import (
    AgentMessage,
    CommandAck,
    CommandCode,
    CommandError,
    CommandState,
    CommandUpdate,
    DocumentError,
    GatewayMessage,
    GpuFacts,
    Heartbeat,
    InventoryReport,
    LocalRules,
    NodeFacts,
    ProtectedSpan,
    SignedCommand,
    SignedSwitch,
    SliceFacts,
    Switch,
    SwitchState,
    SwitchUpdate,
    Welcome,
    verify_command,
    verify_switch,
)

GPU = "GPU-00000000-0000-4000-8000-000000000001"
AI_POD = Pod(namespace="acme-prod", name="yolo", uid="ai", phase="Running", owner_kind="ReplicaSet", gpus=("MIG-ai",))
PHY_POD = Pod(namespace="ran-phy", name="l1", uid="phy", phase="Running", owner_kind="StatefulSet", gpus=("MIG-phy",))
RULES = LocalRules()


def agent_key(number: int) -> Ed25519PrivateKey:
    """The key of load agent `number`: the same in the process that registers it and in the one that uses it."""
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(f"masthead load agent {number}".encode()).digest())


def _layout() -> Layout:
    slices = (
        SliceFacts(gpu_instance_id=7, compute_instance_id=0, mig_uuid="MIG-phy", profile="1g.10gb", start=0, size=1),
        SliceFacts(gpu_instance_id=8, compute_instance_id=0, mig_uuid="MIG-ai", profile="1g.10gb", start=3, size=1),
    )
    gpu = GpuFacts(uuid=GPU, index=0, pci_bus_id="00000000:19:00.0", name="NVIDIA H100 80GB HBM3", mig_enabled=True, slices=slices)
    report = InventoryReport(at=0.0, node=NodeFacts(), gpus=(gpu,), complete=True, gpu_count=1)
    return Layout.of(report, (ProtectedSpan(gpu_uuid=GPU, start=0, size=1),))


LAYOUT = _layout()


@dataclass
class Tally:
    """What all agents of this process did."""

    connected: int = 0
    kills: int = 0
    phy_stopped: int = 0
    commands: int = 0
    refused: int = 0
    dials: int = 0


class LoadAgent:
    """The handler of one link. Everything happens at once, on the event loop."""

    __slots__ = ("_held", "_journal", "_outgoing", "_pods", "_sequence", "_tally", "_trusted", "_unstored", "link", "node_id")

    def __init__(self, number: int, url: str, trusted: tuple[bytes, ...], tally: Tally, backoff: Backoff) -> None:
        self._trusted, self._tally = trusted, tally
        self._held: dict[str, tuple[Switch, SwitchUpdate]] = {}
        self._journal: dict[int, CommandUpdate] = {}
        self._unstored: set[int] = set()
        self._outgoing: list[AgentMessage] = []
        self._pods: tuple[Pod, ...] = (AI_POD, PHY_POD)
        self._sequence = 0
        self.node_id = 0
        self.link = Link(url=url, key=agent_key(number), handler=self, backoff=backoff)

    # Handler of the link

    def have_version(self) -> int:
        return 1

    def opened(self, welcome: Welcome) -> None:
        self.node_id = welcome.node_id
        self._tally.dials += 1
        self._outgoing = [update for _, update in self._held.values()]
        self._outgoing += [self._journal[target] for target in self._unstored]

    def received(self, message: GatewayMessage) -> None:
        if isinstance(message, SignedSwitch):
            self._take_switch(message)
        elif isinstance(message, SignedCommand):
            self._take_command(message)
        elif isinstance(message, CommandAck):
            self._unstored.discard(message.target)

    def take_outgoing(self) -> list[AgentMessage]:
        found, self._outgoing = self._outgoing, []
        return found

    def heartbeat(self, clock_offset_seconds: float) -> Heartbeat:
        return Heartbeat(at=time.time(), boot_id="boot", clock_offset_seconds=clock_offset_seconds, applied_version=1)

    # Work

    def _tell(self, message: AgentMessage) -> None:
        self._outgoing.append(message)
        self.link.wake()

    def _next_sequence(self, now: float) -> int:
        self._sequence = max(self._sequence + 1, int(now * 1000))
        return self._sequence

    def _take_switch(self, signed: SignedSwitch) -> None:
        known = self._held.get(signed.switch)
        if known is not None and known[0].version >= signed.version:
            self._tell(known[1])
            return
        try:
            switch = verify_switch(signed, trusted_keys=self._trusted)
        except DocumentError:
            self._tally.refused += 1
            return
        now = time.time()
        stopped = 0
        if switch.active(now):
            meant = {pod.uid for pod in what_stops(switch, self._pods, layout=LAYOUT, rules=RULES).delete}
            self._tally.phy_stopped += "phy" in meant
            self._pods = tuple(pod for pod in self._pods if pod.uid not in meant)
            left = what_stops(switch, self._pods, layout=LAYOUT, rules=RULES)  # read back
            stopped, remaining = len(meant), len(left.delete) + len(left.held)
            state = SwitchState.PENDING if remaining else SwitchState.APPLIED
            self._tally.kills += 1
        else:
            self._pods, remaining, state = (AI_POD, PHY_POD), 0, SwitchState.RELEASED
        update = SwitchUpdate(
            switch=switch.switch,
            version=switch.version,
            state=state,
            stopped=stopped,
            remaining=remaining,
            detail="",
            at=now,
            sequence=self._next_sequence(now),
        )
        self._held[switch.switch] = (switch, update)
        self._tell(update)

    def _take_command(self, message: SignedCommand) -> None:
        if message.target in self._journal:  # once, however often it comes
            self._tell(self._journal[message.target])
            return
        try:
            body = verify_command(message, trusted_keys=self._trusted, node_id=self.node_id)
        except CommandError:
            self._tally.refused += 1
            return
        now = time.time()
        late = now > body.not_after
        self._tally.commands += not late
        update = CommandUpdate(
            target=body.target,
            state=CommandState.EXPIRED if late else CommandState.DONE,
            code=CommandCode.EXPIRED if late else CommandCode.NONE,
            detail="Too late." if late else "3 lines.",
            at=now,
            sequence=self._next_sequence(now),
            output="" if late else f"at {now:.0f}\nboot boot\npods {len(self._pods)}\n",
        )
        self._journal[body.target] = update
        self._unstored.add(body.target)
        self._tell(update)


class Load:
    def __init__(self, given: argparse.Namespace) -> None:
        self._tally = Tally()
        trusted = (bytes.fromhex(given.console_key),)
        # A fleet of agents is not told to dial in one moment; after an outage each takes its own pause, as the agent does.
        backoff = Backoff()
        self._agents = [LoadAgent(number, given.url, trusted, self._tally, backoff) for number in range(given.first, given.first + given.count)]
        self._per_second = given.dial_per_second
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, stopping.set)
        loop.add_reader(sys.stdin.fileno(), self._answer, stopping)
        print(json.dumps({"ready": True}), flush=True)
        dialling = asyncio.create_task(self._dial())
        await stopping.wait()
        for task in (dialling, *self._tasks):
            task.cancel()
        await asyncio.gather(dialling, *self._tasks, return_exceptions=True)

    async def _dial(self) -> None:
        """The first connections, paced: this is not what is measured."""
        for number, agent in enumerate(self._agents):
            self._tasks.append(asyncio.create_task(agent.link.run()))
            if number % 50 == 49:
                await asyncio.sleep(50 / self._per_second)

    def _answer(self, stopping: asyncio.Event) -> None:
        line = sys.stdin.readline().strip()
        if not line or line == "stop":
            stopping.set()
            return
        self._tally.connected = sum(agent.link.connected for agent in self._agents)
        print(json.dumps(vars(self._tally)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--console-key", required=True)
    parser.add_argument("--dial-per-second", type=float, default=300)
    given = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    load = Load(given)
    uvloop.run(load.run())


if __name__ == "__main__":
    main()
