"""GPU reset, by UUID only. Refused where the GPU carries PHY, and where it is not there any more.

Hardware has no "reset number n" to compare, so once the reset was asked for it is never asked for again: what became of it is read.
"""

from __future__ import annotations

from agent.backends.base import BackendError, ErrorCode
from agent.commands import Context, Memo, Refusal, Turn, object_schema
from agent.protocol import Condition, GpuCondition
from agent.protocol.command import MAX_DETAIL, CommandBody, CommandCode, CommandState

SETTLE_SECONDS = 60.0
POLL_SECONDS = 2.0
# The answer did not come: the reset may have happened all the same.
_IN_DOUBT = (ErrorCode.UNAVAILABLE, ErrorCode.GPU_LOST, ErrorCode.RESET_REQUIRED)


class GpuReset:
    name = "gpu_reset"
    exclusive = True
    needs_boot_id = False
    schema = object_schema()

    def subject(self, body: CommandBody) -> str:
        return body.gpu_uuid

    def refusal(self, context: Context) -> Refusal | None:
        gpu_uuid = context.body.gpu_uuid
        if not gpu_uuid:
            return Refusal(CommandCode.BAD_PARAMETERS, "gpu_uuid: a reset is of one GPU.")
        if context.phy.on_gpu(gpu_uuid) and not (context.phy.known and context.body.reaches_phy):
            return Refusal(CommandCode.PHY, "The GPU carries PHY." if context.phy.known else "No desired-state document was accepted yet.")
        if self._condition(context) is None:
            return Refusal(CommandCode.NOT_PRESENT, "Target not present: this node has no such GPU.")
        return None

    def step(self, context: Context, memo: Memo) -> Turn:
        gpu_uuid = context.body.gpu_uuid
        try:
            if not memo:
                asked = {"asked_at": context.now, "evidence": context.backend.reset_evidence(gpu_uuid), "condition": self._word(context)}
                return Turn(CommandState.RUNNING, memo=asked, detail="Resets the GPU.")
            if "answered" in memo:
                return self._read_back(context, memo)
            context.backend.reset_gpu(gpu_uuid)
        except BackendError as error:
            if memo and error.code in _IN_DOUBT:
                return self._turn(memo | {"answered": False}, f"It did not answer: {error}")
            return Turn(CommandState.FAILED, _code(error), str(error)[:MAX_DETAIL])
        return self._read_back(context, memo | {"answered": True})

    def settle(self, context: Context, memo: Memo) -> Turn:
        return self._read_back(context, {"answered": False} | memo) if memo else self.step(context, memo)

    def cancel(self, context: Context, memo: Memo) -> Turn | None:
        return None if memo else Turn(CommandState.CANCELLED, CommandCode.CANCELLED, "Cancelled before the GPU was touched.")

    def _read_back(self, context: Context, memo: Memo) -> Turn:
        try:
            evidence = context.backend.reset_evidence(context.body.gpu_uuid)
        except BackendError:
            evidence = None
        word = self._word(context)
        happened = (
            memo["answered"] or (bool(evidence) and evidence != memo["evidence"]) or (memo["condition"] == Condition.RESET_REQUIRED and word == Condition.OK)
        )
        progress: dict[str, int | float | str | bool | None] = {"before": memo["condition"], "after": word}
        if happened and word == Condition.OK:
            return Turn(CommandState.DONE, detail="The GPU was reset and answers.", progress=progress)
        if context.now < memo["asked_at"] + SETTLE_SECONDS:
            return self._turn(memo, "Waits for the GPU to answer." if happened else "Reads what became of the reset.", progress)
        if happened:
            return Turn(CommandState.FAILED, CommandCode.HARDWARE, f"The GPU was reset, and is {word}.", progress=progress)
        known = evidence is not None and evidence != ""
        detail = "The reset did not happen." if known else "It is not known whether the reset happened: the hardware does not tell."
        return Turn(CommandState.FAILED, CommandCode.HARDWARE, f"{detail} It is not asked for again.", progress=progress)

    @staticmethod
    def _turn(memo: Memo, detail: str, progress: dict[str, int | float | str | bool | None] | None = None) -> Turn:
        return Turn(CommandState.RUNNING, memo=memo, detail=detail[:MAX_DETAIL], again_seconds=POLL_SECONDS, progress=progress or {})

    def _word(self, context: Context) -> str:
        condition = self._condition(context)
        return condition.condition.value if condition else Condition.UNKNOWN.value

    @staticmethod
    def _condition(context: Context) -> GpuCondition | None:
        return next((found for found in context.health().gpus if found.uuid == context.body.gpu_uuid), None)


def _code(error: BackendError) -> CommandCode:
    if error.code is ErrorCode.NOT_PRESENT:
        return CommandCode.NOT_PRESENT
    return CommandCode.BLOCKED if error.code is ErrorCode.IN_USE else CommandCode.HARDWARE


COMMAND = GpuReset()
