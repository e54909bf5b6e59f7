"""Reboot of the node. Refused where any of its GPUs carries PHY. The boot id tells whether it happened; it is never asked for twice."""

from __future__ import annotations

from agent.backends.base import BackendError, ErrorCode
from agent.commands import Context, Memo, Refusal, Turn, object_schema
from agent.protocol.command import MAX_DETAIL, CommandBody, CommandCode, CommandState

LONGEST_SECONDS = 900.0
POLL_SECONDS = 5.0


class Reboot:
    name = "reboot"
    exclusive = True
    needs_boot_id = True
    schema = object_schema()

    def subject(self, body: CommandBody) -> str:
        return ""

    def refusal(self, context: Context) -> Refusal | None:
        if context.phy.on_node() and not (context.phy.known and context.body.reaches_phy):
            return Refusal(CommandCode.PHY, "The node carries PHY." if context.phy.known else "No desired-state document was accepted yet.")
        return None

    def step(self, context: Context, memo: Memo) -> Turn:
        try:
            boot_id = context.backend.boot_id()
            if not memo:
                return Turn(CommandState.RUNNING, memo={"boot_id": boot_id, "asked_at": context.now}, detail="Reboots the node.")
            if "asked" in memo or boot_id != memo["boot_id"]:
                return self._judge(context, memo, boot_id)
            context.backend.reboot()
        except BackendError as error:
            if memo and error.code is ErrorCode.UNAVAILABLE:
                return self._judge(context, memo, memo["boot_id"])
            return Turn(CommandState.FAILED, CommandCode.HARDWARE, str(error)[:MAX_DETAIL])
        return self._judge(context, memo, boot_id)

    def settle(self, context: Context, memo: Memo) -> Turn:
        return self.step(context, memo | {"asked": True}) if memo else self.step(context, memo)

    def cancel(self, context: Context, memo: Memo) -> Turn | None:
        return None if memo else Turn(CommandState.CANCELLED, CommandCode.CANCELLED, "Cancelled before the node was touched.")

    @staticmethod
    def _judge(context: Context, memo: Memo, boot_id: str) -> Turn:
        if boot_id != memo["boot_id"]:
            return Turn(CommandState.DONE, detail="The node has booted.", progress={"boot_id": boot_id})
        if context.now < memo["asked_at"] + LONGEST_SECONDS:
            return Turn(CommandState.RUNNING, memo=memo | {"asked": True}, detail="Waits for the node to boot.", again_seconds=POLL_SECONDS)
        return Turn(CommandState.FAILED, CommandCode.TIMEOUT, f"The node did not boot within {LONGEST_SECONDS:.0f} s. It is not asked for again.")


COMMAND = Reboot()
