"""What the evaluation must know beside telemetry, read from PostgreSQL and put in the row order of `LiveState`."""

import math
from collections.abc import Iterable
from datetime import datetime, timedelta

import numpy as np
from django.db.models import Exists, OuterRef

from fleet.catalogue import SKUS
from fleet.health.changes import Kind
from fleet.health.clearing import CLEARED_BY
from fleet.health.facts import AgentWord, Maintenance
from fleet.health.memory import DriverFault, Reported, Roster
from fleet.models import AgentIdentity, Area, Finding, Gpu, MaintenanceWindow, Node, ObjectKind, Region, ReportedCondition
from fleet.telemetry.live_state import LiveState

Said = ReportedCondition.Condition
_WORDS = {Said.LOST: AgentWord.LOST, Said.RESET_REQUIRED: AgentWord.RESET_REQUIRED, Said.UNKNOWN: AgentWord.UNKNOWN}
_KINDS = frozenset(kind.value for kind in Kind)
CLEARED_SLACK = timedelta(seconds=60)


def read_inventory(roster: Roster, live: LiveState) -> None:
    """GPUs' limits, nodes' expectations, agents and boots, regions: what changes seldom. Four queries."""
    limits = {key: sku.slowdown_celsius for key, sku in SKUS.items()}
    roster.slowdown_celsius = np.full(len(live.gpu_uuid), np.nan)
    for gpu_uuid, sku in Gpu.objects.exclude(presence=Gpu.Presence.RETIRED).values_list("uuid", "sku").iterator(chunk_size=10_000):
        row, limit = live.gpu_row_of.get(gpu_uuid), limits.get(sku)
        if row is not None and limit is not None:
            roster.slowdown_celsius[row] = limit
    nodes = len(live.node_host)
    roster.expected_gpus, roster.has_agent = np.full(nodes, np.nan), np.zeros(nodes, dtype=np.bool_)
    roster.reports_health = np.zeros(nodes, dtype=np.bool_)
    roster.boot_id = {}
    enrolled = AgentIdentity.objects.filter(node=OuterRef("pk"), revoked_at__isnull=True)
    rows = Node.objects.filter(retired_at__isnull=True).values_list("pk", "expected_gpus", "boot_id", Exists(enrolled), "agent_connection__reported_at")
    for node_id, expected, boot_id, has_agent, reported_at in rows.iterator(chunk_size=10_000):
        row = live.node_row_of_id.get(node_id)
        if row is None:
            continue
        if expected is not None:
            roster.expected_gpus[row] = expected
        roster.has_agent[row], roster.reports_health[row] = has_agent, reported_at is not None
        if boot_id:
            roster.boot_id[row] = boot_id
    roster.region_slug = dict(Region.objects.values_list("pk", "slug"))


def read_news(roster: Roster, live: LiveState, now: datetime, since: datetime, seen: set[int]) -> None:
    """Agents' reports, maintenance, and what operators cleared after `since`: what changes any second and is little. Three to five queries.

    `seen` holds the ids of cleared findings that were taken already, and takes the new ones.
    """
    _read_reports(roster, live)
    _read_maintenance(roster, live, now)
    cleared = Finding.objects.filter(until__gt=since - CLEARED_SLACK, ended_because__startswith=CLEARED_BY).exclude(pk__in=seen)
    for number, kind, key, code in cleared.values_list("pk", "kind", "object_key", "code"):
        seen.add(number)
        if kind in _KINDS:
            roster.cleared.append((Kind(kind), key, code))


def _read_reports(roster: Roster, live: LiveState) -> None:
    roster.reported, roster.driver_fault = {}, {}
    for row in ReportedCondition.objects.all().iterator():
        since = row.since.timestamp()
        if row.gpu_uuid:
            gpu_row = live.gpu_row_of.get(row.gpu_uuid)
            word = _WORDS.get(Said(row.condition))
            if gpu_row is not None and word is not None and live.node_row_of_id.get(row.node_id) == live.gpu_node_row[gpu_row]:
                roster.reported[gpu_row] = Reported(word, row.detail, since)
        else:
            node_row = live.node_row_of_id.get(row.node_id)
            if node_row is not None:
                roster.driver_fault[node_row] = DriverFault(row.detail, row.condition == Said.DRIVER_MISMATCH, since)


def _read_maintenance(roster: Roster, live: LiveState, now: datetime) -> None:
    """Which rows the windows cover now; what covers a site covers its nodes, what covers a node covers its GPUs."""
    roster.site_maintenance, roster.node_maintenance, roster.gpu_maintenance = {}, {}, {}
    windows = list(MaintenanceWindow.objects.active(now))
    if not windows:
        return
    regions = dict(Region.objects.values_list("slug", "pk")) if any(window.scope_kind == ObjectKind.REGION for window in windows) else {}
    areas = dict(Area.objects.values_list("slug", "pk")) if any(window.scope_kind == ObjectKind.AREA for window in windows) else {}
    for window in windows:
        entry = Maintenance(window.starts_at.timestamp(), window.ends_at.timestamp(), window.reason)
        key = window.scope_key
        sites: Iterable[int] = ()
        match window.scope_kind:
            case ObjectKind.FLEET:
                sites = range(len(live.site_code))
            case ObjectKind.AREA:
                sites = np.flatnonzero(live.site_area == areas.get(key, -1)).tolist()
            case ObjectKind.REGION:
                sites = np.flatnonzero(live.site_region == regions.get(key, -1)).tolist()
            case ObjectKind.SITE:
                sites = [row] if (row := live.site_row_of_code.get(key)) is not None else []
            case ObjectKind.NODE:
                row = live.node_row_of_id.get(int(key)) if key.isdecimal() else None
                _cover_nodes(roster, live, [row] if row is not None else [], entry)
            case ObjectKind.GPU:
                row = live.gpu_row_of.get(key)
                _cover(roster.gpu_maintenance, [row] if row is not None else [], entry)
        rows = list(sites)
        if rows:
            _cover(roster.site_maintenance, rows, entry)
            _cover_nodes(roster, live, np.flatnonzero(np.isin(live.node_site_row, rows)).tolist(), entry)


def _cover_nodes(roster: Roster, live: LiveState, nodes: list[int], entry: Maintenance) -> None:
    if nodes:
        _cover(roster.node_maintenance, nodes, entry)
        _cover(roster.gpu_maintenance, np.flatnonzero(np.isin(live.gpu_node_row, nodes)).tolist(), entry)


def _cover(covered: dict[int, Maintenance], rows: Iterable[int], entry: Maintenance) -> None:
    """Of several windows the one that ends last speaks; the earliest start holds."""
    for row in rows:
        old = covered.get(row)
        if old is None:
            covered[row] = entry
        else:
            last = entry if entry.until > old.until else old
            covered[row] = Maintenance(min(old.since, entry.since), last.until, last.reason)


def or_nan(at: datetime | None) -> float:
    return math.nan if at is None else at.timestamp()
