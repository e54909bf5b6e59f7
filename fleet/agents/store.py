"""What the gateway reads from and writes to PostgreSQL, in batches. Every function blocks and runs in a database thread."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

import structlog
from django.db import DataError, IntegrityError, InterfaceError, OperationalError, close_old_connections, connection

from agent.protocol import HealthReport, InventoryReport, SignedDocument
from fleet.control.desired_state import newest_documents
from fleet.health import reports
from fleet.health.findings import Found, close_findings, open_findings
from fleet.inventory import seen
from fleet.models import AgentConnection, AgentIdentity, Finding, Node, ObjectKind

log = structlog.get_logger(__name__)
T = TypeVar("T")
LOST_CODES = {InventoryReport.type: "inventory_report_lost", HealthReport.type: "health_report_lost"}

# A revocation written by a process whose clock is behind ours must not be overlooked.
CLOCK_MARGIN = timedelta(seconds=60)
_CONTACT = """
    INSERT INTO fleet_agentconnection AS held
        (node_id, gateway, connected, connected_at, heartbeat_at, clock_offset_seconds, applied_version, refusal, report)
    SELECT node.id, %(gateway)s, true, seen.connected_at, seen.heartbeat_at, seen.clock_offset_seconds, seen.applied_version, seen.refusal, '{}'
    FROM unnest(%(node_id)s::bigint[], %(connected_at)s::timestamptz[], %(heartbeat_at)s::timestamptz[], %(clock_offset_seconds)s::float8[],
        %(applied_version)s::bigint[], %(refusal)s::text[])
        AS seen (node_id, connected_at, heartbeat_at, clock_offset_seconds, applied_version, refusal)
    JOIN fleet_node node ON node.id = seen.node_id
    ON CONFLICT (node_id) DO UPDATE SET gateway = excluded.gateway, connected = true, connected_at = excluded.connected_at, disconnected_at = NULL,
        heartbeat_at = greatest(held.heartbeat_at, excluded.heartbeat_at),
        clock_offset_seconds = coalesce(excluded.clock_offset_seconds, held.clock_offset_seconds),
        applied_version = coalesce(excluded.applied_version, held.applied_version),
        refusal = excluded.refusal
    WHERE held.connected_at IS NULL OR held.connected_at <= excluded.connected_at
"""
_NODE = """
    UPDATE fleet_node node SET agent_version = seen.agent_version, boot_id = coalesce(seen.boot_id, node.boot_id)
    FROM unnest(%(node_id)s::bigint[], %(agent_version)s::text[], %(boot_id)s::text[]) AS seen (node_id, agent_version, boot_id)
    WHERE node.id = seen.node_id AND (node.agent_version, node.boot_id) IS DISTINCT FROM (seen.agent_version, coalesce(seen.boot_id, node.boot_id))
"""
_REPORT = """
    INSERT INTO fleet_agentconnection AS held (node_id, gateway, connected, refusal, report, reported_at)
    VALUES (%(node_id)s, '', false, '', jsonb_build_object(%(kind)s::text, %(report)s::jsonb), %(now)s)
    ON CONFLICT (node_id) DO UPDATE SET report = held.report || excluded.report, reported_at = excluded.reported_at
"""


class DatabaseAway(Exception):
    """PostgreSQL cannot be reached now; nothing was stored."""


def in_database(work: Callable[[], T]) -> T:
    """Run `work` with a usable connection. Raises DatabaseAway where PostgreSQL is the reason for the failure."""
    close_old_connections()
    try:
        return work()
    except (OperationalError, InterfaceError) as error:
        connection.close()
        raise DatabaseAway(str(error)) from error


async def close_connections(pool: ThreadPoolExecutor, *, threads: int) -> None:
    """Close the connection that each of the pool's threads holds: the threads meet, so that none does it twice."""
    meeting = threading.Barrier(threads)

    def close() -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            meeting.wait(5)
        connection.close()

    await asyncio.gather(*(asyncio.get_running_loop().run_in_executor(pool, close) for _ in range(threads)))


@dataclass
class Contact:
    """Newest contact of one connected node, to be stored with the next batch."""

    connected_at: datetime
    agent_version: str
    heartbeat_at: datetime | None = None
    boot_id: str | None = None
    clock_offset_seconds: float | None = None
    applied_version: int | None = None
    refusal: str = ""
    # What the node's row was last given: it changes with an upgrade or a boot, not with every heartbeat.
    written: tuple[str, str | None] | None = None


@dataclass(frozen=True)
class Known:
    node_id: int
    newest_version: int


def find_nodes(keys: Iterable[bytes]) -> dict[bytes, Known]:
    """The node that each live key speaks for, and its newest document's version. Two queries."""
    found = {
        bytes(key): node_id
        for key, node_id in AgentIdentity.objects.filter(public_key__in=list(keys), revoked_at__isnull=True).values_list("public_key", "node_id")
    }
    versions = newest_versions(found.values())
    return {key: Known(node_id=node_id, newest_version=versions.get(node_id, 0)) for key, node_id in found.items()}


