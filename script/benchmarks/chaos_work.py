"""The people's side of a chaos run: orders given through the console's API, one at a time on each node, many nodes at once, while faults are thrown at everything."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psycopg
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from agent.protocol import CommandBody, Preconditions, sign_command
from agent.simulator.config import NodeConfig
from script.benchmarks.chaos_judge import TERMINAL, Order
from script.benchmarks.chaos_people import GaveUp, Person
from script.benchmarks.chaos_plan import Fault, Step
from script.benchmarks.chaos_stack import ChaosStack

LOOK_SECONDS = 0.5
STEP_SECONDS = 120.0  # a node whose order takes longer gets no further one
EXPIRES_SECONDS = 4.0
# A command as the console stores it, made of another one: only kind, target and times differ.
_FORGE_COMMAND = """
    INSERT INTO fleet_command SELECT (jsonb_populate_record(c, %(values)s::jsonb)).* FROM fleet_command c WHERE c.kind = 'diagnostics' ORDER BY created_at LIMIT 1
"""
_FORGE_TARGET = """
    INSERT INTO fleet_commandtarget (id, command_id, node_id, gpu_uuid, wave, state, code, detail, waits_for, progress, blocked, output, preconditions, "order", body,
        signature, key_id, released_at, sequence)
    VALUES (%(id)s, %(command)s, %(node)s, %(gpu)s, 0, 'pending', '', '', '', '{}', '[]', '', '{}', %(order)s, %(body)s, %(signature)s, %(key)s, now(), 0)
