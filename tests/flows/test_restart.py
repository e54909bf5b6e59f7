"""Killing any one process loses nothing durable, and the wall comes back by itself."""

import os
import signal
import time
from collections.abc import Iterator

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


@pytest.fixture(scope="module")
def operator(stack: Stack) -> Iterator[Session]:
    session = Session(stack.url)
    assert session.sign_in("operator", stack.layout.account_passwords()["operator"])
    assert wait(lambda: _is_live(session, len(stack.plan.sites), after=0), within_seconds=120)
    yield session
    session.close()


def _is_live(session: Session, sites: int, *, after: float) -> bool:
    """Whether the wall was drawn after that time and every site on it reports."""
    try:
        made_at, cells = session.wall()
    except httpx.HTTPError:
        return False
    contact = min((cell.contact for cell in cells.values()), default=0.0)
    return made_at > after and contact > after and sum(cell.is_live for cell in cells.values()) == sites


def _durable(stack: Stack) -> dict[str, int]:
    url = stack.environment(role=OWNER_ROLE)["MASTHEAD_DATABASE_URL"]
    with psycopg.connect(url, connect_timeout=5) as connection:
        return {table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in DURABLE}  # type: ignore[index]


@pytest.mark.parametrize("name", PROCESSES)
def test_killed(stack: Stack, operator: Session, name: str) -> None:
    before = _durable(stack)
    process = stack.supervisor[name].process
    assert process
    killed_at = time.time()
    os.killpg(process.pid, signal.SIGKILL)

    sites = len(stack.plan.sites)
    assert wait(lambda: _is_live(operator, sites, after=killed_at), within_seconds=SECONDS.get(name, 15)), operator.cells()
    again = stack.supervisor[name].process
    assert again
    assert again.pid != process.pid
    assert wait(lambda: again.poll() is None, within_seconds=1)
    after = _durable(stack)
    assert {table: (count, after[table]) for table, count in before.items() if after[table] < count} == {}
