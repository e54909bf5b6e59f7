"""Judging GPUs: signs of the newest readings, what agents say, XIDs. Pure: numpy, no Django."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fleet.health.changes import Changes, Kind
from fleet.health.conditions import gpu_conditions
from fleet.health.contact import CODE, CONTACTS
from fleet.health.facts import NAN, AgentWord, Condition, Contact, GpuFacts, Thresholds
from fleet.health.judging import Floats, Judge, View
from fleet.health.memory import padded
from fleet.health.rising import Rising
from fleet.health.signs import SIGN_OF_CODE, Sign, signs_of
from fleet.health.verdict import active_conditions, follow, gpu_verdict
from fleet.health.xid import XidTable, xid_of_code
from fleet.health.xid_watch import XidWatch
from fleet.telemetry.fields import GPU_FIELD_INDEX

_AGENT_WORDS: tuple[AgentWord, ...] = tuple(AgentWord)
_WORD_NUMBER: Mapping[AgentWord, int] = {word: number for number, word in enumerate(_AGENT_WORDS)}


class GpuJudge(Judge):
    """GPUs: readings, presence, XIDs."""

    def __init__(self, thresholds: Thresholds, xid_table: XidTable) -> None:
        super().__init__(Kind.GPU, thresholds)
        self.xids = XidWatch(xid_table, thresholds.interval_seconds)
        window, rising = thresholds.error_window_seconds, thresholds.rising_window_seconds
        self._rising: Mapping[Sign, tuple[str, Rising]] = {
            Sign.ECC_DBE: ("ecc_dbe_total", Rising(1, np.inf, window)),
            Sign.NVLINK_ERRORS: ("nvlink_errors_total", Rising(thresholds.nvlink_errors, rising, window)),
            Sign.PCIE_REPLAY: ("pcie_replay_total", Rising(thresholds.pcie_replays, rising, window)),
        }
        self._signs: NDArray[np.int32] = np.empty(0, dtype=np.int32)
        self._touched: set[int] = set()  # something became known of their XIDs and waits to be told

    def seed(self, row: int, condition: Condition) -> None:
        """An open finding: XIDs become marks and counted errors rises again, so that their windows go on."""
        xid = xid_of_code(condition.code)
        if xid is not None:
            self.xids.memory(row).seed_mark(xid, condition)
        sign = SIGN_OF_CODE.get(condition.code)
        if sign is not None and sign in self._rising:
            self._rising[sign][1].seed(row, condition.last_at)

    def clear(self, row: int, code: str) -> None:
        """An operator ended this finding."""
        xid, sign = xid_of_code(code), SIGN_OF_CODE.get(code)
        if xid is not None:
            self.xids.clear(row, xid)
        if sign is not None and row < len(self._signs):
            self._signs[row] &= ~np.int32(sign)
            if sign in self._rising:
                self._rising[sign][1].forget(row)

    def forget(self, row: int) -> None:
        """The GPU left the inventory."""
        self.objects.forget(row)
        self.xids.forget(row)
        if row < len(self._signs):
            self._signs[row] = 0
        for _, rising in self._rising.values():
            rising.forget(row)

    def because(self, row: int, code: str) -> str:
        xid = xid_of_code(code)
        told = self.xids.ended.pop((row, xid), "") if xid is not None else ""
        return told or super().because(row, code)

    def judge(self, view: View, gpus_of: Mapping[int, list[int]], touched: set[int], changes: Changes) -> set[int]:
        """Judge the GPUs that need it. Rows whose verdict is another one."""
        live, contact, now, thresholds = view.live, view.contact, view.now, self.thresholds
        count = len(live.gpu_uuid)
        if not count:
            return set()
        node_of = np.maximum(live.gpu_node_row, 0)
        node_contact = contact.node[node_of]
        slowdown = padded(view.roster.slowdown_celsius, count, np.nan)
        self._signs = padded(self._signs, count, 0)
        signs, judged, margin = self._read_signs(view, slowdown)
        read = view.gpu_fresh & ~view.gpu_frozen
        self._signs = np.where(read, (signs & judged) | (self._signs & ~judged), self._signs).astype(np.int32)
        judged = np.where(read, judged, 0).astype(np.int32)
        words = self._agent_words(view, node_of, gpus_of)
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
            | view.gpu_frozen.astype(np.int64) << 30
        )
        self._touched |= touched
        self.objects.judge_again(touched)
        may = live.gpu_active & (view.gpu_fresh | (node_contact == CODE[Contact.NEVER])) if view.listening else live.gpu_active
        rows = self.objects.take_due(bits, view.gpu_at, may, now)

        values = {name: live.gpu_values[GPU_FIELD_INDEX[name]] for name in ("gpu_temperature_celsius", "sm_clock_hertz", "power_watts", "ecc_dbe_total")}
        moved: set[int] = set()
        for row in rows:
            node = int(node_of[row])
            said = view.roster.reported.get(row)
            fault = view.roster.driver_fault.get(node)
            fault_cause = "agent_unknown" if fault is None else "driver_mismatch" if fault.is_mismatch else "driver_error"
            signs_here = int(self._signs[row])
            marks, mark_ends = self.xids.conditions(row, now)
            facts = GpuFacts(
                now=now,
                sampled_at=float(view.gpu_at[row]),
                exporter_at=float(contact.exporter_at[node]),
                contact=CONTACTS[node_contact[row]],
                contact_since=float(contact.node_at[node]),
                gpus_of_node=int(view.node_gpus[node]),
                gpus_fresh=int(view.node_fresh[node]),
                signs=signs_here,
                judged=int(judged[row]),
                agent=_AGENT_WORDS[words[row]],
                agent_detail=said.detail if said is not None else fault.text if fault is not None else "",
                agent_cause=fault_cause,
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
                frozen_since=float(view.node_frozen_since[node]) if view.gpu_frozen[row] else NAN,
                sign_times=self._rise_times(row, signs_here) if signs_here else {},
            )
            found, undecided = gpu_conditions(facts, thresholds)
            before = self.objects.verdict[row]
            held = self.settle(row, found, undecided, facts.sampled_at, now)
            verdict = follow(before, gpu_verdict(facts, active_conditions(held), thresholds=thresholds, before=before), now)
            self.objects.wake_at[row] = min(self.objects.wake_at[row], mark_ends)
            last_xid, last_xid_at = self.xids.last_of(row)
            ref = view.ref(Kind.GPU, live.gpu_uuid[row], int(live.gpu_id[row]), int(live.gpu_site_row[row]))
            columns = {"last_xid": last_xid, "last_xid_at": last_xid_at}
            if self.conclude(row, ref, held, verdict, now, changes, at=facts.sampled_at, columns=columns, always=row in self._touched):
                moved.add(row)
        self._touched.difference_update(rows)
        return moved

    def _rise_times(self, row: int, signs: int) -> dict[int, float]:
        """When the counters rose whose signs are set."""
        return {int(sign): float(rising.rise_at[row]) for sign, (_, rising) in self._rising.items() if int(sign) & signs}

    def _read_signs(self, view: View, slowdown: Floats) -> tuple[NDArray[np.int32], NDArray[np.int32], Floats]:
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

    def _agent_words(self, view: View, node_of: NDArray[np.int32], gpus_of: Mapping[int, list[int]]) -> NDArray[np.int8]:
        """[g] numbers in `AgentWord`: what a living agent says of each GPU."""
        reports = padded(view.roster.reports_health, len(view.live.node_host), False) & view.contact.agent_alive
        words = np.where(reports[node_of], _WORD_NUMBER[AgentWord.OK], _WORD_NUMBER[AgentWord.NONE]).astype(np.int8)
        alive = view.contact.agent_alive
        for node in view.roster.driver_fault:
            if alive[node]:
                words[gpus_of.get(node, [])] = _WORD_NUMBER[AgentWord.UNKNOWN]
        for row, said in view.roster.reported.items():
            if alive[node_of[row]]:
                words[row] = _WORD_NUMBER[said.word]
        return words