"""


@dataclass
class Work:
    """Runs the steps of all nodes and the faults; `orders` is what was given."""

    stack: ChaosStack
    steps: dict[str, list[Step]]
    faults: list[Fault]
    per_second: float
    at_once: int
    seed: int
    say: Callable[[str], None]
    orders: list[Order] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)
    cuts: int = 0
    left_out: int = 0
    troubles: Counter[str] = field(default_factory=Counter)
    _states: dict[str, tuple[str, str]] = field(default_factory=dict)
    _waiting: set[str] = field(default_factory=set)
    _nodes: dict[str, tuple[int, NodeConfig]] = field(default_factory=dict)
    _next_at: float = 0.0

    async def run(self) -> None:
        passwords = self.stack.layout.account_passwords()
        self._operator = Person(self.stack.url, "operator", passwords["operator"])
        self._lead = Person(self.stack.url, "lead", passwords["lead"])
        self._simulator = httpx.AsyncClient(base_url=self.stack.simulator_url, timeout=15)
        self._chance = random.Random(f"{self.seed}/work")  # noqa: S311 (made up, the same each time)
        self._places = asyncio.Semaphore(self.at_once)
        with self.stack.connect() as database:
            ids = {str(name): int(str(pk)) for pk, name in database.execute("SELECT id, host_name FROM fleet_node").fetchall()}
        self._nodes = {node.host_name: (ids[node.host_name], node) for node in self.stack.plan.nodes}
        looking = asyncio.gather(self._look(), self._reset_breakers())
        try:
            await self._first_diagnostics()
            faults = asyncio.create_task(self._throw())
            await asyncio.gather(*(self._node(host, steps) for host, steps in self.steps.items()))
            await faults
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            for person in (self._operator, self._lead):
                self.troubles.update(person.troubles)
                await person.close()
            await self._simulator.aclose()

    async def settle(self, *, within_seconds: float) -> bool:
        """Whether every order that the console took came to an end in time."""
        names = [order.command for order in self.orders if order.command]
        deadline = time.monotonic() + within_seconds
        while time.monotonic() < deadline:
            found = await asyncio.to_thread(self._read_states, names)
            if found is not None and all(found.get(name, ("", ""))[0] in TERMINAL for name in names):
                return True
            await asyncio.sleep(1)
        return False

    # Faults

    async def _throw(self) -> None:
        began = time.monotonic()
        turns: Counter[str] = Counter()
        for fault in self.faults:
            await asyncio.sleep(max(0.0, began + fault.at - time.monotonic()))
            if fault.victim:
                await self._kill(fault.victim, turns[fault.victim])
                turns[fault.victim] += 1
            else:
                await self._cut(fault.host, fault.seconds)

    async def _kill(self, victim: str, turn: int) -> None:
        while not self.stack.kill(victim, turn):  # noqa: ASYNC110 (a process tells nobody that it runs again)
            await asyncio.sleep(0.25)
        self.kills[victim] += 1
        self.say(f"killed {victim}")

    async def _cut(self, host: str, seconds: float) -> int:
        answer = await self._simulator.post("/scenario", json={"name": "link_cut", "node": host, "duration_seconds": seconds})
        answer.raise_for_status()
        self.cuts += 1
        return int(answer.json()["id"])

    async def _mend(self, number: int) -> None:
        await self._simulator.delete(f"/scenario/{number}")

    async def _reset_breakers(self) -> None:
        """What a person does when a breaker has opened and the fleet is seen again: what waited goes on."""
        while True:
            await asyncio.sleep(5)
            for number in await asyncio.to_thread(self._open_breakers):
                await self._lead.post(f"/api/v1/breakers/{number}/reset/", {"reason": "chaos", "backlog": "replay"})
                self.say(f"breaker {number} was open and is reset")

    def _open_breakers(self) -> list[int]:
        try:
            with self.stack.connect() as database:
                return [int(str(row[0])) for row in database.execute("SELECT id FROM fleet_breaker WHERE reset_at IS NULL").fetchall()]
        except psycopg.OperationalError:
            return []

    # What the console holds

    async def _look(self) -> None:
        while True:
            if self._waiting:
                found = await asyncio.to_thread(self._read_states, list(self._waiting))
                self._states.update(found or {})
            await asyncio.sleep(LOOK_SECONDS)

    def _read_states(self, commands: list[str]) -> dict[str, tuple[str, str]] | None:
        """By command: its target's state, or that of a command that ended before. None while PostgreSQL is away."""
        try:
            with self.stack.connect() as database:
                rows = database.execute("SELECT command_id, state, code FROM fleet_commandtarget WHERE command_id = ANY(%s::uuid[])", [commands]).fetchall()
        except psycopg.OperationalError:
            return None
        return {str(command): (str(state), str(code)) for command, state, code in rows}

    async def _until_over(self, command: str, seconds: float) -> str:
        """The state in which it ended, "" when it did not in time."""
        self._waiting.add(command)
        deadline = time.monotonic() + seconds
        try:
            while time.monotonic() < deadline:
                state = self._states.get(command, ("", ""))[0]
                if state in TERMINAL:
                    return state
                await asyncio.sleep(LOOK_SECONDS / 2)
            return ""
        finally:
            self._waiting.discard(command)

    # Orders

    async def _first_diagnostics(self) -> None:
        """One quiet command at first: what forged ones are made of."""
        host = next(iter(self.steps))
        order = await self._give(host, Step("diagnostics"))
        if order is None or not order.command or not await self._until_over(order.command, STEP_SECONDS):
            raise RuntimeError("the first command of the quiet stack did not come to its end")
        for place, step in enumerate(self.steps[host]):
            if step == Step("diagnostics"):
                del self.steps[host][place]  # it counts as one of them
                break

    async def _pace(self) -> None:
        now = time.monotonic()
        self._next_at = max(self._next_at, now) + 1 / self.per_second
        await asyncio.sleep(self._next_at - 1 / self.per_second - now)

    async def _node(self, host: str, steps: list[Step]) -> None:
        """One step after the other; each takes one of the places that all nodes share, so that the work lasts as long as the faults."""
        for place, step in enumerate(steps):
            async with self._places:
                await self._pace()
                try:
                    order = await (self._expire(host, step) if step.purpose == "expiring" else self._give(host, step))
                except GaveUp as error:
                    self.say(str(error))
                    self.left_out += len(steps) - place
                    return
                if order is None or not order.command:
                    continue
                state = await self._until_over(order.command, STEP_SECONDS)
            if state in ("", "unreachable"):
                # What the agent may do yet must not be taken for the next order's.
                self.left_out += len(steps) - place - 1
                self.say(f"{host}: {step.kind} is {state or 'not over'} after {STEP_SECONDS:.0f} s; the node gets no further order")
                return

    async def _expire(self, host: str, step: Step) -> Order | None:
        """Cut the link, give the order, and mend the link when it is too late."""
        number = await self._cut(host, 600)
        try:
            await self._until_gone(host)
            order = await self._give(host, step, expires_seconds=EXPIRES_SECONDS)
            if order is not None and order.command:
                await asyncio.sleep(EXPIRES_SECONDS + 1.0)
            return order
        finally:
            await self._mend(number)

    async def _until_gone(self, host: str) -> None:
        """Until the console knows that the agent is cut off: nothing can reach it then."""
        node_id = self._nodes[host][0]
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if await asyncio.to_thread(self._is_gone, node_id):
                return
            await asyncio.sleep(LOOK_SECONDS)

    def _is_gone(self, node_id: int) -> bool:
        try:
            with self.stack.connect() as database:
                row = database.execute("SELECT connected FROM fleet_agentconnection WHERE node_id = %s", [node_id]).fetchone()
        except psycopg.OperationalError:
            return False
        return row is not None and row[0] is False

    async def _give(self, host: str, step: Step, *, expires_seconds: float | None = None) -> Order | None:
        """Give one order. None: there is nothing on the node that it could be given for."""
        node_id, node = self._nodes[host]
        gpu = node.gpus[0].uuid if step.kind == "gpu_reset" else ""
        parameters: dict[str, Any] = {}
        uid = ""
        if step.kind == "evict":
            pod = await self._pod(host, phy=step.purpose == "phy")
            if pod is None:
                step, parameters = Step("diagnostics", step.purpose), {}
            else:
                uid = pod["uid"]
                parameters = {"namespace": pod["namespace"], "pod": pod["name"], "uid": uid, "deadline_seconds": 60}
        elif step.kind == "drain":
            parameters = {"deadline_seconds": 60}
        order = Order(kind=step.kind, host=host, gpu=gpu, purpose=step.purpose, given_at=time.time(), pod_uid=uid)
        self.orders.append(order)
        if step.forged:
            order.command = await self._forge(node_id, step.kind, gpu)
            return order
        await self._submit(order, {"gpus": [gpu]} if gpu else {"nodes": [node_id]}, parameters, expires_seconds)
        return order

    async def _pod(self, host: str, *, phy: bool) -> dict[str, Any] | None:
        answer = await self._simulator.get(f"/nodes/{host}/pods")
        if answer.status_code != 200:
            return None
        owners = ("StatefulSet",) if phy else ("ReplicaSet",)
        found = [pod for pod in answer.json()["pods"] if pod["owner_kind"] in owners and not pod["is_terminating"]]
        return self._chance.choice(found) if found else None

    async def _submit(self, order: Order, selection: dict[str, Any], parameters: dict[str, Any], expires_seconds: float | None) -> None:
        key = str(uuid4())
        what = {"kind": order.kind, "selection": selection, "parameters": parameters}
        for _ in range(5):
            seen = await self._operator.post("/api/v1/commands/preview/", what)
            if seen.status_code != 200:
                order.refusal = f"preview {seen.status_code}: {seen.text[:200]}"
                return
            found = seen.json()
            body = what | {"preview_hash": found["hash"], "confirm": found["content"]["phrase"], "reason": f"chaos: {order.purpose}"}
            if expires_seconds is not None:
                body["not_after"] = datetime.fromtimestamp(time.time() + expires_seconds, UTC).isoformat()
            answer = await self._operator.post("/api/v1/commands/", body, key=key)
            if answer.status_code == 409 and "preview_drifted" in answer.text:
                continue
            break
        if answer.status_code not in (200, 201):
            order.refusal = f"submit {answer.status_code}: {answer.text[:200]}"
            return
        stored = answer.json()
        order.command = stored["id"]
        if stored["state"] in ("awaiting", "awaiting_approval"):
            await self._lead.post(f"/api/v1/commands/{order.command}/approve/", {"reason": "chaos"})

    async def _forge(self, node_id: int, kind: str, gpu: str) -> str:
        """An order that went past the console's guard rails, rightly signed: the agent has to refuse it by itself."""
        while True:
            name = str(uuid4())
            try:
                await asyncio.to_thread(self._insert_forged, name, node_id, kind, gpu)
            except psycopg.OperationalError:
                await asyncio.sleep(LOOK_SECONDS)
            else:
                return name

    def _insert_forged(self, name: str, node_id: int, kind: str, gpu: str) -> None:
        now = time.time()
        end = datetime.fromtimestamp(now + 300, UTC).isoformat()
        with self.stack.connect() as database, database.transaction():
            row = database.execute("SELECT nextval(pg_get_serial_sequence('fleet_commandtarget', 'id')), nextval('fleet_command_order')").fetchone()
            boot = database.execute("SELECT boot_id FROM fleet_node WHERE id = %s", [node_id]).fetchone()
            assert row is not None
            assert boot is not None
            target, order = int(str(row[0])), int(str(row[1]))
            values: dict[str, Any] = {
                "id": name,
                "kind": kind,
                "state": "running",
                "not_after": end,
                "created_at": datetime.now(UTC).isoformat(),
                "idempotency_key": None,
            }
            values |= {"finished_at": None, "reason": "forged", "wave": 0}
            database.execute(_FORGE_COMMAND, {"values": json.dumps(values)})
            body = CommandBody(
                id=name,
                target=target,
                kind=kind,
                node=node_id,
                gpu_uuid=gpu,
                parameters={},
                issued_at=now,
                not_after=now + 300,
                sequence=order,
                preconditions=Preconditions(boot_id=str(boot[0]), mig_layout=""),
            )
            signed = sign_command(body, console_key(self.stack.layout.signing_key))
            database.execute(
                _FORGE_TARGET,
                {
                    "id": target,
                    "command": name,
                    "node": node_id,
                    "gpu": gpu,
                    "order": order,
                    "body": signed.body,
                    "signature": signed.signature,
                    "key": signed.key_id,
                },
            )


def console_key(path: Path) -> Ed25519PrivateKey:
    key = load_pem_private_key(path.read_bytes(), password=None)
    assert isinstance(key, Ed25519PrivateKey)
    return key
