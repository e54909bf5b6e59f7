"""MIG layout: which GPU instances stand where on a GPU, `1g.10gb@0,3g.40gb@4`, or `off` for a whole GPU.

Only AI placements change. What stands on the radio's positions stays, and the mode of a GPU that carries PHY is never changed.
The change runs on a thread of its own: a driver that hangs in it holds up nothing else of the node.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from agent.actions import ParameterError, Parameters, Reading, Scalars, Target
from agent.backends.base import BackendError, ErrorCode, MigReading
from agent.mig import ChangeFacts, Plan, describe, judge_change, place_of, plan_change
from agent.protocol import SliceFacts
from agent.protocol.layout import OFF, Instance, LayoutError, format_layout, parse_layout

# A change is over in this time as a rule; longer ones are looked at again with each pass.
WAIT_SECONDS = 5.0
TIMEOUT_SECONDS = 900.0


class _Change:
    """A change under way. `error` is what it ended with, None when well."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self.error: BackendError | None = None
        self.over = threading.Event()
        threading.Thread(target=self._run, name="mig-change", daemon=True).start()

    def _run(self) -> None:
        try:
            self._work()
        except BackendError as error:
            self.error = error
        finally:
            self.over.set()


class MigLayout:
    name = "mig_layout"
    node_wide = False
    gpu_wide = False
    settle_seconds = TIMEOUT_SECONDS

    def __init__(self, wait_seconds: float = WAIT_SECONDS) -> None:
        self._wait_seconds = wait_seconds
        self._changes: dict[str, _Change] = {}

    def check(self, parameters: Parameters) -> None:
        _layout(parameters)

    def remember(self, target: Target) -> str:
        mig = target.backend.read_mig(target.gpu_uuid)
        return describe(mig.instances if mig.enabled else None)

    def apply(self, target: Target, parameters: Parameters) -> None:
        self._begin(target, _layout(parameters))

    def undo(self, target: Target) -> None:
        """Back to what stood before, as far as it is ours: on AI placements."""
        if not target.before:
            return
        self._begin(target, parse_layout(target.before))
        if target.gpu_uuid in self._changes:
            raise BackendError(ErrorCode.TIMEOUT, "The change back to the layout before is still under way.")

    def _begin(self, target: Target, layout: tuple[Instance, ...] | None) -> None:
        """Refuses before it touches anything, else changes; returns early when that takes long."""
        self._raise_if_under_way(target.gpu_uuid)
        mig = target.backend.read_mig(target.gpu_uuid)
        plan = _plan(target, mig, layout)
        if layout is not None and mig.enabled and plan.done:
            return
        if layout is None and not mig.enabled:
            return
        _refuse_if_held(target, mig, plan)
        change = self._changes[target.gpu_uuid] = _Change(lambda: _change(target, mig, layout, plan))
        if change.over.wait(self._wait_seconds):
            del self._changes[target.gpu_uuid]
            if change.error is not None:
                raise change.error

    def _raise_if_under_way(self, gpu_uuid: str) -> None:
        change = self._changes.get(gpu_uuid)
        if change is None:
            return
        if not change.over.is_set():
            raise BackendError(ErrorCode.TIMEOUT, "An earlier change of the layout has not come back from the driver: nothing new is begun.")
        del self._changes[gpu_uuid]

    def read(self, target: Target, parameters: Parameters | None) -> Reading:
        change = self._changes.get(target.gpu_uuid)
        if change is not None and change.over.is_set():
            del self._changes[target.gpu_uuid]
            if change.error is not None:
                raise change.error
            change = None
        mig = target.backend.read_mig(target.gpu_uuid)
        observed = _observed(mig)
        if parameters is None:
            return Reading(holds=None, observed=observed)
        layout = _layout(parameters)
        if layout is None:
            holds = not mig.enabled
            return Reading(holds=holds, observed=observed, detail="" if holds else "MIG mode is on.", final=change is None)
        standing = {place_of(instance) for instance in mig.instances} if mig.enabled else set()
        observed |= {"slices": len(standing & set(layout)), "wanted_slices": len(layout)}
        if standing == set(layout):
            return Reading(holds=True, observed=observed)
        plan = _plan(target, mig, layout)
        if plan.done and plan.missing and mig.enabled:
            names = ", ".join(str(instance) for instance in plan.missing)
            return Reading(holds=False, observed=observed, detail=f"The radio's {names} is missing: not for us to create.", final=True, hands_off=True)
        if change is None:
            detail = f"{observed['slices']} of {len(layout)} slices found; {observed['layout']} stands."
            return Reading(holds=False, observed=observed, detail=detail, final=True)
        facts = ChangeFacts(
            wanted=len(layout),
            found=len(standing & set(layout)),
            elapsed_seconds=target.waited_seconds,
            timeout_seconds=self.settle_seconds,
            reported_done=False,
        )
        verdict = judge_change(facts)
        if verdict.over:
            raise BackendError(ErrorCode.TIMEOUT, verdict.detail, observed)
        return Reading(holds=False, observed=observed, detail=verdict.detail)


