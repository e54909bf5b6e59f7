"""The judge of the chaos run sees what it is there for: each kind of wrong on the hardware or in the console's rows is counted as what it is."""

from typing import Any

import pytest

from script.benchmarks.chaos_judge import Order, Row, Verdict, judge

UID = "0d35"


def order(kind: str = "gpu_reset", *, at: float = 100.0, purpose: str = "work", command: str = "c1", **more: Any) -> Order:
    return Order(kind=kind, host="n1", gpu="GPU-1" if kind == "gpu_reset" else "", purpose=purpose, given_at=at, command=command, **more)


def act(name: str, at: float, **more: Any) -> dict[str, Any]:
    return {"kind": "act", "node": "n1", "gpu": "GPU-1" if name == "reset_gpu" else "", "act": name, "arguments": {}, "at": at, "result": "ok", **more}


def wrongs(found: Verdict) -> dict[str, int]:
    return {name: count for name in ("lost", "twice", "late", "phy", "mismatched") if (count := getattr(found, name))}


DONE = Row("done", "", 200.0)


def test_a_run_without_a_fault_is_clean() -> None:
    orders = [order("drain"), order(at=110, command="c2"), order("uncordon", at=120, command="c3"), order("reboot", at=130, command="c4")]
    acts = [act("cordon", 101), act("evict", 102, arguments={"uid": UID}), act("reset_gpu", 112), act("uncordon", 121), act("reboot", 131)]
    found = judge(orders, {one.command: DONE for one in orders}, acts)
    assert wrongs(found) == {}
    assert (found.commands, found.done) == (4, 4)


@pytest.mark.parametrize(
    ("row", "acts", "expected"),
    [
        (None, [], {"lost": 1}),
        (Row("running", "", 200.0), [act("reset_gpu", 101)], {"lost": 1}),
        (DONE, [], {"lost": 1}),
        (DONE, [act("reset_gpu", 101), act("reset_gpu", 105)], {"twice": 1}),
        (DONE, [act("reset_gpu", 101), act("reboot", 105)], {"twice": 1}),
        (Row("done", "", 150.0), [act("reset_gpu", 151)], {"late": 1}),
        (DONE, [act("reset_gpu", 101, phy=True)], {"phy": 1}),
        (Row("expired", "expired", 200.0), [act("reset_gpu", 101)], {"mismatched": 1}),
        (Row("failed", "precondition", 200.0), [act("reset_gpu", 101)], {"mismatched": 1}),
        (Row("failed", "hardware", 200.0), [act("reset_gpu", 101)], {"mismatched": 1}),
        (Row("failed", "hardware", 200.0), [], {}),
        (Row("failed", "blocked", 200.0), [act("reset_gpu", 101, result="in_use")], {}),
    ],
)
def test_each_wrong_is_counted(row: Row | None, acts: list[dict[str, Any]], expected: dict[str, int]) -> None:
    assert wrongs(judge([order()], {} if row is None else {"c1": row}, acts)) == expected


def test_a_pod_that_is_evicted_twice_and_one_evicted_after_the_next_order_are_seen() -> None:
    orders = [order("evict", pod_uid=UID), order("diagnostics", at=120, command="c2")]
    rows = {"c1": DONE, "c2": DONE}
    evicted = act("evict", 101, arguments={"uid": UID})
    assert wrongs(judge(orders, rows, [evicted])) == {}
    assert wrongs(judge(orders, rows, [evicted, act("evict", 103, arguments={"uid": UID})])) == {"twice": 1}
    assert wrongs(judge(orders, rows, [evicted, act("evict", 125, arguments={"uid": UID})])) == {"twice": 1}


def test_attempts_on_phy_count_as_refused_only_where_somebody_refused_them() -> None:
    orders = [
        order("reboot", purpose="phy", command="", refusal="submit 409"),
        order("evict", at=110, purpose="phy", command="c2"),
        order("reboot", at=120, purpose="phy", command="c3"),
    ]
    rows = {"c2": Row("failed", "phy", 200.0), "c3": Row("failed", "hardware", 200.0)}
    found = judge(orders, rows, [])
    assert (found.phy_attempts, found.phy_refused) == (3, 2)
    found = judge(orders[:1], {}, [act("reboot", 105)])
    assert wrongs(found) == {"mismatched": 1}


def test_what_was_to_expire_and_did_not_is_seen() -> None:
    late = order("reboot", purpose="expiring")
    assert judge([late], {"c1": Row("expired", "expired", 104.0)}, []).expired == 1
    found = judge([late], {"c1": Row("done", "", 104.0)}, [act("reboot", 109)])
    assert (found.expiring, found.expired, found.late) == (1, 0, 1)


def test_a_cordon_that_stays_or_is_missing_at_the_end_is_seen() -> None:
    assert wrongs(judge([order("drain")], {"c1": DONE}, [act("cordon", 101)], frozenset({"n1"}))) == {}
    assert wrongs(judge([order("drain")], {"c1": DONE}, [act("cordon", 101)])) == {"mismatched": 1}
    assert wrongs(judge([order("uncordon")], {"c1": DONE}, [act("uncordon", 101)], frozenset({"n1"}))) == {"mismatched": 1}
