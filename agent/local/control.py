"""Everything that the agent does on its own, in its order: switches, admission closed, kills, then reservations, claims, power, metering."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from agent.admission import Gate
from agent.backends.base import Backend
from agent.backends.cluster import Cluster, ClusterError, Pod
from agent.door import Door
from agent.kill import Killer
from agent.local.enforce import Enforcer
from agent.local.metering import Look, metered
from agent.local.notices import Notices
from agent.local.placement import Layout, Standing, holders, standing
from agent.local.power_keeper import PowerKeeper
from agent.local.usage import UsageReader
from agent.protocol import DesiredState, LocalEvent, SignedSwitch, Switch, SwitchKind, SwitchState, SwitchUpdate
from agent.spool import Spool
from agent.store import Store
from agent.switches import Switches

CYCLE_SECONDS = 10.0
READ_BACK_SECONDS = 0.5


@dataclass(frozen=True)
class LocalRound:
    """What to tell, and when (Unix seconds) the next call is due at the latest."""

    updates: tuple[SwitchUpdate, ...]
    events: tuple[LocalEvent, ...]
    due_at: float


class LocalControl:
    """Blocks. `accept`, `step` and `cycle` may run beside each other, each once at a time, so that a slow cycle delays no kill. `cluster` and `usage` None: this agent cannot see pods, or what they use."""

    def __init__(
        self,
        *,
        store: Store,
        node_id: int,
        trusted_keys: tuple[bytes, ...],
        backend: Backend,
        cluster: Cluster | None = None,
        usage: UsageReader | None = None,
        door: Door | None = None,
        cycle_seconds: float = CYCLE_SECONDS,
    ) -> None:
        self._store = store
        self._backend = backend
        self._cluster = cluster
        self._usage = usage
        self.door = door
        self._cycle_seconds = cycle_seconds
        self.spool = Spool(store)
        self._switches = Switches(store, node_id=node_id, trusted_keys=trusted_keys)
        self._killer = Killer(cluster=cluster, store=store, spool=self.spool)
        notices = Notices(self.spool)
        self._enforcer = Enforcer(store=store, spool=self.spool, notices=notices)
        self._power = PowerKeeper(backend=backend, store=store, spool=self.spool, notices=notices)
        self._gate_lock = threading.Lock()
        self._refusals: deque[SwitchUpdate] = deque(maxlen=1000)
        self._before: Look | None = None

    def begin(self, desired: DesiredState | None, now: float) -> None:
        """At the agent's start, before the door opens: what was closed stays closed."""
        self._set_gate(desired, now)

    def accept(self, switches: Iterable[SignedSwitch], desired: DesiredState | None, now: float) -> None:
        """Verify, journal, and close or open admission. May run beside `step`, so that an API server that hangs keeps no door open."""
        for signed in switches:
            refusal = self._switches.accept(signed, now)
            if refusal is not None:
                self._refusals.append(refusal)
        self._set_gate(desired, now)

    def acknowledge(self, ids: Iterable[str]) -> None:
        self.spool.acknowledge(ids)

    def step(self, desired: DesiredState | None, now: float, *, tell_all: bool = False, connected: bool = True) -> LocalRound:
        """Switches, admission, kills. `tell_all`: a new connection wants to hear everything; not `connected`: events wait. May run beside `cycle`."""
        kills = self._set_gate(desired, now)
        layout = Layout.of(self._backend.inventory(now), desired.protected) if desired is not None and kills and self._cluster is not None else None
        outcomes = self._killer.enforce(kills, layout=layout, rules=desired.rules if desired else None, now=now)
        due_at = now + self._cycle_seconds
        if any(outcome.state is SwitchState.PENDING and outcome.remaining and outcome.settling for outcome in outcomes.values()):
            due_at = now + READ_BACK_SECONDS
        due_at = min(due_at, self._switches.next_end(now) or due_at)
        changed = self._switches.report(outcomes, desired.place if desired else None, now)
        if tell_all:
            self.spool.forget_told()
            changed = self._switches.updates(now)
        refusals = [self._refusals.popleft() for _ in range(len(self._refusals))]
        return LocalRound(updates=(*refusals, *changed), events=self.spool.due(now) if connected else (), due_at=due_at)

    def _set_gate(self, desired: DesiredState | None, now: float) -> tuple[Switch, ...]:
        """The door follows the switches before any pod is touched."""
        with self._gate_lock:
            kills = self._switches.active(SwitchKind.KILL, desired.place if desired else None, now)
            if self.door is not None:
                self.door.gate = Gate(desired.rules.admission if desired else None, kills)
        return kills

    def cycle(self, desired: DesiredState | None, now: float) -> float:
        """Reservations, claims, power schedule and metering, once. Returns when (Unix seconds) the next one is due."""
        due_at = now + self._cycle_seconds
        if desired is None:
            return due_at
        allowed = not self._switches.active(SwitchKind.AUTOMATION_OFF, desired.place, now)
        layout = Layout.of(self._backend.inventory(now), desired.protected)
        if not desired.rules.workloads and not desired.rules.power.enabled:
            # Nothing to hold and nobody to meter for: only what an earlier document brought about is taken back.
            self._power.cycle(desired, layout, None, phy_gpus=set(), allowed=allowed, now=now)
            self.spool.meter((), now)
            self._before = None
            return due_at
        usage = self._usage.read(now) if self._usage is not None else None
        pods = self._pods()
        if self._cluster is not None and pods is not None:
            expiry = self._enforcer.cycle(self._cluster, pods, layout=layout, usage=usage, rules=desired.rules, allowed=allowed, now=now)
            due_at = min(due_at, expiry or due_at)
        if self._cluster is None or pods is not None:
            # Which GPUs carry PHY is not known while the pods cannot be seen: the schedule stands still.
            phy_gpus = self._phy_gpus(desired, layout, pods or ())
            self._power.cycle(desired, layout, usage, phy_gpus=phy_gpus, allowed=allowed, now=now)
        if pods is not None:
            look = Look(now, pods, usage)
            self.spool.meter(metered(self._before, look, layout=layout, rules=desired.rules), now)
            self._before = look
        return due_at

    def _pods(self) -> tuple[Pod, ...] | None:
        if self._cluster is None:
            return None
        try:
            return self._cluster.pods()
        except ClusterError:
            return None

    @staticmethod
    def _phy_gpus(desired: DesiredState, layout: Layout, pods: tuple[Pod, ...]) -> set[str]:
        found = {span.gpu_uuid for span in desired.protected}
        for uuid, held_by in holders(pods).items():
            if any(standing(pod, layout, desired.rules) in (Standing.PHY, Standing.UNKNOWN) for pod in held_by):
                found.add(layout.devices[uuid].gpu_uuid if uuid in layout.devices else uuid)
        return found

    def close(self) -> None:
        if self._usage is not None:
            self._usage.close()
        self._store.close()
