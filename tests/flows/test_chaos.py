"""Commands while every part is killed once and links are cut: none is lost, none done twice or too late, none on PHY, and the audit holds. The long run is `script/bench chaos`."""

import os
from itertools import pairwise
from pathlib import Path

import pytest

from agent.simulator.fleet_plan import plan_fleet
from script.benchmarks.chaos import Load, held, torment
from script.benchmarks.chaos_plan import plan_faults, plan_steps

LOAD = Load(agents=6, commands=30, phy=6, expiring=3, kills_each=1, cuts=4, seconds=35, at_once=6, seed=3)


@pytest.mark.processes
@pytest.mark.skipif(not os.environ.get("MASTHEAD_TEST_CHAOS"), reason="Two minutes and more: MASTHEAD_TEST_CHAOS=1 adds it.")
def test_nothing_is_lost_done_twice_late_or_on_phy_while_everything_is_killed(tmp_path: Path) -> None:
    said: list[str] = []
    result = torment(tmp_path / "stack", LOAD, said.append)
    assert held(result, LOAD) == [], "\n".join([*said[-60:], str(result)])


def test_the_same_seed_is_the_same_torment_and_an_attempt_never_parts_a_drain_from_its_uncordon() -> None:
    nodes = plan_fleet(1, 1, 20).nodes
    steps = plan_steps(nodes, commands=200, phy=20, expiring=10, seed=5)
    assert steps == plan_steps(nodes, commands=200, phy=20, expiring=10, seed=5)
    assert steps != plan_steps(nodes, commands=200, phy=20, expiring=10, seed=6)
    every = [step for its in steps.values() for step in its]
    assert [sum(step.purpose == purpose for step in every) for purpose in ("work", "phy", "expiring")] == [200, 20, 10]
    assert {step.kind for step in every} == {"drain", "uncordon", "evict", "gpu_reset", "reboot", "diagnostics"}
    for its in steps.values():
        assert not [after for before, after in pairwise(its) if before.purpose == "work" and before.kind == "drain" and after.purpose != "work"]
    faults = plan_faults([node.host_name for node in nodes], kills_each=5, cuts=50, seconds=300, first=3, seed=5)
    assert (sum(bool(fault.victim) for fault in faults), sum(bool(fault.host) for fault in faults)) == (35, 50)
    assert faults == plan_faults([node.host_name for node in nodes], kills_each=5, cuts=50, seconds=300, first=3, seed=5)
