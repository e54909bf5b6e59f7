"""The simulated nodes' Kubernetes: pods made of the workloads, cordons with their owner, disruption budgets; what is evicted ends and comes back.

A controller brings a pod back on its node under its old name and a new UID, some seconds after it ended, unless the node is cordoned or its place is
taken. Acts and returns are in the act log; a restarted process takes everything up from there.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agent.backends.base import ErrorCode
from agent.backends.cluster import Cordon, Pod
from agent.simulator.act_log import ActLog
from agent.simulator.config import GpuConfig, NodeConfig, SimulatorConfig, WorkloadConfig
from agent.simulator.partitions import HardwareError, Partitions

END_SECONDS = 2.0
RETURN_SECONDS = 8.0
PHY_PRIORITY = 1_000_000
DAEMON_NAMESPACE, MIRROR_NAMESPACE = "gpu-mon", "kube-system"


@dataclass(frozen=True)
class Place:
    """What a pod's container holds: a GPU (`instance` None), or one instance of it as long as it is this profile."""

    gpu_uuid: str
    instance: int | None
    profile: str
    workload: WorkloadConfig


@dataclass
class SimulatedPod:
    """`number` counts how often it came back: it makes the UID. `ends_at`: it is ending until then; `away_since`: it is not there. Unix seconds."""

    host: str
    namespace: str
    name: str
    owner_kind: str
    priority: int
    service_account: str
    places: tuple[Place, ...] = ()
    phy: bool = False
    mirror: bool = False
    number: int = 0
    started_at: float = 0.0
    ends_at: float | None = None
    away_since: float | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.host, self.namespace, self.name)


@dataclass(frozen=True)
class Budget:
    """At most `allowed` pods of the namespace may be away or ending on the node; beyond that evictions are refused in its name."""

    name: str
    allowed: int


@dataclass
class NodeCordon:
    """`holder` said so ("" a person); `mark` is what is written on the node."""

    unschedulable: bool = False
    holder: str = ""
    mark: str = ""

    def view(self) -> Cordon:
        ours = self.unschedulable and self.holder == self.mark
        return Cordon(unschedulable=self.unschedulable, owner=self.mark if ours else "", mark=self.mark)


