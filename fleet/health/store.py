"""The writer of health: what was known before, what the inventory says, one evaluation a second, and its changes as rows.

A database that is away stops nothing: evaluation goes on with what it knew, and what it found waits to be stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import numpy as np
import structlog
from django.conf import settings
from django.db import DatabaseError, Error, InterfaceError, OperationalError, connection, transaction
from numpy.typing import NDArray

from fleet import frames
from fleet.health import writes
from fleet.health.changes import Changes, FindingChange, Kind, VerdictChange
from fleet.health.evaluation import Evaluator
from fleet.health.facts import SEVERITY_RANK, Condition, Severity, State, Thresholds, Verdict
from fleet.health.memory import Roster
from fleet.health.roster import or_nan, read_inventory, read_news
from fleet.health.signs import SIGN_OF_CODE
from fleet.health.writes import as_datetime, health_of_evidence
from fleet.health.xid import CODE_PREFIX, Burst, Source, table
from fleet.inventory import seen
from fleet.models import Finding, GpuHealth, NodeHealth, Region, SiteHealth, XidEvent
from fleet.telemetry.live_state import LiveState

log = structlog.get_logger(__name__)

NEWS_SECONDS = 5.0
INVENTORY_SECONDS = 30.0
CELLS_SECONDS = 10.0  # how often a site's roll-up is stored; in large fleets less often
CELLS_A_SECOND = 1000
WRITES_A_TICK = 6000  # verdicts, and findings; what is over waits for the next tick
NOTICES = 300  # more than this at once is a flood: the pages refetch
_KIND_RANK = {Kind.REGION: 0, Kind.SITE: 1, Kind.NODE: 2, Kind.GPU: 3}
# The findings that this module opens and ends; others have other keepers.
CODES = frozenset(SIGN_OF_CODE) | {
    "agent_silent",
    "driver_error",
    "driver_mismatch",
    "exporter_down",
    "exporter_frozen",
    "flapping",
    "gpu_count",
    "gpu_lost",
    "node_down",
    "out_of_contact",
    "profiling_suspect",
    "region_silent",
    "reset_required",
    "series_missing",
}


def thresholds_of_settings() -> Thresholds:
    return Thresholds(interval_seconds=settings.SCRAPE_INTERVAL_SECONDS, heartbeat_seconds=settings.HEARTBEAT_SECONDS)


class HealthStore:
    """One per telemetry process. Its calls belong into one thread at a time, which may use the database."""

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.evaluator = Evaluator(thresholds or thresholds_of_settings())
        self.roster = Roster()
        self.write_failures_total = 0
        self._pending = Changes()
        self._news_at = self._inventory_at = self._failed_at = float("-inf")
        self._read_rows = (0, 0)
        self._taken_clearings: set[int] = set()
        self._tick = 0
        self._present: dict[int, float] = {}
        self._missing: dict[int, float] = {}

    @property
    def pending(self) -> int:
        """Changes that wait to be stored."""
        return len(self._pending.verdicts) + len(self._pending.findings) + len(self._pending.xids)

    # Seed

    def seed(self, live: LiveState, now: float) -> None:
        """Previous states, open findings and last XIDs from PostgreSQL. Raises the database's errors: without this, do not start."""
        evaluator = self.evaluator
        evaluator.fit(live)
        for kind, rows, row_of in (
            (Kind.SITE, SiteHealth.objects.values_list("site_id", "state", "cause", "why", "since"), live.site_row_of_id),
            (Kind.NODE, NodeHealth.objects.values_list("node_id", "state", "cause", "why", "since"), live.node_row_of_id),
        ):
            for number, state, cause, why, since in rows.iterator(chunk_size=10_000):
                if (row := row_of.get(number)) is not None:
                    evaluator.seed_verdict(kind, row, Verdict(State(state), cause, why, since.timestamp()))
        gpus = GpuHealth.objects.values_list("gpu__uuid", "state", "cause", "why", "since", "last_xid", "last_xid_at")
        for gpu_uuid, state, cause, why, since, last_xid, last_xid_at in gpus.iterator(chunk_size=10_000):
            if (row := live.gpu_row_of.get(gpu_uuid)) is not None:
                evaluator.seed_verdict(Kind.GPU, row, Verdict(State(state), cause, why, since.timestamp()))
                if last_xid is not None:
                    evaluator.seed_last_xid(row, last_xid, or_nan(last_xid_at))
        self._seed_findings(live)
        recent = as_datetime(now) - timedelta(seconds=2 * table().count_window_seconds)
        for event in XidEvent.objects.filter(last_at__gt=recent).select_related("gpu").iterator(chunk_size=10_000):
            if (row := live.gpu_row_of.get(event.gpu.uuid)) is not None:
                first, last = event.first_at.timestamp(), event.last_at.timestamp()
                evaluator.seed_burst(row, Burst(event.xid, first, last, event.count, Source(event.source), event.gpu_instance_id))
        self._read_inventory(live, now)
        self._read_news(live, now)

    def _seed_findings(self, live: LiveState) -> None:
        nodes = {str(number): row for number, row in live.node_row_of_id.items()}
        row_of = {Kind.GPU: live.gpu_row_of, Kind.NODE: nodes, Kind.SITE: live.site_row_of_code}
        for finding in Finding.objects.open().filter(kind__in=[kind.value for kind in Kind]).iterator(chunk_size=10_000):
            if finding.code not in CODES and not finding.code.startswith(CODE_PREFIX):
                continue
            effect, recover_seconds = health_of_evidence(finding.evidence)
            condition = Condition(
                code=finding.code,
                severity=Severity(finding.severity),
                state=State(effect),
                why=finding.summary,
                since=finding.since.timestamp(),
                advised=finding.advised_action,
                evidence={name: value for name, value in finding.evidence.items() if name != "health"},
                recover_seconds=recover_seconds,
                count=finding.count,
                last_at=finding.last_at.timestamp(),
            )
            kind = Kind(finding.kind)
            if kind is Kind.REGION:
                self._seed_region(finding.object_key, condition)
            elif (row := row_of[kind].get(finding.object_key)) is not None:
                self.evaluator.seed_finding(kind, row, condition)

    def _seed_region(self, slug: str, condition: Condition) -> None:
        if not self.roster.region_slug:
            self.roster.region_slug = dict(Region.objects.values_list("pk", "slug"))
        region_id = next((number for number, known in self.roster.region_slug.items() if known == slug), None)
        if region_id is not None:
            self.evaluator.seed_region_finding(region_id, condition)

    # The tick

    def tick(self, live: LiveState, now: float) -> Changes:
        """Read what is new, evaluate, store. The database's errors are logged, not raised. `live.derive()` must have run."""
        self._refresh(live, now)
        changes = self.evaluator.evaluate(live, self.roster, now)
        self._pending.extend(changes)
        changes.notices = self._write(live, now)
        return changes

    def frame_cells(self, live: LiveState) -> tuple[frames.SiteColumns, NDArray[np.int64]]:
        """(cells, area ids) of the sites that are in the inventory, sorted by site id, for `stream.FramePublisher.publish`."""
        cells = self.evaluator.cells
        if cells is None:
            return frames.empty_columns(), np.empty(0, dtype=np.int64)
        rows = np.flatnonzero(live.site_active[: len(cells.state)])
        rows = rows[np.argsort(live.site_id[rows], kind="stable")]
        columns = frames.columns(
            site_id=live.site_id[rows],
            state=cells.state[rows],
            flags=cells.flags[rows],
            gpus_reporting=cells.gpus_reporting[rows],
            gpus_expected=cells.gpus_expected[rows],
            utilization_ratio=cells.utilization_ratio[rows],
            power_watts=cells.power_watts[rows],
            since=cells.since[rows],
            contact=cells.contact[rows],
        )
        return columns, live.site_area[rows]

    # Reading

    def _refresh(self, live: LiveState, now: float) -> None:
        """A pause after a failure keeps a database that is away from slowing every tick."""
        if now - self._failed_at < 1.0:
            return
        try:
            if now - self._inventory_at >= INVENTORY_SECONDS or self._read_rows != (len(live.gpu_uuid), len(live.node_host)):
                self._read_inventory(live, now)
                writes.retire_gone(as_datetime(now))
            if now - self._news_at >= NEWS_SECONDS:
                self._read_news(live, now)
        except Error as error:
            self._failed("health_refresh_failed", error, now)

    def _read_inventory(self, live: LiveState, now: float) -> None:
        read_inventory(self.roster, live)
        self._inventory_at, self._read_rows = now, (len(live.gpu_uuid), len(live.node_host))

    def _read_news(self, live: LiveState, now: float) -> None:
        since = self._news_at if self._news_at > 0 else now
        read_news(self.roster, live, as_datetime(now), as_datetime(since), self._taken_clearings)
        self._news_at = now

    # Writing

    def _write(self, live: LiveState, now: float) -> list[dict[str, Any]]:
        """Store what waits, sites first and not more than a tick can bear; returns the notices of what was stored now."""
        pending, later = _first_part(self._pending)
        self._tick += 1
        sites, nodes = self._due_rows(live, pending)
        try:
            with transaction.atomic():
                writes.write_verdicts(pending.verdicts)
                writes.write_findings(pending.findings)
                writes.write_xids(pending.xids)
                if self.evaluator.cells is not None:
                    writes.write_site_cells(live, self.evaluator.cells, sites)
                writes.write_node_contact(live, nodes)
        except (OperationalError, InterfaceError) as error:
            self._failed("health_write_failed", error, now)
            return []
        except DatabaseError as error:
            log.error("health_write_refused", error=str(error), pending=self.pending)
            try:
                self._write_singly(pending)
            except (OperationalError, InterfaceError) as away:
                self._failed("health_write_failed", away, now)  # all of it again: storing twice changes nothing
                return []
        self._pending = later
        self._tell_presence(pending, now)
        return _notices(pending)

    def _due_rows(self, live: LiveState, pending: Changes) -> tuple[list[int], list[int]]:
        """Sites and nodes whose roll-up is stored this tick: those that changed, and a share of all, so that each has its turn."""
        count = len(live.site_code)
        turns = max(int(CELLS_SECONDS), -(-count // CELLS_A_SECOND))
        changed = {live.site_row_of_id[change.object.site_id] for change in pending.verdicts if change.object.site_id in live.site_row_of_id}
        sites = sorted(changed | set(range(self._tick % turns, count, turns)))
        return sites, list(range(self._tick % turns, len(live.node_host), turns))

    def _write_singly(self, pending: Changes) -> None:
        """One change in the batch was refused: store the others, name that one, and go on. Raises when the database is away."""
        attempts: Iterable[Any] = [
            *((writes.write_verdicts, each) for each in pending.verdicts),
            *((writes.write_findings, each) for each in pending.findings),
            *((writes.write_xids, each) for each in pending.xids),
        ]
        for write, each in attempts:
            try:
                with transaction.atomic():
                    write([each])
            except (OperationalError, InterfaceError):
                raise
            except DatabaseError as error:
                log.error("health_change_dropped", change=repr(each), error=str(error))

    def _tell_presence(self, stored: Changes, now: float) -> None:
        """GPUs that were lost or came (back) are missing or present in the inventory too. What fails is tried again with the next change."""
        for finding in stored.findings:
            if finding.object.kind is Kind.GPU and finding.condition.code == "gpu_lost":
                if finding.until is None and finding.opened:
                    self._missing[finding.object.id] = finding.condition.since
                    self._present.pop(finding.object.id, None)
                elif finding.until is not None:
                    self._present[finding.object.id] = finding.until
                    self._missing.pop(finding.object.id, None)
        for change in stored.verdicts:
            if change.object.kind is Kind.GPU and change.is_transition and change.verdict.state in (State.OK, State.DEGRADED):
                self._present[change.object.id] = change.verdict.since
                self._missing.pop(change.object.id, None)
        if not self._missing and not self._present:
            return
        try:
            for gpu_id, since in self._missing.items():
                seen.mark_missing([gpu_id], as_datetime(since))
            self._missing = {}
            if self._present:
                seen.mark_present(list(self._present), as_datetime(max(self._present.values())))
            self._present = {}
        except Error as error:
            self._failed("presence_write_failed", error, now)

    def _failed(self, event: str, error: Exception, now: float) -> None:
        self.write_failures_total += 1
        self._failed_at = now
        log.warning(event, error=str(error), pending=self.pending)
        connection.close()


def _first_part(waiting: Changes) -> tuple[Changes, Changes]:
    """(what is stored now, what waits): sites before nodes before GPUs, each object's changes in their order."""
    verdicts = sorted(waiting.verdicts, key=lambda change: _KIND_RANK[change.object.kind])
    findings = sorted(waiting.findings, key=lambda change: _KIND_RANK[change.object.kind])
    return (
        Changes(verdicts[:WRITES_A_TICK], findings[:WRITES_A_TICK], waiting.xids),
        Changes(verdicts[WRITES_A_TICK:], findings[WRITES_A_TICK:]),
    )


def _notices(stored: Changes) -> list[dict[str, Any]]:
    """What pages are told: transitions, and findings that opened or ended; sites before nodes before GPUs, never a flood."""
    moved = [change for change in stored.verdicts if change.is_transition]
    moved.sort(key=lambda change: _KIND_RANK[change.object.kind])
    news = [change for change in stored.findings if change.opened or change.until is not None]
    news.sort(key=lambda change: (-SEVERITY_RANK[change.condition.severity], _KIND_RANK[change.object.kind]))
    return [_transition_notice(change) for change in moved[:NOTICES]] + [_finding_notice(change) for change in news[:NOTICES]]


def _transition_notice(change: VerdictChange) -> dict[str, Any]:
    return {
        "type": "transition",
        "site": change.object.site_code,
        "region_id": change.object.region_id,
        "kind": change.object.kind.value,
        "key": change.object.key,
        "from": (change.before or State.UNKNOWN).value,
        "state": change.verdict.state.value,
        "cause": change.verdict.cause,
        "why": change.verdict.why,
        "since": change.verdict.since,
    }


def _finding_notice(change: FindingChange) -> dict[str, Any]:
    return {
        "type": "finding",
        "site": change.object.site_code,
        "region_id": change.object.region_id,
        "kind": change.object.kind.value,
        "key": change.object.key,
        "code": change.condition.code,
        "severity": change.condition.severity.value,
        "summary": change.condition.why,
        "advised_action": change.condition.advised,
        "since": change.condition.since,
        "until": change.until,
    }
