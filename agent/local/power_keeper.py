"""Holds the power schedule on the GPUs: what was set is journalled, found again after reboot or driver reload, and taken back when it ends."""

from __future__ import annotations

from collections.abc import Mapping, Set

from agent.backends.base import Backend, BackendError, ErrorCode
from agent.local.notices import Notices
from agent.local.placement import Device, Layout
from agent.local.power import UnknownZone, bound_mhz, level_at, local_hour
from agent.local.usage import Usage
from agent.protocol import DesiredState, PowerSchedule
from agent.spool import Spool
from agent.store import Store

# A clock is measured a little above its bound now and then.
SLACK_MHZ = 30
CONTROL = "clock_range"
_SCHEMA = "CREATE TABLE IF NOT EXISTS power (gpu_uuid TEXT PRIMARY KEY, mhz INTEGER NOT NULL, boot_id TEXT NOT NULL);"


class PowerKeeper:
    def __init__(self, *, backend: Backend, store: Store, spool: Spool, notices: Notices) -> None:
        self._backend = backend
        self._store = store
        self._spool = spool
        self._notices = notices
        store.create(_SCHEMA)

    def cycle(self, desired: DesiredState, layout: Layout, usage: Usage | None, *, phy_gpus: Set[str], allowed: bool, now: float) -> None:
        """`phy_gpus`: GPUs that carry PHY. A clock range that people set on a GPU goes before the schedule."""
        schedule = desired.rules.power
        ours: dict[str, tuple[int, str]] = {uuid: (mhz, boot) for uuid, mhz, boot in self._store.rows("SELECT gpu_uuid, mhz, boot_id FROM power")}
        set_by_people = {control.gpu_uuid for control in desired.controls if control.control == CONTROL and control.layer_at(now)}
        for gpu_uuid in sorted(layout.gpus | set(ours)):
            if gpu_uuid in set_by_people:
                self._forget(gpu_uuid)
            elif not schedule.enabled or (gpu_uuid in phy_gpus and gpu_uuid not in schedule.phy_gpus):
                if gpu_uuid in ours:
                    self._undo(gpu_uuid, now)
            elif allowed and gpu_uuid in layout.gpus:
                self._hold(gpu_uuid, desired, schedule, usage, layout.devices, ours.get(gpu_uuid), now)

    def _hold(
        self,
        gpu_uuid: str,
        desired: DesiredState,
        schedule: PowerSchedule,
        usage: Usage | None,
        devices: Mapping[str, Device],
        ours: tuple[int, str] | None,
        now: float,
    ) -> None:
        try:
            hour = local_hour(now, desired.place.time_zone)
        except UnknownZone as error:
            self._notices.warn("power_schedule_stands_still", gpu_uuid, {"error": str(error)}, now)
            return
        load = usage.gpu_load(gpu_uuid, devices) if usage is not None else None
        level = level_at(hour, load, schedule)
        mhz = bound_mhz(level, schedule)
        try:
            boot_id = self._backend.boot_id()
            if ours == (mhz, boot_id):
                measured = self._backend.read_clocks(gpu_uuid).sm_mhz
                if measured is None or measured <= mhz + SLACK_MHZ:
                    return
            self._store.write("INSERT OR REPLACE INTO power VALUES (?, ?, ?)", (gpu_uuid, mhz, boot_id))
            self._backend.set_clock_range(gpu_uuid, schedule.floor_mhz, mhz)
        except BackendError as error:
            self._notices.warn("power_schedule_failed", gpu_uuid, {"mhz": mhz, "error": str(error)[:200]}, now)
            return
        detail = {"level": level.value, "mhz": mhz, "load": load, "hour": hour, "again": ours == (mhz, boot_id)}
        self._spool.add("power_level", now, gpu_uuid, detail, is_detail=True)

    def _undo(self, gpu_uuid: str, now: float) -> None:
        try:
            self._backend.reset_clock_range(gpu_uuid)
        except BackendError as error:
            if error.code is not ErrorCode.NOT_PRESENT:
                self._notices.warn("power_schedule_failed", gpu_uuid, {"mhz": None, "error": str(error)[:200]}, now)
                return
        self._forget(gpu_uuid)
        self._spool.add("power_level", now, gpu_uuid, {"level": "off", "mhz": None}, is_detail=True)

    def _forget(self, gpu_uuid: str) -> None:
        self._store.write("DELETE FROM power WHERE gpu_uuid = ?", (gpu_uuid,))
