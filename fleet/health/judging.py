"""Judging one kind of object: which rows need it, what is held of them, what changed. Nodes and sites here; GPUs in `fleet.health.gpu_judge`. Pure: no Django."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet.frames import FLAG_SILENT, FLAG_STALE
from fleet.health.changes import Changes, FindingChange, Kind, ObjectRef, VerdictChange
from fleet.health.conditions import node_conditions, site_conditions
from fleet.health.contact import CODE, CONTACTS, ContactView
from fleet.health.facts import NAN, Child, Condition, Contact, Held, NodeFacts, SiteFacts, Thresholds, Verdict, is_known
from fleet.health.memory import Objects, Roster, SiteCells
from fleet.health.verdict import active_conditions, follow, node_verdict, settle, site_verdict
from fleet.telemetry.fields import GPU_FIELD_INDEX
from fleet.telemetry.live_state import LiveState

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

REFRESH_SECONDS = 60.0  # how often the numbers of a standing finding are renewed
_SILENT_SITE = (CODE[Contact.LINK_DOWN], CODE[Contact.REGION_SILENT])


@dataclass(frozen=True, eq=False)
class View:
    """One moment, as all the judging sees it. [g], [n], [m] as in `LiveState`."""

    live: LiveState
    roster: Roster
    now: float
    listening: bool  # just started: silence is not judged yet
    contact: ContactView
    gpu_at: Floats  # NaN for inactive GPUs
    gpu_fresh: Flags
    node_fresh: NDArray[np.int64]  # fresh GPUs of each node
    node_gpus: NDArray[np.int64]  # active GPUs of each node
    node_expected: NDArray[np.int64]
    has_agent: Flags
    node_frozen_since: Floats  # NaN: its exporter reads anew
    gpu_frozen: Flags  # fresh, yet its node's exporter repeats old readings

    def recent(self, field: str, seconds: float) -> Floats:
        """[g] values of a field that are not older than `seconds`, else NaN."""
        index = GPU_FIELD_INDEX[field]
        with np.errstate(invalid="ignore"):
            return np.where(self.now - self.live.gpu_times[index] <= seconds, self.live.gpu_values[index], np.nan)

    def ref(self, kind: Kind, key: str, number: int, site_row: int) -> ObjectRef:
        """The object of this kind, key and database id at a site (row -1: nowhere)."""
        live = self.live
        if site_row < 0:
            return ObjectRef(kind, key, number, None, "", None)
        return ObjectRef(kind, key, number, int(live.site_id[site_row]), live.site_code[site_row], int(live.site_region[site_row]))


class Judge:
    """Memory of one kind of objects and what is common to judging them."""

    def __init__(self, kind: Kind, thresholds: Thresholds) -> None:
        self.objects = Objects(kind)
        self.thresholds = thresholds
        self.judged_total = 0

    def children(self, rows: Sequence[int], names: Sequence[str]) -> list[Child]:
        """The verdicts of these rows, for the roll-up of their parent."""
        return [Child(names[row], verdict) for row in rows if (verdict := self.objects.verdict[row]) is not None]

    def settle(self, row: int, found: list[Condition], undecided: set[str], at: float, now: float) -> dict[str, Held]:
        """What is held of a row after this moment; sets when to look at it again."""
        objects = self.objects
        flapping = objects.flapping(row, now, self.thresholds)
        held, wake_at = settle(objects.held.get(row, {}), [*found, *flapping], undecided, sampled_at=at, now=now, thresholds=self.thresholds)
        if flapping:
            wake_at = min(wake_at, now + self.thresholds.flapping_window_seconds / 4)
        if held:
            wake_at = min(wake_at, now + REFRESH_SECONDS)
        objects.wake_at[row] = wake_at
        waits = held and not all(entry.active for entry in held.values())
        objects.unconfirmed_at[row] = (at if is_known(at) else now) if waits else np.nan
        return held

    def conclude(
        self,
        row: int,
        ref: ObjectRef,
        held: dict[str, Held],
        verdict: Verdict,
        now: float,
        changes: Changes,
        *,
        at: float,
        columns: Mapping[str, Any] | None = None,
        always: bool = False,
    ) -> bool:
        """Remember the verdict and what is held, tell what differs. True when the verdict is another one.

        `at` is the sample time of what was judged; `columns` go to the object's health row; `always` stores them though the verdict is the same.
        """
        objects = self.objects
        self.judged_total += 1
        self._tell_findings(row, ref, held, at if is_known(at) else now, now, changes)
        if held:
            objects.held[row] = held
        else:
            objects.held.pop(row, None)
        before = objects.verdict[row]
        if verdict == before and not always:
            return False
        change = VerdictChange(ref, before.state if before is not None else None, verdict, columns or {})
        changes.verdicts.append(change)
        objects.set_verdict(row, verdict)
        if change.is_transition:
            objects.note_transition(row, now, self.thresholds)
            if len(objects.moved_at[row]) >= self.thresholds.flapping_changes:
                objects.wake_at[row] = now
        return verdict != before

    def _tell_findings(self, row: int, ref: ObjectRef, held: Mapping[str, Held], at: float, now: float, changes: Changes) -> None:
        before = self.objects.held.get(row, {})
        for code, entry in held.items():
            old = before.get(code)
            was_active = old is not None and old.active
            if entry.active and (not was_active or (old is not None and old.condition != entry.condition)):
                last_at = entry.condition.last_at if is_known(entry.condition.last_at) else at
                changes.findings.append(FindingChange(ref, entry.condition, max(last_at, entry.condition.since), opened=not was_active))
        for code, old in before.items():
            if old.active and code not in held:
                since = old.condition.since
                until = old.gone_at if is_known(old.gone_at) else now
                because = self.because(row, code)
                changes.findings.append(FindingChange(ref, old.condition, max(old.seen_at, since), until=max(until, since), because=because))

    def because(self, row: int, code: str) -> str:
        """Why a finding ended."""
        return "No longer seen."


class NodeJudge(Judge):
    """Nodes: contact, agent, driver, GPU count, profiling, and their GPUs' verdicts."""

    def judge(self, view: View, gpu_judge: Judge, gpus_of: Mapping[int, list[int]], moved_gpus: set[int], changes: Changes) -> set[int]:
        """Judge the nodes that need it. Rows whose verdict is another one."""
        live, contact, now = view.live, view.contact, view.now
        count = len(live.node_host)
        if not count:
            return set()
        suspect = live.gpu_suspect & view.gpu_fresh & (live.gpu_node_row >= 0)
        suspects = np.bincount(live.gpu_node_row[suspect], minlength=count)
        marked = np.zeros(count, dtype=np.int64)
        marked[list(view.roster.node_maintenance)] |= 1
        marked[list(view.roster.driver_fault)] |= 2
        of_site = np.bincount(live.node_site_row[live.node_active], minlength=len(live.site_code))
        only = of_site[live.node_site_row] == 1
        bits = (
            contact.node.astype(np.int64)
            | contact.agent_silent.astype(np.int64) << 3
            | only.astype(np.int64) << 4
            | marked << 5
            | np.minimum(view.node_fresh, 255) << 8
            | np.minimum(view.node_expected, 255) << 16
            | np.minimum(suspects, 255) << 24
            | view.has_agent.astype(np.int64) << 32
            | (~np.isnan(view.node_frozen_since)).astype(np.int64) << 33
        )
        self.objects.judge_again(int(live.gpu_node_row[row]) for row in moved_gpus)
        may = live.node_active & (contact.exporter_fresh | (contact.node == CODE[Contact.NEVER])) if view.listening else live.node_active

        moved: set[int] = set()
        for row in self.objects.take_due(bits, contact.exporter_at, may, now):
            gpus = [gpu for gpu in gpus_of.get(row, []) if live.gpu_active[gpu]]
            fault = view.roster.driver_fault.get(row) if contact.agent_alive[row] else None
            facts = NodeFacts(
                now=now,
                contact=CONTACTS[contact.node[row]],
                contact_at=float(contact.node_at[row]),
                exporter_at=float(contact.exporter_at[row]),
                exporter_up=float(live.node_up[row]),
                has_agent=bool(view.has_agent[row]),
                heartbeat_at=float(live.node_heartbeat[row]),
                agent_silent=bool(contact.agent_silent[row]) and not view.listening,
                gpus_expected=int(view.node_expected[row]),
                gpus_fresh=int(view.node_fresh[row]),
                driver_fault=fault.text if fault is not None else "",
                is_mismatch=fault is not None and fault.is_mismatch,
                driver_fault_at=fault.since if fault is not None else NAN,
                profiling_suspects=[live.gpu_uuid[gpu] for gpu in gpus if suspect[gpu]] if suspects[row] else (),
                frozen_since=float(view.node_frozen_since[row]),
                maintenance=view.roster.node_maintenance.get(row),
                only_node=bool(only[row]),
            )
            found, undecided = node_conditions(facts, self.thresholds)
            before = self.objects.verdict[row]
            at = facts.exporter_at if facts.contact is Contact.REPORTING else facts.contact_at
            held = self.settle(row, found, undecided, at, now)
            verdict = follow(before, node_verdict(facts, active_conditions(held), gpu_judge.children(gpus, live.gpu_uuid), before), now)
            ref = view.ref(Kind.NODE, str(live.node_id[row]), int(live.node_id[row]), int(live.node_site_row[row]))
            if self.conclude(row, ref, held, verdict, now, changes, at=at, columns=_node_columns(live, row)):
                moved.add(row)
        return moved


