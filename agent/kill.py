"""Kill switches on this node's pods: what runs on the AI placements within the switch's reach is deleted past all budgets, each cycle anew.

PHY is never stopped, nor what cannot be told apart from PHY. A kill counts as applied only when reading back shows that nothing of it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from agent.backends.cluster import Cluster, ClusterError, Pod
from agent.local.placement import Layout, Standing, is_over, standing
from agent.protocol import LocalRules, Switch, SwitchState
from agent.spool import Spool
from agent.store import Store
from agent.switches import Outcome

GRACE_SECONDS = 2
AGAIN_SECONDS = 10.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS kill_pod (switch TEXT NOT NULL, uid TEXT NOT NULL, since REAL NOT NULL, told_at REAL NOT NULL, PRIMARY KEY (switch, uid));
CREATE TABLE IF NOT EXISTS kill_count (switch TEXT PRIMARY KEY, stopped INTEGER NOT NULL);
"""


@dataclass(frozen=True)
class Stops:
    """`delete`: pods to delete. `held`: pods that the kill means and that cannot be stopped so, with the reason."""

    delete: tuple[Pod, ...] = ()
    held: dict[str, str] = field(default_factory=dict)


def what_stops(kill: Switch, pods: Iterable[Pod], *, layout: Layout | None, rules: LocalRules) -> Stops:
    """Pure. A kill of one tenant or one model means the pods that the document's workload rules give to it; one of all means all AI work."""
    delete: list[Pod] = []
    held: dict[str, str] = {}
    for pod in pods:
        if is_over(pod) or not _means(kill, pod, rules):
            continue
        found = standing(pod, layout, rules)
        if found is Standing.UNKNOWN:
            held[pod.uid] = f"{pod.namespace}/{pod.name} may be PHY: its device is not known"
        elif found is Standing.AI and pod.is_mirror:
            held[pod.uid] = f"{pod.namespace}/{pod.name} is a static pod of the node"
        elif found is Standing.AI:
            delete.append(pod)
    return Stops(tuple(delete), held)


def _means(kill: Switch, pod: Pod, rules: LocalRules) -> bool:
    if not kill.tenant and not kill.model:
        return True
    rule = rules.workload_rule(pod.namespace, pod.service_account)
    return rule is not None and kill.tenant in ("", rule.tenant) and (not kill.model or kill.model in rule.models)


def devices_unseen(pods: Iterable[Pod], rules: LocalRules) -> bool:
    """Whether pods of AI tenants run and not one pod of the node is said to hold a device: then what they hold is not known, rather than nothing."""
    found = [pod for pod in pods if not is_over(pod)]
    tenants = any(pod.phase == "Running" and rules.workload_rule(pod.namespace, pod.service_account) for pod in found)
    return tenants and not any(pod.gpus for pod in found)


