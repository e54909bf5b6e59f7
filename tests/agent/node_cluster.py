"""A node's cluster in memory, for tests of what the agent does with it: pods with budgets, a cordon with its mark, every act in order."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from agent.backends.cluster import ClusterError, Cordon, Eviction, EvictionOutcome, Pod


def pod(name: str, *, namespace: str = "tenant-amber", uid: str = "", owner_kind: str = "ReplicaSet", phase: str = "Running", **more: object) -> Pod:
    return Pod(namespace=namespace, name=name, uid=uid or f"uid-{name}", phase=phase, owner_kind=owner_kind, **more)  # type: ignore[arg-type]


@dataclass
class NodeCluster:
    """`answers` are those to successive evictions of a pod by name, the last for ever; without any it is evicted. `lingers`: evicted, but not gone yet."""

    running: list[Pod] = field(default_factory=list)
    answers: dict[str, Sequence[Eviction]] = field(default_factory=dict)
    lingers: set[str] = field(default_factory=set)
    unschedulable: bool = False
    mark: str = ""
    error: ClusterError | None = None
    acts: list[tuple[str, str]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def cordon(self) -> Cordon:
        self._fail()
        return Cordon(self.unschedulable, self.mark if self.unschedulable else "", self.mark)

    def set_cordon(self, owner: str) -> Cordon:
        self._fail()
        if not self.unschedulable:
            self.unschedulable, self.mark = True, owner
            self.acts.append(("cordon", owner))
        return self.cordon()

    def clear_cordon(self, owner: str) -> Cordon:
        self._fail()
        if self.mark == owner:
            if self.unschedulable:
                self.acts.append(("uncordon", owner))
            self.unschedulable, self.mark = False, ""
        return self.cordon()

    def pods(self) -> tuple[Pod, ...]:
        self._fail()
        return tuple(self.running)

    def evict(self, pod: Pod, *, grace_seconds: int | None = None) -> Eviction:
        self._fail()
        self.asked.append(pod.name)
        live = next((found for found in self.running if found.uid == pod.uid), None)
        if live is None:
            return Eviction(EvictionOutcome.GONE)
        script = self.answers.get(pod.name, ())
        number = self.asked.count(pod.name) - 1
        answer = script[min(number, len(script) - 1)] if script else Eviction(EvictionOutcome.EVICTED)
        if answer.outcome is EvictionOutcome.EVICTED:
            self.acts.append(("evict", pod.name))
            self.running.remove(live)
            if pod.name in self.lingers:
                self.running.append(replace(live, is_terminating=True))
        elif answer.outcome is EvictionOutcome.GONE:
            self.running.remove(live)
        return answer

    def delete(self, pod: Pod, *, grace_seconds: int | None = None) -> None:
        self._fail()
        self.acts.append(("delete", pod.name))
        self.running = [found for found in self.running if found.uid != pod.uid]

    def close(self) -> None:
        self.acts.append(("close", ""))

    def admin_uncordons(self) -> None:
        """As `kubectl uncordon` does: it knows nothing of our mark."""
        self.unschedulable = False

    @property
    def evicted(self) -> list[str]:
        return [name for act, name in self.acts if act == "evict"]

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error