def newest_versions(node_ids: Iterable[int]) -> dict[int, int]:
    with connection.cursor() as cursor:
        # One array: a gateway asks for thousands of nodes again and again, and a placeholder for each would cost more than the answer.
        cursor.execute("SELECT node_id, max(version) FROM fleet_desireddocument WHERE node_id = ANY(%s) GROUP BY node_id", [list(node_ids)])
        return dict(cursor.fetchall())


def documents(node_ids: Iterable[int]) -> dict[int, SignedDocument]:
    """The newest document of each node, as it was signed."""
    return {
        node_id: SignedDocument(version=row.version, body=bytes(row.body), signature=bytes(row.signature), key_id=row.key_id)
        for node_id, row in newest_documents(node_ids).items()
    }


def live_keys(node_ids: Iterable[int]) -> dict[int, bytes]:
    """The key that speaks for each node now; nodes without one are left out."""
    rows = AgentIdentity.objects.filter(node_id__in=list(node_ids), revoked_at__isnull=True).values_list("node_id", "public_key")
    return {node_id: bytes(key) for node_id, key in rows}


def revoked_keys(since: datetime) -> set[tuple[int, bytes]]:
    """(node id, key) of what was revoked after `since`, less a margin for clocks that differ."""
    rows = AgentIdentity.objects.filter(revoked_at__gt=since - CLOCK_MARGIN).values_list("node_id", "public_key")
    return {(node_id, bytes(key)) for node_id, key in rows}


def write_contacts(contacts: Mapping[int, Contact], *, gateway: str) -> None:
    """Connected, heartbeats, versions: one statement for all. Of two gateways that both hold a node, the later connection is right."""
    ids = sorted(contacts)
    if not ids:
        return
    found = [contacts[node_id] for node_id in ids]
    with connection.cursor() as cursor:
        cursor.execute(
            _CONTACT,
            {
                "gateway": gateway,
                "node_id": ids,
                "connected_at": [contact.connected_at for contact in found],
                "heartbeat_at": [contact.heartbeat_at for contact in found],
                "clock_offset_seconds": [contact.clock_offset_seconds for contact in found],
                "applied_version": [contact.applied_version for contact in found],
                "refusal": [contact.refusal[:300] for contact in found],
            },
        )
        changed = [node_id for node_id in ids if contacts[node_id].written != (contacts[node_id].agent_version, contacts[node_id].boot_id)]
        if not changed:
            return
        told = {node_id: (contacts[node_id].agent_version, contacts[node_id].boot_id) for node_id in changed}
        cursor.execute(
            _NODE, {"node_id": changed, "agent_version": [version for version, _ in told.values()], "boot_id": [boot_id for _, boot_id in told.values()]}
        )
    for node_id, words in told.items():
        contacts[node_id].written = words


def write_disconnects(node_ids: Iterable[int], *, gateway: str, now: datetime) -> None:
    """Only rows that are still this gateway's: a node that dialled another one in the meantime is connected."""
    AgentConnection.objects.filter(node_id__in=list(node_ids), gateway=gateway, connected=True).update(connected=False, disconnected_at=now)


def sweep_lost_contacts(*, older_than: datetime) -> int:
    """Connections of a gateway that died: no heartbeat since `older_than`, so contact ended with the last one."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE fleet_agentconnection SET connected = false, disconnected_at = coalesce(heartbeat_at, connected_at)"
            " WHERE connected AND coalesce(heartbeat_at, connected_at) < %s",
            [older_than],
        )
        return cursor.rowcount


def take_report(node_id: int, report: InventoryReport | HealthReport, *, now: datetime) -> None:
    """Hand one report on and keep it as the node's last. One that cannot be taken is logged and a finding on its node, and holds nobody else up."""
    try:
        if isinstance(report, InventoryReport):
            seen.reconcile_agent_report(node_id, report, now)
        else:
            reports.apply(node_id, report, now)
        with connection.cursor() as cursor:
            cursor.execute(_REPORT, {"node_id": node_id, "kind": report.type, "report": json.dumps(report.to_json(), allow_nan=False), "now": now})
        close_findings(ObjectKind.NODE, [str(node_id)], at=now, because="a report was taken again", codes=[LOST_CODES[report.type]])
    except (OperationalError, InterfaceError):
        raise
    except (DataError, IntegrityError, Node.DoesNotExist) as error:
        log.warning("agent_report_refused", node_id=node_id, report=report.type, error=str(error))
        _report_lost(node_id, report.type, error, now)
    except Exception as error:
        # A fault in taking one node's report in must not keep the others out.
        log.exception("agent_report_failed", node_id=node_id, report=report.type)
        _report_lost(node_id, report.type, error, now)


def _report_lost(node_id: int, kind: str, error: Exception, now: datetime) -> None:
    """What the console shows of the node is older than it seems: people have to see that."""
    site_id = Node.objects.filter(pk=node_id).values_list("site_id", flat=True).first()
    if site_id is None:
        return
    found = Found(
        kind=ObjectKind.NODE,
        object_key=str(node_id),
        site_id=site_id,
        code=LOST_CODES[kind],
        severity=Finding.Severity.WARNING,
        summary=f"The agent's {kind} report could not be taken in: what is shown of it is older.",
        at=now,
        advised_action="Look for agent_report in the gateway's log.",
        evidence={"error": f"{type(error).__name__}: {error}".replace("\x00", "")[:300]},
    )
    open_findings([found])
