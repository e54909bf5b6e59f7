"""What became of every order, judged by the simulated hardware's act log, the console's rows and the audit. Pure: no input or output.

A node gets one order at a time, so an act belongs to the order that was given to its node last before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TERMINAL = ("done", "failed", "skipped", "unreachable", "expired", "cancelled")
OWNER = "masthead/command"
# Which acts on the hardware an order of a kind may cause, and without which one it cannot be done.
EFFECTS = {"gpu_reset": ("reset_gpu",), "reboot": ("reboot",), "evict": ("evict",), "drain": ("cordon", "evict"), "uncordon": ("uncordon",), "diagnostics": ()}
NEEDS = {"gpu_reset": "reset_gpu", "reboot": "reboot", "evict": "evict"}
SLACK_SECONDS = 0.05  # between the console's and the simulator's reading of one clock


@dataclass
class Order:
    """One order as it was given. `purpose` is `work`, `phy` (an attempt on PHY) or `expiring` (its time runs out while the node is cut off).

    `command` "": the console refused it. Times are Unix seconds; `pod_uid` for evictions.
    """

    kind: str
    host: str
    gpu: str
    purpose: str
    given_at: float
    command: str = ""
    refusal: str = ""
    pod_uid: str = ""


@dataclass(frozen=True)
class Row:
    """What the console holds of an order's target at the end."""

    state: str
    code: str
    not_after: float
    cordoned: bool = False


@dataclass
class Verdict:
    """Counts of the run; `wrong` says what is behind each count that has to be 0."""

    commands: int = 0
    done: int = 0
    expired: int = 0
    phy_attempts: int = 0
    phy_refused: int = 0
    expiring: int = 0
    lost: int = 0
    twice: int = 0
    late: int = 0
    phy: int = 0
    mismatched: int = 0
    states: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def judge(orders: Sequence[Order], rows: Mapping[str, Row], acts: Iterable[Mapping[str, Any]], cordoned: frozenset[str] = frozenset()) -> Verdict:
    """`rows` by command id; `acts` are the act log's records of kind `act`; `cordoned`: nodes that the hardware holds cordoned at the end."""
    found = Verdict()
    by_host: dict[str, list[Order]] = defaultdict(list)
    for order in sorted(orders, key=lambda one: one.given_at):
        by_host[order.host].append(order)
    its: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for act in acts:
        if act["result"] != "ok":
            continue
        if act.get("phy"):
            found.phy += 1
            found.wrong.append(f"phy: {act['act']} on {act['node']} at {act['at']:.1f}")
        there = by_host.get(act["node"], [])
        place = bisect_right([order.given_at for order in there], act["at"] + SLACK_SECONDS) - 1
        owner = there[place] if place >= 0 else None
        if owner is not None and act["act"] in {name for names in EFFECTS.values() for name in names}:
            its[id(owner)].append(act)
    for order in orders:
        _judge_one(found, order, rows.get(order.command), its[id(order)])
    for host, there in by_host.items():
        last = next(
            (one for one in reversed(there) if one.kind in ("drain", "uncordon") and (row := rows.get(one.command)) is not None and row.state == "done"), None
        )
        touched = last is not None and not any(one.given_at > last.given_at and one.kind in ("drain", "uncordon") and one.command for one in there)
        if last is not None and touched and (last.kind == "drain") != (host in cordoned):
            found.mismatched += 1
            found.wrong.append(f"mismatch: {host} is {'' if host in cordoned else 'not '}cordoned after {last.kind} was done")
    return found


def _judge_one(found: Verdict, order: Order, row: Row | None, acts: Sequence[Mapping[str, Any]]) -> None:
    name = f"{order.purpose} {order.kind} {order.command or '(refused)'} on {order.host}"
    if order.purpose == "phy":
        found.phy_attempts += 1
        refused = (not order.command and bool(order.refusal)) or (row is not None and row.state in ("failed", "skipped") and row.code == "phy")
        found.phy_refused += refused
        if not refused:
            found.wrong.append(f"not refused: {name}: {row}")
    elif order.purpose == "expiring":
        found.expiring += 1
        found.expired += row is not None and row.state == "expired"
        if row is not None and row.state != "expired":
            found.wrong.append(f"not expired: {name}: {row}")
    else:
        found.commands += 1
        found.done += row is not None and row.state == "done"
    if order.command and (row is None or row.state not in TERMINAL):
        found.lost += 1
        found.wrong.append(f"lost: {name}: {row}")
        return
    if row is None:
        if any(act["act"] in EFFECTS[order.kind] for act in acts):
            found.mismatched += 1
            found.wrong.append(f"mismatch: {name} was refused, and done")
        return
    if order.purpose == "work":
        found.states[row.state] = found.states.get(row.state, 0) + 1
    _judge_effects(found, name, order, row, acts)


def _judge_effects(found: Verdict, name: str, order: Order, row: Row, acts: Sequence[Mapping[str, Any]]) -> None:
    effects = [act for act in acts if act["act"] in EFFECTS[order.kind]]
    strangers = [act for act in acts if act["act"] not in EFFECTS[order.kind]]
    if strangers:
        # The order before it, or one that is over: done again, or done after its end.
        found.twice += len(strangers)
        found.wrong.append(f"stray: {[act['act'] for act in strangers]} while {name}")
    seen: dict[str, int] = defaultdict(int)
    for act in effects:
        seen[f"{act['act']} {act.get('gpu', '')} {act.get('arguments', {}).get('uid', '')}"] += 1
    for what, count in seen.items():
        if count > 1:
            found.twice += count - 1
            found.wrong.append(f"twice: {what} {count} times for {name}")
    if effects and effects[0]["at"] > row.not_after + SLACK_SECONDS:
        found.late += 1
        found.wrong.append(f"late: {name} began {effects[0]['at'] - row.not_after:.1f} s too late")
    needed = NEEDS.get(order.kind)
    if row.state == "done" and needed and not effects:
        found.lost += 1
        found.wrong.append(f"lost: {name} is done, and the hardware knows nothing of it")
    never_began = row.state in ("expired", "skipped") or (row.state == "failed" and row.code in ("phy", "precondition", "not_present", "expired"))
    if never_began and effects:
        found.mismatched += 1
        found.wrong.append(f"mismatch: {name} is {row.state} {row.code}, and the hardware did {[act['act'] for act in effects]}")
    if row.state == "failed" and needed in ("reset_gpu", "reboot") and effects and row.code in ("hardware", "timeout", "blocked"):
        found.mismatched += 1
        found.wrong.append(f"mismatch: {name} failed ({row.code}), and the hardware did it")