class BudgetError(Exception):
    """The eviction is forbidden by the budget with this name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass
class Cluster:
    config: SimulatorConfig
    log: ActLog
    partitions: Partitions
    _pods: dict[tuple[str, str, str], SimulatedPod] = field(default_factory=dict)
    _by_host: dict[str, list[SimulatedPod]] = field(default_factory=dict)
    _cordons: dict[str, NodeCordon] = field(default_factory=dict)
    _budgets: dict[tuple[str, str], Budget] = field(default_factory=dict)
    _moving: set[tuple[str, str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        for node in self.config.nodes:
            self._by_host[node.host_name] = list(_pods_of(node))
            self._pods.update((pod.key, pod) for pod in self._by_host[node.host_name])

    # What is asked of the API server. Nodes that do not exist are the caller's to refuse.

    def cordon(self, host: str) -> Cordon:
        return self._cordon(host).view()

    def set_cordon(self, host: str, owner: str, now: float) -> Cordon:
        """`owner` "" is a person: their cordon leaves the node's mark as it is."""
        if not self._cordon(host).unschedulable:
            self._act(now, host, "cordon", {"owner": owner})
        return self.cordon(host)

    def clear_cordon(self, host: str, owner: str, now: float) -> Cordon:
        """`owner` "" is a person: they lift any cordon, and know nothing of the mark."""
        found = self._cordon(host)
        if (owner == "" and found.unschedulable) or (owner and found.mark == owner):
            self._act(now, host, "uncordon", {"owner": owner})
        return self.cordon(host)

    def pods(self, host: str) -> tuple[Pod, ...]:
        return tuple(self._view(pod) for pod in self._by_host.get(host, ()) if pod.away_since is None)

    def evict(self, host: str, namespace: str, name: str, uid: str, grace_seconds: int | None, now: float) -> None:
        """Raises HardwareError NOT_PRESENT when the pod of this UID is not there, BudgetError when a budget forbids it."""
        pod = self._find(host, namespace, name, uid)
        budget = self._budgets.get((host, namespace))
        arguments = self._arguments(pod, grace_seconds)
        if budget is not None and pod.ends_at is None:
            away = sum(1 for other in self._by_host[host] if other.namespace == namespace and (other.ends_at, other.away_since) != (None, None))
            if away >= budget.allowed:
                self.log.append("act", now, node=host, gpu="", act="evict", arguments=arguments, phy=pod.phy, result=f"budget {budget.name}")
                raise BudgetError(budget.name)
        self._act(now, host, "evict", arguments, phy=pod.phy)

    def delete(self, host: str, namespace: str, name: str, uid: str, grace_seconds: int | None, now: float) -> None:
        """As `evict`, past all budgets."""
        pod = self._find(host, namespace, name, uid)
        self._act(now, host, "delete", self._arguments(pod, grace_seconds), phy=pod.phy)

    def set_budget(self, host: str, namespace: str, budget: Budget | None, now: float) -> None:
        values = {"name": budget.name, "allowed": budget.allowed} if budget else None
        self.play(self.log.append("budget", now, node=host, namespace=namespace, budget=values))

    # Time and records.

    def settle(self, now: float, down: set[str]) -> bool:
        """Ends what is ending and brings back what is due, on nodes that are not `down`. True when workloads changed."""
        changed = False
        for key in sorted(self._moving):
            pod = self._pods[key]
            if pod.ends_at is not None and pod.ends_at <= now:
                pod.away_since, pod.ends_at = pod.ends_at, None
                self._occupy(pod, leave=True)
                changed = True
            if pod.away_since is None or pod.host in down or now < pod.away_since + RETURN_SECONDS:
                continue
            if pod.owner_kind and not self._cordon(pod.host).unschedulable and all(self._is_free(place) for place in pod.places):
                self.play(self.log.append("pod", now, node=pod.host, namespace=pod.namespace, pod=pod.name, number=pod.number + 1))
                changed = True
        return changed

    def play(self, record: Mapping[str, Any]) -> None:
        """The effect of a record, when it happens and when the act log is read again."""
        if record["kind"] == "pod":
            if (pod := self._pods.get((record["node"], record["namespace"], record["pod"]))) is not None:
                pod.number, pod.started_at, pod.ends_at, pod.away_since = record["number"], record["at"], None, None
                self._moving.discard(pod.key)
                self._occupy(pod, leave=False)
        elif record["kind"] == "budget":
            key = (record["node"], record["namespace"])
            self._budgets.pop(key, None)
            if record["budget"] is not None:
                self._budgets[key] = Budget(**record["budget"])
        elif record["kind"] == "act" and record["result"] == "ok":
            self._play_act(record)

    def _play_act(self, record: Mapping[str, Any]) -> None:
        arguments = record["arguments"]
        if record["act"] == "cordon":
            found = self._cordon(record["node"])
            found.unschedulable, found.holder = True, arguments["owner"]
            found.mark = arguments["owner"] or found.mark
        elif record["act"] == "uncordon":
            found = self._cordon(record["node"])
            if arguments["owner"] == "" or found.holder == arguments["owner"]:
                found.unschedulable, found.holder = False, ""
            if arguments["owner"]:
                found.mark = ""
        elif record["act"] in ("evict", "delete"):
            pod = self._pods.get((record["node"], arguments["namespace"], arguments["pod"]))
            if pod is not None and pod.ends_at is None and pod.away_since is None:
                pod.ends_at = record["at"] + END_SECONDS
                self._moving.add(pod.key)

    def boot(self, host: str, at: float) -> None:
        """The node booted, or one of its GPUs was reset: pods go on where their places still are, what was ending has ended."""
        for pod in self._by_host.get(host, ()):
            if pod.ends_at is not None:
                pod.away_since, pod.ends_at = at, None
            elif pod.away_since is None and not all(self._is_there(place) for place in pod.places):
                pod.away_since = at
                self._moving.add(pod.key)
            if pod.away_since is not None:
                self._occupy(pod, leave=True)

    def holds(self, host: str, gpu_uuid: str) -> bool:
        """Whether a pod that runs holds this GPU or a slice of it."""
        return any(place.gpu_uuid == gpu_uuid for pod in self._by_host.get(host, ()) if pod.away_since is None for place in pod.places)

    # Inside.

    def _cordon(self, host: str) -> NodeCordon:
        return self._cordons.setdefault(host, NodeCordon())

    def _act(self, now: float, host: str, act: str, arguments: dict[str, Any], **more: Any) -> None:
        self.play(self.log.append("act", now, node=host, gpu="", act=act, arguments=arguments, **more, result="ok"))

    def _find(self, host: str, namespace: str, name: str, uid: str) -> SimulatedPod:
        pod = self._pods.get((host, namespace, name))
        if pod is None or pod.away_since is not None or self._uid(pod) != uid:
            raise HardwareError(ErrorCode.NOT_PRESENT, f"pod: {namespace}/{name} with this UID is not on node {host}")
        return pod

    def _arguments(self, pod: SimulatedPod, grace_seconds: int | None) -> dict[str, Any]:
        return {"namespace": pod.namespace, "pod": pod.name, "uid": self._uid(pod), "grace_seconds": grace_seconds}

    def _uid(self, pod: SimulatedPod) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{self.config.seed}/{pod.host}/{pod.namespace}/{pod.name}/{pod.number}"))

    def _view(self, pod: SimulatedPod) -> Pod:
        return Pod(
            namespace=pod.namespace,
            name=pod.name,
            uid=self._uid(pod),
            phase="Running",
            service_account=pod.service_account,
            owner_kind=pod.owner_kind,
            priority=pod.priority,
            is_mirror=pod.mirror,
            is_terminating=pod.ends_at is not None,
            labels={"app": pod.name.split("-")[0]},
            gpus=tuple(uuid for place in pod.places if (uuid := self._device(place))),
            started_at=pod.started_at,
        )

    def _device(self, place: Place) -> str:
        if place.instance is None:
            return place.gpu_uuid
        part = _part(self.partitions.gpus[place.gpu_uuid], place)
        return part.mig_uuid if part else ""

    def _is_there(self, place: Place) -> bool:
        gpu = self.partitions.gpus[place.gpu_uuid]
        return gpu.mig is None if place.instance is None else _part(gpu, place) is not None

    def _is_free(self, place: Place) -> bool:
        gpu = self.partitions.gpus[place.gpu_uuid]
        if place.instance is None:
            return gpu.mig is None and gpu.workload is None
        part = _part(gpu, place)
        return part is not None and part.workload is None

    def _occupy(self, pod: SimulatedPod, *, leave: bool) -> None:
        for place in pod.places:
            if self._is_there(place):
                self.partitions.set_workload(place.gpu_uuid, place.instance, None if leave else place.workload)