def _layout(parameters: Parameters) -> tuple[Instance, ...] | None:
    text = parameters.get("layout")
    if set(parameters) != {"layout"} or not isinstance(text, str):
        raise ParameterError("mig_layout takes layout, a text such as 1g.10gb@0,3g.40gb@4 or off")
    try:
        return parse_layout(text)
    except LayoutError as error:
        raise ParameterError(f"layout: {error}") from error


def _plan(target: Target, mig: MigReading, layout: tuple[Instance, ...] | None) -> Plan:
    if mig.enabled is None:
        raise BackendError(ErrorCode.NOT_SUPPORTED, "layout: this GPU has no MIG")
    if target.protected and (layout is None or not mig.enabled):
        raise BackendError(ErrorCode.INVALID, "layout: the GPU carries PHY, and MIG mode is of the whole GPU: not changed")
    standing = mig.instances if mig.enabled else ()
    if layout is None:
        return Plan(remove=standing, create=())
    if not mig.profiles:
        # Told in MIG mode only: the layout is checked once that is on.
        return Plan(remove=standing, create=layout)
    try:
        return plan_change(standing, layout, protected=target.protected, profiles=mig.profiles)
    except LayoutError as error:
        raise BackendError(ErrorCode.INVALID, f"layout: {error}") from error


def _refuse_if_held(target: Target, mig: MigReading, plan: Plan) -> None:
    """All or nothing: while a process or a pod holds one of the instances that would go, none goes.

    One that the driver called in use without naming a holder is not tried again: only another set of instances makes a new try.
    """
    if not plan.remove:
        return
    ids = _ids(plan.remove)
    pods = _pods_on(target)
    held = [instance for instance in plan.remove if (mig.clients or {}).get(instance.gpu_instance_id) or instance.mig_uuid in pods]
    if held:
        processes = sum((mig.clients or {}).get(instance.gpu_instance_id, 0) for instance in held)
        raise _in_use(mig, held, ids, processes=processes, pods=[pods[instance.mig_uuid] for instance in held if instance.mig_uuid in pods])
    last = target.last
    if last.get("held_instances") == ids and not last.get("held_by_processes") and not last.get("held_by_pods"):
        raise _in_use(mig, plan.remove, ids)


def _pods_on(target: Target) -> dict[str, str]:
    """Pod (namespace/name) by the MIG UUID that it holds; none where the agent cannot see pods. Raises ClusterError."""
    if target.cluster is None:
        return {}
    return {uuid: f"{pod.namespace}/{pod.name}" for pod in target.cluster.pods() if pod.phase not in ("Succeeded", "Failed") for uuid in pod.gpus if uuid}


def _in_use(mig: MigReading, held: Sequence[SliceFacts], ids: str, *, processes: int = 0, pods: Sequence[str] = ()) -> BackendError:
    holders = [f"pod {name}" for name in pods[:3]]
    if len(pods) > 3:
        holders.append(f"{len(pods) - 3} more pods")
    if processes:
        holders.append(f"{processes} process{'' if processes == 1 else 'es'}")
    who = ", ".join(holders) or "a client that the driver does not name, such as a monitor"
    names = ", ".join(str(place_of(instance)) for instance in held)
    detail = f"GPU {mig.pci_bus_id}: {names} in use by {who}. Nothing was changed. Not tried again while a client holds it."
    facts: Scalars = {
        "pci_bus_id": mig.pci_bus_id,
        "held_instances": ids,
        "held_by_processes": processes,
        "held_by_pods": len(pods),
        "auto_retry": False,
    }
    return BackendError(ErrorCode.IN_USE, detail, {**_observed(mig), **facts})


def _change(target: Target, mig: MigReading, layout: tuple[Instance, ...] | None, plan: Plan) -> None:
    """The acts themselves, on the change's own thread. An instance that turns out to be held brings back those that went before it."""
    backend, gpu = target.backend, target.gpu_uuid
    for number, instance in enumerate(plan.remove):
        try:
            backend.destroy_mig_instance(gpu, instance.gpu_instance_id)
        except BackendError as error:
            if error.code is not ErrorCode.IN_USE:
                raise
            for gone in plan.remove[:number]:
                backend.create_mig_instance(gpu, gone.profile, gone.start)
            places = {place_of(other) for other in plan.remove}
            ids = _ids(other for other in backend.read_mig(gpu).instances if place_of(other) in places)
            raise _in_use(mig, [instance], ids) from error
    if layout is None or not mig.enabled:
        backend.set_mig_mode(gpu, layout is not None)
    if layout is not None:
        if not mig.enabled:
            try:
                plan = _plan(target, backend.read_mig(gpu), layout)
            except BackendError:
                backend.set_mig_mode(gpu, False)
                raise
        for place in plan.create:
            backend.create_mig_instance(gpu, place.profile, place.start)


def _ids(instances: Iterable[SliceFacts]) -> str:
    return ",".join(str(instance.gpu_instance_id) for instance in instances)


def _observed(mig: MigReading) -> Scalars:
    return {"layout": format_layout(map(place_of, mig.instances)) if mig.enabled else OFF, "mig_mode": mig.enabled}


ACTION = MigLayout()
