"""A control reads by its own words, whichever it is."""

from typing import Any

import pytest

from console.control_words import asked_for
from console.gpu_events import events_of
from fleet.models import Policy
from tests.builders import T0, make_gpu, make_user


@pytest.mark.parametrize(
    ("control", "parameters", "words"),
    [
        ("clock_range", {"min_mhz": 900, "max_mhz": 1100}, "Clock range 900–1100 MHz"),
        ("power_cap", {"watts": 400}, "Power cap 400 W"),
        ("mig_layout", {"layout": "7x1g.10gb"}, "MIG layout 7x1g.10gb"),
        ("cordon", {"cordoned": True}, "Takes no new pods yes"),
        ("fan_speed", {"percent": 80}, "Fan speed"),
    ],
)
def test_words(control: str, parameters: dict[str, Any], words: str) -> None:
    assert asked_for(Policy(control=control, parameters=parameters), sku="h100-sxm-80gb") == words


@pytest.mark.django_db
def test_events_of_a_gpu_name_the_control_that_was_set() -> None:
    gpu = make_gpu()
    policy = Policy(
        control="power_cap",
        scope_kind="gpu",
        scope_key=gpu.uuid,
        parameters={"watts": 400},
        reason="r",
        starts_at=T0,
        created_by=make_user("ann"),
        created_at=T0,
    )
    assert [event.text for event in events_of(gpu, [policy], now=T0)] == ["Power cap 400 W set by ann"]
