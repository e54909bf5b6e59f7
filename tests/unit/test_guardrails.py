"""Guard rails: classes, refusals with their rule, and properties that hold in whatever order plans come."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.control.guardrails import Act, Limits, Place, Reach, RiskClass, Rule, Target, admit, judge, pauses, plan_waves, region_limit

DRAIN = Act(kind="drain", word="drain", reach=Reach.WORKLOADS, disruptive=True)
REBOOT = Act(kind="reboot", word="reboot", reach=Reach.DEVICE, disruptive=True)
RESET = Act(kind="gpu_reset", word="reset", reach=Reach.DEVICE, disruptive=True, noun="GPU")
LOOK = Act(kind="diagnostics", word="diagnose", reach=Reach.NOTHING, disruptive=False)
EVICT = Act(kind="evict", word="evict", reach=Reach.WORKLOADS, disruptive=False)
LIMITS = Limits()


def target(number: int = 1, **fields: object) -> Target:
    base = Target(key=f"node:{number}", node_id=number, site=f"S-{number}", region="r", area="a", label=f"n-{number}")
    return replace(base, **fields)  # type: ignore[arg-type]


def places(*targets: Target, nodes: int = 100, phy_nodes: int = 5) -> Any:
    return {
        "sites": {one.site: Place(nodes=2, phy_nodes=phy_nodes) for one in targets},
        "regions": {one.region: Place(nodes=nodes) for one in targets},
    }


@pytest.mark.parametrize(
    ("act", "count", "risk", "approvals", "phrase"),
    [
        (LOOK, 500, RiskClass.READ, 0, ""),
        (EVICT, 1, RiskClass.REVERSIBLE_ONE, 0, ""),
        (EVICT, 2, RiskClass.REVERSIBLE_MANY, 0, ""),
        (DRAIN, 1, RiskClass.REVERSIBLE_ONE, 0, ""),
        (DRAIN, 412, RiskClass.DISRUPTIVE, 1, "drain 412 nodes"),
        (REBOOT, 1, RiskClass.DISRUPTIVE, 1, "reboot 1 node"),
        (RESET, 3, RiskClass.DISRUPTIVE, 1, "reset 3 GPUs"),
    ],
)
def test_classes_and_their_confirmation(act: Act, count: int, risk: RiskClass, approvals: int, phrase: str) -> None:
    plan = [target(number) for number in range(1, count + 1)]
    verdict = judge(act, plan, **places(*plan), limits=LIMITS)
    assert (verdict.risk, verdict.approvals, verdict.phrase, sum(verdict.waves)) == (risk, approvals, phrase, count)


def test_what_carries_phy_is_refused_but_by_break_glass_and_then_it_is_class_4() -> None:
    plan = [target(1, carries_phy=True, phy_workloads=3), target(2)]
    refused = judge(RESET, plan, **places(*plan), limits=LIMITS)
    assert [one.rule for one in refused.refused] == [Rule.PHY]
    assert (refused.risk, refused.phy_placements) == (RiskClass.DISRUPTIVE, 0)
    broken = judge(RESET, plan, **places(*plan), limits=LIMITS, break_glass=True)
    assert (broken.risk, broken.approvals, broken.phy_placements, len(broken.allowed)) == (RiskClass.PHY, 2, 3, 2)
    alone = judge(RESET, plan[:1], **places(*plan), limits=LIMITS)
    assert (alone.risk, alone.allowed) == (RiskClass.PHY, ())


def test_a_drain_leaves_phy_where_it_is_and_needs_no_break_glass() -> None:
    plan = [target(1, carries_phy=True, serves_phy=True)]
    assert judge(DRAIN, plan, **places(*plan, phy_nodes=1), limits=LIMITS).risk == RiskClass.REVERSIBLE_ONE


def test_never_the_last_node_that_serves_phy_at_a_site_not_even_by_break_glass() -> None:
    plan = [target(1, site="S", carries_phy=True, serves_phy=True), target(2, site="S", carries_phy=True, serves_phy=True)]
    verdict = judge(REBOOT, plan, **places(*plan, phy_nodes=2), limits=LIMITS, break_glass=True)
    assert [one.rule for one in verdict.refused] == [Rule.LAST_PHY_NODE]
    assert len(verdict.allowed) == 1


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"frozen": "release week"}, Rule.FREEZE),
        ({"breaker": "5 sites with XID 79"}, Rule.BREAKER),
        ({"actions_today": 3}, Rule.NODE_RATE),
        ({"same_actions_today": 2}, Rule.NODE_RATE),
    ],
)
def test_refusals_name_their_rule(fields: dict[str, object], rule: Rule) -> None:
    plan = [target(1, **fields)]
    assert [one.rule for one in judge(DRAIN, plan, **places(*plan), limits=LIMITS).refused] == [rule]
    assert judge(LOOK, plan, **places(*plan), limits=LIMITS).refused == ()


@pytest.mark.parametrize(("fields", "rule"), [({"present": False}, Rule.NOT_PRESENT), ({"retired": True}, Rule.RETIRED), ({"has_agent": False}, Rule.NO_AGENT)])
def test_what_is_not_there_is_skipped_also_by_break_glass(fields: dict[str, object], rule: Rule) -> None:
    plan = [target(1, **fields)]
    verdict = judge(DRAIN, plan, **places(*plan), limits=LIMITS, break_glass=True)
    assert ([one.rule for one in verdict.skipped], verdict.allowed) == ([rule], ())


@pytest.mark.parametrize(("nodes", "limit"), [(1, 1), (12, 1), (19, 1), (20, 10), (499, 10), (1000, 20), (5000, 100)])
def test_limits_of_a_region(nodes: int, limit: int) -> None:
    assert region_limit(nodes, LIMITS) == limit


def test_the_unreachable_are_counted_apart_and_come_last() -> None:
    plan = [target(1, reachable=False), target(2), target(3)]
    verdict = judge(DRAIN, plan, **places(*plan), limits=LIMITS)
    assert (verdict.unreachable, [one.node_id for one in verdict.allowed][-1]) == (1, 1)


@given(st.integers(0, 40_000), st.booleans())
def test_waves_add_up_and_begin_with_a_canary(count: int, canary: bool) -> None:
    waves = plan_waves(count, canary=canary, limits=LIMITS)
    assert sum(waves) == count
    assert all(size > 0 for size in waves)
    if canary and count:
        assert waves[0] == 1
    assert len(waves) <= 7


@pytest.mark.parametrize(
    ("done", "failed", "canary", "stops"), [(0, 0, False, False), (0, 1, True, True), (10, 1, False, False), (8, 2, False, False), (7, 3, False, True)]
)
def test_a_run_pauses_by_itself(done: int, failed: int, canary: bool, stops: bool) -> None:
    assert bool(pauses(done=done, failed=failed, canary=canary, limits=LIMITS)) is stops


PLANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6), st.integers(0, 2)), max_size=40)


@given(st.lists(PLANS, max_size=4), st.sampled_from([1, 5, 19, 20, 300]), st.integers(1, 3))
def test_no_plan_exceeds_a_limit_in_whatever_order_they_come(plans: list[list[tuple[int, int, int]]], nodes: int, per_site: int) -> None:
    """Plans arrive one after another; each is admitted against what the earlier ones have in flight."""
    limits = Limits(site_disrupted_nodes=per_site)
    where: dict[int, tuple[str, str]] = {}
    down: set[int] = set()
    for plan in plans:
        waiting = []
        for node, site, region in plan:
            place = where.setdefault(node, (f"S-{site}", f"R-{site % 3}"))
            waiting.append(target(node, key=f"{node}/{region}", site=place[0], region=place[1]))
        sites = {one.site: Place(nodes=10, disrupted=frozenset(n for n in down if where[n][0] == one.site)) for one in waiting}
        regions = {one.region: Place(nodes=nodes, disrupted=frozenset(n for n in down if where[n][1] == one.region)) for one in waiting}
        begin, held = admit(DRAIN, waiting, sites=sites, regions=regions, limits=limits)
        assert {one.key for one in begin} | set(held) == {one.key for one in waiting}
        down |= {one.node_id for one in begin}
    per = Counter(where[node][0] for node in down)
    around = Counter(where[node][1] for node in down)
    assert all(count <= per_site for count in per.values())
    assert all(count <= region_limit(nodes, limits) for count in around.values())


@given(
    st.lists(
        st.builds(lambda n, phy, ok: target(n, carries_phy=phy, serves_phy=phy, present=ok), st.integers(1, 50), st.booleans(), st.booleans()), max_size=30
    )
)
def test_without_break_glass_nothing_on_phy_is_allowed(plan: list[Target]) -> None:
    verdict = judge(REBOOT, plan, **places(*plan), limits=LIMITS)
    assert not [one for one in verdict.allowed if one.carries_phy]
    keys = [one.key for one in verdict.allowed] + [one.target.key for one in (*verdict.refused, *verdict.skipped)]
    assert sorted(keys) == sorted({one.key for one in plan})


def test_a_limit_that_makes_no_sense_is_named() -> None:
    with pytest.raises(ValueError, match="failure_share"):
        Limits(failure_share=0)
    with pytest.raises(ValueError, match="region_disrupted_share"):
        Limits(region_disrupted_share=float("nan"))
