"""Drain: cordon the node in our name, evict what may be evicted, wait until it is gone.

The radio's pods stay where they are. Nothing is forced: what a budget forbids until the deadline is named. Whoever uncordons the node meanwhile
ends the drain; it is not cordoned again.
"""

from __future__ import annotations

from agent.backends.cluster import ClusterError, ClusterErrorCode, Pod
from agent.commands import CORDON_OWNER, Context, Memo, Refusal, Turn, object_schema
from agent.evictions import CONFIRMATIONS, RETRY_SECONDS, Book, Treatment, ask_round, name_of, treatment_of
from agent.protocol.command import MAX_DETAIL, CommandBody, CommandCode, CommandState

DEFAULT_DEADLINE_SECONDS = 1800
GRACE = {
    "type": "integer",
    "minimum": -1,
    "maximum": 3600,
    "default": -1,
    "title": "Grace period (seconds)",
    "description": "Time that each pod gets to end; -1: its own.",
}
ALLOW_LOCAL_DATA = {"type": "boolean", "default": False, "title": "Lose local data", "description": "Also pods whose emptyDir data would be lost."}
ALLOW_UNMANAGED = {"type": "boolean", "default": False, "title": "Unmanaged pods", "description": "Also pods that nobody brings back."}
_PASSING = (ClusterErrorCode.UNAVAILABLE, ClusterErrorCode.CONFLICT)


def grace_of(context: Context) -> int | None:
    seconds = int(context.parameter("grace_seconds", -1))
    return None if seconds < 0 else seconds


def deadline_of(context: Context, default: int) -> float:
    return context.begun_at + float(context.parameter("deadline_seconds", default))


def treatments(context: Context, pods: tuple[Pod, ...]) -> dict[str, Treatment]:
    """What is to be done with each pod, by UID."""
    gpus = context.inventory().gpus
    allow_local_data, allow_unmanaged = (bool(context.parameter(name, False)) for name in ("allow_local_data", "allow_unmanaged"))
    return {pod.uid: treatment_of(pod, phy=context.phy, gpus=gpus, allow_local_data=allow_local_data, allow_unmanaged=allow_unmanaged) for pod in pods}


def confirmation_refusal(pods: tuple[Pod, ...], treatment: dict[str, Treatment]) -> Refusal | None:
    """Names every pod that would lose something for good."""
    asked = [f"{name_of(pod)}: {CONFIRMATIONS[treatment[pod.uid]]}" for pod in pods if treatment[pod.uid] in CONFIRMATIONS]
    return Refusal(CommandCode.NEEDS_CONFIRMATION, "; ".join(asked)[:MAX_DETAIL]) if asked else None


def says(error: ClusterError) -> str:
    return f"Kubernetes: {error}"[:MAX_DETAIL]


