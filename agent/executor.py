"""One-shot commands of one node: taken once, begun in time, done at most once, told until the console has stored it.

Delivery is at least once and in any order; the journal makes the effect happen once. Everything here blocks and runs in the agent's pool.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from agent.backends.base import Backend, BackendError
from agent.backends.cluster import Cluster, ClusterError, ClusterErrorCode
from agent.command_journal import CommandEntry, CommandJournal
from agent.commands import CommandKind, Context, Refusal, SchemaOf, Turn, discover_commands
from agent.journal import Journal
from agent.phy import Phy
from agent.protocol.command import (
    MAX_BLOCKED,
    MAX_DETAIL,
    CommandAck,
    CommandBody,
    CommandCode,
    CommandError,
    CommandState,
    CommandUpdate,
    SignedCancel,
    SignedCommand,
    layout_hash,
    verify_cancel,
    verify_command,
)

log = logging.getLogger("masthead_agent.executor")
Message = SignedCommand | SignedCancel | CommandAck

MAX_OPEN = 200
# A gateway that lies about the time must not bring old orders back to life: a clock said to be ahead of ours by more counts as so much ahead.
LONGEST_OFFSET_SECONDS = 300.0
RETRY_SECONDS = 5.0
# How often a running command tells the same, so that it is seen to live.
TELL_SECONDS = 30.0
FORGET_SECONDS = 3600.0
# A new agent has its first document within this time: what belongs to the radio is not known before.
DOCUMENT_SECONDS = 30.0
DOCUMENT_LOOK_SECONDS = 1.0
# How long an API server that does not answer keeps a command from beginning before that is said.
CLUSTER_SECONDS = 60.0
MAX_TURNS = 8
NEVER = float("inf")
_CODES = {code.value: code for code in CommandCode}


@dataclass(frozen=True)
class Pass:
    """What one pass over the commands brought: updates to tell, and when (Unix seconds) the next one is due."""

    updates: tuple[CommandUpdate, ...]
    due_at: float


class Executor:
    """Not reentrant: one call at a time per node. `journal_of` commands lies in the agent's own journal file."""

    def __init__(
        self,
        *,
        backend: Backend,
        cluster: Cluster | None,
        journal: Journal,
        node_id: int,
        trusted_keys: tuple[bytes, ...],
        kinds: Mapping[str, CommandKind] | None = None,
    ) -> None:
        self._backend = backend
        self._cluster = cluster
        self._journal = CommandJournal(journal)
        self._node_id = node_id
        self._trusted_keys = trusted_keys
        self._kinds = dict(kinds) if kinds is not None else discover_commands()
        self._schemas = {name: SchemaOf(kind.schema) for name, kind in self._kinds.items()}
        self._offset = self._journal.clock_offset()
        self._open = {entry.target: entry for entry in self._journal.unfinished()}
        # The agent was away since these were journalled: they are settled before anything else is done with them.
        self._doubtful = {target for target, entry in self._open.items() if entry.state is CommandState.RUNNING}
        self._due: dict[int, float] = {}
        self._changed: set[int] = set()
        self._forget_at = 0.0

    # What comes from the gateway.

    def set_clock_offset(self, seconds: float) -> None:
        """`seconds`: this node's clock minus the console's, as a new connection shows it."""
        if abs(seconds - self._offset) > 0.1:
            self._offset = seconds
            self._journal.set_clock_offset(seconds)

    def take(self, message: Message, now: float) -> None:
        """Journal an order or a cancel, or take note of what the console has stored. Nothing is done yet."""
        if isinstance(message, SignedCommand):
            self._take_command(message, now)
        elif isinstance(message, SignedCancel):
            self._take_cancel(message, now)
        else:
            self._journal.acknowledge(message.target, message.sequence)
            if (entry := self._open.get(message.target)) is not None:
                self._open[message.target] = replace(entry, stored=max(entry.stored, min(entry.told, message.sequence)))

    def _take_command(self, message: SignedCommand, now: float) -> None:
        if self._known(message.target):
            self._repeat(message.target)
            return
        try:
            body = verify_command(message, trusted_keys=self._trusted_keys, node_id=self._node_id)
        except CommandError as error:
            log.warning("order for target %d refused: %s", message.target, error)
            self._answer(message.target, CommandState.FAILED, _CODES[error.code], str(error), now)
            return
        if len(self._open) >= MAX_OPEN:
            log.warning("order for target %d not taken: %d are open", message.target, len(self._open))
            return
        kind = self._kinds.get(body.kind)
        subject = f"{body.kind} {kind.subject(body)}" if kind else body.kind
        entry = CommandEntry(
            target=body.target, body=body, subject=subject, sequence=body.sequence, received_at=now, state=CommandState.ACCEPTED, detail="Taken."
        )
        if self._expired(body, now):
            self._end(entry, self._too_late(body, now), now)
        elif (refusal := self._unfit(body)) is not None:
            self._end(entry, Turn(CommandState.FAILED, refusal.code, refusal.detail), now)
        elif self._journal.newest_begun(subject) > body.sequence:
            self._end(entry, _SUPERSEDED, now)
        else:
            self._open[body.target] = self._tell(entry, now)

    def _take_cancel(self, message: SignedCancel, now: float) -> None:
        try:
            body = verify_cancel(message, trusted_keys=self._trusted_keys, node_id=self._node_id)
        except CommandError as error:
            log.warning("cancel of target %d refused: %s", message.target, error)
            return
        if (entry := self._open.get(body.target)) is not None:
            if not entry.cancelled:
                self._open[body.target] = self._journal.write(replace(entry, cancelled=True))
                self._due[body.target] = now
        elif self._known(body.target):
            self._repeat(body.target)
        else:
            self._answer(body.target, CommandState.CANCELLED, CommandCode.CANCELLED, "Cancelled before the order came.", now)

    def _known(self, target: int) -> bool:
        return target in self._open or self._journal.find(target) is not None

    def _repeat(self, target: int) -> None:
        """The same order again: it is answered with what is known of it, and starts nothing."""
        self._journal.repeat(target)
        self._changed.add(target)

    def _answer(self, target: int, state: CommandState, code: CommandCode, detail: str, now: float) -> None:
        """For a target whose order we do not have."""
        entry = CommandEntry(target=target, body=None, subject="", sequence=0, received_at=now, state=state, code=code, detail=detail[:MAX_DETAIL])
        self._tell(entry, now)

    # Work.

    def work(self, phy: Phy, now: float) -> Pass:
        """One pass: begin what may begin, take the steps that are due. `now` is Unix seconds of this node's clock."""
        for entry in sorted(self._open.values(), key=lambda found: (found.sequence, found.target)):
            if entry.state is CommandState.ACCEPTED:
                self._consider(entry, phy, now)
            elif self._due.get(entry.target, 0.0) <= now:
                self._advance(entry, phy, now)
        if now >= self._forget_at:
            self._journal.forget_old(now)
            self._forget_at = now + FORGET_SECONDS
        updates = self._take_changed()
        return Pass(updates=updates, due_at=min((self._due.get(target, now) for target in self._open), default=NEVER))

    def untold(self) -> tuple[CommandUpdate, ...]:
        """Everything that the console has not stored yet, for a new connection and for repeating."""
        return tuple(entry.update() for entry in self._journal.untold())

    def _take_changed(self) -> tuple[CommandUpdate, ...]:
        changed, self._changed = self._changed, set()
        entries = [entry for target in sorted(changed) if (entry := self._open.get(target) or self._journal.find(target)) is not None]
        return tuple(entry.update() for entry in entries)

    def _consider(self, entry: CommandEntry, phy: Phy, now: float) -> None:
        """Begin it, end it, or leave it waiting."""
        body = entry.body
        if body is None or body.kind not in self._kinds:
            self._end(entry, Turn(CommandState.FAILED, CommandCode.UNKNOWN_KIND, "This agent knows no such kind any more."), now)
        elif entry.cancelled:
            self._end(entry, Turn(CommandState.CANCELLED, CommandCode.CANCELLED, "Cancelled before it began."), now)
        elif self._expired(body, now):
            self._end(entry, self._too_late(body, now), now)
        elif self._journal.newest_begun(entry.subject) > entry.sequence:
            self._end(entry, _SUPERSEDED, now)
        elif self._must_wait(entry):
            self._due[entry.target] = min(now + RETRY_SECONDS, self._ends_at(body))
        else:
            self._begin(entry, phy, now)

    def _must_wait(self, entry: CommandEntry) -> bool:
        """Whether something that was given earlier stands in its way."""
        earlier = [other for other in self._open.values() if (other.sequence, other.target) < (entry.sequence, entry.target)]
        alone = self._kinds[entry.body.kind].exclusive if entry.body else False
        return any(alone or other.subject == entry.subject or self._runs_alone(other) for other in earlier)

    def _runs_alone(self, entry: CommandEntry) -> bool:
        kind = self._kinds.get(entry.body.kind) if entry.body else None
        return kind is not None and kind.exclusive

    def _begin(self, entry: CommandEntry, phy: Phy, now: float) -> None:
        context = self._context(entry, phy, now)
        try:
            refusal = self._precondition(context) or self._kinds[context.body.kind].refusal(context)
        except BackendError as error:
            # The hardware cannot be asked now: nothing was touched, it is tried again until the order expires.
            self._due[entry.target] = min(now + RETRY_SECONDS, self._ends_at(context.body))
            log.info("target %d waits: %s", entry.target, error)
            return
        except ClusterError as error:
            if error.code is ClusterErrorCode.UNAVAILABLE and now < entry.received_at + CLUSTER_SECONDS:
                self._due[entry.target] = min(now + RETRY_SECONDS, self._ends_at(context.body))
                return
            refusal = Refusal(CommandCode.CLUSTER, f"Kubernetes: {error}")
        if refusal is not None and refusal.code is CommandCode.PHY and not phy.known and now < entry.received_at + DOCUMENT_SECONDS:
            self._due[entry.target] = min(now + DOCUMENT_LOOK_SECONDS, self._ends_at(context.body))
            return
        if refusal is not None:
            self._end(entry, Turn(CommandState.FAILED, refusal.code, refusal.detail), now)
            return
        entry = self._open[entry.target] = self._tell(replace(entry, state=CommandState.RUNNING, begun_at=now, detail="Begun."), now)
        self._advance(entry, phy, now)

    def _precondition(self, context: Context) -> Refusal | None:
        body, wanted = context.body, context.body.preconditions
        if wanted.boot_id and wanted.boot_id != self._backend.boot_id():
            return Refusal(CommandCode.PRECONDITION, "The node has booted since the command was given.")
        if not body.gpu_uuid:
            return None
        report = context.inventory()
        gpu = next((found for found in report.gpus if found.uuid == body.gpu_uuid), None)
        if gpu is None and body.gpu_uuid not in {found.uuid for found in context.health().gpus}:
            if not report.complete:
                return Refusal(CommandCode.HARDWARE, "The driver cannot list its GPUs now.")
            return Refusal(CommandCode.NOT_PRESENT, "Target not present: this node has no such GPU.")
        if wanted.mig_layout and (gpu is None or layout_hash(gpu) != wanted.mig_layout):
            return Refusal(CommandCode.PRECONDITION, "The GPU's MIG layout is not the one that the command was given for.")
        return None

    def _advance(self, entry: CommandEntry, phy: Phy, now: float) -> None:
        """Take steps until one wants to wait. The memo of each is journalled before the next one acts."""
        for _ in range(MAX_TURNS):
            turn = self._turn(entry, phy, now)
            if turn.state.final:
                self._end(entry, turn, now)
                return
            told = replace(
                entry,
                memo=entry.memo if turn.memo is None else turn.memo,
                detail=turn.detail[:MAX_DETAIL] or entry.detail,
                progress=turn.progress or entry.progress,
                blocked=turn.blocked[:MAX_BLOCKED],
            )
            says = (entry.progress, entry.blocked) != (told.progress, told.blocked) or now - entry.at >= TELL_SECONDS
            entry = self._open[entry.target] = self._tell(told, now) if says else self._journal.write(told)
            self._due[entry.target] = now + turn.again_seconds
            if turn.again_seconds > 0:
                return

    def _turn(self, entry: CommandEntry, phy: Phy, now: float) -> Turn:
        if entry.body is None or (kind := self._kinds.get(entry.body.kind)) is None:
            return Turn(CommandState.FAILED, CommandCode.UNKNOWN_KIND, "This agent knows no such kind any more.")
        context = self._context(entry, phy, now)
        step: Callable[[Context, dict[str, object]], Turn] = kind.settle if entry.target in self._doubtful else kind.step
        if not entry.memo and self._expired(entry.body, now):
            return self._too_late(entry.body, now)
        try:
            turn = kind.cancel(context, dict(entry.memo)) if entry.cancelled else None
            turn = turn or step(context, dict(entry.memo))
        except Exception:
            # A fault of ours in one kind must neither stop the others nor be tried for ever.
            log.exception("target %d failed in an unforeseen way", entry.target)
            return Turn(CommandState.FAILED, CommandCode.HARDWARE, "A fault of the agent: its log says more. What was done is not known.")
        self._doubtful.discard(entry.target)
        return turn

    def _context(self, entry: CommandEntry, phy: Phy, now: float) -> Context:
        if entry.body is None:
            raise ValueError("there is no order")
        begun_at = now if entry.begun_at is None else entry.begun_at
        return Context(body=entry.body, backend=self._backend, cluster=self._cluster, phy=phy, now=now, begun_at=begun_at)

    # Judging and telling.

    def _unfit(self, body: CommandBody) -> Refusal | None:
        """What is wrong with an order in itself."""
        kind = self._kinds.get(body.kind)
        if kind is None:
            return Refusal(CommandCode.UNKNOWN_KIND, f"This agent knows no command named {body.kind}.")
        if problem := self._schemas[body.kind].problem(body.parameters):
            return Refusal(CommandCode.BAD_PARAMETERS, f"parameters.{problem}")
        if kind.needs_boot_id and not body.preconditions.boot_id:
            return Refusal(CommandCode.BAD_PARAMETERS, "preconditions.boot_id: is missing. Without it the command could be done twice.")
        return None

    def _console_time(self, now: float) -> float:
        return now - min(self._offset, LONGEST_OFFSET_SECONDS)

    def _expired(self, body: CommandBody, now: float) -> bool:
        return self._console_time(now) > body.not_after

    def _ends_at(self, body: CommandBody) -> float:
        """`not_after` on this node's clock, a moment later."""
        return body.not_after + min(self._offset, LONGEST_OFFSET_SECONDS) + 0.001

    def _too_late(self, body: CommandBody, now: float) -> Turn:
        late = self._console_time(now) - body.not_after
        return Turn(CommandState.EXPIRED, CommandCode.EXPIRED, f"It could begin until {body.not_after:.0f}; that was {late:.0f} s ago.")

    def _end(self, entry: CommandEntry, turn: Turn, now: float) -> None:
        self._open.pop(entry.target, None)
        self._due.pop(entry.target, None)
        self._doubtful.discard(entry.target)
        ended = replace(
            entry,
            state=turn.state,
            code=turn.code,
            detail=turn.detail[:MAX_DETAIL],
            memo=entry.memo if turn.memo is None else turn.memo,
            progress=turn.progress or entry.progress,
            blocked=turn.blocked[:MAX_BLOCKED],
            output=turn.output,
        )
        self._tell(ended, now)

    def _tell(self, entry: CommandEntry, now: float) -> CommandEntry:
        self._changed.add(entry.target)
        return self._journal.tell(entry, now)


_SUPERSEDED = Turn(CommandState.SKIPPED, CommandCode.SUPERSEDED, "A later command of the same kind has begun already.")
