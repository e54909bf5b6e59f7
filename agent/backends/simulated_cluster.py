"""Kubernetes that the simulator plays for one node, asked over loopback HTTP.

Options: `url` of the simulator's control address, `node` (host name).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from agent.backends.base import ErrorCode
from agent.backends.cluster import ClusterError, ClusterErrorCode, Cordon, Eviction, EvictionOutcome, Pod
from agent.backends.simulator_wire import SimulatorUnavailable, SimulatorWire

_CODES = {ErrorCode.NOT_PRESENT.value: ClusterErrorCode.NOT_FOUND, ErrorCode.INVALID.value: ClusterErrorCode.INVALID}


class SimulatedCluster:
    def __init__(self, url: str, node: str) -> None:
        try:
            self._wire = SimulatorWire(url, node)
        except ValueError as error:
            raise ClusterError(ClusterErrorCode.INVALID, f"cluster.url: {error}") from error

    def cordon(self) -> Cordon:
        return Cordon(**self._ask("GET", "/cordon"))

    def set_cordon(self, owner: str) -> Cordon:
        return Cordon(**self._ask("PUT", "/cordon", {"owner": owner}))

    def clear_cordon(self, owner: str) -> Cordon:
        return Cordon(**self._ask("DELETE", f"/cordon?owner={quote(owner, safe='')}"))

    def pods(self) -> tuple[Pod, ...]:
        return tuple(Pod(**{**found, "gpus": tuple(found["gpus"])}) for found in self._ask("GET", "/pods")["pods"])

    def evict(self, pod: Pod, *, grace_seconds: int | None = None) -> Eviction:
        status, answer = self._exchange("POST", "/evictions", _of(pod, grace_seconds))
        if status == 429:
            return Eviction(EvictionOutcome.BUDGET, str(answer["error"]))
        if answer.get("code") == ErrorCode.NOT_PRESENT:
            return Eviction(EvictionOutcome.GONE)
        _check(status, answer)
        return Eviction(EvictionOutcome.EVICTED)

    def delete(self, pod: Pod, *, grace_seconds: int | None = None) -> None:
        status, answer = self._exchange("POST", "/deletions", _of(pod, grace_seconds))
        if answer.get("code") != ErrorCode.NOT_PRESENT:
            _check(status, answer)

    def close(self) -> None:
        self._wire.close()

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        status, answer = self._exchange(method, path, body)
        _check(status, answer)
        return answer

    def _exchange(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        try:
            return self._wire.ask(method, path, body)
        except SimulatorUnavailable as error:
            raise ClusterError(ClusterErrorCode.UNAVAILABLE, str(error)) from error


def _of(pod: Pod, grace_seconds: int | None) -> dict[str, Any]:
    return {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid, "grace_seconds": grace_seconds}


def _check(status: int, answer: Mapping[str, Any]) -> None:
    if status != 200:
        raise ClusterError(_CODES.get(str(answer.get("code")), ClusterErrorCode.UNAVAILABLE), str(answer.get("error", f"HTTP {status}")))


def open_cluster(options: dict[str, str]) -> SimulatedCluster:
    """Raises ClusterError when an option is missing or unknown."""
    if set(options) != {"url", "node"}:
        raise ClusterError(ClusterErrorCode.INVALID, "cluster: the simulated cluster takes exactly the options url and node")
    return SimulatedCluster(options["url"], options["node"])
