"""`script/bench chaos`: commands of all kinds while every part of the product is killed with SIGKILL and links are cut, by a seed.

    script/bench chaos [--agents 200] [--commands 1000] [--seed 1]

Judged by the simulated hardware's act log and by the audit (`script/benchmarks/chaos_judge.py`). Prints what it does, then one line of JSON; exit status 0
only if every must held.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from script.benchmarks import chaos_judge
from script.benchmarks.chaos_judge import Row, Verdict
from script.benchmarks.chaos_plan import plan_faults, plan_steps
from script.benchmarks.chaos_stack import ChaosStack, options
from script.benchmarks.chaos_work import Work
from script.servers import ServerError
from script.stack.browser import wait

DONE_SHARE = 0.85
SETTLE_SECONDS = 240.0


@dataclass(frozen=True)
class Load:
    """`kills_each` of web, gateway, worker, beat, Redis, PostgreSQL and agents, over `seconds`."""

    agents: int = 200
    commands: int = 1000
    phy: int = 100
    expiring: int = 50
    kills_each: int = 5
    cuts: int = 50
    seconds: float = 420.0
    at_once: int = 24
    seed: int = 1


def torment(root: Path, load: Load, say: Callable[[str], None], *, keep: bool = False) -> dict[str, Any]:
    """Start a stack under `root`, run the load, judge it, stop everything and, unless told to `keep` it, forget its data. From the main thread: processes end with the thread that started them."""
    stack = ChaosStack(options(root, sites=load.agents), say)
    outcome: dict[str, Any] = {}
    trouble: list[BaseException] = []

    def work() -> None:
        try:
            outcome.update(_run(stack, load, say))
        except BaseException as error:
            trouble.append(error)

    with stack.layout.lock():
        try:
            stack.start()
            thread = threading.Thread(target=work, name="chaos", daemon=True)
            thread.start()
            stack.supervisor.watch(until=lambda: not thread.is_alive())
        finally:
            stack.stop()
            if not keep:
                stack.layout.remove()
    if trouble:
        raise trouble[0]
    return outcome


def _run(stack: ChaosStack, load: Load, say: Callable[[str], None]) -> dict[str, Any]:
    if not wait(lambda: _connected(stack) == load.agents, within_seconds=60 + load.agents, every_seconds=0.5):
        raise RuntimeError(f"{_connected(stack)} of {load.agents} agents are connected")
    say(f"{load.agents} agents are connected; the work begins")
    nodes = stack.plan.nodes
    faults = plan_faults([node.host_name for node in nodes], kills_each=load.kills_each, cuts=load.cuts, seconds=load.seconds, first=3.0, seed=load.seed)
    steps = plan_steps(nodes, commands=load.commands, phy=load.phy, expiring=load.expiring, seed=load.seed)
    total = load.commands + load.phy + load.expiring
    work = Work(stack, steps, faults, per_second=total / load.seconds, at_once=load.at_once, seed=load.seed, say=say)

    async def act() -> bool:
        await work.run()
        say("no more faults; waiting until all is over")
        return await work.settle(within_seconds=SETTLE_SECONDS)

    began = time.monotonic()
    settled = asyncio.run(act())
    say(f"settled: {settled}; judging")
    verdict = chaos_judge.judge(work.orders, read_rows(stack), read_acts(stack), read_cordons(stack))
    for line in verdict.wrong[:40]:
        say(line)
    return _result(load, work, verdict, audit_gaps(stack, say), time.monotonic() - began)


def _result(load: Load, work: Work, verdict: Verdict, gaps: int, seconds: float) -> dict[str, Any]:
    return {
        "commands": verdict.commands,
        "done": verdict.done,
        "expired": verdict.expired,
        "phy_attempts": verdict.phy_attempts,
        "expiring": verdict.expiring,
        "lost": verdict.lost,
        "twice": verdict.twice,
        "late": verdict.late,
        "phy": verdict.phy,
        "audit_gaps": gaps,
        "kills": sum(work.kills.values()),
        "cuts": work.cuts,
        "seed": load.seed,
        "phy_refused": verdict.phy_refused,
        "mismatched": verdict.mismatched,
        "left_out": work.left_out,
        "states": verdict.states,
        "kills_of": dict(work.kills),
        "troubles": dict(work.troubles),
        "agents": load.agents,
        "seconds": round(seconds),
    }


def held(result: dict[str, Any], load: Load) -> list[str]:
    """What did not hold, in words."""
    must = {
        "done": result["done"] >= DONE_SHARE * result["commands"],
        "commands": result["commands"] >= load.commands,
        "phy_attempts": result["phy_attempts"] >= load.phy and result["phy_refused"] == result["phy_attempts"],
        "expiring": result["expiring"] >= load.expiring and result["expired"] == result["expiring"],
        "kills": all(result["kills_of"].get(name, 0) >= load.kills_each for name in ("web", "gateway", "worker", "beat", "redis", "postgres", "agents")),
        "cuts": result["cuts"] >= load.cuts,
    }
    must |= {name: result[name] == 0 for name in ("lost", "twice", "late", "phy", "audit_gaps", "mismatched")}
    return [f"{name}: {result[name]}" for name, right in must.items() if not right]


def _connected(stack: ChaosStack) -> int:
    with stack.connect() as database:
        row = database.execute("SELECT count(*) FROM fleet_agentconnection WHERE connected AND applied_version > 0").fetchone()
    return int(str(row[0])) if row else 0


def read_rows(stack: ChaosStack) -> dict[str, Row]:
    query = (
        "SELECT t.command_id, t.state, t.code, extract(epoch FROM c.not_after)::float8 FROM fleet_commandtarget t JOIN fleet_command c ON c.id = t.command_id"
    )
    with stack.connect() as database:
        rows = database.execute(query).fetchall()
    return {str(command): Row(str(state), str(code), float(str(end))) for command, state, code, end in rows}


def read_acts(stack: ChaosStack) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in stack.act_log.read_text().splitlines()]
    return [record for record in records if record["kind"] == "act"]


def read_cordons(stack: ChaosStack) -> frozenset[str]:
    """Nodes that are cordoned, by the act log."""
    held_now: set[str] = set()
    for act in read_acts(stack):
        if act["result"] == "ok" and act["act"] == "cordon":
            held_now.add(act["node"])
        elif act["result"] == "ok" and act["act"] == "uncordon":
            held_now.discard(act["node"])
    return frozenset(held_now)


_GAPS = {
    # Each command that a person gave has its submission, each target that was released its release, and each word of an agent that was stored its entry.
    "submitted": "SELECT count(*) FROM fleet_command c WHERE c.reason <> 'forged' AND NOT EXISTS"
    " (SELECT FROM fleet_auditentry a WHERE a.object_key = c.id::text AND a.action = 'command.submitted')",
    "released": "SELECT count(*) FROM fleet_commandtarget t JOIN fleet_command c ON c.id = t.command_id WHERE c.reason <> 'forged' AND t.released_at IS NOT NULL"
    " AND NOT EXISTS (SELECT FROM fleet_auditentry a WHERE a.object_key = c.id::text AND a.action = 'command.released')",
    "ended": "SELECT count(*) FROM fleet_commandtarget t WHERE t.state IN ('done', 'failed', 'cancelled') AND t.sequence > 0 AND NOT EXISTS"
    " (SELECT FROM fleet_auditentry a WHERE a.object_key = t.command_id::text AND a.action = 'command.' || t.state)",
}


def audit_gaps(stack: ChaosStack, say: Callable[[str], None]) -> int:
    """Transitions without an entry, entries without a seal after the sealer had its time, and a chain that does not hold (`manage.py verify_audit`)."""
    gaps = 0
    with stack.connect() as database:
        for name, query in _GAPS.items():
            row = database.execute(query).fetchone()
            count = int(str(row[0])) if row else 0
            if count:
                say(f"audit: {count} {name} without an entry")
            gaps += count
    if not wait(lambda: unsealed(stack) == 0, within_seconds=30, every_seconds=1):
        say(f"audit: {unsealed(stack)} entries are not sealed")
        gaps += 1
    try:
        say(stack.manage("verify_audit").strip())
    except ServerError as error:
        say(str(error))
        gaps += 1
    return gaps


def unsealed(stack: ChaosStack) -> int:
    """Entries older than 10 s that no seal covers."""
    query = "SELECT count(*) FROM fleet_auditentry a WHERE a.at < now() - interval '10 s' AND a.id NOT IN (SELECT unnest(entry_ids) FROM fleet_auditseal)"
    with stack.connect() as database:
        row = database.execute(query).fetchone()
    return int(str(row[0])) if row else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, kind in (
        ("agents", int),
        ("commands", int),
        ("phy", int),
        ("expiring", int),
        ("kills-each", int),
        ("cuts", int),
        ("at-once", int),
        ("seed", int),
    ):
        parser.add_argument(f"--{name}", type=kind, default=getattr(Load, name.replace("-", "_")))
    parser.add_argument("--seconds", type=float, default=Load.seconds, help="over which faults and commands are spread")
    parser.add_argument("--keep", type=Path, help="a folder for the stack's data and logs, which stays")
    given = vars(parser.parse_args())
    keep = given.pop("keep")
    load = Load(**given)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    root = keep or Path(tempfile.mkdtemp(prefix="masthead-chaos-", dir="/tmp"))
    try:
        result = torment(root, load, lambda text: print(f"# {text.splitlines()[0] if text else ''}", flush=True), keep=keep is not None)
    finally:
        if keep is None:
            shutil.rmtree(root, ignore_errors=True)
    print(json.dumps(result))
    missed = held(result, load)
    for line in missed:
        print(f"did not hold: {line}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
