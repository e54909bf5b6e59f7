"""Cordon: the node takes no new pods. What runs there stays, the radio too.

A cordon is its owner's. One that somebody else made is left to them, at our end too; one of ours that somebody took away is not made
again by itself: it is shown as drifted until people set it anew or let it end.
"""

from __future__ import annotations

from agent.actions import ParameterError, Parameters, Reading, Scalars, Target
from agent.backends.cluster import Cluster, ClusterError, ClusterErrorCode, Cordon

OWNER = "masthead/desired-state"


class CordonNode:
    name = "cordon"
    node_wide = True
    gpu_wide = False
    settle_seconds = 5.0

    def check(self, parameters: Parameters) -> None:
        _wanted(parameters)

    def remember(self, target: Target) -> str:
        return ""

    def apply(self, target: Target, parameters: Parameters) -> None:
        cluster = _cluster(target)
        if not _wanted(parameters):
            cluster.clear_cordon(OWNER)
        elif not _taken_away(cluster.cordon()):
            cluster.set_cordon(OWNER)

    def read(self, target: Target, parameters: Parameters | None) -> Reading:
        held = _cluster(target).cordon()
        observed = _observed(held)
        if parameters is None or not _wanted(parameters):
            detail = f"Still cordoned, by {_who(held)}." if held.unschedulable and held.owner != OWNER else ""
            return Reading(holds=not (held.unschedulable and held.owner == OWNER), observed=observed, detail=detail)
        if held.unschedulable:
            detail = "" if held.owner == OWNER else f"Cordoned by {_who(held)}: it stays theirs when ours ends."
            return Reading(holds=True, observed=observed, detail=detail)
        if ended := _ended(target):
            # Another act of ours cordoned before and is over: nobody said that the node shall take pods.
            observed["ended"] = ended
            return Reading(holds=False, observed=observed, detail=f"The cordon of {ended} has ended.", final=True)
        observed["uncordoned_by_others"] = True
        return Reading(holds=False, observed=observed, detail="Somebody else uncordoned the node: respected, not cordoned again.", final=True, hands_off=True)

    def undo(self, target: Target) -> None:
        _cluster(target).clear_cordon(OWNER)


def _wanted(parameters: Parameters) -> bool:
    if set(parameters) != {"cordoned"} or not isinstance(parameters["cordoned"], bool):
        raise ParameterError("cordon takes cordoned, true or false")
    return parameters["cordoned"]


def _taken_away(held: Cordon) -> bool:
    """Our mark without the cordon: somebody uncordoned the node, whatever this agent remembers of it."""
    return held.mark == OWNER and not held.unschedulable


def _ended(target: Target) -> str:
    """The owner of the cordon of ours that was there at the last look, or before the drift that is shown now; "" when there was none."""
    owner = target.last.get("owner") if target.last.get("unschedulable") else target.last.get("ended")
    return str(owner or "") if owner != OWNER else ""


def _cluster(target: Target) -> Cluster:
    if target.cluster is None:
        raise ClusterError(ClusterErrorCode.INVALID, "This agent is in no cluster: there is no node to cordon.")
    return target.cluster


def _observed(held: Cordon) -> Scalars:
    return {"unschedulable": held.unschedulable, "owner": held.owner, "ours": held.owner == OWNER}


def _who(held: Cordon) -> str:
    return held.owner or "somebody else"


ACTION = CordonNode()
