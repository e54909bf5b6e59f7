"""XID errors: from a gauge that holds the last code, and a count in a window, to events; and what they mean. Pure: no Django.

A change of the gauge to a code other than 0 is an event; the same value again is none; a change to 0 only says that something restarted.
At first sight the code is known and its time is not, so it is no event. The exporter's count adds the repeats that a gauge cannot show.
The table of codes is data (`fleet/catalogue/xid.yaml`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from fleet.health.facts import Condition, Severity, State, clock_time

_FILE = Path(__file__).parent.parent / "catalogue" / "xid.yaml"
CODE_PREFIX = "xid_"


class XidTableError(Exception):
    """`xid.yaml` contradicts itself; the text names the entry."""


class Source(StrEnum):
    """Where an event was seen. Values of `XidEvent.source`."""

    GAUGE = "gauge"
    EXP_COUNT = "exp_count"


@dataclass(frozen=True)
class Action:
    """What people are told to do; `act`: it touches the GPU or the node."""

    key: str
    text: str
    act: bool


@dataclass(frozen=True)
class XidRule:
    """One code of the table. `others` is what sources beside NVIDIA say, by source."""

    code: int
    meaning: str
    action: Action
    then: str
    state: State
    severity: Severity
    sticky: bool
    window_seconds: float
    others: Mapping[str, str]
    known: bool = True

    @property
    def advised(self) -> str:
        """NVIDIA's advice in one line; empty when there is nothing to do."""
        if not self.action.text:
            return f"{self.then[:1].upper()}{self.then[1:]}." if self.then else ""
        return f"{self.action.text} Then: {self.then}." if self.then else self.action.text


@dataclass(frozen=True)
class XidTable:
    version: str
    sources: Mapping[str, str]
    burst_seconds: float
    count_window_seconds: float
    rules: Mapping[int, XidRule]
    recovery: Mapping[int, Action]  # by the driver's number
    unknown_action: Action
    window_seconds: float

    def rule(self, code: int) -> XidRule:
        """The rule of a code. A code that is not in the table marks the GPU for a window and advises no act."""
        found = self.rules.get(code)
        if found is not None:
            return found
        return XidRule(code, "Not in the table", self.unknown_action, "", State.DEGRADED, Severity.MINOR, False, self.window_seconds, {}, known=False)


def load(text: str) -> XidTable:
    """Read a table. Raises `XidTableError` naming the entry that is wrong."""
    data = yaml.safe_load(text)
    actions = {key: Action(key, row["text"], row["act"]) for key, row in data["actions"].items()}
    rules: dict[int, XidRule] = {}
    for code, row in data["xids"].items():
        try:
            rules[int(code)] = XidRule(
                code=int(code),
                meaning=row["meaning"],
                action=actions[row["do"]],
                then=_then(row.get("then", ""), actions),
                state=State(row["state"]),
                severity=Severity(row["severity"]),
                sticky=row.get("sticky", False),
                window_seconds=float(row.get("window_seconds", data["window_seconds"])),
                others=MappingProxyType({name: said for name in data["sources"] if name != "nvidia" and (said := _said(row.get(name)))}),
            )
        except (KeyError, ValueError) as error:
            raise XidTableError(f"xids.{code}: {error}") from error
    recovery = {int(row["value"]): Action(key, row["text"], row["act"]) for key, row in data["recovery"].items()}
    return XidTable(
        version=str(data["version"]),
        sources=MappingProxyType(data["sources"]),
        burst_seconds=float(data["burst_seconds"]),
        count_window_seconds=float(data["count_window_seconds"]),
        rules=MappingProxyType(rules),
        recovery=MappingProxyType(recovery),
        unknown_action=actions["support"],
        window_seconds=float(data["window_seconds"]),
    )


def _then(text: str, actions: Mapping[str, Action]) -> str:
    named = actions[text].text if text in actions else text
    return named[:1].lower() + named[1:].rstrip(".") if named and not named.startswith("NVIDIA") else named.rstrip(".")


def _said(value: Any) -> str:
    if value is True:
        return "listed as fatal"
    return value or ""


@cache
def table() -> XidTable:
    """The table that ships with Masthead."""
    return load(_FILE.read_text(encoding="utf-8"))


@dataclass
class Burst:
    """Events of one code on one GPU that followed each other closely. A row of `XidEvent`; `first_at` is its identity."""

    xid: int
    first_at: float
    last_at: float
    count: int
    source: Source
    gpu_instance_id: int | None = None


@dataclass
class Mark:
    """What a code left on a GPU: its finding. Ends by window, by a reboot of the node, by replacement, or by an operator's word."""

    xid: int
    first_at: float
    last_at: float
    count: int
    source: Source
    boot_id: str = ""


@dataclass
class _Seen:
    at: float
    source: Source
    matched: bool = False  # seen by gauge and by count


