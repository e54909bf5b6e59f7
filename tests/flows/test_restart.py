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
from psycopg import sql

from script.servers import OWNER_ROLE
from script.stack.browser import wait
from script.stack.session import Session
from script.stack.stack import Stack

pytestmark = pytest.mark.processes

# Prometheus spreads its first scrapes over an interval, and the simulator has to be scraped again.
SECONDS = {"prometheus": 40, "simulator-hardware": 40, "simulator-agents-1": 40}
PROCESSES = ("web", "gateway", "telemetry", "worker", "beat", "redis", "postgres", "prometheus", "simulator-hardware", "simulator-agents-1")
# Tables whose rows outlive every process, with the columns that go on changing by themselves while the fleet is watched.
DURABLE: dict[str, tuple[str, ...]] = {
    "fleet_area": (),
    "fleet_region": (),
    "fleet_site": (),
    "fleet_node": ("last_seen_at", "sources", "boot_id"),
    "fleet_gpu": ("last_seen_at", "sources", "presence", "missing_since"),
    "fleet_protectedplacement": (),
    "fleet_migslice": (),
    "fleet_healthtransition": (),
    "fleet_finding": ("last_at", "count", "until", "ended_because"),
    "fleet_policy": (),
    "fleet_desireddocument": (),
    "fleet_auditentry": (),
    "fleet_agentidentity": (),
    "fleet_xidevent": ("last_at", "count"),
    "console_user": (),
    "console_rolegrant": (),
    "tenants_tenant": (),
}
Digests = dict[str, dict[str, str]]


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
    assert wait(lambda: _is_live(session, stack, after=0), within_seconds=120)
    yield session
    session.close()


def _is_live(session: Session, stack: Stack, *, after: float) -> bool:
    """Whether the wall was drawn after that time (Unix seconds), with every GPU of every site reporting."""
    try:
        made_at, cells = session.wall()
        if made_at <= after:
            return False
        silent = {code for code, cell in cells.items() if not cell.is_live}
        # Killed again and again, a site is unknown because it changes too often: that is right, and it reports all the same.
        flapping = _flapping(stack) if silent else set()
    except (httpx.HTTPError, psycopg.OperationalError):
        return False
    return len(cells) == len(stack.plan.sites) and all(code in flapping and cells[code].gpus_reporting == cells[code].gpus_expected for code in silent)


def _flapping(stack: Stack) -> set[str]:
    question = "SELECT code FROM fleet_sitehealth JOIN fleet_site ON id = site_id WHERE cause = 'flapping' AND out_of_contact_since IS NULL"
    with _connect(stack) as connection:
        return {str(code) for (code,) in connection.execute(question)}


def _connect(stack: Stack) -> "psycopg.Connection[tuple[Any, ...]]":
    return psycopg.connect(stack.environment(role=OWNER_ROLE)["MASTHEAD_DATABASE_URL"], connect_timeout=5)


def _durable(stack: Stack) -> Digests:
    """A digest of each durable row's stable columns, by table and key."""
    found: Digests = {}
    with _connect(stack) as connection:
        for table, unstable in DURABLE.items():
            query = sql.SQL("SELECT (to_jsonb(t) ->> 'id'), md5((to_jsonb(t) - %s::text[])::text) FROM {} t").format(sql.Identifier(table))
            found[table] = {str(key): str(digest) for key, digest in connection.execute(query, [list(unstable)])}
    return found


def _lost(before: Digests, after: Digests) -> dict[str, list[str]]:
    """Rows that were there and are gone, or no longer say what they said."""
    changed = {table: [key for key, digest in rows.items() if after[table].get(key) != digest] for table, rows in before.items()}
    return {table: keys for table, keys in changed.items() if keys}


def _rename(operator: Session, first_name: str) -> None:
    """An update that the console says is stored."""
    etag = operator.client.get("/api/v1/profile").headers["ETag"]
    answer = operator.client.patch("/api/v1/profile", json={"first_name": first_name}, headers={"X-CSRFToken": operator.csrf, "If-Match": etag})
    assert answer.status_code == 200, answer.text


def _why(stack: Stack) -> str:
    """What is held of the sites that are not well."""
    question = "SELECT code, state, cause, why FROM fleet_sitehealth JOIN fleet_site ON id = site_id WHERE state <> 'ok' ORDER BY code"
    with _connect(stack) as connection:
        return str(connection.execute(question).fetchall())


def _holds(stack: Stack, question: str, at: float) -> bool:
    """The answer to a question about what was after that time."""
    with _connect(stack) as connection:
        row = connection.execute(question, [datetime.fromtimestamp(at, UTC)]).fetchone()
    return bool(row and row[0])


@pytest.mark.parametrize("name", PROCESSES)
def test_killed(stack: Stack, operator: Session, name: str) -> None:
    # The console says that it is stored right before the process dies: an update, that no count of rows would miss.
    _rename(operator, name)
    before = _durable(stack)
    process = stack.supervisor[name].process
    assert process
    killed_at = time.time()
    os.killpg(process.pid, signal.SIGKILL)

    def recovered() -> bool:
        again = stack.supervisor[name].process
        if again is None or again.pid == process.pid or again.poll() is not None or not _is_live(operator, stack, after=killed_at):
            return False
        return name not in BEHIND_THE_WALL or _holds(stack, BEHIND_THE_WALL[name], killed_at)

    assert wait(recovered, within_seconds=SECONDS.get(name, 15)), f"{name}: {_why(stack)} {operator.wall()}"
    after = _durable(stack)
    assert _lost(before, after) == {}
    assert operator.get_json("/api/v1/profile")["first_name"] == name


def test_a_lost_update_would_be_seen(stack: Stack, operator: Session) -> None:
    """The digests tell a row that is there in an older state from one that kept what was stored."""
    before = _durable(stack)
    _rename(operator, "later")
    assert list(_lost(before, _durable(stack))) == ["console_user"]
