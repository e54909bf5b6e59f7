"""Which MIG layouts can stand, and what may not touch the radio."""

import pytest

from fleet.catalogue import sku
from fleet.inventory.mig import (
    Code,
    LayoutRefused,
    Placement,
    Purpose,
    Span,
    check_change,
    check_layout,
    default_layout,
    protected_spans,
    require_layout,
    what_still_fits,
)

H100, L40S, H200 = sku("h100-sxm-80gb"), sku("l40s-48gb"), sku("h200-141gb")
PHY, AI = Purpose.PHY, Purpose.AI


def reasons(*layout: tuple[str, int], board: str = "h100-sxm-80gb") -> list[str]:
    return [refusal.reason for refusal in check_layout(sku(board), [Placement(start, name) for name, start in layout])]


@pytest.mark.parametrize(
    "layout",
    [
        [("4g.40gb", 0), ("3g.40gb", 4)],
        [("3g.40gb", 0), ("3g.40gb", 4)],
        [("1g.10gb", start) for start in range(7)],
        [("2g.20gb", 0), ("1g.10gb", 2), ("1g.10gb", 3), ("3g.40gb", 4)],
        [("1g.20gb", start) for start in (0, 2, 4, 6)],
        [("7g.80gb", 0)],
        [("1g.10gb+me", 6), ("2g.20gb", 0)],
        [],
    ],
)
def test_layouts_that_exist(layout: list[tuple[str, int]]) -> None:
    assert reasons(*layout) == []


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        ([("3g.40gb", 0), ("4g.40gb", 4)], "4g.40gb may start only at position 0, not at 4."),
        ([("3g.40gb", 2)], "3g.40gb may start at positions 0, 4, not at 2."),
        ([("2g.20gb", 6)], "2g.20gb may start at positions 0, 2, 4, not at 6."),
        ([("1g.10gb", 7)], "1g.10gb may start at positions 0, 1, 2, 3, 4, 5, 6, not at 7."),
        ([("3g.40gb", 0), ("2g.20gb", 2)], "3g.40gb at 0 and 2g.20gb at 2 both take positions 2-3."),
        ([("1g.10gb", 3), ("3g.40gb", 0)], "3g.40gb at 0 and 1g.10gb at 3 both take position 3."),
        ([("1g.10gb+me", 0), ("1g.10gb+me", 1)], "At most 1 of 1g.10gb+me fit on a GPU; 2 are asked for."),
        ([("5g.50gb", 0)], "H100 80GB SXM has no profile '5g.50gb'; it has 1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb."),
    ],
)
def test_layouts_that_do_not_exist_are_refused_with_the_reason(layout: list[tuple[str, int]], reason: str) -> None:
    assert reasons(*layout) == [reason]


def test_all_reasons_at_once() -> None:
    codes = [refusal.code for refusal in check_layout(H100, [Placement(4, "4g.40gb"), Placement(0, "9g"), Placement(0, "2g.20gb"), Placement(0, "3g.40gb")])]
    assert codes == [Code.UNKNOWN_PROFILE, Code.WRONG_START, Code.OVERLAP]


def test_no_mig_on_an_l40s() -> None:
    assert reasons(("1g.10gb", 0), board="l40s-48gb") == ["L40S 48GB has no MIG: it is one whole GPU."]
    assert check_layout(L40S, []) == []
    with pytest.raises(LayoutRefused, match="no MIG"):
        default_layout(L40S)


def test_the_default_layout_keeps_three_positions_for_the_radio() -> None:
    layout = default_layout(H100)
    assert [(each.profile, each.start, each.purpose) for each in layout] == [("1g.10gb", start, PHY if start < 3 else AI) for start in range(7)]
    spans = protected_spans(H100, layout)
    assert spans == [Span(0, 1), Span(1, 1), Span(2, 1)]
    assert check_layout(H100, layout, spans) == []
    assert [each.profile for each in default_layout(H200)] == ["1g.18gb"] * 7


def test_an_instance_on_a_protected_span_is_refused() -> None:
    assert [refusal.reason for refusal in check_layout(H100, [Placement(2, "2g.20gb")], [Span(0, 3)])] == [
        "2g.20gb at 2 would take positions 0-2, which is protected for PHY."
    ]
    assert [refusal.reason for refusal in check_layout(H100, [Placement(2, "2g.20gb", PHY)], [Span(0, 3)])] == [
        "2g.20gb at 2 is meant for PHY but lies outside the protected placements."
    ]
    with pytest.raises(LayoutRefused, match="protected for PHY"):
        require_layout(H100, [Placement(0, "7g.80gb")], [Span(4, 4)])


def test_a_change_may_not_touch_what_is_protected() -> None:
    current = default_layout(H100)
    spans = protected_spans(H100, current)
    kept = current[:3]
    assert check_change(H100, current, [*kept, Placement(3, "1g.10gb"), Placement(4, "3g.40gb")], spans) == []
    refusals = check_change(H100, current, [*kept[:2], Placement(4, "3g.40gb")], spans)
    assert [refusal.reason for refusal in refusals] == ["The PHY instance 1g.10gb at 2 would go: position 2 is protected."]
    merged = check_change(H100, current, [Placement(0, "2g.20gb", PHY), kept[2], *current[3:]], spans)
    assert [refusal.code for refusal in merged] == [Code.PROTECTED] * 3
    assert [refusal.code for refusal in check_change(L40S, [], [Placement(0, "1g.10gb")], [Span(0, 8)])] == [Code.NO_MIG]


def test_what_still_fits_beside_a_layout() -> None:
    assert what_still_fits(H100, [Placement(0, "3g.40gb", PHY)], [Span(0, 4)]) == {
        "1g.10gb": [4, 5, 6],
        "1g.10gb+me": [4, 5, 6],
        "1g.20gb": [4, 6],
        "2g.20gb": [4],
        "3g.40gb": [4],
    }
    assert what_still_fits(H100, default_layout(H100)) == {}
    assert what_still_fits(L40S, []) == {}
    assert what_still_fits(H100, [])["7g.80gb"] == [0]
    assert "7g.80gb" not in what_still_fits(H100, [], [Span(0, 3)])
