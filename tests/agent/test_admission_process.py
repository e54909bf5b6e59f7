"""The door of a real agent process that is busy with a node, out of contact, asked as `script/bench admission` asks it."""

import pytest

from script.benchmarks.admission import QUESTIONS, run


@pytest.mark.processes
def test_every_kind_of_question_gets_the_answer_that_the_rules_give() -> None:
    load = run(seconds=2, rps=60)
    # On a machine that stalls for a second the depth is unknown, and these two get the other answer, as they should.
    assert set(load.wrong) <= {"low priority, shallow", "high priority, full"}
    assert len(load.latencies_ms) == 120 >= 4 * len(QUESTIONS)