@dataclass
class XidMemory:
    """What is remembered of one GPU. `last_xid` None: no code was ever seen; `last_at` NaN: seen at first sight, time unknown."""

    last_xid: int | None = None
    last_at: float = math.nan
    marks: dict[int, Mark] = field(default_factory=dict)
    bursts: dict[int, Burst] = field(default_factory=dict)
    _recent: dict[int, list[_Seen]] = field(default_factory=dict)

    def note_gauge(
        self, *, old: int | None, new: int, at: float, table: XidTable, tolerance_seconds: float, boot_id: str = "", gpu_instance_id: int | None = None
    ) -> Burst | None:
        """The gauge changed from `old` (None: first sight) to `new`. The burst that this event made or joined, None when it is no event."""
        if new == 0:
            return None
        if old is None:
            if self.last_xid is None:
                self.last_xid = new
                return None
            if self.last_xid == new:
                return None
        elif old == new:
            return None
        for seen in self._window(new, at, table, tolerance_seconds):
            if seen.source is Source.EXP_COUNT and not seen.matched and abs(seen.at - at) <= tolerance_seconds:
                seen.matched = True  # the count was read first: one event, not two
                self.last_xid, self.last_at = new, max(at, seen.at)
                return None
        return self._note(new, at, Source.GAUGE, table=table, boot_id=boot_id, gpu_instance_id=gpu_instance_id)

    def note_count(
        self, *, xid: int, count: int, at: float, table: XidTable, tolerance_seconds: float, boot_id: str = "", gpu_instance_id: int | None = None
    ) -> Burst | None:
        """The exporter counts `count` events of `xid` in its window up to `at`. The burst of those that were not known yet, None when all were."""
        window = self._window(xid, at, table, tolerance_seconds)
        burst = None
        for _ in range(count - len(window)):
            burst = self._note(xid, at, Source.EXP_COUNT, table=table, boot_id=boot_id, gpu_instance_id=gpu_instance_id)
        return burst

    def _window(self, xid: int, at: float, table: XidTable, slack_seconds: float) -> list[_Seen]:
        kept = [seen for seen in self._recent.get(xid, ()) if seen.at > at - table.count_window_seconds - slack_seconds]
        self._recent[xid] = kept
        return kept

    def _note(self, xid: int, at: float, source: Source, *, table: XidTable, boot_id: str, gpu_instance_id: int | None) -> Burst:
        self._recent.setdefault(xid, []).append(_Seen(at, source))
        if not at < self.last_at:
            self.last_xid, self.last_at = xid, at
        mark = self.marks.get(xid)
        rule = table.rule(xid)
        if mark is None or (not rule.sticky and at - mark.last_at > rule.window_seconds):
            self.marks[xid] = Mark(xid, at, at, 1, source, boot_id)
        else:
            mark.count += 1
            mark.first_at, mark.last_at = min(mark.first_at, at), max(mark.last_at, at)
            mark.boot_id = boot_id or mark.boot_id
        burst = self.bursts.get(xid)
        if burst is None or at - burst.last_at > table.burst_seconds:
            burst = self.bursts[xid] = Burst(xid, at, at, 1, source, gpu_instance_id)
        else:
            burst.count += 1
            burst.last_at = max(burst.last_at, at)
        return burst

    def seed_mark(self, xid: int, condition: Condition) -> None:
        """Remember a stored finding, so that its window and its stickiness go on."""
        evidence = condition.evidence
        last_at = condition.last_at if not math.isnan(condition.last_at) else condition.since
        source = Source(evidence.get("source", Source.GAUGE))
        self.marks[xid] = Mark(xid, condition.since, last_at, condition.count, source, str(evidence.get("boot_id", "")))

    def seed(self, burst: Burst) -> None:
        """Remember a stored burst, so that the exporter's count finds its events known."""
        known = self.bursts.get(burst.xid)
        if known is None or known.last_at < burst.last_at:
            self.bursts[burst.xid] = burst
        self._recent.setdefault(burst.xid, []).extend(_Seen(burst.last_at, burst.source) for _ in range(min(burst.count, 1000)))

    def end_by_reboot(self, boot_id: str, sampled_at: float) -> list[int]:
        """Codes whose marks end since the node booted anew and the GPU reports since. A mark without a boot id takes this one."""
        if not boot_id:
            return []
        ended = []
        for xid, mark in list(self.marks.items()):
            if not mark.boot_id:
                mark.boot_id = boot_id
            elif mark.boot_id != boot_id and sampled_at > mark.last_at:
                del self.marks[xid]
                ended.append(xid)
        return ended

    def end_by_window(self, now: float, table: XidTable) -> list[int]:
        """Codes whose marks end since their window passed without a repeat."""
        ended = [xid for xid, mark in self.marks.items() if not table.rule(xid).sticky and now - mark.last_at >= table.rule(xid).window_seconds]
        for xid in ended:
            del self.marks[xid]
        return ended

    def next_end(self, table: XidTable) -> float:
        """When the next mark ends by its window (Unix seconds); inf when none does."""
        return min((mark.last_at + table.rule(xid).window_seconds for xid, mark in self.marks.items() if not table.rule(xid).sticky), default=math.inf)

    def conditions(self, table: XidTable, recovery: Action | None = None) -> tuple[Condition, ...]:
        """The marks as conditions. The recovery action that the driver names goes before the table's advice."""
        return tuple(_condition(mark, table, recovery) for mark in self.marks.values())


def _condition(mark: Mark, table: XidTable, recovery: Action | None) -> Condition:
    rule = table.rule(mark.xid)
    advised = recovery.text if recovery is not None and rule.known else rule.advised
    repeated = f", {mark.count} times, last {clock_time(mark.last_at)}" if mark.count > 1 else ""
    return Condition(
        code=f"{CODE_PREFIX}{mark.xid}",
        severity=rule.severity,
        state=rule.state,
        why=f"XID {mark.xid}: {rule.meaning}{repeated}.",
        since=mark.first_at,
        advised=advised,
        evidence={
            "xid": mark.xid,
            "meaning": rule.meaning,
            "source": mark.source.value,
            "sticky": rule.sticky,
            "boot_id": mark.boot_id,
            "recovery_action": recovery.key if recovery is not None else "",
            "advice": {"nvidia": rule.advised, **rule.others} if rule.known else {},
            "table_version": table.version,
        },
        recover_seconds=0,
        count=mark.count,
        last_at=mark.last_at,
    )


def xid_of_code(code: str) -> int | None:
    """79 for the finding code `xid_79`; None for other findings."""
    number = code.removeprefix(CODE_PREFIX)
    return int(number) if code.startswith(CODE_PREFIX) and number.isdigit() else None
