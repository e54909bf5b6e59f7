"""What one evaluation changed: the message from `fleet.health.evaluation` to `fleet.health.store`. Pure: no Django."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from fleet.health.facts import Condition, State, Verdict


class Kind(StrEnum):
    """Kinds of objects; the words of `fleet.models.ObjectKind`."""

    REGION = "region"
    SITE = "site"
    NODE = "node"
    GPU = "gpu"


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """One object: its kind, stable key (as in `ObjectKind`), database id, and where it stands (None: nowhere that we know)."""

    kind: Kind
    key: str
    id: int
    site_id: int | None
    site_code: str
    region_id: int | None


@dataclass(frozen=True, slots=True)
class VerdictChange:
    """The verdict of an object is another one. `before` None: the first ever. A transition is stored only when the state differs."""

    object: ObjectRef
    before: State | None
    verdict: Verdict
    facts: Mapping[str, Any] = field(default_factory=dict)  # columns of the object's health row beside the verdict

    @property
    def is_transition(self) -> bool:
        return self.verdict.state is not (self.before or State.UNKNOWN)


@dataclass(frozen=True, slots=True)
class FindingChange:
    """A finding opened or went on (`until` None), or ended."""

    object: ObjectRef
    condition: Condition
    last_at: float
    until: float | None = None
    because: str = ""
    opened: bool = False


@dataclass(frozen=True, slots=True)
class XidEventChange:
    """A burst as it stands now; `(gpu_id, xid, first_at)` is its identity."""

    gpu_id: int
    xid: int
    gpu_instance_id: int | None
    first_at: float
    last_at: float
    count: int
    source: str


@dataclass
class Changes:
    """All that one tick changed, oldest first. `notices` are for the live pages, filled once the rest is stored."""

    verdicts: list[VerdictChange] = field(default_factory=list)
    findings: list[FindingChange] = field(default_factory=list)
    xids: list[XidEventChange] = field(default_factory=list)
    notices: list[dict[str, Any]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.verdicts or self.findings or self.xids)

    def extend(self, later: Changes) -> None:
        """Append what happened later."""
        self.verdicts += later.verdicts
        self.findings += later.findings
        self.xids += later.xids


def newest_findings(findings: list[FindingChange]) -> list[FindingChange]:
    """One change per life of a finding: what followed an opening is folded into it."""
    folded: dict[tuple[Kind, str, str], FindingChange] = {}
    ended: list[FindingChange] = []
    for change in findings:
        key = (change.object.kind, change.object.key, change.condition.code)
        known = folded.pop(key, None)
        if known is not None:
            change = replace(change, opened=known.opened)
        if change.until is not None:
            ended.append(change)
        else:
            folded[key] = change
    return ended + list(folded.values())
