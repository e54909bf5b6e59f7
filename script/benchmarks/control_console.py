"""The console's part of `script/bench control`: it seeds the fleet, arms and releases switches, and submits commands as a web process does, with the signing key.

Speaks JSON lines: `{"do": "seed", "agents": N}`, `{"do": "arm"}`, `{"do": "release", "switch": id}`, `{"do": "commands", "count": N, "per_second": R}`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
django.setup()

from django.db import connection, transaction  # noqa: E402 - Django has to be set up before its models are imported

from agent.keys import public_bytes  # noqa: E402
from console.models import User  # noqa: E402
from fleet.control import commands, signing, switches  # noqa: E402
from fleet.control.action_facts import Wanted  # noqa: E402
from fleet.models import AgentIdentity, Area, CommandTarget, DesiredDocument, Node, Region, Site, SwitchAnswer  # noqa: E402
from script.benchmarks.control_agents import agent_key  # noqa: E402
from script.benchmarks.fleet_rows import copy_rows  # noqa: E402

SITES_PER_REGION, REGIONS_PER_AREA = 50, 60
STEP_SECONDS = 0.005
LONGEST_SECONDS = 120.0


def now() -> datetime:
    return datetime.now(UTC)


def seed(agents: int) -> dict[str, Any]:
    """A site with one node for each agent, and the agent's key. Returns the console's public key."""
    at = now()
    with transaction.atomic():
        regions_count = -(-agents // SITES_PER_REGION)
        areas = Area.objects.bulk_create([Area(slug=f"area-{n:02d}", name=f"Area {n}") for n in range(-(-regions_count // REGIONS_PER_AREA))])
        regions = Region.objects.bulk_create(
            [Region(area=areas[n // REGIONS_PER_AREA], slug=f"region-{n:03d}", name=f"Region {n}") for n in range(regions_count)]
        )
        sites = Site.objects.bulk_create(
            [Site(region=regions[n // SITES_PER_REGION], code=f"LOAD-{n:05d}", name=f"Load {n}", kind="cell", time_zone="UTC") for n in range(agents)],
            batch_size=5000,
        )
        nodes = Node.objects.bulk_create([Node(site=site, host_name=f"gpu-{n:05d}", role=Node.Role.DU) for n, site in enumerate(sites)], batch_size=5000)
        rows = ((node.pk, public_bytes(agent_key(n)), at) for n, node in enumerate(nodes))
        copy_rows(AgentIdentity, ["node_id", "public_key", "enrolled_at"], rows)
        # Each node has its document, and its agent has it already: none is sent.
        documents = ((node.pk, 1, b"{}", b"\0" * 64, "0" * 16, at) for node in nodes)
        copy_rows(DesiredDocument, ["node_id", "version", "body", "signature", "key_id", "created_at"], documents)
        User.objects.create_user("bench", email="bench@example.com", password=None)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    return {"console_key": signing.public_key().hex()}


def arm() -> dict[str, Any]:
    """Arm the fleet's kill and wait until every node's agent has answered that nothing of it runs any more. Seconds from before the arming."""
    user = User.objects.get(username="bench")
    expected = Node.objects.count()
    began = time.monotonic()
    switch = switches.arm(kind="kill", scope_kind="fleet", scope_key="", reason="benchmark", user=user, now=now())
    armed = time.monotonic() - began
    applied = _await(lambda: SwitchAnswer.objects.filter(switch=switch, version=1, state="applied", remaining=0).count(), expected)
    return {"switch": str(switch.pk), "seconds": time.monotonic() - began, "arm_seconds": armed, "applied": applied}


def release(switch: str) -> dict[str, Any]:
    user = User.objects.get(username="bench")
    began = time.monotonic()
    switches.release(switch_id=UUID(switch), reason="benchmark", user=user, now=now())
    released = _await(lambda: SwitchAnswer.objects.filter(switch_id=switch, version=2, state="released").count(), Node.objects.count())
    return {"seconds": time.monotonic() - began, "released": released}


def _await(count: Callable[[], int], expected: int) -> int:
    deadline = time.monotonic() + LONGEST_SECONDS
    found = count()
    while found < expected and time.monotonic() < deadline:
        time.sleep(0.2)  # counting costs the machine something: not more often
        found = count()
    return found


def run_commands(count: int, per_second: float) -> dict[str, Any]:
    """So many commands to so many nodes, at an even pace whatever becomes of them. Seconds from before each submission until its result is stored."""
    user = User.objects.get(username="bench")
    ids = list(Node.objects.order_by("pk").values_list("pk", flat=True))
    chosen = [ids[n * len(ids) // count] for n in range(count)] if count <= len(ids) else [ids[n % len(ids)] for n in range(count)]
    waiting: dict[UUID, float] = {}
    seconds: list[float] = []
    submit_seconds: list[float] = []
    began = time.monotonic()
    deadline = began + count / per_second + LONGEST_SECONDS
    submitted = 0
    while (submitted < count or waiting) and time.monotonic() < deadline:
        if submitted < count and time.monotonic() >= began + submitted / per_second:
            wanted = [Wanted(chosen[submitted], "")]
            seen = commands.preview(kind="diagnostics", parameters={}, wanted=wanted, now=now())
            started = time.monotonic()
            stored = commands.submit(
                kind="diagnostics", parameters={}, wanted=wanted, preview_hash=seen.hash, reason="benchmark", user=user, now=now(), confirm=seen.verdict.phrase
            )
            submit_seconds.append(time.monotonic() - started)
            waiting[stored.command.pk] = started
            submitted += 1
        if waiting:
            over = CommandTarget.objects.filter(command_id__in=list(waiting), state=CommandTarget.State.DONE).values_list("command_id", flat=True)
            for key in over:
                seconds.append(time.monotonic() - waiting.pop(key))
        time.sleep(STEP_SECONDS)
    return {"seconds": seconds, "submit_seconds": submit_seconds, "missing": len(waiting) + count - submitted}


def main() -> None:
    calls: dict[str, Callable[..., dict[str, Any]]] = {"seed": seed, "arm": arm, "release": release, "commands": run_commands}
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        print(json.dumps(calls[order.pop("do")](**order)), flush=True)


if __name__ == "__main__":
    main()
