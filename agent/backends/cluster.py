"""What the agent asks of Kubernetes on its own node. `kubernetes.py` is the real one, `simulated_cluster.py` speaks to the simulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class ClusterErrorCode(StrEnum):
    UNAVAILABLE = "unavailable"  # no API server now: try again later
    NOT_PERMITTED = "not_permitted"
    NOT_FOUND = "not_found"
    INVALID = "invalid_argument"
    CONFLICT = "conflict"  # another one has that name now (UID precondition), or an update raced ours


class ClusterError(Exception):
    """The API server said no, or could not be asked. `code` decides what the agent does, the text is for people."""

    def __init__(self, code: ClusterErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Pod:
    """One pod on this node. Identity is the UID: a name may be another pod's a moment later.

    `owner_kind` "": no controller, it would not come back. `gpus`: UUIDs and MIG UUIDs that its containers hold, where known.
    """

    namespace: str
    name: str
    uid: str
    phase: str  # Pending, Running, Succeeded, Failed, Unknown
    service_account: str = ""
    owner_kind: str = ""
    priority: int = 0
    is_mirror: bool = False
    is_terminating: bool = False
    has_local_data: bool = False  # an emptyDir that would be lost
    grace_seconds: int = 30
    labels: dict[str, str] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    started_at: float = 0.0  # Unix seconds


class EvictionOutcome(StrEnum):
    EVICTED = "evicted"  # accepted; the pod is gone only when its UID is
    GONE = "gone"  # not there, or its name is another pod's
    BUDGET = "budget"  # a disruption budget forbids it now: `detail` names the budget
    THROTTLED = "throttled"  # the API server asks to wait `retry_after_seconds`
    MISCONFIGURED = "misconfigured"  # more than one budget matches: no retry helps


@dataclass(frozen=True)
class Eviction:
    outcome: EvictionOutcome
    detail: str = ""
    retry_after_seconds: float = 0.0


@dataclass(frozen=True)
class Cordon:
    """Whether the node takes no new pods, and who said so: our record's owner ("" when it was not us).

    `mark` is what is written on the node whether or not it still holds: ours on a node that takes pods means that somebody uncordoned it.
    """

    unschedulable: bool
    owner: str = ""
    mark: str = ""


class Cluster(Protocol):
    """All calls block. They raise ClusterError. Only this agent's node is ever touched."""

    def cordon(self) -> Cordon: ...

    def set_cordon(self, owner: str) -> Cordon:
        """Cordon in the name of `owner`, which is written on the node. Where somebody else's cordon stands it stays theirs; returns what holds then."""

    def clear_cordon(self, owner: str) -> Cordon:
        """Uncordon only if the cordon is `owner`'s and nobody took it over since; returns what holds then."""

    def pods(self) -> tuple[Pod, ...]: ...

    def evict(self, pod: Pod, *, grace_seconds: int | None = None) -> Eviction:
        """Through the Eviction API, with the UID as precondition."""

    def delete(self, pod: Pod, *, grace_seconds: int | None = None) -> None:
        """Past all budgets, with the UID as precondition: for kill switches only. A pod that is gone already is no error."""

    def close(self) -> None: ...


# What a cluster file in this package offers as `open_cluster`: the `[cluster]` table of the agent's configuration in, a cluster out.
OpenCluster = Callable[[dict[str, str]], Cluster]
