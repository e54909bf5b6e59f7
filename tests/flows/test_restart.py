"""Killing any one process loses nothing durable, and the wall comes back by itself."""

import os
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import psycopg
import pytest

from script.servers import OWNER_ROLE
from script.stack.browser import wait
from script.stack.session import Session
from script.stack.stack import Stack

pytestmark = pytest.mark.processes

# Prometheus spreads its first scrapes over an interval, and the simulator has to be scraped again.
SECONDS = {"prometheus": 40, "simulator-hardware": 40, "simulator-agents-1": 40}
PROCESSES = ("web", "gateway", "telemetry", "worker", "beat", "redis", "postgres", "prometheus", "simulator-hardware", "simulator-agents-1")
DURABLE = (
    "fleet_site",
    "fleet_node",
    "fleet_gpu",
    "fleet_migslice",
    "fleet_healthtransition",
    "fleet_policy",
    "fleet_desireddocument",
    "fleet_auditentry",
    "fleet_agentidentity",
    "fleet_xidevent",
    "console_user",
    "console_rolegrant",
    "tenants_tenant",
)


# What the wall alone would not show: it stays as it is for a while when its sources fall silent.
BEHIND_THE_WALL = {
    "gateway": "SELECT count(*) = 6 FROM fleet_agentconnection WHERE connected AND connected_at > %s",
    "simulator-agents-1": "SELECT count(*) = 6 FROM fleet_agentconnection WHERE connected AND connected_at > %s",
    "prometheus": "SELECT min(sampled_at) > %s FROM fleet_gpu_reading",
    "simulator-hardware": "SELECT min(sampled_at) > %s FROM fleet_gpu_reading",
}


@pytest.fixture(scope="module")
def operator(stack: Stack) -> Iterator[Session]:
    session = Session(stack.url)
    assert session.sign_in("operator", stack.layout.account_passwords()["operator"])
    assert wait(lambda: _is_live(session, len(stack.plan.sites), after=0), within_seconds=120)
    yield session
    session.close()


def _is_live(session: Session, sites: int, *, after: float) -> bool:
    """Whether the wall was drawn after that time (Unix seconds), with every GPU of every site reporting."""
    try:
        made_at, cells = session.wall()
    except httpx.HTTPError:
        return False
    return made_at > after and sum(cell.is_live for cell in cells.values()) == sites


def _connect(stack: Stack) -> "psycopg.Connection[tuple[Any, ...]]":
    return psycopg.connect(stack.environment(role=OWNER_ROLE)["MASTHEAD_DATABASE_URL"], connect_timeout=5)


def _durable(stack: Stack) -> dict[str, int]:
    with _connect(stack) as connection:
        rows = {table: connection.execute(f"SELECT count(*) FROM {table}").fetchone() for table in DURABLE}
    return {table: row[0] for table, row in rows.items() if row}


def _holds(stack: Stack, question: str, at: float) -> bool:
    """The answer to a question about what was after that time."""
    with _connect(stack) as connection:
        row = connection.execute(question, [datetime.fromtimestamp(at, UTC)]).fetchone()
    return bool(row and row[0])


@pytest.mark.parametrize("name", PROCESSES)
def test_killed(stack: Stack, operator: Session, name: str) -> None:
    before = _durable(stack)
    process = stack.supervisor[name].process
    assert process
    killed_at, sites = time.time(), len(stack.plan.sites)
    os.killpg(process.pid, signal.SIGKILL)

    def recovered() -> bool:
        again = stack.supervisor[name].process
        if again is None or again.pid == process.pid or again.poll() is not None or not _is_live(operator, sites, after=killed_at):
            return False
        return name not in BEHIND_THE_WALL or _holds(stack, BEHIND_THE_WALL[name], killed_at)

    assert wait(recovered, within_seconds=SECONDS.get(name, 15)), f"{name}: {operator.wall()}"
    after = _durable(stack)
    assert {table: (count, after[table]) for table, count in before.items() if after[table] < count} == {}