class Killer:
    """Enforces active kills. One call at a time."""

    def __init__(self, *, cluster: Cluster | None, store: Store, spool: Spool) -> None:
        self._cluster = cluster
        self._store = store
        self._spool = spool
        store.create(_SCHEMA)

    def enforce(self, kills: tuple[Switch, ...], *, layout: Layout | None, rules: LocalRules | None, now: float) -> dict[str, Outcome]:
        """Delete, read back, count. Never raises ClusterError: what cannot be done or seen is pending."""
        self._forget_released(kills)
        if not kills:
            return {}
        if self._cluster is None:
            return self._pending(kills, "Admission is closed. This agent has no cluster whose pods it could stop.")
        if rules is None:
            return self._pending(kills, "Admission is closed. No document says what is PHY on this node.")
        try:
            pods = self._cluster.pods()
            stops = {kill.switch: what_stops(kill, pods, layout=layout, rules=rules) for kill in kills}
            trouble = self._delete(self._cluster, kills, stops, now)
            after = self._cluster.pods()
        except ClusterError as error:
            return self._pending(kills, f"Admission is closed. The pods cannot be seen: {error}")
        return {kill.switch: self._outcome(kill, stops[kill.switch], after, layout, rules, trouble, now) for kill in kills}

    def _delete(self, cluster: Cluster, kills: tuple[Switch, ...], stops: Mapping[str, Stops], now: float) -> str:
        """Tell each pod to stop, at most once in AGAIN_SECONDS. Returns the last trouble."""
        trouble, told, names = "", set[str](), list[str]()
        for kill in kills:
            known = dict(self._store.rows("SELECT uid, told_at FROM kill_pod WHERE switch = ?", (kill.switch,)))
            for pod in stops[kill.switch].delete:
                recent = pod.uid in known and 0 <= now - known[pod.uid] < AGAIN_SECONDS
                if not recent:
                    # Written first: a pod that is gone after a crash in between was ours to count.
                    self._store.write(
                        "INSERT INTO kill_pod VALUES (?, ?, ?, ?) ON CONFLICT (switch, uid) DO UPDATE SET told_at = excluded.told_at",
                        (kill.switch, pod.uid, now, now),
                    )
                if recent or pod.uid in told:
                    continue
                try:
                    cluster.delete(pod, grace_seconds=min(pod.grace_seconds, GRACE_SECONDS))
                except ClusterError as error:
                    trouble = f"{pod.namespace}/{pod.name}: {error}"
                    continue
                told.add(pod.uid)
                names.append(f"{pod.namespace}/{pod.name}")
        if names:
            shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            self._spool.add("kill", now, shown[:400], {"pods": len(names), "switches": ",".join(kill.switch for kill in kills)[:300]})
        return trouble

    def _outcome(self, kill: Switch, stops: Stops, after: tuple[Pod, ...], layout: Layout | None, rules: LocalRules, trouble: str, now: float) -> Outcome:
        present = {pod.uid for pod in after if not is_over(pod)}
        left = what_stops(kill, after, layout=layout, rules=rules)
        with self._store.transaction():
            for (uid,) in self._store.rows("SELECT uid FROM kill_pod WHERE switch = ?", (kill.switch,)):
                if uid not in present:
                    self._store.write("DELETE FROM kill_pod WHERE switch = ? AND uid = ?", (kill.switch, uid))
                    self._store.write("INSERT INTO kill_count VALUES (?, 1) ON CONFLICT (switch) DO UPDATE SET stopped = stopped + 1", (kill.switch,))
            since = dict(self._store.rows("SELECT uid, since FROM kill_pod WHERE switch = ?", (kill.switch,)))
        stopped = self._stopped(kill)
        if not stopped and devices_unseen(after, rules):
            return Outcome(SwitchState.PENDING, remaining=None, detail="Admission is closed. Which devices the pods hold is not known.")
        remaining = len(left.delete) + len(left.held)
        detail = trouble or next(iter(left.held.values()), "")
        settling = not trouble and not left.held and all(0 <= now - since.get(pod.uid, now) < AGAIN_SECONDS for pod in left.delete)
        return Outcome(
            state=SwitchState.PENDING if remaining else SwitchState.APPLIED,
            stopped=stopped,
            remaining=remaining,
            detail=detail[:300],
            settling=settling,
        )

    def _pending(self, kills: tuple[Switch, ...], detail: str) -> dict[str, Outcome]:
        return {kill.switch: Outcome(SwitchState.PENDING, stopped=self._stopped(kill), remaining=None, detail=detail[:300]) for kill in kills}

    def _stopped(self, kill: Switch) -> int:
        return int(self._store.value("SELECT stopped FROM kill_count WHERE switch = ?", (kill.switch,)) or 0)

    def _forget_released(self, kills: tuple[Switch, ...]) -> None:
        active = {kill.switch for kill in kills}
        for (name,) in self._store.rows("SELECT switch FROM kill_pod UNION SELECT switch FROM kill_count"):
            if name not in active:
                self._store.write("DELETE FROM kill_pod WHERE switch = ?", (name,))
                self._store.write("DELETE FROM kill_count WHERE switch = ?", (name,))
