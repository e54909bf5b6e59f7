"""Desired state to hardware: apply what the newest document says, read back, undo what it says no more or what has ended.

Everything here blocks and runs in the agent's executor. It needs no gateway: an agent out of contact goes on with what it has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from agent.actions import Action, ParameterError, Reading, Target, discover_actions
from agent.backends.base import Backend, BackendError, ErrorCode
from agent.backends.cluster import Cluster, ClusterError, ClusterErrorCode
from agent.journal import Entry, Journal, Phase
from agent.protocol import Ack, Control, DesiredState, DocumentError, Layer, Observation, ObservedState, ProtectedSpan, SignedDocument, verify_document

REPORT_SECONDS = 60.0
SETTLE_POLL_SECONDS = 0.5
KEEP_OVER_SECONDS = 24 * 3600.0
_UNSETTLED = (ObservedState.FAILED, ObservedState.REFUSED)
STEADY_SECONDS = 600.0
_REFUSALS = {ErrorCode.NOT_PRESENT, ErrorCode.NOT_SUPPORTED, ErrorCode.INVALID}


def retry_after(attempts: int) -> float:
    """Seconds until the next act on hardware that does not hold: 10 s, doubling to 10 minutes."""
    return float(min(600, 10 * 2 ** max(0, attempts - 1)))


def _refuses(error: BackendError | ClusterError) -> bool:
    """The answer would be the same again: nothing was done."""
    return error.code in _REFUSALS if isinstance(error, BackendError) else error.code is ClusterErrorCode.INVALID


def _by_gpu(spans: tuple[ProtectedSpan, ...]) -> dict[str, tuple[ProtectedSpan, ...]]:
    return {gpu_uuid: tuple(span for span in spans if span.gpu_uuid == gpu_uuid) for gpu_uuid in {span.gpu_uuid for span in spans}}


@dataclass(frozen=True)
class Round:
    """What one pass brought: new observations to report, and when (Unix seconds) the next pass is due at the latest."""

    observations: tuple[Observation, ...]
    due_at: float


class Converger:
    """Not reentrant: one call at a time per node."""

    def __init__(
        self,
        *,
        backend: Backend,
        journal: Journal,
        node_id: int,
        trusted_keys: tuple[bytes, ...],
        actions: Mapping[str, Action] | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        self._backend = backend
        self._cluster = cluster
        self._journal = journal
        self._node_id = node_id
        self._trusted_keys = trusted_keys
        self._actions = dict(actions) if actions is not None else discover_actions()
        self._desired = self._stored()
        self._entries = journal.entries()
        self._protected: dict[str, tuple[ProtectedSpan, ...]] = {}
        self.applied_version = 0

    @property
    def have_version(self) -> int:
        return self._desired.version if self._desired else 0

    @property
    def desired(self) -> DesiredState | None:
        """The newest accepted document; None before the first."""
        return self._desired

    def _stored(self) -> DesiredState | None:
        """The journalled document, verified again: what the disk says is believed no more than what the network says."""
        document = self._journal.document()
        if document is None:
            return None
        try:
            return self._verify(document, newest_version=0, now=0)
        except DocumentError:
            return None

    def _verify(self, document: SignedDocument, *, newest_version: int, now: float) -> DesiredState:
        return verify_document(
            document, trusted_keys=self._trusted_keys, target_kind="node", target_key=str(self._node_id), newest_version=newest_version, now=now
        )

    def accept(self, document: SignedDocument, now: float) -> Ack:
        """Verify and journal a document. Nothing is applied here; a refused document changes nothing."""
        try:
            desired = self._verify(document, newest_version=self.have_version, now=now)
        except DocumentError as error:
            return Ack(version=document.version, code=error.code, detail=str(error)[:300])
        self._journal.store_document(document)
        self._desired = desired
        return Ack(version=desired.version, code="", detail="")

    def observations(self) -> tuple[Observation, ...]:
        """The last observation of every control, for a new connection."""
        found = (entry.observation() for entry in self._entries.values())
        return tuple(observation for observation in found if observation is not None)

    def converge(self, now: float, *, longest: float = 10.0) -> Round:
        """One pass over all controls. `longest` bounds how far away the next pass is."""
        desired = {(control.control, control.gpu_uuid): control for control in self._desired.controls} if self._desired else {}
        self._protected = _by_gpu(self._desired.protected) if self._desired else {}
        due_at = now + longest
        before = {key: entry.sequence for key, entry in self._entries.items()}
        for key in sorted(set(desired) | set(self._entries)):
            control = desired.get(key)
            layer = control.layer_at(now) if control else None
            if control is not None:
                due_at = min([due_at, *(at for found in control.layers for at in (found.starts_at, found.ends_at) if at is not None and at > now)])
            entry = self._entries.get(key)
            if control is not None and layer is not None:
                entry = self._hold(control, layer, entry, now=now)
            elif entry is not None:
                entry = self._release(entry, now=now)
            if entry is None:
                self._entries.pop(key, None)
                continue
            self._entries[key] = entry
            action = self._actions.get(entry.control)
            if action is not None and entry.phase is Phase.SETTLING and now < entry.since + action.settle_seconds:
                due_at = min(due_at, now + SETTLE_POLL_SECONDS)
        self.applied_version = self.have_version
        new = [entry.observation() for key, entry in self._entries.items() if entry.sequence != before.get(key, 0)]
        return Round(observations=tuple(observation for observation in new if observation is not None), due_at=due_at)

    # One control that is desired now.

    def _hold(self, control: Control, layer: Layer, entry: Entry | None, *, now: float) -> Entry | None:
        if entry is None:
            entry = Entry(control=control.control, gpu_uuid=control.gpu_uuid, phase=Phase.OVER, parameters={}, version=self.have_version, since=now)
        entry = replace(entry, version=self.have_version)
        refusal = self._refusal(control, layer)
        if refusal:
            if entry.phase is not Phase.OVER:
                # A control that must not be here any more is taken off before it is refused.
                entry = self._undo(entry, now)
                if entry.phase is not Phase.OVER:
                    return entry
            return self._report(entry, ObservedState.REFUSED, Reading(holds=None, detail=refusal), now)
        action = self._actions[control.control]
        same = entry.parameters == layer.parameters
        if (
            same
            and entry.attempts
            and entry.state in _UNSETTLED
            and entry.phase in (Phase.OVER, Phase.APPLYING)
            and now < entry.since + retry_after(entry.attempts)
        ):
            # The hardware said no a moment ago. (An agent that died while acting has no such state, and acts again at once.)
            return self._report(entry, entry.state, Reading(holds=None, observed=entry.observed or {}, detail=entry.detail), now)
        if not same or entry.phase in (Phase.OVER, Phase.UNDOING, Phase.APPLYING):
            if not same:
                entry = replace(entry, parameters=dict(layer.parameters), attempts=0, observed={})
            return self._apply(action, entry, now)
        return self._check(action, entry, now)

    def _refusal(self, control: Control, layer: Layer) -> str:
        action = self._actions.get(control.control)
        if action is None:
            return f"This agent knows no control named {control.control}."
        if action.node_wide != (control.gpu_uuid == ""):
            return f"{action.name} is a control of {'the node' if action.node_wide else 'one GPU'}."
        if action.gpu_wide and control.gpu_uuid in self._protected:
            return "The GPU carries PHY: a control of the whole GPU needs approvals, which do not exist yet."
        try:
            action.check(layer.parameters)
        except ParameterError as error:
            return str(error)
        return ""

    def _target(self, entry: Entry, now: float) -> Target:
        return Target(
            backend=self._backend,
            gpu_uuid=entry.gpu_uuid,
            cluster=self._cluster,
            protected=self._protected.get(entry.gpu_uuid, ()),
            last=entry.observed or {},
            before=entry.before,
            waited_seconds=max(0.0, now - entry.since) if entry.phase is Phase.SETTLING else 0.0,
        )

    def _apply(self, action: Action, entry: Entry, now: float) -> Entry:
        was_over = entry.phase is Phase.OVER
        entry = replace(entry, since=now, attempts=entry.attempts + 1)
        try:
            if was_over:
                entry = replace(entry, before=action.remember(self._target(entry, now)))
            entry = self._journal.write(replace(entry, phase=Phase.APPLYING))
            action.apply(self._target(entry, now), entry.parameters)
            entry = self._journal.write(replace(entry, phase=Phase.SETTLING))
            return self._judge(action, entry, action.read(self._target(entry, now), entry.parameters), now)
        except (BackendError, ClusterError) as error:
            # Refused: nothing of this act is on the hardware, at most what was there before. Otherwise it is not known, and the next pass acts again.
            refused = _refuses(error)
            phase = (Phase.OVER if was_over else Phase.APPLYING) if refused else entry.phase
            return self._report(replace(entry, phase=phase), *self._failure(error), now)

    def _check(self, action: Action, entry: Entry, now: float) -> Entry:
        """Read back what was applied before; re-apply, as a step of its own, what was reported as not holding."""
        try:
            reading = action.read(self._target(entry, now), entry.parameters)
        except (BackendError, ClusterError) as error:
            return self._report(entry, *self._failure(error), now)
        reported = entry.state in (ObservedState.DRIFTED, ObservedState.FAILED) and entry.phase is Phase.HELD
        if reported and reading.holds is not True and not reading.hands_off and now >= entry.since + retry_after(entry.attempts):
            return self._apply(action, entry, now)
        return self._judge(action, entry, reading, now)

    def _judge(self, action: Action, entry: Entry, reading: Reading, now: float) -> Entry:
        if reading.holds is False:
            if entry.phase is Phase.SETTLING and not reading.hands_off:
                if not reading.final and now < entry.since + action.settle_seconds:
                    return entry
                entry = replace(entry, phase=Phase.HELD, since=now)
                return self._report(entry, ObservedState.FAILED, replace(reading, detail=f"Accepted, but not seen on the hardware. {reading.detail}"), now)
            if entry.state is not ObservedState.DRIFTED:
                steady = entry.phase is Phase.HELD and now - entry.since > STEADY_SECONDS
                entry = replace(entry, since=now, attempts=1 if steady else entry.attempts)
            return self._report(replace(entry, phase=Phase.HELD), ObservedState.DRIFTED, reading, now)
        if entry.attempts > 1:
            reading = replace(reading, observed={**reading.observed, "applied_again": entry.attempts - 1})
        if entry.phase is Phase.SETTLING or (reading.holds and entry.state is not ObservedState.APPLIED):
            entry = replace(entry, phase=Phase.HELD, since=now)
            return self._report(entry, ObservedState.APPLIED, reading, now)
        return self._report(entry, entry.state or ObservedState.APPLIED, reading, now)

    # One control that is desired no more.

    def _release(self, entry: Entry, *, now: float) -> Entry | None:
        if entry.phase is Phase.OVER:
            if now > entry.at + KEEP_OVER_SECONDS:
                self._journal.forget(entry)
                return None
            if entry.state is ObservedState.ENDED:
                return entry
            return self._report(replace(entry, version=self.have_version), ObservedState.ENDED, Reading(holds=None, detail="It was not in force."), now)
        entry = replace(entry, version=self.have_version)
        return self._undo(entry, now)

    def _undo(self, entry: Entry, now: float) -> Entry:
        action = self._actions.get(entry.control)
        if action is None:
            return self._report(entry, ObservedState.FAILED, Reading(holds=None, detail="This agent cannot undo it any more: the control is unknown."), now)
        entry = self._journal.write(replace(entry, phase=Phase.UNDOING, since=now))
        over = replace(entry, phase=Phase.OVER, attempts=0, before="")
        try:
            action.undo(self._target(entry, now))
        except (BackendError, ClusterError) as error:
            if error.code is ErrorCode.NOT_PRESENT:
                return self._report(over, ObservedState.ENDED, Reading(holds=None, detail="The GPU is not present: nothing to undo."), now)
            if _refuses(error):
                return self._report(over, ObservedState.ENDED, Reading(holds=None, detail=f"Left as it is: {error}"), now)
            _, reading = self._failure(error)
            return self._report(entry, ObservedState.FAILED, replace(reading, detail=f"Could not be undone, will be tried again: {error}"), now)
        try:
            reading = action.read(self._target(over, now), None)
        except (BackendError, ClusterError) as error:
            reading = Reading(holds=None, detail=f"Undone, but not read back: {error}")
        return self._report(over, ObservedState.ENDED, reading, now)

    # Reporting.

    @staticmethod
    def _failure(error: BackendError | ClusterError) -> tuple[ObservedState, Reading]:
        text = "target not present" if error.code is ErrorCode.NOT_PRESENT else str(error)
        state = ObservedState.REFUSED if _refuses(error) else ObservedState.FAILED
        facts = error.facts if isinstance(error, BackendError) else {}
        return state, Reading(holds=None, observed={**facts, "error": error.code.value}, detail=text[:300])

    def _report(self, entry: Entry, state: ObservedState, reading: Reading, now: float) -> Entry:
        """Journal `entry`; as a new observation when it says something new, or once a minute."""
        known = self._entries.get((entry.control, entry.gpu_uuid))
        detail = reading.detail[:300]
        same = (
            known is not None
            and (known.state, known.version, known.detail) == (state, entry.version, detail)
            and json.dumps(known.parameters, sort_keys=True) == json.dumps(entry.parameters, sort_keys=True)
        )
        if known is not None and same and 0 <= now - known.at < REPORT_SECONDS:
            entry = replace(entry, state=state, observed=known.observed, detail=detail, at=known.at, sequence=known.sequence)
            return entry if entry == known else self._journal.write(entry)
        return self._journal.write_observed(replace(entry, state=state, observed=dict(reading.observed), detail=detail), now)
