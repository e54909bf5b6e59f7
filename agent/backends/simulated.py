"""Hardware that `python -m agent.simulator hardware` plays, asked over loopback HTTP. For the demo, tests and drills.

Options: `url` of the simulator's control address, `node` (host name).
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from agent.backends.base import BackendError, ClockReading, ErrorCode, MigProfile, MigReading, PowerReading
from agent.backends.simulator_wire import SimulatorUnavailable, SimulatorWire
from agent.protocol import HealthReport, InventoryReport, NodeFacts, SliceFacts
from agent.protocol.wire import ProtocolError, Reader


class SimulatedBackend:
    """Keeps one connection. Like a real node, it goes on telling its boot id when the rest cannot be asked."""

    def __init__(self, url: str, node: str) -> None:
        try:
            self._wire = SimulatorWire(url, node)
        except ValueError as error:
            raise BackendError(ErrorCode.INVALID, f"backend.url: {error}") from error
        self._boot_id = ""

    def boot_id(self) -> str:
        try:
            self._boot_id = str(self._ask("GET", "/boot")["boot_id"])
        except BackendError as error:
            if error.code is not ErrorCode.UNAVAILABLE or not self._boot_id:
                raise
        return self._boot_id

    def inventory(self, now: float) -> InventoryReport:
        try:
            return InventoryReport.parse(_reader(self._ask("GET", "/inventory"), now))
        except (BackendError, ProtocolError):
            return InventoryReport(at=now, node=NodeFacts(), gpus=(), complete=False, gpu_count=None)

    def health(self, now: float) -> HealthReport:
        try:
            return HealthReport.parse(_reader(self._ask("GET", "/health"), now))
        except (BackendError, ProtocolError) as error:
            return HealthReport(at=now, gpus=(), driver_error=str(error)[:300])

    def set_clock_range(self, gpu_uuid: str, min_mhz: int, max_mhz: int) -> None:
        self._ask("PUT", _of(gpu_uuid, "clocks"), {"min_mhz": min_mhz, "max_mhz": max_mhz})

    def reset_clock_range(self, gpu_uuid: str) -> None:
        self._ask("DELETE", _of(gpu_uuid, "clocks"))

    def read_clocks(self, gpu_uuid: str) -> ClockReading:
        answer = self._ask("GET", _of(gpu_uuid, "clocks"))
        return ClockReading(
            sm_mhz=answer["sm_mhz"],
            max_sm_mhz=answer["max_sm_mhz"],
            limited_by=tuple(answer["limited_by"]),
            persistence_mode=answer["persistence_mode"],
        )

    def set_power_limit(self, gpu_uuid: str, milliwatts: int) -> None:
        self._ask("PUT", _of(gpu_uuid, "power"), {"limit_mw": milliwatts})

    def reset_power_limit(self, gpu_uuid: str) -> None:
        self._ask("DELETE", _of(gpu_uuid, "power"))

    def read_power(self, gpu_uuid: str) -> PowerReading:
        return PowerReading(**self._ask("GET", _of(gpu_uuid, "power")))

    def read_mig(self, gpu_uuid: str) -> MigReading:
        answer = self._ask("GET", _of(gpu_uuid, "mig"))
        return MigReading(
            enabled=answer["enabled"],
            pending=answer["pending"],
            pci_bus_id=answer["pci_bus_id"],
            instances=tuple(SliceFacts(**instance) for instance in answer["instances"]),
            profiles=tuple(MigProfile(**{**profile, "starts": tuple(profile["starts"])}) for profile in answer["profiles"]),
            clients={int(instance): count for instance, count in answer["clients"].items()},
        )

    def set_mig_mode(self, gpu_uuid: str, enabled: bool) -> None:
        self._ask("PUT", _of(gpu_uuid, "mig"), {"enabled": enabled})

    def create_mig_instance(self, gpu_uuid: str, profile: str, start: int) -> int:
        return int(self._ask("POST", _of(gpu_uuid, "mig/instances"), {"profile": profile, "start": start})["gpu_instance_id"])

    def destroy_mig_instance(self, gpu_uuid: str, gpu_instance_id: int) -> None:
        self._ask("DELETE", _of(gpu_uuid, f"mig/instances/{gpu_instance_id}"))

    def reset_gpu(self, gpu_uuid: str) -> None:
        self._ask("POST", _of(gpu_uuid, "reset"), once=True)

    def reset_evidence(self, gpu_uuid: str) -> str:
        return str(self._ask("GET", _of(gpu_uuid, "reset"))["evidence"])

    def reboot(self) -> None:
        self._ask("POST", "/reboot", once=True)

    def close(self) -> None:
        self._wire.close()

    def _ask(self, method: str, path: str, body: dict[str, int | str] | None = None, *, once: bool = False) -> dict[str, Any]:
        """The answer's object. Raises BackendError with the hardware's own code. `once`: never asked for a second time."""
        try:
            status, answer = self._wire.ask(method, path, body, once=once)
        except SimulatorUnavailable as error:
            raise BackendError(ErrorCode.UNAVAILABLE, str(error)) from error
        if status != 200:
            code = answer.get("code", "")
            raise BackendError(ErrorCode(code) if code in list(ErrorCode) else ErrorCode.UNAVAILABLE, str(answer.get("error", f"HTTP {status}")))
        return answer


def _of(gpu_uuid: str, what: str) -> str:
    return f"/gpus/{quote(gpu_uuid, safe='')}/{what}"


def _reader(answer: dict[str, Any], now: float) -> Reader:
    return Reader({name: value for name, value in answer.items() if name != "type"} | {"at": now})


def open_backend(options: dict[str, str]) -> SimulatedBackend:
    """Raises `BackendError` when an option is missing or unknown."""
    if set(options) != {"url", "node"}:
        raise BackendError(ErrorCode.INVALID, "backend: the simulated backend takes exactly the options url and node")
    return SimulatedBackend(options["url"], options["node"])
