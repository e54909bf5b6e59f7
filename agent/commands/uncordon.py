"""Uncordon: take the console's own cordon off the node. A cordon of anybody else, or one that somebody took over, stays."""

from __future__ import annotations

from agent.backends.cluster import ClusterError, ClusterErrorCode
from agent.commands import CORDON_OWNER, Context, Memo, Refusal, Turn, object_schema
from agent.commands.drain import says
from agent.evictions import RETRY_SECONDS
from agent.protocol.command import CommandBody, CommandCode, CommandState


class Uncordon:
    name = "uncordon"
    exclusive = False
    needs_boot_id = False
    schema = object_schema()

    def subject(self, body: CommandBody) -> str:
        return ""

    def refusal(self, context: Context) -> Refusal | None:
        cordon = context.kubernetes().cordon()
        if cordon.unschedulable and cordon.owner != CORDON_OWNER:
            return Refusal(CommandCode.BLOCKED, f"The node was cordoned by {cordon.owner or 'somebody else'}: only who cordoned it uncordons it.")
        return None

    def step(self, context: Context, memo: Memo) -> Turn:
        try:
            cordon = context.kubernetes().clear_cordon(CORDON_OWNER)
        except ClusterError as error:
            if error.code is ClusterErrorCode.CONFLICT:
                return Turn(CommandState.RUNNING, detail=says(error), again_seconds=RETRY_SECONDS)
            return Turn(CommandState.FAILED, CommandCode.CLUSTER, says(error))
        if cordon.unschedulable:
            return Turn(CommandState.FAILED, CommandCode.BLOCKED, f"{cordon.owner or 'Somebody else'} took the cordon over: it stays.")
        return Turn(CommandState.DONE, detail="The node takes pods.", progress={"cordoned": False})

    def settle(self, context: Context, memo: Memo) -> Turn:
        return self.step(context, memo)

    def cancel(self, context: Context, memo: Memo) -> Turn | None:
        return None


COMMAND = Uncordon()