def _node_columns(live: LiveState, row: int) -> dict[str, Any]:
    up = float(live.node_up[row])
    return {
        "heartbeat_at": float(live.node_heartbeat[row]),
        "exporter_up": None if np.isnan(up) else up == 1,
        "exporter_up_at": float(live.node_up_time[row]),
    }


class SiteJudge(Judge):
    """Sites: contact, and the verdicts of their nodes and GPUs; `cells` is what pages show of them after the last tick."""

    cells: SiteCells | None = None

    def judge(
        self,
        view: View,
        node_judge: Judge,
        gpu_judge: Judge,
        nodes_of: Mapping[int, list[int]],
        gpus_of: Mapping[int, list[int]],
        moved_gpus: set[int],
        moved_nodes: set[int],
        changes: Changes,
    ) -> None:
        """Judge the sites that need it."""
        live, contact, now = view.live, view.contact, view.now
        count = len(live.site_code)
        cells = self._roll_up(view)
        if not count:
            self.cells = cells
            return
        maintained = np.zeros(count, dtype=np.int64)
        maintained[list(view.roster.site_maintenance)] = 1
        bits = (
            contact.site.astype(np.int64)
            | maintained << 3
            | np.minimum(cells.gpus_reporting, 65535) << 4
            | np.minimum(cells.gpus_expected, 65535) << 20
            | np.minimum(cells.nodes_reporting, 65535) << 36
        )
        self.objects.judge_again(int(live.gpu_site_row[row]) for row in moved_gpus)
        self.objects.judge_again(int(live.node_site_row[row]) for row in moved_nodes)
        may = live.site_active & ((cells.nodes_reporting > 0) | (contact.site == CODE[Contact.NEVER])) if view.listening else live.site_active

        for row in self.objects.take_due(bits, contact.site_at, may, now):
            nodes = [node for node in nodes_of.get(row, []) if live.node_active[node]]
            gpus = [gpu for node in nodes for gpu in gpus_of.get(node, []) if live.gpu_active[gpu]]
            silence = contact.regions.get(int(live.site_region[row]))
            facts = SiteFacts(
                now=now,
                contact=CONTACTS[contact.site[row]],
                contact_at=float(contact.site_at[row]),
                nodes=len(nodes),
                gpus_expected=int(cells.gpus_expected[row]),
                gpus_reporting=int(cells.gpus_reporting[row]),
                region_silent_sites=silence.silent if silence is not None else 0,
                region_sites=silence.of if silence is not None else 0,
                maintenance=view.roster.site_maintenance.get(row),
            )
            found, undecided = site_conditions(facts)
            before = self.objects.verdict[row]
            held = self.settle(row, found, undecided, facts.contact_at, now)
            parts = (node_judge.children(nodes, live.node_host), gpu_judge.children(gpus, live.gpu_uuid))
            verdict = follow(before, site_verdict(facts, active_conditions(held), *parts, before), now)
            ref = view.ref(Kind.SITE, live.site_code[row], int(live.site_id[row]), row)
            self.conclude(row, ref, held, verdict, now, changes, at=facts.contact_at)
        cells.state, cells.since = self.objects.state, self.objects.since
        self.cells = cells

    def _roll_up(self, view: View) -> SiteCells:
        """What each site shows, [m]. Sums and means are over GPUs with a fresh value that no frozen exporter repeats."""
        live, contact, count = view.live, view.contact, len(view.live.site_code)
        site_of = live.gpu_site_row
        counted = view.gpu_fresh & ~view.gpu_frozen & (site_of >= 0)
        sums: dict[str, Floats] = {}
        for name in ("power_watts", "utilization_ratio"):
            values = view.recent(name, self.thresholds.unknown_seconds)
            known = counted & ~np.isnan(values)
            total = np.bincount(site_of[known], weights=values[known], minlength=count)
            having = np.bincount(site_of[known], minlength=count)
            with np.errstate(invalid="ignore", divide="ignore"):
                sums[name] = np.where(having > 0, total if name == "power_watts" else total / having, np.nan)
        silent = np.isin(contact.site, _SILENT_SITE)
        with np.errstate(invalid="ignore"):
            stale = ~(view.now - contact.site_at <= self.thresholds.stale_seconds)
        speaking = (contact.exporter_fresh | contact.agent_alive) & live.node_active
        return SiteCells(
            state=self.objects.state,
            flags=(stale * FLAG_STALE + silent * FLAG_SILENT).astype(np.uint8),
            since=self.objects.since,
            gpus_reporting=np.bincount(site_of[counted], minlength=count),
            gpus_expected=np.bincount(live.node_site_row, weights=view.node_expected, minlength=count).astype(np.int64),
            nodes_reporting=np.bincount(live.node_site_row[speaking], minlength=count),
            utilization_ratio=sums["utilization_ratio"],
            power_watts=sums["power_watts"],
            contact=contact.site_at,
            silent_since=np.where(silent, contact.site_at, np.nan),
        )
