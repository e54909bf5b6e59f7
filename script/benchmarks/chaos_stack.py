"""The stack that `script/bench chaos` torments: the product's own processes on the simulated fleet, with disruption rate limits raised and nothing else changed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psycopg

from script.servers import APP_ROLE, OWNER_ROLE, Server, free_port
from script.stack.stack import Options, Stack

# Rates of disruption alone: PHY, freezes, the breaker of what we cannot see, classes, approvals and waves are as shipped.
RATES = {
    "node_actions_a_day": 100_000,
    "node_same_action_a_day": 100_000,
    "site_disrupted_nodes": 100_000,
    "region_disrupted_share": 1.0,
    "region_disrupted_nodes": 100_000,
    "small_region_disrupted_nodes": 100_000,
    "region_trip_fewest": 100_000,
    "fleet_trip_fewest": 100_000,
}
VICTIMS = ("web", "gateway", "worker", "beat", "redis", "postgres", "agents")


class ChaosStack(Stack):
    """Without Prometheus and telemetry: commands need neither."""

    def environment(self, *, role: str = APP_ROLE, signing_key: bool = False) -> dict[str, str]:
        more = {"MASTHEAD_GUARDRAILS": json.dumps(RATES), "MASTHEAD_API_REQUESTS_PER_MINUTE": "100000"}
        return super().environment(role=role, signing_key=signing_key) | more

    def _programs(self) -> list[Server]:
        return [program for program in super()._programs() if program.name != "telemetry"]

    def agent_programs(self) -> list[str]:
        return [name for name in self.supervisor.names() if name.startswith("simulator-agents")]

    def kill(self, victim: str, turn: int) -> bool:
        """SIGKILL to a process of `victim` with all its children; False when none runs now."""
        names = self.agent_programs() if victim == "agents" else [victim]
        process = self.supervisor[names[turn % len(names)]].process
        if process is None or process.poll() is not None:
            return False
        if victim == "postgres":
            os.kill(process.pid, signal.SIGKILL)
        else:
            os.killpg(process.pid, signal.SIGKILL)
        return True

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        """As the database's owner, to judge. Raises `psycopg.OperationalError` while PostgreSQL is away."""
        return psycopg.connect(self.environment(role=OWNER_ROLE)["MASTHEAD_DATABASE_URL"], connect_timeout=3, autocommit=True)

    @property
    def act_log(self) -> Path:
        return self.layout.simulator / "acts.jsonl"


def options(root: Path, *, sites: int, areas: int = 1, regions: int = 1) -> Options:
    return Options(
        root=root,
        areas=areas,
        regions=regions,
        sites=sites,
        web_port=free_port(),
        heartbeat_seconds=2,
        timeline=False,
        outside={"MASTHEAD_PROMETHEUS_URL": "http://127.0.0.1:9"},
    )
