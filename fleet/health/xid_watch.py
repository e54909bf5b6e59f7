"""The XID memories of all GPUs of one telemetry process. Pure: no Django."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fleet.health.changes import Changes, XidEventChange
from fleet.health.facts import Condition
from fleet.health.xid import Action, Burst, XidMemory, XidTable
from fleet.telemetry.live_state import LiveState


class XidWatch:
    """`XidMemory` by GPU row, fed from what `LiveState` noted. `ended` says why a mark ended, until the finding's end is told."""

    def __init__(self, table: XidTable, tolerance_seconds: float) -> None:
        self.table = table
        self.tolerance_seconds = tolerance_seconds
        self.ended: dict[tuple[int, int], str] = {}
        self._memories: dict[int, XidMemory] = {}
        self._recovery = np.empty(0)  # by GPU row

    def memory(self, row: int) -> XidMemory:
        return self._memories.setdefault(row, XidMemory())

    def take(self, live: LiveState, boot_id_of: Callable[[int], str], changes: Changes) -> set[int]:
        """Take the news of `live` into the memories. Rows of GPUs of which something became known; events go to `changes`."""
        touched = self._take_recovery(live)
        for news in live.take_xid_changes():
            memory = self.memory(news.gpu_row)
            burst = memory.note_gauge(
                old=news.old,
                new=news.new,
                at=news.at,
                table=self.table,
                tolerance_seconds=self.tolerance_seconds,
                boot_id=boot_id_of(news.gpu_row),
                gpu_instance_id=news.gpu_instance_id,
            )
            touched.add(news.gpu_row)
            self._tell(live, news.gpu_row, burst, changes)
        for count in live.take_xid_counts():
            burst = self.memory(count.gpu_row).note_count(
                xid=count.xid,
                count=count.new,
                at=count.at,
                table=self.table,
                tolerance_seconds=self.tolerance_seconds,
                boot_id=boot_id_of(count.gpu_row),
                gpu_instance_id=count.gpu_instance_id,
            )
            if burst is not None:
                touched.add(count.gpu_row)
                self._tell(live, count.gpu_row, burst, changes)
        return touched

    def _take_recovery(self, live: LiveState) -> set[int]:
        """Rows with marks whose driver names another recovery action than before."""
        new, old = live.gpu_recovery.copy(), np.full(live.gpu_count, np.nan)
        old[: len(self._recovery)] = self._recovery
        self._recovery = new
        changed = np.flatnonzero((new != old) & ~(np.isnan(new) & np.isnan(old)))
        return {row for row in changed.tolist() if row in self._memories and self._memories[row].marks}

    def _recovery_of(self, row: int) -> Action | None:
        value = self._recovery[row] if row < len(self._recovery) else math.nan
        return None if math.isnan(value) else self.table.recovery.get(int(value))

    @staticmethod
    def _tell(live: LiveState, row: int, burst: Burst | None, changes: Changes) -> None:
        if burst is not None:
            changes.xids.append(
                XidEventChange(
                    gpu_id=int(live.gpu_id[row]),
                    xid=burst.xid,
                    gpu_instance_id=burst.gpu_instance_id,
                    first_at=burst.first_at,
                    last_at=burst.last_at,
                    count=burst.count,
                    source=burst.source.value,
                )
            )

    def end_by_reboot(self, live: LiveState, boot_id_of: Callable[[int], str]) -> set[int]:
        """Rows of which marks ended since their node booted anew and the GPU reports again."""
        touched: set[int] = set()
        for row, memory in self._memories.items():
            if memory.marks:
                for xid in memory.end_by_reboot(boot_id_of(row), float(live.gpu_sampled_at[row])):
                    self.ended[row, xid] = "The node was rebooted and the GPU reports again."
                    touched.add(row)
        return touched

    def conditions(self, row: int, now: float) -> tuple[tuple[Condition, ...], float]:
        """The marks of a GPU that stand now, and when the next one ends by its window (inf: none does)."""
        memory = self._memories.get(row)
        if memory is None or not memory.marks:
            return (), math.inf
        for xid in memory.end_by_window(now, self.table):
            self.ended[row, xid] = f"No repeat for {self.table.rule(xid).window_seconds / 60:.0f} min."
        return memory.conditions(self.table, self._recovery_of(row)), memory.next_end(self.table)

    def last_of(self, row: int) -> tuple[int | None, float]:
        """(last XID, its time); NaN: seen at first sight, time unknown; None: never one."""
        memory = self._memories.get(row)
        return (None, math.nan) if memory is None else (memory.last_xid, memory.last_at)

    def clear(self, row: int, xid: int) -> None:
        """An operator ended the mark."""
        self.memory(row).marks.pop(xid, None)

    def forget(self, row: int) -> None:
        self._memories.pop(row, None)
