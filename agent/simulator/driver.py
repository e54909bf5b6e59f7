"""What the simulated driver lets agents set on a GPU: clock locks, power limits, MIG. An act is checked, logged, and then played from its record,
the same when it happens and when the act log is read again.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from agent.backends.base import ClockReading, ErrorCode, MigReading, PowerReading
from agent.simulator import boards
from agent.simulator.config import SimulatorConfig, SliceConfig
from agent.simulator.partitions import HardwareError, Partitions
from agent.simulator.physics import HW_SLOWDOWN, HW_THERMAL, IDLE, POWER_CAP, Physics

REASON_NAMES = {IDLE: "idle", POWER_CAP: "power_cap", HW_SLOWDOWN: "hw_slowdown", HW_THERMAL: "hw_thermal"}
MIG_ACTS = ("set_mig_mode", "create_mig_instance", "destroy_mig_instance")


class Driver:
    def __init__(self, config: SimulatorConfig, physics: Physics, partitions: Partitions) -> None:
        self._seed, self._physics, self._partitions = config.seed, physics, partitions

    def check(self, gpu_uuid: str, act: str, arguments: Mapping[str, Any], number: int) -> dict[str, Any]:
        """What the act's record must hold besides: `phy`, whether it reaches the radio, and what is needed to play it. Raises HardwareError as the driver would; nothing is changed."""
        row = self._physics.row_of_gpu[gpu_uuid]
        if act == "set_clock_range":
            low, high = arguments["min_mhz"], arguments["max_mhz"]
            if not 0 < low <= high:
                limits = f"{self._physics.idle_mhz[row]:.0f}..{self._physics.max_mhz[row]:.0f} MHz"
                raise HardwareError(ErrorCode.INVALID, f"min_mhz, max_mhz: {low}..{high} is not a range within {limits}")
        elif act == "set_power_limit":
            limits_mw = self.read_power(gpu_uuid)
            if not limits_mw.min_mw <= arguments["limit_mw"] <= limits_mw.max_mw:
                raise HardwareError(ErrorCode.INVALID, "Invalid Argument")
        elif act == "set_mig_mode":
            self._partitions.check_mode(gpu_uuid, arguments["enabled"])
        elif act == "create_mig_instance":
            found = self._partitions.next_id(gpu_uuid, arguments["profile"], arguments["start"])
            name = f"{self._seed}/{gpu_uuid}/{found}/{number}"
            return {"gpu_instance_id": found, "mig_uuid": f"MIG-{uuid.uuid5(uuid.NAMESPACE_URL, name)}", "phy": False}
        elif act == "destroy_mig_instance":
            self._partitions.check_destroy(gpu_uuid, arguments["gpu_instance_id"])
        return {"phy": self._reaches_phy(gpu_uuid, act, arguments)}

    def _reaches_phy(self, gpu_uuid: str, act: str, arguments: Mapping[str, Any]) -> bool:
        """Whether the radio feels the act: all that is of the whole GPU on one that carries it, and the end of one of its instances."""
        parts = self._partitions.gpus[gpu_uuid].mig or ()
        gone = arguments["gpu_instance_id"] if act == "destroy_mig_instance" else None
        return any(part.purpose == "phy" and (gone is None or part.gpu_instance_id == gone) for part in parts)

    def play(self, record: Mapping[str, Any]) -> None:
        """The effect of a logged act; kinds that are not the driver's have none here."""
        gpu_uuid, arguments = record["gpu"], record["arguments"]
        match record["act"]:
            case "set_clock_range" | "reset_clock_range":
                self._set_lock(gpu_uuid, arguments.get("min_mhz", 0), arguments.get("max_mhz", math.inf))
            case "set_power_limit":
                self._physics.columns["gpu.limit_watts"][self._physics.row_of_gpu[gpu_uuid]] = arguments["limit_mw"] / 1000
            case "reset_power_limit":
                row = self._physics.row_of_gpu[gpu_uuid]
                self._physics.columns["gpu.limit_watts"][row] = self._physics.board_watts[row]
            case "set_mig_mode":
                self._partitions.set_mode(gpu_uuid, arguments["enabled"])
            case "create_mig_instance":
                part = SliceConfig(arguments["profile"], arguments["start"], record["gpu_instance_id"], mig_uuid=record["mig_uuid"])
                self._partitions.create(gpu_uuid, part)
            case "destroy_mig_instance":
                self._partitions.destroy(gpu_uuid, arguments["gpu_instance_id"])

    def forget(self, gpu_uuids: Iterable[str]) -> None:
        """The driver was loaded anew or the GPU reset: clock locks and power limits are gone."""
        for gpu_uuid in gpu_uuids:
            if gpu_uuid in self._physics.row_of_gpu:
                self._set_lock(gpu_uuid, 0, math.inf)
                row = self._physics.row_of_gpu[gpu_uuid]
                self._physics.columns["gpu.limit_watts"][row] = self._physics.board_watts[row]

    def _set_lock(self, gpu_uuid: str, low: float, high: float) -> None:
        """The driver keeps a lock within what the board can: asking for more than the maximum locks at the maximum."""
        row = self._physics.row_of_gpu[gpu_uuid]
        top = self._physics.max_mhz[row]
        self._physics.lock_low[row] = min(low, top)
        self._physics.lock_high[row] = high if math.isinf(high) else min(max(high, 210), top)

    def read_clocks(self, gpu_uuid: str) -> ClockReading:
        row = self._physics.row_of_gpu[gpu_uuid]
        columns = self._physics.columns
        reasons = int(columns["gpu.reasons"][row])
        return ClockReading(
            sm_mhz=int(columns["gpu.sm_mhz"][row]),
            max_sm_mhz=int(self._physics.max_mhz[row]),
            limited_by=tuple(name for bit, name in REASON_NAMES.items() if reasons & bit),
            persistence_mode=True,
        )

    def read_power(self, gpu_uuid: str) -> PowerReading:
        row = self._physics.row_of_gpu[gpu_uuid]
        board = boards.BOARDS[self._partitions.gpus[gpu_uuid].sku]
        top = round(board.limit_watts * 1000)
        limit = round(float(self._physics.columns["gpu.limit_watts"][row]) * 1000)
        return PowerReading(limit_mw=limit, min_mw=round(board.min_limit_watts * 1000), max_mw=top, default_mw=top, persistence_mode=True)

    def read_mig(self, gpu_uuid: str) -> MigReading:
        return self._partitions.read(gpu_uuid)
