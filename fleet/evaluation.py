"""The memory of health in one telemetry process: columns in, changed verdicts and findings out. Pure: numpy, no Django; `now` is an argument.

Each tick turns every GPU, node and site into a few bits in numpy; only objects whose bits changed, or whose hold runs out, are judged by the
pure functions of `fleet.health`. Silence is not judged in the first seconds after a start or a pause: our own deafness is not theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet.changes import Changes, FindingChange, Kind, ObjectRef, VerdictChange
from fleet.conditions import SIGN_OF_CODE, Sign, gpu_conditions, node_conditions, signs_of, site_conditions
from fleet.contact import CODE, CONTACTS, ContactView, RegionSilence, view_contact
from fleet.frames import FLAG_SILENT, FLAG_STALE
from fleet.health import (
    NAN,
    AgentWord,
    Child,
    Condition,
    Contact,
    GpuFacts,
    Held,
    NodeFacts,
    Severity,
    SiteFacts,
    State,
    Thresholds,
    Verdict,
    active_conditions,
    clock_time,
    follow,
    gpu_verdict,
    is_known,
    node_verdict,
    settle,
    site_verdict,
)
from fleet.health_memory import Objects, Roster, SiteCells, padded
from fleet.live_state import LiveState
from fleet.rising import Rising
from fleet.telemetry import GPU_FIELD_INDEX
from fleet.xid import Burst, XidTable, table, xid_of_code
from fleet.xid_watch import XidWatch

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

REFRESH_SECONDS = 60.0  # how often the numbers of a standing finding are renewed
_AGENT_WORDS: tuple[AgentWord, ...] = tuple(AgentWord)
_WORD_NUMBER: Mapping[AgentWord, int] = {word: number for number, word in enumerate(_AGENT_WORDS)}
_SILENT_SITE = (CODE[Contact.LINK_DOWN], CODE[Contact.REGION_SILENT])


@dataclass(frozen=True, eq=False)
class _View:
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

    def recent(self, field: str, seconds: float) -> Floats:
        """[g] values of a field that are not older than `seconds`, else NaN."""
        index = GPU_FIELD_INDEX[field]
        with np.errstate(invalid="ignore"):
            return np.where(self.now - self.live.gpu_times[index] <= seconds, self.live.gpu_values[index], np.nan)


class Evaluator:
    """Holds the previous states; `evaluate` once a second. Not for several threads at once."""

    def __init__(self, thresholds: Thresholds, xid_table: XidTable | None = None) -> None:
        self.thresholds = thresholds
        self.cells: SiteCells | None = None  # after the first tick
        self.judged_total = 0
        self.xids = XidWatch(xid_table or table(), thresholds.interval_seconds)
        self._gpus, self._nodes, self._sites = Objects(Kind.GPU), Objects(Kind.NODE), Objects(Kind.SITE)
        self._of: Mapping[Kind, Objects] = {objects.kind: objects for objects in (self._gpus, self._nodes, self._sites)}
        window, rising = thresholds.error_window_seconds, thresholds.rising_window_seconds
        self._rising: Mapping[Sign, tuple[str, Rising]] = {
            Sign.ECC_DBE: ("ecc_dbe_total", Rising(1, rising, window)),
            Sign.NVLINK_ERRORS: ("nvlink_errors_total", Rising(thresholds.nvlink_errors, rising, window)),
            Sign.PCIE_REPLAY: ("pcie_replay_total", Rising(thresholds.pcie_replays, rising, window)),
        }
        self._signs: NDArray[np.int32] = np.empty(0, dtype=np.int32)
        self._regions: dict[int, Condition] = {}
        self._version = -1
        self._gpus_of_node: dict[int, list[int]] = {}
        self._nodes_of_site: dict[int, list[int]] = {}
        self._listening_since = NAN
        self._ticked_at = NAN

    # Seeds: what was known before this process started

    def seed_verdict(self, kind: Kind, row: int, verdict: Verdict) -> None:
        objects = self._of[kind]
        objects.grow(row + 1)
        objects.set_verdict(row, verdict)

    def seed_finding(self, kind: Kind, row: int, condition: Condition) -> None:
        """An open finding. XIDs become marks and counted errors rises again, so that their windows go on."""
        objects = self._of[kind]
        objects.grow(row + 1)
        objects.held.setdefault(row, {})[condition.code] = Held(condition, condition.last_at, condition.samples, True)
        if kind is not Kind.GPU:
            return
        xid = xid_of_code(condition.code)
        if xid is not None:
            self.xids.memory(row).seed_mark(xid, condition)
        sign = SIGN_OF_CODE.get(condition.code)
        if sign is not None and sign in self._rising:
            self._rising[sign][1].seed(row, condition.last_at)

    def seed_region_finding(self, region_id: int, condition: Condition) -> None:
        self._regions[region_id] = condition

    def seed_last_xid(self, row: int, xid: int, at: float) -> None:
        """`at` NaN: seen at first sight, time unknown."""
        memory = self.xids.memory(row)
        memory.last_xid, memory.last_at = xid, at

    def seed_burst(self, row: int, burst: Burst) -> None:
        self.xids.memory(row).seed(burst)

    def verdict_of(self, kind: Kind, row: int) -> Verdict | None:
        """The verdict that stands; None before the first."""
        verdicts = self._of[kind].verdict
        return verdicts[row] if row < len(verdicts) else None

    # The tick

    def evaluate(self, live: LiveState, roster: Roster, now: float) -> Changes:
        """All changes since the tick before. `live.derive()` must have run."""
        changes = Changes()
        self._grow(live)
        if not now - self._ticked_at <= self.thresholds.unknown_seconds:
            self._listening_since = now
        self._ticked_at = now

        def boot_id_of(row: int) -> str:
            return roster.boot_id.get(int(live.gpu_node_row[row]), "")

        self._forget_gone(live)
        touched = self.xids.take(live, boot_id_of, changes) | self.xids.end_by_reboot(live, boot_id_of)
        self._take_cleared(live, roster, now)
        view = self._view(live, roster, now)
        moved_gpus = self._judge_gpus(view, touched, changes)
        moved_nodes = self._judge_nodes(view, moved_gpus, changes)
        self._judge_sites(view, moved_gpus, moved_nodes, changes)
        self._judge_regions(view, changes)
        return changes

    def _grow(self, live: LiveState) -> None:
        self._gpus.grow(len(live.gpu_uuid))
        self._nodes.grow(len(live.node_host))
        self._sites.grow(len(live.site_code))
        self._signs = padded(self._signs, len(live.gpu_uuid), 0)
        if self._version != live.version:
            self._version = live.version
            self._gpus_of_node, self._nodes_of_site = {}, {}
            for row, node in enumerate(live.gpu_node_row.tolist()):
                self._gpus_of_node.setdefault(node, []).append(row)
            for row, site in enumerate(live.node_site_row.tolist()):
                self._nodes_of_site.setdefault(site, []).append(row)

    def _forget_gone(self, live: LiveState) -> None:
        """Objects that left the inventory: their findings are ended by the store, which knows why; their parents are judged anew."""
        for objects, active in ((self._gpus, live.gpu_active), (self._nodes, live.node_active), (self._sites, live.site_active)):
            for row in np.flatnonzero(objects.active & ~active).tolist():
                objects.forget(row)
                if objects is self._gpus:
                    self.xids.forget(row)
                    self._signs[row] = 0
                    for _, rising in self._rising.values():
                        rising.forget(row)
                    self._nodes.bits[live.gpu_node_row[row]] = -1
                elif objects is self._nodes:
                    self._sites.bits[live.node_site_row[row]] = -1
            objects.active = active.copy()

    def _take_cleared(self, live: LiveState, roster: Roster, now: float) -> None:
        """Drop what an operator ended. What the newest readings still show opens again."""
        cleared, roster.cleared = roster.cleared, []
        for kind, key, code in cleared:
            rows = {
                Kind.GPU: live.gpu_row_of,
                Kind.NODE: {str(number): row for number, row in live.node_row_of_id.items()} if kind is Kind.NODE else {},
                Kind.SITE: live.site_row_of_code,
                Kind.REGION: {},
            }[kind]
            row = rows.get(key)
            if row is None:
                continue
            objects = self._of[kind]
            objects.held.get(row, {}).pop(code, None)
            objects.wake_at[row] = now
            if kind is Kind.GPU:
                xid, sign = xid_of_code(code), SIGN_OF_CODE.get(code)
                if xid is not None:
                    self.xids.clear(row, xid)
                if sign is not None:
                    self._signs[row] &= ~np.int32(sign)
                    if sign in self._rising:
                        self._rising[sign][1].forget(row)

    def _view(self, live: LiveState, roster: Roster, now: float) -> _View:
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
        on_node = live.gpu_node_row >= 0
        node_gpus = np.bincount(live.gpu_node_row[live.gpu_active & on_node], minlength=nodes)
        said = padded(roster.expected_gpus, nodes, np.nan)
        return _View(
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
        )

    # GPUs

    def _judge_gpus(self, view: _View, touched: set[int], changes: Changes) -> set[int]:
        """Judge the GPUs that need it. Rows whose verdict is another one."""
        live, contact, now, thresholds = view.live, view.contact, view.now, self.thresholds
        count = len(live.gpu_uuid)
        if not count:
            return set()
        node_of = np.maximum(live.gpu_node_row, 0)
        node_contact = contact.node[node_of]
        slowdown = padded(view.roster.slowdown_celsius, count, np.nan)
        signs, judged, margin = self._read_signs(view, slowdown)
        self._signs = np.where(view.gpu_fresh, (signs & judged) | (self._signs & ~judged), self._signs).astype(np.int32)
        judged = np.where(view.gpu_fresh, judged, 0).astype(np.int32)
        words = self._agent_words(view, node_of)
        with np.errstate(invalid="ignore"):
            stopped = ~view.gpu_fresh & (contact.exporter_at[node_of] > view.gpu_at + thresholds.together_seconds)
        maintained = np.zeros(count, dtype=np.bool_)
        maintained[list(view.roster.gpu_maintenance)] = True
        bits = (
            view.gpu_fresh.astype(np.int64)
            | node_contact.astype(np.int64) << 1
            | stopped.astype(np.int64) << 4
            | (view.node_fresh[node_of] == 0).astype(np.int64) << 5
            | maintained.astype(np.int64) << 6
            | words.astype(np.int64) << 7
            | self._signs.astype(np.int64) << 10
            | judged.astype(np.int64) << 20
        )
        due = self._gpus.due(bits, view.gpu_at, now)
        due[list(touched)] = True
        due &= live.gpu_active
        if view.listening:
            due &= view.gpu_fresh | (node_contact == CODE[Contact.NEVER])
        self._gpus.bits[due] = bits[due]

        values = {name: live.gpu_values[GPU_FIELD_INDEX[name]] for name in ("gpu_temperature_celsius", "sm_clock_hertz", "power_watts", "ecc_dbe_total")}
        moved: set[int] = set()
        for row in np.flatnonzero(due).tolist():
            node = int(node_of[row])
            said = view.roster.reported.get(row)
            fault = view.roster.driver_fault.get(node)
            word = _AGENT_WORDS[words[row]]
            marks, mark_ends = self.xids.conditions(row, now)
            facts = GpuFacts(
                now=now,
                sampled_at=float(view.gpu_at[row]),
                exporter_at=float(contact.exporter_at[node]),
                contact=CONTACTS[node_contact[row]],
                contact_since=float(contact.node_at[node]),
                gpus_of_node=int(view.node_gpus[node]),
                gpus_fresh=int(view.node_fresh[node]),
                signs=int(self._signs[row]),
                judged=int(judged[row]),
                agent=word,
                agent_detail=said.detail if said is not None else fault.text if fault is not None else "",
                agent_at=said.since if said is not None else fault.since if fault is not None else NAN,
                xids=marks,
                maintenance=view.roster.gpu_maintenance.get(row),
                temperature_celsius=float(values["gpu_temperature_celsius"][row]),
                slowdown_celsius=float(slowdown[row]),
                margin_celsius=float(margin[row]),
                sm_clock_hertz=float(values["sm_clock_hertz"][row]),
                power_watts=float(values["power_watts"][row]),
                ecc_dbe_total=float(values["ecc_dbe_total"][row]),
                nvlink_rise=float(self._rising[Sign.NVLINK_ERRORS][1].rise[row]),
                pcie_rise=float(self._rising[Sign.PCIE_REPLAY][1].rise[row]),
                sign_times={int(sign): float(rising.rise_at[row]) for sign, (_, rising) in self._rising.items() if self._signs[row] & sign},
            )
            found, undecided = gpu_conditions(facts, thresholds)
            before = self._gpus.verdict[row]
            held, wake_at = self._settle(self._gpus, row, found, undecided, facts.sampled_at, now)
            verdict = follow(before, gpu_verdict(facts, active_conditions(held), thresholds=thresholds, before=before), now)
            self._gpus.wake_at[row] = min(wake_at, mark_ends)
            last_xid, last_xid_at = self.xids.last_of(row)
            ref = self._ref(view, Kind.GPU, row, live.gpu_uuid[row], int(live.gpu_id[row]), int(live.gpu_site_row[row]))
            columns = {"last_xid": last_xid, "last_xid_at": last_xid_at}
            if self._conclude(self._gpus, row, ref, held, verdict, facts.sampled_at, now, columns, changes, always=row in touched):
                moved.add(row)
        return moved

    def _read_signs(self, view: _View, slowdown: Floats) -> tuple[NDArray[np.int32], NDArray[np.int32], Floats]:
        """(signs, judged, °C left to the slowdown limit), [g] each."""
        seconds = self.thresholds.unknown_seconds
        told = view.recent("temperature_margin_celsius", seconds)
        margin = np.where(np.isnan(told), slowdown - view.recent("gpu_temperature_celsius", seconds), told)
        signs, judged = signs_of(
            clock_reasons=view.recent("clock_event_reasons", seconds),
            margin=margin,
            remap_pending=view.recent("row_remap_pending", seconds),
            remap_failure=view.recent("row_remap_failure", seconds),
            before=self._signs,
            thresholds=self.thresholds,
        )
        for sign, (field, rising) in self._rising.items():
            index = GPU_FIELD_INDEX[field]
            values = view.live.gpu_values[index]
            rising.update(values, view.live.gpu_times[index])
            signs |= np.where(rising.standing(view.now), np.int32(sign), np.int32(0))
            judged |= np.where(np.isnan(values), np.int32(0), np.int32(sign))
        return signs, judged, margin

    def _agent_words(self, view: _View, node_of: NDArray[np.int32]) -> NDArray[np.int8]:
        """[g] numbers in `AgentWord`: what a living agent says of each GPU."""
        reports = padded(view.roster.reports_health, len(view.live.node_host), False) & view.contact.agent_alive
        words = np.where(reports[node_of], _WORD_NUMBER[AgentWord.OK], _WORD_NUMBER[AgentWord.NONE]).astype(np.int8)
        alive = view.contact.agent_alive
        for node in view.roster.driver_fault:
            if alive[node]:
                words[self._gpus_of_node.get(node, [])] = _WORD_NUMBER[AgentWord.UNKNOWN]
        for row, said in view.roster.reported.items():
            if alive[node_of[row]]:
                words[row] = _WORD_NUMBER[said.word]
        return words

    # Nodes

    def _judge_nodes(self, view: _View, moved_gpus: set[int], changes: Changes) -> set[int]:
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
        )
        due = self._nodes.due(bits, contact.exporter_at, now)
        due[[int(live.gpu_node_row[row]) for row in moved_gpus]] = True
        due &= live.node_active
        if view.listening:
            due &= contact.exporter_fresh | (contact.node == CODE[Contact.NEVER])
        self._nodes.bits[due] = bits[due]

        moved: set[int] = set()
        for row in np.flatnonzero(due).tolist():
            gpus = [gpu for gpu in self._gpus_of_node.get(row, []) if live.gpu_active[gpu]]
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
                maintenance=view.roster.node_maintenance.get(row),
                only_node=bool(only[row]),
            )
            found, undecided = node_conditions(facts, self.thresholds)
            before = self._nodes.verdict[row]
            at = facts.exporter_at if facts.contact is Contact.REPORTING else facts.contact_at
            held, self._nodes.wake_at[row] = self._settle(self._nodes, row, found, undecided, at, now)
            verdict = follow(before, node_verdict(facts, active_conditions(held), self._children(self._gpus, gpus, live.gpu_uuid), before), now)
            ref = self._ref(view, Kind.NODE, row, str(live.node_id[row]), int(live.node_id[row]), int(live.node_site_row[row]))
            if self._conclude(self._nodes, row, ref, held, verdict, at, now, self._node_columns(live, row), changes):
                moved.add(row)
        return moved

    @staticmethod
    def _node_columns(live: LiveState, row: int) -> dict[str, Any]:
        up = float(live.node_up[row])
        return {
            "heartbeat_at": float(live.node_heartbeat[row]),
            "exporter_up": None if np.isnan(up) else up == 1,
            "exporter_up_at": float(live.node_up_time[row]),
        }

    # Sites

    def _judge_sites(self, view: _View, moved_gpus: set[int], moved_nodes: set[int], changes: Changes) -> None:
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
        due = self._sites.due(bits, contact.site_at, now)
        due[[int(live.gpu_site_row[row]) for row in moved_gpus] + [int(live.node_site_row[row]) for row in moved_nodes]] = True
        due &= live.site_active
        if view.listening:
            due &= (cells.nodes_reporting > 0) | (contact.site == CODE[Contact.NEVER])
        self._sites.bits[due] = bits[due]

        for row in np.flatnonzero(due).tolist():
            nodes = [node for node in self._nodes_of_site.get(row, []) if live.node_active[node]]
            gpus = [gpu for node in nodes for gpu in self._gpus_of_node.get(node, []) if live.gpu_active[gpu]]
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
            before = self._sites.verdict[row]
            held, self._sites.wake_at[row] = self._settle(self._sites, row, found, undecided, facts.contact_at, now)
            parts = (self._children(self._nodes, nodes, live.node_host), self._children(self._gpus, gpus, live.gpu_uuid))
            verdict = follow(before, site_verdict(facts, active_conditions(held), *parts, before), now)
            ref = self._ref(view, Kind.SITE, row, live.site_code[row], int(live.site_id[row]), row)
            if self._conclude(self._sites, row, ref, held, verdict, facts.contact_at, now, {}, changes) and is_known(float(cells.silent_since[row])):
                changes.silenced_site_rows.append(row)
        cells.state, cells.since = self._sites.state, self._sites.since
        self.cells = cells

    def _roll_up(self, view: _View) -> SiteCells:
        """What each site shows, [m]. Sums and means are over GPUs with a fresh value."""
        live, contact, count = view.live, view.contact, len(view.live.site_code)
        site_of = live.gpu_site_row
        counted = view.gpu_fresh & (site_of >= 0)
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
            state=self._sites.state,
            flags=(stale * FLAG_STALE + silent * FLAG_SILENT).astype(np.uint8),
            since=self._sites.since,
            gpus_reporting=np.bincount(site_of[counted], minlength=count),
            gpus_expected=np.bincount(live.node_site_row, weights=view.node_expected, minlength=count).astype(np.int64),
            nodes_reporting=np.bincount(live.node_site_row[speaking], minlength=count),
            utilization_ratio=sums["utilization_ratio"],
            power_watts=sums["power_watts"],
            contact=contact.site_at,
            silent_since=np.where(silent, contact.site_at, np.nan),
        )

    # Regions

    def _judge_regions(self, view: _View, changes: Changes) -> None:
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

    # Common to all kinds

    def _settle(self, objects: Objects, row: int, found: list[Condition], undecided: set[str], at: float, now: float) -> tuple[dict[str, Held], float]:
        flapping = objects.flapping(row, now, self.thresholds)
        held, wake_at = settle(objects.held.get(row, {}), [*found, *flapping], undecided, sampled_at=at, now=now, thresholds=self.thresholds)
        if flapping:
            wake_at = min(wake_at, now + self.thresholds.flapping_window_seconds / 4)
        if held:
            wake_at = min(wake_at, now + REFRESH_SECONDS)
        waits = held and not all(entry.active for entry in held.values())
        objects.unconfirmed_at[row] = (at if is_known(at) else now) if waits else np.nan
        return held, wake_at

    def _children(self, objects: Objects, rows: Sequence[int], names: Sequence[str]) -> list[Child]:
        return [Child(names[row], verdict) for row in rows if (verdict := objects.verdict[row]) is not None]

    @staticmethod
    def _ref(view: _View, kind: Kind, row: int, key: str, number: int, site_row: int) -> ObjectRef:
        live = view.live
        if site_row < 0:
            return ObjectRef(kind, key, number, None, "", None)
        return ObjectRef(kind, key, number, int(live.site_id[site_row]), live.site_code[site_row], int(live.site_region[site_row]))

    def _conclude(
        self,
        objects: Objects,
        row: int,
        ref: ObjectRef,
        held: dict[str, Held],
        verdict: Verdict,
        at: float,
        now: float,
        columns: Mapping[str, Any],
        changes: Changes,
        *,
        always: bool = False,
    ) -> bool:
        """Remember the verdict and what is held, tell what differs. True when the verdict is another one."""
        self.judged_total += 1
        self._tell_findings(objects, row, ref, held, at if is_known(at) else now, now, changes)
        if held:
            objects.held[row] = held
        else:
            objects.held.pop(row, None)
        before = objects.verdict[row]
        if verdict == before and not always:
            return False
        change = VerdictChange(ref, before.state if before is not None else None, verdict, columns)
        changes.verdicts.append(change)
        objects.set_verdict(row, verdict)
        if change.is_transition:
            objects.note_transition(row, now, self.thresholds)
            if len(objects.moved_at[row]) >= self.thresholds.flapping_changes:
                objects.wake_at[row] = now
        return verdict != before

    def _tell_findings(self, objects: Objects, row: int, ref: ObjectRef, held: Mapping[str, Held], at: float, now: float, changes: Changes) -> None:
        before = objects.held.get(row, {})
        for code, entry in held.items():
            old = before.get(code)
            was_active = old is not None and old.active
            if entry.active and (not was_active or (old is not None and old.condition != entry.condition)):
                last_at = entry.condition.last_at if is_known(entry.condition.last_at) else at
                changes.findings.append(FindingChange(ref, entry.condition, max(last_at, entry.condition.since), opened=not was_active))
        for code, old in before.items():
            if old.active and code not in held:
                until = old.gone_at if is_known(old.gone_at) else now
                xid = xid_of_code(code)
                because = self.xids.ended.pop((row, xid), "") if xid is not None and objects is self._gpus else ""
                ended = FindingChange(
                    ref, old.condition, max(old.seen_at, old.condition.since), until=max(until, old.condition.since), because=because or "No longer seen."
                )
                changes.findings.append(ended)


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
