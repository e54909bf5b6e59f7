"""Which pods an eviction touches, and rounds of asking for them: shared by all that evicts. Nothing here forces anything.

A round asks the Eviction API once for each pod that is due, the lowest priority first, and stops when the API server asks for patience twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agent.backends.cluster import Cluster, EvictionOutcome, Pod
from agent.phy import Phy
from agent.protocol import GpuFacts
from agent.protocol.command import MAX_BLOCKED, MAX_BLOCKED_LENGTH

RETRY_SECONDS = 5.0
# How soon it is looked whether what was evicted is gone.
LOOK_SECONDS = 2.0
LONGEST_WAIT_SECONDS = 300.0
PATIENCE = 2
MAX_PODS = 1000
_FINISHED = ("Succeeded", "Failed")


class Treatment(StrEnum):
    """What an eviction does with a pod."""

    EVICT = "evict"
    WAIT = "wait"  # it is ending already
    PHY = "phy"  # the radio's: left alone
    SKIP = "skip"  # a mirror pod, or a DaemonSet's: made again at once
    LOCAL_DATA = "local_data"  # only when told: its emptyDir would be lost
    UNMANAGED = "unmanaged"  # only when told: nobody would bring it back


CONFIRMATIONS = {
    Treatment.LOCAL_DATA: "its emptyDir data would be lost (allow_local_data)",
    Treatment.UNMANAGED: "nobody would bring it back (allow_unmanaged)",
}


def name_of(pod: Pod) -> str:
    return f"{pod.namespace}/{pod.name}"


def treatment_of(pod: Pod, *, phy: Phy, gpus: tuple[GpuFacts, ...], allow_local_data: bool, allow_unmanaged: bool) -> Treatment:
    """`gpus`: the inventory of now."""
    if pod.is_mirror:
        return Treatment.SKIP
    if phy.holds(pod, gpus):
        return Treatment.PHY
    if pod.owner_kind == "DaemonSet":
        return Treatment.SKIP
    if pod.is_terminating:
        return Treatment.WAIT
    if pod.phase in _FINISHED:
        return Treatment.EVICT
    if pod.has_local_data and not allow_local_data:
        return Treatment.LOCAL_DATA
    if not pod.owner_kind and not allow_unmanaged:
        return Treatment.UNMANAGED
    return Treatment.EVICT


def in_order(pods: Iterable[Pod]) -> list[Pod]:
    """The lowest priority first."""
    return sorted(pods, key=lambda pod: (pod.priority, pod.namespace, pod.name, pod.uid))


@dataclass
class Ask:
    """How it stands with one pod: when to ask again (Unix seconds), and why it is not gone.

    `hopeless`: asking again is of no use. `patience_asked`: the API server asked to wait, which is nobody's budget.
    """

    name: str
    again_at: float = 0.0
    why: str = ""
    accepted: bool = False
    hopeless: bool = False
    patience_asked: bool = False


@dataclass
class Book:
    """All pods that an eviction has to do with, by UID. Kept as JSON in the command's memo."""

    asks: dict[str, Ask] = field(default_factory=dict)
    gone: int = 0

    @classmethod
    def from_memo(cls, memo: dict[str, Any]) -> Book:
        asks = {uid: Ask(**values) for uid, values in memo.get("asks", {}).items()}
        return cls(asks=asks, gone=int(memo.get("gone", 0)))

    def to_memo(self) -> dict[str, Any]:
        return {"asks": {uid: vars(ask) for uid, ask in self.asks.items()}, "gone": self.gone}

    def note(self, pods: Iterable[Pod]) -> None:
        """Take up pods that are new. A pod is its UID: another one of the same name is another pod."""
        for pod in pods:
            if pod.uid not in self.asks and len(self.asks) < MAX_PODS:
                self.asks[pod.uid] = Ask(name=name_of(pod))

    def judge(self, pod: Pod, treatment: Treatment) -> None:
        """What can be told of a noted pod without asking for its eviction."""
        if (ask := self.asks.get(pod.uid)) is None:
            return
        if treatment is Treatment.WAIT:
            ask.accepted, ask.hopeless, ask.why = True, False, "is ending"
        elif treatment in CONFIRMATIONS:
            # It came after the eviction began: nobody agreed to lose it.
            ask.hopeless, ask.why = True, CONFIRMATIONS[treatment]
        elif ask.hopeless and ask.why in CONFIRMATIONS.values():
            ask.hopeless, ask.why = False, ""

    def strike_gone(self, uids: set[str]) -> None:
        """Everything that is not among `uids`, the pods of now, is gone."""
        for uid in [uid for uid in self.asks if uid not in uids]:
            del self.asks[uid]
            self.gone += 1

    @property
    def only_hopeless(self) -> bool:
        return bool(self.asks) and all(ask.hopeless for ask in self.asks.values())

    def blocked(self) -> tuple[str, ...]:
        """What is left and why, one text a pod, those that need a person first."""
        left = sorted(self.asks.values(), key=lambda ask: (not ask.hopeless, not ask.why, ask.name))
        texts = [f"{ask.name}: {ask.why}"[:MAX_BLOCKED_LENGTH] for ask in left if ask.why]
        if len(texts) > MAX_BLOCKED:
            texts[MAX_BLOCKED - 1 :] = [f"and {len(texts) - MAX_BLOCKED + 1} more"]
        return tuple(texts)

    def due_in(self, now: float) -> float:
        """Seconds until something is to be asked or looked at again."""
        waits = [ask.again_at - now for ask in self.asks.values() if not (ask.accepted or ask.hopeless)]
        longest = LOOK_SECONDS if any(ask.accepted for ask in self.asks.values()) else RETRY_SECONDS
        return min([longest, *(wait for wait in waits if wait > 0)])


def ask_round(cluster: Cluster, book: Book, pods: Iterable[Pod], *, now: float, grace_seconds: int | None) -> None:
    """Ask for each of `pods` that is due. Raises ClusterError when the API server cannot be asked; `book` holds what it said until then."""
    patience = PATIENCE
    for pod in in_order(pods):
        ask = book.asks.get(pod.uid)
        if ask is None or ask.accepted or ask.hopeless or now < ask.again_at:
            continue
        answer = cluster.evict(pod, grace_seconds=grace_seconds)
        if answer.outcome is EvictionOutcome.THROTTLED:
            ask.again_at, ask.why = now + min(max(answer.retry_after_seconds, 1.0), LONGEST_WAIT_SECONDS), ""
            ask.patience_asked = True
            patience -= 1
            if not patience:
                return
            continue
        ask.patience_asked = False
        if answer.outcome is EvictionOutcome.GONE:
            del book.asks[pod.uid]
            book.gone += 1
        elif answer.outcome is EvictionOutcome.EVICTED:
            ask.accepted, ask.why = True, "is ending"
        elif answer.outcome is EvictionOutcome.BUDGET:
            ask.again_at, ask.why = now + RETRY_SECONDS, f"disruption budget {answer.detail or 'without a name'}"
        else:
            ask.hopeless, ask.why = True, "more than one disruption budget matches it"