def _part(gpu: GpuConfig, place: Place) -> Any:
    return next((part for part in gpu.mig or () if part.gpu_instance_id == place.instance and part.profile == place.profile), None)


def _pods_of(node: NodeConfig) -> Iterator[SimulatedPod]:
    """One pod for each workload by its name, and those of the system: a DaemonSet's and a mirror pod."""
    found: dict[tuple[str, str], SimulatedPod] = {}
    for place, phy in _places(node):
        namespace, name = place.workload.namespace, place.workload.pod
        known = found.get((namespace, name))
        if known is not None:
            found[(namespace, name)] = replace(known, places=(*known.places, place), phy=known.phy or phy)
            continue
        owner = "StatefulSet" if phy else "ReplicaSet"
        priority = PHY_PRIORITY if phy else sum(name.encode()) % 10 * 100
        found[(namespace, name)] = SimulatedPod(node.host_name, namespace, name, owner, priority, "l1" if phy else "default", (place,), phy)
    yield from found.values()
    yield SimulatedPod(node.host_name, DAEMON_NAMESPACE, f"dcgm-exporter-{node.host_name}", "DaemonSet", 0, "dcgm-exporter")
    yield SimulatedPod(node.host_name, MIRROR_NAMESPACE, f"kube-proxy-{node.host_name}", "Node", 2_000_001_000, "default", mirror=True)


def _places(node: NodeConfig) -> Iterable[tuple[Place, bool]]:
    for gpu in node.gpus:
        if gpu.workload is not None and gpu.mig is None:
            yield Place(gpu.uuid, None, "", gpu.workload), False
        for part in gpu.mig or ():
            if part.workload is not None:
                yield Place(gpu.uuid, part.gpu_instance_id, part.profile, part.workload), part.purpose == "phy"