class Drain:
    name = "drain"
    exclusive = False
    needs_boot_id = False
    schema = object_schema(
        deadline_seconds={
            "type": "integer",
            "minimum": 10,
            "maximum": 86_400,
            "default": DEFAULT_DEADLINE_SECONDS,
            "title": "Deadline (seconds)",
            "description": "What is left then is named with what blocks it; nothing is forced.",
        },
        grace_seconds=GRACE,
        allow_local_data=ALLOW_LOCAL_DATA,
        allow_unmanaged=ALLOW_UNMANAGED,
    )

    def subject(self, body: CommandBody) -> str:
        return ""

    def refusal(self, context: Context) -> Refusal | None:
        if not context.phy.known:
            return Refusal(CommandCode.PHY, "No desired-state document was accepted yet: what belongs to the radio is not known.")
        pods = context.kubernetes().pods()
        return confirmation_refusal(pods, treatments(context, pods))

    def step(self, context: Context, memo: Memo) -> Turn:
        if not memo:
            return Turn(CommandState.RUNNING, memo={"stage": "cordon"}, detail="Cordons the node.")
        return self._guarded(context, memo, resumed=False)

    def settle(self, context: Context, memo: Memo) -> Turn:
        return self._guarded(context, memo, resumed=True) if memo else self.step(context, memo)

    def cancel(self, context: Context, memo: Memo) -> Turn | None:
        if not memo:
            return Turn(CommandState.CANCELLED, CommandCode.CANCELLED, "Cancelled before anything was touched.")
        book = Book.from_memo(memo)
        detail = f"Cancelled. {book.gone} gone, {len(book.asks)} left and not evicted any more. The node stays cordoned by the console until it is uncordoned."
        return Turn(CommandState.CANCELLED, CommandCode.CANCELLED, detail, progress=self._progress(book, memo), blocked=book.blocked())

    def _guarded(self, context: Context, memo: Memo, *, resumed: bool) -> Turn:
        book = Book.from_memo(memo)
        try:
            if memo["stage"] == "cordon":
                return self._cordon(context, memo, resumed=resumed)
            return self._evict(context, memo, book)
        except ClusterError as error:
            over = context.now >= deadline_of(context, DEFAULT_DEADLINE_SECONDS)
            detail = says(error)
            progress, memo = self._progress(book, memo), {**memo, **book.to_memo()}
            if error.code in _PASSING and not over:
                return Turn(CommandState.RUNNING, detail=detail, memo=memo, again_seconds=RETRY_SECONDS, progress=progress, blocked=book.blocked())
            return Turn(CommandState.FAILED, CommandCode.CLUSTER, detail, memo=memo, progress=progress, blocked=book.blocked())

    def _cordon(self, context: Context, memo: Memo, *, resumed: bool) -> Turn:
        cluster = context.kubernetes()
        if resumed:
            if context.now >= deadline_of(context, DEFAULT_DEADLINE_SECONDS):
                return Turn(CommandState.FAILED, CommandCode.TIMEOUT, "The agent was away until the deadline; nothing was evicted.")
            found = cluster.cordon()
            if found.mark == CORDON_OWNER and not found.unschedulable:
                return self._uncordoned(context, memo, Book())
        cordon = cluster.set_cordon(CORDON_OWNER)
        whose = "the console" if cordon.owner == CORDON_OWNER else cordon.owner or "somebody else"
        return Turn(CommandState.RUNNING, detail=f"Cordoned by {whose}.", memo={"stage": "evict", "cordoned_by": whose})

    def _evict(self, context: Context, memo: Memo, book: Book) -> Turn:
        cluster, now = context.kubernetes(), context.now
        if not cluster.cordon().unschedulable:
            return self._uncordoned(context, memo, book)
        pods = cluster.pods()
        treatment = treatments(context, pods)
        concerned = [pod for pod in pods if treatment[pod.uid] not in (Treatment.PHY, Treatment.SKIP)]
        book.note(concerned)
        book.strike_gone({pod.uid for pod in concerned})
        for pod in concerned:
            book.judge(pod, treatment[pod.uid])
        memo["phy"] = sum(1 for found in treatment.values() if found is Treatment.PHY)
        over = now >= deadline_of(context, DEFAULT_DEADLINE_SECONDS)
        if not over:
            ask_round(cluster, book, [pod for pod in pods if treatment[pod.uid] is Treatment.EVICT], now=now, grace_seconds=grace_of(context))
        return self._judge(context, memo, book, over=over)

    def _judge(self, context: Context, memo: Memo, book: Book, *, over: bool) -> Turn:
        progress, blocked = self._progress(book, memo), book.blocked()
        stays = f" {memo['phy']} PHY pods stay." if memo.get("phy") else ""
        if not book.asks:
            return Turn(CommandState.DONE, detail=f"{book.gone} gone.{stays} Cordoned by {memo['cordoned_by']}.", progress=progress)
        if over or book.only_hopeless:
            code = CommandCode.PARTIAL if book.gone else CommandCode.BLOCKED if any(not ask.accepted for ask in book.asks.values()) else CommandCode.TIMEOUT
            detail = f"{book.gone} gone, {len(book.asks)} left.{stays} The node stays cordoned by {memo['cordoned_by']}."
            return Turn(CommandState.FAILED, code, detail, memo={**memo, **book.to_memo()}, progress=progress, blocked=blocked)
        left = max(0.0, deadline_of(context, DEFAULT_DEADLINE_SECONDS) - context.now)
        detail = f"{book.gone} gone, {len(book.asks)} left.{stays}"
        if any(ask.patience_asked for ask in book.asks.values()):
            detail += " The API server asked to wait."
        return Turn(
            CommandState.RUNNING,
            detail=detail,
            memo={**memo, **book.to_memo()},
            again_seconds=min(book.due_in(context.now), left),
            progress=progress,
            blocked=blocked,
        )

    def _uncordoned(self, context: Context, memo: Memo, book: Book) -> Turn:
        # Our mark is taken off, so that a cordon that somebody sets later is not taken for ours.
        context.kubernetes().clear_cordon(CORDON_OWNER)
        detail = f"Somebody uncordoned the node meanwhile: the drain ended. {book.gone} gone, {len(book.asks)} left. It is not cordoned again."
        progress = self._progress(book, memo) | {"cordoned": False}
        return Turn(CommandState.CANCELLED, CommandCode.CANCELLED, detail, memo={**memo, **book.to_memo()}, progress=progress)

    @staticmethod
    def _progress(book: Book, memo: Memo) -> dict[str, int | float | str | bool | None]:
        ending = sum(1 for ask in book.asks.values() if ask.accepted)
        found: dict[str, int | float | str | bool | None] = {"total": book.gone + len(book.asks), "gone": book.gone, "left": len(book.asks), "ending": ending}
        if memo.get("stage") == "evict":
            found |= {"phy_left_alone": int(memo.get("phy", 0)), "cordoned": True, "cordoned_by": memo["cordoned_by"]}
        return found


COMMAND = Drain()
