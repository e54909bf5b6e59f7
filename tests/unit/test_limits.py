"""Bounds of the controls by board: refusals name field and range, and what is offered is what may be."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet import catalogue
from fleet.control.limits import CONTROLS, allowed_layouts, check_parameters, fields_of, limits_of
from fleet.inventory.mig import Placement, Purpose, Span, default_layout, protected_spans

H100 = catalogue.sku("h100-sxm-80gb")
LIMITS = limits_of("h100-sxm-80gb")
UNKNOWN = limits_of("no-such-board")
SEVEN = default_layout(H100)
RADIO = protected_spans(H100, SEVEN)


@pytest.mark.parametrize(
    ("control", "parameters", "errors"),
    [
        ("power_cap", {"watts": 200}, {}),
        ("power_cap", {"watts": 350.5}, {}),
        ("power_cap", {"watts": 700}, {}),
        ("power_cap", {"watts": 199}, {"watts": "199 W is not within 200..700 W."}),
        ("power_cap", {"watts": 701}, {"watts": "701 W is not within 200..700 W."}),
        ("power_cap", {"watts": 350_000}, {"watts": "350000 W is not within 200..700 W."}),
        ("power_cap", {"watts": -5}, {"watts": "-5 W is not within 200..700 W."}),
        ("power_cap", {"watts": float("nan")}, {"watts": "Must be a number of W."}),
        ("power_cap", {"watts": True}, {"watts": "Must be a number of W."}),
        ("power_cap", {"watts": "450"}, {"watts": "Must be a number of W."}),
        ("power_cap", {"percent_of_maximum": 50}, {}),
        ("power_cap", {"percent_of_maximum": 28}, {"percent_of_maximum": "28 % is not within 28.5714..100 %."}),
        ("power_cap", {"percent_of_default": 0}, {"percent_of_default": "Must be above 0 %."}),
        ("power_cap", {}, {"watts": "Missing: give exactly one of watts, percent_of_default, percent_of_maximum."}),
        (
            "power_cap",
            {"watts": 300, "percent_of_maximum": 50},
            {"percent_of_maximum": "Only one of watts, percent_of_default, percent_of_maximum may be given."},
        ),
        (
            "power_cap",
            {"watts": 300, "milliwatts": 1},
            {"milliwatts": "power_cap has no such field; it takes watts, percent_of_default, percent_of_maximum."},
        ),
        ("clock_range", {"min_mhz": 1200, "max_mhz": 1400}, {}),
        ("clock_range", {"min_mhz": 1400, "max_mhz": 1200}, {"min_mhz": "1400 MHz is above max_mhz, 1200 MHz."}),
        (
            "clock_range",
            {"min_mhz": 1200.5, "max_mhz": 9000},
            {"min_mhz": "Must be a whole number of MHz.", "max_mhz": f"9000 MHz is not within {LIMITS.clock_mhz}."},
        ),
        ("clock_range", {"max_mhz": 1200}, {"min_mhz": "Missing."}),
        ("cordon", {"cordoned": True}, {}),
        ("cordon", {"cordoned": 1}, {"cordoned": "Must be true or false."}),
        ("mig_layout", {"layout": "4g.40gb@0,3g.40gb@4"}, {}),
        ("mig_layout", {"layout": "off"}, {}),
        ("mig_layout", {"layout": "3g.40gb@0,4g.40gb@4"}, {"layout": "4g.40gb may start only at position 0, not at 4."}),
        ("mig_layout", {"layout": "3g.40gb"}, {"layout": "'3g.40gb' is not a profile at a position, such as 1g.10gb@0."}),
        ("mig_layout", {"layout": None}, {"layout": "Must be a text."}),
        ("overclock", {}, {"control": "'overclock' is none of clock_range, power_cap, mig_layout, cordon."}),
        ("cordon", [], {"parameters": "Must be an object."}),
    ],
)
def test_every_bad_field_is_named_with_what_would_be_right(control: str, parameters: Any, errors: dict[str, str]) -> None:
    assert check_parameters(control, parameters, LIMITS) == errors


def test_what_the_agent_read_of_the_board_goes_before_the_catalogue() -> None:
    read = limits_of("h100-sxm-80gb", {"min_watts": 100.0, "max_watts": 500.0, "default_watts": 400.0, "limit_watts": 400.0})
    assert str(read.power_watts) == "100..500 W"
    assert check_parameters("power_cap", {"watts": 600}, read) == {"watts": "600 W is not within 100..500 W."}
    assert check_parameters("power_cap", {"percent_of_default": 125}, read) == {}
    assert check_parameters("power_cap", {"percent_of_default": 126}, read) == {"percent_of_default": "126 % is not within 25..125 %."}
    assert limits_of("h100-sxm-80gb", {"error": "gpu_lost", "min_watts": float("nan")}).power_watts == LIMITS.power_watts


def test_an_unknown_board_is_left_to_judge_for_itself() -> None:
    assert UNKNOWN.power_watts is None
    assert check_parameters("power_cap", {"watts": 5000}, UNKNOWN) == {}
    assert check_parameters("power_cap", {"watts": 0}, UNKNOWN) == {"watts": "Must be above 0 W."}
    assert check_parameters("clock_range", {"min_mhz": 100, "max_mhz": 5000}, UNKNOWN) == {}
    assert check_parameters("mig_layout", {"layout": "9g.90gb@0"}, UNKNOWN) == {}
    assert check_parameters("mig_layout", {"layout": "1g.10gb@9"}, UNKNOWN) != {}


def test_a_board_without_mig_takes_only_off() -> None:
    l40s = limits_of("l40s-48gb")
    assert check_parameters("mig_layout", {"layout": "1g.10gb@0"}, l40s) == {"layout": "L40S 48GB has no MIG: it is one whole GPU."}
    assert check_parameters("mig_layout", {"layout": "off"}, l40s) == {}
    assert l40s.sku is not None
    assert allowed_layouts(l40s.sku) == ()


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("1g.10gb@0,1g.10gb@1,1g.10gb@2,3g.40gb@4", ""),
        ("3g.40gb@0,3g.40gb@4", "protected"),
        ("off", "The GPU carries PHY: off would take the mode of the whole GPU."),
        ("none", "The PHY instance 1g.10gb at 0 would go"),
    ],
)
def test_a_layout_of_a_gpu_with_phy_keeps_the_radio(layout: str, words: str) -> None:
    errors = check_parameters("mig_layout", {"layout": layout}, LIMITS, layout=SEVEN, protected=RADIO)
    assert (words in errors["layout"]) if words else errors == {}


def test_controls_of_the_whole_gpu_reach_phy() -> None:
    for control, parameters in (("power_cap", {"watts": 300}), ("clock_range", {"min_mhz": 600, "max_mhz": 900})):
        assert "carries PHY" in check_parameters(control, parameters, LIMITS, protected=RADIO)[""]
    assert check_parameters("cordon", {"cordoned": True}, LIMITS, protected=RADIO) == {}


def test_fields_have_titles_units_and_bounds() -> None:
    for control in CONTROLS:
        for field in fields_of(control, LIMITS):
            assert field.title
            assert field.unit or field.kind in ("text", "boolean")
    assert [str(field.bounds) for field in fields_of("power_cap", LIMITS)] == ["200..700 W", "None", "28.5714..100 %"]
    with pytest.raises(KeyError):
        fields_of("overclock", LIMITS)


def test_offered_layouts_may_be_set_and_are_full() -> None:
    offered = allowed_layouts(H100)
    assert {"7g.80gb@0", "4g.40gb@0,3g.40gb@4", "3g.40gb@0,3g.40gb@4", ",".join(f"1g.10gb@{start}" for start in range(7))} <= set(offered)
    assert "3g.40gb@0,4g.40gb@4" not in offered
    for layout in offered:
        assert check_parameters("mig_layout", {"layout": layout}, LIMITS) == {}
    beside_radio = allowed_layouts(H100, layout=SEVEN, protected=RADIO)
    assert "1g.10gb@0,1g.10gb@1,1g.10gb@2,1g.10gb@3,3g.40gb@4" in beside_radio
    for layout in beside_radio:
        assert layout.startswith("1g.10gb@0,1g.10gb@1,1g.10gb@2,")
        assert check_parameters("mig_layout", {"layout": layout}, LIMITS, layout=SEVEN, protected=RADIO) == {}


@given(st.lists(st.builds(Span, st.integers(0, 7), st.integers(1, 4)), max_size=2), st.sampled_from([SEVEN, [], [Placement(0, "3g.40gb", Purpose.PHY)]]))
def test_no_offer_ever_touches_a_protected_span(protected: list[Span], layout: list[Placement]) -> None:
    sizes = {profile.name: profile.size for profile in H100.profiles}
    for offer in allowed_layouts(H100, layout=layout, protected=protected):
        for part in offer.split(","):
            profile, start = part.split("@")
            span = Span(int(start), sizes[profile])
            if any(span.overlaps(other) for other in protected):
                assert (int(start), profile) in {(placement.start, placement.profile) for placement in layout}


@given(st.one_of(st.floats(), st.integers()), st.sampled_from(["watts", "percent_of_default", "percent_of_maximum"]))
def test_any_number_is_answered(value: float, field: str) -> None:
    errors = check_parameters("power_cap", {field: value}, LIMITS)
    assert set(errors) <= {field}
    if field == "watts" and not errors:
        assert 200 <= value <= 700
