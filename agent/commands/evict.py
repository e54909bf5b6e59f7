"""Evict one pod by its UID, through the Eviction API: budgets hold, the radio's pods are refused, another pod of the same name is left alone."""

from __future__ import annotations

from agent.backends.cluster import ClusterError, ClusterErrorCode, Pod
from agent.commands import Context, Memo, Refusal, Turn, object_schema
from agent.commands.drain import ALLOW_LOCAL_DATA, ALLOW_UNMANAGED, GRACE, confirmation_refusal, deadline_of, grace_of, says, treatments
from agent.evictions import RETRY_SECONDS, Book, Treatment, ask_round
from agent.protocol.command import CommandBody, CommandCode, CommandState, slice_at

DEFAULT_DEADLINE_SECONDS = 300


class Evict:
    name = "evict"
    exclusive = False
    needs_boot_id = False
    schema = object_schema(
        namespace={
            "type": "string",
            "minLength": 1,
            "maxLength": 63,
            "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
            "title": "Namespace",
            "description": "Of the pod.",
        },
        pod={"type": "string", "minLength": 1, "maxLength": 253, "title": "Pod", "description": "Its name."},
        uid={"type": "string", "minLength": 1, "maxLength": 64, "title": "Pod UID", "description": "The pod that is meant."},
        grace_seconds=GRACE,
        deadline_seconds={
            "type": "integer",
            "minimum": 10,
            "maximum": 3600,
            "default": DEFAULT_DEADLINE_SECONDS,
            "title": "Deadline (seconds)",
            "description": "How long to go on asking while a disruption budget forbids it.",
        },
        allow_local_data=ALLOW_LOCAL_DATA,
        allow_unmanaged=ALLOW_UNMANAGED,
        mig_uuid={
            "type": "string",
            "maxLength": 64,
            "default": "",
            "title": "MIG slice",
            "description": "Refused when the slice is gone or the pod does not hold it.",
        },
    )

    def subject(self, body: CommandBody) -> str:
        return str(body.parameters.get("uid"))

    def refusal(self, context: Context) -> Refusal | None:
        if not context.phy.known:
            return Refusal(CommandCode.PHY, "No desired-state document was accepted yet: what belongs to the radio is not known.")
        mig_uuid = str(context.parameter("mig_uuid", ""))
        if mig_uuid and slice_at(context.inventory().gpus, mig_uuid) is None:
            return Refusal(CommandCode.NOT_PRESENT, f"There is no slice {mig_uuid} on this node any more.")
        pod = self._find(context)
        if pod is None:
            return Refusal(CommandCode.NOT_PRESENT, "The pod is not on this node; one of its name may be, and is left alone.")
        if mig_uuid and mig_uuid not in pod.gpus:
            return Refusal(CommandCode.NOT_PRESENT, f"The pod does not hold the slice {mig_uuid}.")
        treatment = treatments(context, (pod,))
        if treatment[pod.uid] is Treatment.PHY:
            return Refusal(CommandCode.PHY, "The pod belongs to the radio.")
        if treatment[pod.uid] is Treatment.SKIP:
            return Refusal(CommandCode.BLOCKED, "A mirror pod or one of a DaemonSet would be made again at once.")
        return confirmation_refusal((pod,), treatment)

    def step(self, context: Context, memo: Memo) -> Turn:
        if not memo:
            return Turn(CommandState.RUNNING, memo={"stage": "evict"}, detail="Asks for the eviction.")
        book = Book.from_memo(memo)
        over = context.now >= deadline_of(context, DEFAULT_DEADLINE_SECONDS)
        try:
            pod = self._find(context)
            if pod is None:
                return Turn(CommandState.DONE, detail="The pod is gone.", progress={"total": 1, "gone": 1, "left": 0})
            treatment = treatments(context, (pod,))[pod.uid]
            if treatment is Treatment.PHY:
                return Turn(CommandState.FAILED, CommandCode.PHY, "The pod belongs to the radio since it was asked for.")
            book.note([pod])
            book.judge(pod, treatment)
            if treatment is Treatment.EVICT and not over:
                ask_round(context.kubernetes(), book, [pod], now=context.now, grace_seconds=grace_of(context))
        except ClusterError as error:
            detail = says(error)
            if error.code in (ClusterErrorCode.UNAVAILABLE, ClusterErrorCode.CONFLICT) and not over:
                return Turn(CommandState.RUNNING, detail=detail, again_seconds=RETRY_SECONDS)
            return Turn(CommandState.FAILED, CommandCode.CLUSTER, detail)
        return self._judge(context, memo, book, over=over)

    def settle(self, context: Context, memo: Memo) -> Turn:
        return self.step(context, memo)

    def cancel(self, context: Context, memo: Memo) -> Turn | None:
        accepted = any(ask.accepted for ask in Book.from_memo(memo).asks.values())
        detail = "Cancelled; the pod was ending already." if accepted else "Cancelled; the pod was not evicted."
        return Turn(CommandState.CANCELLED, CommandCode.CANCELLED, detail)

    def _judge(self, context: Context, memo: Memo, book: Book, *, over: bool) -> Turn:
        blocked = book.blocked()
        if not book.asks:
            return Turn(CommandState.DONE, detail="The pod is gone.", progress={"total": 1, "gone": 1, "left": 0})
        (ask,) = book.asks.values()
        progress: dict[str, int | float | str | bool | None] = {"total": 1, "gone": 0, "left": 1, "ending": int(ask.accepted)}
        if over or ask.hopeless:
            code = CommandCode.TIMEOUT if ask.accepted else CommandCode.BLOCKED
            return Turn(
                CommandState.FAILED, code, "The pod is still ending." if ask.accepted else "The pod was not evicted.", progress=progress, blocked=blocked
            )
        left = max(0.0, deadline_of(context, DEFAULT_DEADLINE_SECONDS) - context.now)
        again = min(book.due_in(context.now), left)
        return Turn(CommandState.RUNNING, memo={**memo, **book.to_memo()}, again_seconds=again, progress=progress, blocked=blocked)

    def _find(self, context: Context) -> Pod | None:
        """The pod by its UID, on this node."""
        return next((pod for pod in context.kubernetes().pods() if pod.uid == context.body.parameters["uid"]), None)


COMMAND = Evict()
