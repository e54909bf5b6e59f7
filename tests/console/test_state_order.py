"""There is one order of health, the worst first: in verdicts, lists, the overview and on the map."""

import re
from pathlib import Path

from console.list_kinds import STATE_RANKS
from console.summary import BADNESS, STATE_ORDER
from fleet.frames import STATE_NUMBERS
from fleet.health.verdict import WORST_FIRST
from fleet.models import HealthState

MAP = Path(__file__).parents[2] / "static/js/lib/map_view.js"


def test_one_order() -> None:
    assert [state.value for state in WORST_FIRST] == ["down", "unknown", "degraded", "maintenance", "ok"]
    assert [state.value for state in STATE_ORDER] == [state.value for state in WORST_FIRST]
    assert sorted(STATE_RANKS, key=lambda state: STATE_RANKS[state]) == list(STATE_ORDER)
    assert set(STATE_ORDER) == set(HealthState)
    assert sorted(BADNESS, key=lambda state: -BADNESS[state]) == list(STATE_ORDER[: len(BADNESS)])


def test_the_maps_script_has_it_too() -> None:
    found = re.search(r"const ORDER = \[([\d, ]+)\]", MAP.read_text())
    assert found is not None
    assert [int(number) for number in found[1].split(",")] == [STATE_NUMBERS[state.value] for state in WORST_FIRST]
