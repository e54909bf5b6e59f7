"""Each cycle, connected or not: reservations and claims of the signed document, held against the pods that run on this node.

Only pods on AI placements are ever touched. The agent decides nothing about what it cannot see.
"""

from __future__ import annotations

from agent.backends.cluster import Cluster, Pod
from agent.local.allocation import Holder, Waiting, gives_way
from agent.local.evictions import Evictions
from agent.local.notices import Notices
from agent.local.placement import Layout, Standing, holders, is_over, standing
from agent.local.reservations import Step, Verdict, eats_margin, fits, memory_verdict, next_step
from agent.local.usage import Usage
from agent.protocol import LocalRules
from agent.spool import Detail, Spool
from agent.store import Store

WAIT_SECONDS = 20.0
_SCHEMA = "CREATE TABLE IF NOT EXISTS over (uid TEXT NOT NULL, device TEXT NOT NULL, since REAL NOT NULL, PRIMARY KEY (uid, device));"


class Enforcer:
    """One call at a time."""

    def __init__(self, *, store: Store, spool: Spool, notices: Notices) -> None:
        self._store = store
        self._spool = spool
        self._notices = notices
        self._evictions = Evictions(store=store, spool=spool, notices=notices)
        self._waiting_since: dict[str, float] = {}
        store.create(_SCHEMA)

    def cycle(
        self, cluster: Cluster, pods: tuple[Pod, ...], *, layout: Layout, usage: Usage | None, rules: LocalRules, allowed: bool, now: float
    ) -> float | None:
        """Returns when (Unix seconds) the next grace ends. `allowed` False: automation is off, so that it only warns. Raises no ClusterError."""
        ai = [pod for pod in pods if not is_over(pod) and standing(pod, layout, rules) is Standing.AI]
        expiry = self._reservations(cluster, pods, ai, layout=layout, usage=usage, rules=rules, allowed=allowed, now=now)
        self._margins(pods, layout=layout, usage=usage, rules=rules, now=now)
        self._claims(cluster, pods, ai, layout=layout, rules=rules, allowed=allowed, now=now)
        return expiry

    # Reservations.

    def _reservations(
        self,
        cluster: Cluster,
        pods: tuple[Pod, ...],
        ai: list[Pod],
        *,
        layout: Layout,
        usage: Usage | None,
        rules: LocalRules,
        allowed: bool,
        now: float,
    ) -> float | None:
        held = holders(pods)
        known = {(uid, device): since for uid, device, since in self._store.rows("SELECT uid, device, since FROM over")}
        expiries: list[float] = []
        still: set[tuple[str, str]] = set()
        for pod in ai:
            rule = rules.workload_rule(pod.namespace, pod.service_account)
            if rule is None or rule.memory_bytes is None or pod.is_terminating:
                continue
            for uuid in pod.gpus:
                device = layout.devices.get(uuid)
                # Of a device that several pods share nobody can say who uses how much.
                used = usage.of(device).used_bytes if usage is not None and device is not None and len(held[uuid]) == 1 else None
                verdict = memory_verdict(used, rule.memory_bytes, over_ratio=rules.over_ratio)
                found = next_step(verdict, known.get((pod.uid, uuid)), grace_seconds=rule.grace_seconds, now=now)
                if found.since is not None:
                    still.add((pod.uid, uuid))
                    expiries.append(found.since + rule.grace_seconds)
                    self._store.write("INSERT OR REPLACE INTO over VALUES (?, ?, ?)", (pod.uid, uuid, found.since))
                detail = {"device": uuid, "used_bytes": used, "reserved_bytes": rule.memory_bytes, "grace_seconds": rule.grace_seconds}
                if found.step is Step.WARN:
                    self._spool.add("reservation_exceeded", now, f"{pod.namespace}/{pod.name}", {**detail, "tenant": rule.tenant})
                elif found.step is Step.EVICT:
                    reason = {**detail, "reason": "reservation", "tenant": rule.tenant}
                    if self._evictions.evict(cluster, pod, reason, limit=rules.evictions_per_hour, allowed=allowed, now=now):
                        still.discard((pod.uid, uuid))
                        break
                elif verdict is Verdict.UNKNOWN:
                    self._notices.warn("reservation_unknown", f"{pod.namespace}/{pod.name}", {"device": uuid, "tenant": rule.tenant}, now)
        for uid, uuid in known.keys() - still:
            self._store.write("DELETE FROM over WHERE uid = ? AND device = ?", (uid, uuid))
        return min((at for at in expiries if at > now), default=None)

    def _margins(self, pods: tuple[Pod, ...], *, layout: Layout, usage: Usage | None, rules: LocalRules, now: float) -> None:
        """Warn where reservations do not fit beside the system's margin, and where a whole GPU's margin is being used."""
        reserved: dict[str, list[int]] = {}
        totals: dict[str, float | None] = {}
        for uuid, found in holders(pods).items():
            device = layout.devices.get(uuid)
            if device is None or layout.is_protected(uuid) is not False:
                continue
            for pod in found:
                rule = rules.workload_rule(pod.namespace, pod.service_account)
                if rule is not None and rule.memory_bytes is not None:
                    reserved.setdefault(device.gpu_uuid, []).append(rule.memory_bytes)
        for gpu_uuid in reserved:
            sizes = [usage.of(device).total_bytes if usage else None for device in layout.devices.values() if device.gpu_uuid == gpu_uuid]
            totals[gpu_uuid] = None if not sizes or None in sizes else sum(size for size in sizes if size is not None)
            if fits(reserved[gpu_uuid], totals[gpu_uuid], margin_bytes=rules.margin_bytes) is False:
                detail = {"reserved_bytes": sum(reserved[gpu_uuid]), "total_bytes": totals[gpu_uuid], "margin_bytes": rules.margin_bytes}
                self._notices.warn("reservations_do_not_fit", gpu_uuid, detail, now)
        for device in layout.devices.values():
            if device.slice is None and usage is not None and not layout.carries_phy(device.gpu_uuid):
                reading = usage.of(device)
                if eats_margin(reading.used_bytes, reading.total_bytes, margin_bytes=rules.margin_bytes):
                    detail = {"used_bytes": reading.used_bytes, "total_bytes": reading.total_bytes, "margin_bytes": rules.margin_bytes}
                    self._notices.warn("margin_used", device.gpu_uuid, detail, now)

    # Claims on slices.

    def _claims(self, cluster: Cluster, pods: tuple[Pod, ...], ai: list[Pod], *, layout: Layout, rules: LocalRules, allowed: bool, now: float) -> None:
        """A pod waits when it is pending without a device for longer than a start takes, and its claim has slices left."""
        pending = {pod.uid: pod for pod in pods if pod.phase == "Pending" and not pod.gpus and not pod.is_terminating}
        self._waiting_since = {uid: self._waiting_since.get(uid, now) for uid in pending}
        if not layout.complete:
            return  # What is free is not known.
        left: dict[tuple[str, str], int] = {}
        for rule in rules.workloads:
            left[(rule.namespace, rule.service_account)] = rule.slices
        priorities: dict[str, int] = {}
        for pod in ai:
            found = rules.workload_rule(pod.namespace, pod.service_account)
            priorities[pod.uid] = found.priority if found else 0
            if found is not None:
                left[(found.namespace, found.service_account)] -= len(pod.gpus)
        waiting: list[Waiting] = []
        for pod in sorted(pending.values(), key=lambda pod: (self._waiting_since[pod.uid], pod.uid)):
            found = rules.workload_rule(pod.namespace, pod.service_account)
            if found is None or rules.is_operators(pod.namespace, pod.service_account):
                continue
            key = (found.namespace, found.service_account)
            if left[key] > 0 and now - self._waiting_since[pod.uid] >= WAIT_SECONDS:
                left[key] -= 1
                waiting.append(Waiting(pod.uid, found.priority, self._waiting_since[pod.uid]))
        if not waiting:
            return
        held = holders(pods)
        free = sum(1 for uuid in layout.ai_devices() if uuid not in held)
        candidates = [Holder(pod.uid, priorities[pod.uid], pod.started_at, len(pod.gpus), pod.is_terminating) for pod in ai if not pod.is_mirror]
        by_uid = {pod.uid: pod for pod in ai}
        for holder in gives_way(waiting, candidates, free=free, evicts_above=rules.evicts_above):
            reason: Detail = {"reason": "priority", "priority": holder.priority, "waiting_priority": max(wait.priority for wait in waiting)}
            self._evictions.evict(cluster, by_uid[holder.uid], reason, limit=rules.evictions_per_hour, allowed=allowed, now=now)
