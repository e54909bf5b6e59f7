"""The memory of health in one telemetry process: columns in, changed verdicts and findings out. Pure: numpy, no Django; `now` is an argument.

Each tick turns every GPU, node and site into a few bits in numpy; only objects whose bits changed, or whose hold runs out, are judged by the
pure functions of `fleet.health.verdict`. Silence is not judged in the first seconds after a start or a pause: our own deafness is not theirs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fleet.health.changes import Changes, FindingChange, Kind, ObjectRef
from fleet.health.contact import RegionSilence, view_contact
from fleet.health.facts import NAN, Condition, Held, Severity, State, Thresholds, Verdict, clock_time
from fleet.health.frozen import FrozenWatch
from fleet.health.gpu_judge import GpuJudge
from fleet.health.judging import Judge, NodeJudge, SiteJudge, View
from fleet.health.memory import Roster, SiteCells, padded
from fleet.health.xid import Burst, XidTable, table
from fleet.telemetry.live_state import LiveState


class Evaluator:
    """Holds the previous states; `evaluate` once a second. Not for several threads at once."""

    def __init__(self, thresholds: Thresholds, xid_table: XidTable | None = None) -> None:
        self.thresholds = thresholds
        self._gpus = GpuJudge(thresholds, xid_table or table())
        self._nodes = NodeJudge(Kind.NODE, thresholds)
        self._sites = SiteJudge(Kind.SITE, thresholds)
        self._judges: Mapping[Kind, Judge] = {Kind.GPU: self._gpus, Kind.NODE: self._nodes, Kind.SITE: self._sites}
        self._frozen = FrozenWatch(thresholds)
        self._regions: dict[int, Condition] = {}
        self._homes: tuple[NDArray[np.int32], NDArray[np.int32]] = (np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int32))
        self._gpus_of: dict[int, list[int]] = {}
        self._nodes_of: dict[int, list[int]] = {}
        self._listening_since = NAN
        self._ticked_at = NAN

    @property
    def cells(self) -> SiteCells | None:
        """What pages show of each site; None before the first tick."""
        return self._sites.cells

    @property
    def judged_total(self) -> int:
        """How many objects were judged one by one since the start."""
        return sum(judge.judged_total for judge in self._judges.values())

    def verdict_of(self, kind: Kind, row: int) -> Verdict | None:
        """The verdict that stands; None before the first."""
        verdicts = self._judges[kind].objects.verdict
        return verdicts[row] if row < len(verdicts) else None

    # Seeds: what was known before this process started

    def fit(self, live: LiveState) -> None:
        """Make room for all rows of `live`."""
        self._gpus.objects.grow(len(live.gpu_uuid))
        self._nodes.objects.grow(len(live.node_host))
        self._sites.objects.grow(len(live.site_code))

    def seed_verdict(self, kind: Kind, row: int, verdict: Verdict) -> None:
        """The state that stood; `fit` must have run."""
        self._judges[kind].objects.set_verdict(row, verdict)

    def seed_finding(self, kind: Kind, row: int, condition: Condition) -> None:
        """An open finding."""
        objects = self._judges[kind].objects
        objects.held.setdefault(row, {})[condition.code] = Held(condition, condition.last_at, condition.samples, True)
        if kind is Kind.GPU:
            self._gpus.seed(row, condition)
        if kind is Kind.NODE and condition.code == "exporter_frozen":
            self._frozen.seed(row, condition.since)

    def seed_region_finding(self, region_id: int, condition: Condition) -> None:
        self._regions[region_id] = condition

    def seed_last_xid(self, row: int, xid: int, at: float) -> None:
        """`at` NaN: seen at first sight, time unknown."""
        memory = self._gpus.xids.memory(row)
        memory.last_xid, memory.last_at = xid, at

    def seed_burst(self, row: int, burst: Burst) -> None:
        self._gpus.xids.memory(row).seed(burst)

    # The tick

    def evaluate(self, live: LiveState, roster: Roster, now: float) -> Changes:
        """All changes since the tick before. `live.derive()` must have run."""
        changes = Changes()
        self._arrange(live)
        if not now - self._ticked_at <= self.thresholds.unknown_seconds:
            self._listening_since = now
        self._ticked_at = now

        def boot_id_of(row: int) -> str:
            return roster.boot_id.get(int(live.gpu_node_row[row]), "")

        self._forget_gone(live)
        xids = self._gpus.xids
        touched = xids.take(live, boot_id_of, changes) | xids.end_by_reboot(live, boot_id_of)
        self._take_cleared(live, roster, now)
        view = self._view(live, roster, now)
        moved_gpus = self._gpus.judge(view, self._gpus_of, touched, changes)
        moved_nodes = self._nodes.judge(view, self._gpus, self._gpus_of, moved_gpus, changes)
        self._sites.judge(view, self._nodes, self._gpus, self._nodes_of, self._gpus_of, moved_gpus, moved_nodes, changes)
        self._judge_regions(view, changes)
        return changes

    def _arrange(self, live: LiveState) -> None:
        """Room for new rows, and who stands where."""
        self.fit(live)
        homes = (live.gpu_node_row, live.node_site_row)
        if not all(np.array_equal(old, new) for old, new in zip(self._homes, homes, strict=True)):
            self._homes = (homes[0].copy(), homes[1].copy())
            self._gpus_of, self._nodes_of = {}, {}
            for row, node in enumerate(live.gpu_node_row.tolist()):
                self._gpus_of.setdefault(node, []).append(row)
            for row, site in enumerate(live.node_site_row.tolist()):
                self._nodes_of.setdefault(site, []).append(row)

    def _forget_gone(self, live: LiveState) -> None:
        """Objects that left the inventory: their findings are ended by the store, which knows why; their parents are judged anew."""
        gpus, nodes, sites = self._gpus.objects, self._nodes.objects, self._sites.objects
        for row in np.flatnonzero(gpus.active & ~live.gpu_active).tolist():
            self._gpus.forget(row)
            nodes.bits[live.gpu_node_row[row]] = sites.bits[live.gpu_site_row[row]] = -1
        for row in np.flatnonzero(nodes.active & ~live.node_active).tolist():
            nodes.forget(row)
            sites.bits[live.node_site_row[row]] = -1
        for row in np.flatnonzero(sites.active & ~live.site_active).tolist():
            sites.forget(row)
        gpus.active, nodes.active, sites.active = live.gpu_active.copy(), live.node_active.copy(), live.site_active.copy()

    def _take_cleared(self, live: LiveState, roster: Roster, now: float) -> None:
        """Drop what an operator ended. What the newest readings still show opens again."""
        cleared, roster.cleared = roster.cleared, []
        for kind, key, code in cleared:
            row = _row_of(live, kind, key)
            if row is None:
                continue
            objects = self._judges[kind].objects
            objects.held.get(row, {}).pop(code, None)
            objects.wake_at[row] = now
            if kind is Kind.GPU:
                self._gpus.clear(row, code)

    def _view(self, live: LiveState, roster: Roster, now: float) -> View:
        nodes = len(live.node_host)
        gpu_at = np.where(live.gpu_active, live.gpu_sampled_at, np.nan)
        has_agent = padded(roster.has_agent, nodes, False)
        contact = view_contact(
            now=now,
            thresholds=self.thresholds,
            gpu_at=gpu_at,
            gpu_node_row=live.gpu_node_row,
            up=live.node_up,
            up_time=live.node_up_time,
            heartbeat=live.node_heartbeat,
            has_agent=has_agent,
            node_active=live.node_active,
            node_site_row=live.node_site_row,
            site_region=live.site_region,
        )
        with np.errstate(invalid="ignore"):
            fresh = now - gpu_at <= self.thresholds.unknown_seconds
        self._frozen.update(live, now=now, gpu_fresh=fresh, exporter_fresh=contact.exporter_fresh)
        on_node = live.gpu_node_row >= 0
        node_gpus = np.bincount(live.gpu_node_row[live.gpu_active & on_node], minlength=nodes)
        said = padded(roster.expected_gpus, nodes, np.nan)
        return View(
            live=live,
            roster=roster,
            now=now,
            listening=now - self._listening_since < self.thresholds.unknown_seconds,
            contact=contact,
            gpu_at=gpu_at,
            gpu_fresh=fresh,
            node_fresh=np.bincount(live.gpu_node_row[fresh & on_node], minlength=nodes),
            node_gpus=node_gpus,
            node_expected=np.where(np.isnan(said), node_gpus, said).astype(np.int64) * live.node_active,
            has_agent=has_agent,
            node_frozen_since=self._frozen.node_since,
            gpu_frozen=fresh & on_node & ~np.isnan(self._frozen.node_since)[np.maximum(live.gpu_node_row, 0)],
        )

    # Regions

    def _judge_regions(self, view: View, changes: Changes) -> None:
        if view.listening:
            return
        regions = view.contact.regions
        for region_id, silence in regions.items():
            slug = view.roster.region_slug.get(region_id)
            if slug is not None and region_id not in self._regions:
                condition = self._regions[region_id] = _region_silent(silence)
                changes.findings.append(FindingChange(ObjectRef(Kind.REGION, slug, region_id, None, "", region_id), condition, view.now, opened=True))
        for region_id in [known for known in self._regions if known not in regions]:
            condition = self._regions.pop(region_id)
            slug = view.roster.region_slug.get(region_id)
            if slug is not None:
                ref = ObjectRef(Kind.REGION, slug, region_id, None, "", region_id)
                changes.findings.append(FindingChange(ref, condition, view.now, until=view.now, because="Most of the region is heard again."))


def _row_of(live: LiveState, kind: Kind, key: str) -> int | None:
    """The row of an object by its key; None for one that is not there (and for a region, which has no row)."""
    match kind:
        case Kind.GPU:
            return live.gpu_row_of.get(key)
        case Kind.NODE:
            return live.node_row_of_id.get(int(key))
        case Kind.SITE:
            return live.site_row_of_code.get(key)
    return None


def _region_silent(silence: RegionSilence) -> Condition:
    together = f"fell silent together by {clock_time(silence.since)}"
    if silence.agents_heard:
        why = f"The GPU exporters of {silence.silent} of {silence.of} nodes {together} while agents are heard: the region's Prometheus, or our link to it."
    else:
        why = f"{silence.silent} of {silence.of} sites {together}: our link to the region, or its Prometheus."
    return Condition(
        code="region_silent",
        severity=Severity.CRITICAL,
        state=State.OK,
        why=why,
        since=silence.since,
        advised="Check our link to the region and its Prometheus.",
        evidence={"silent": silence.silent, "of": silence.of, "agents_heard": silence.agents_heard},
        recover_seconds=0,
    )
