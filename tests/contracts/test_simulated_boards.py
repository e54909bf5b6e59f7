"""The agent's distribution cannot import the catalogue, so the simulator has figures of its own: they are the catalogue's."""

import pytest

from agent.simulator.boards import BOARDS, Board, compute_slices, profile_size, slice_memory_mib
from agent.simulator.fields import ConfigError
from agent.simulator.fleet_plan import plan_fleet
from fleet.catalogue import sku


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_a_simulated_board_is_the_one_of_the_catalogue(board: Board) -> None:
    known = sku(board.sku)
    assert board.model_name in known.model_names
    assert (board.memory_mib, board.max_sm_mhz, board.limit_watts) == (known.memory_mib, known.sm_clock_max_mhz, known.power_max_watts)
    assert board.slowdown_celsius == (known.slowdown_celsius or board.slowdown_celsius)
    assert board.mig == known.mig_capable
    for profile in known.profiles:
        size = profile_size(board, profile.name, "profile")
        assert (size, compute_slices(profile.name)) == (profile.size, profile.compute_slices)
        assert slice_memory_mib(board, size) == profile.memory_mib or profile.memory_mib is None


def test_the_made_up_fleet_knows_only_catalogued_boards() -> None:
    assert all(sku(gpu.sku).key == gpu.sku for node in plan_fleet(1, 1, 12).nodes for gpu in node.gpus)


@pytest.mark.parametrize(("key", "profile"), [("l40s-48gb", "1g.10gb"), ("h100-sxm-80gb", "9g.10gb"), ("h100-sxm-80gb", "1g")])
def test_a_profile_that_a_board_has_not_is_refused(key: str, profile: str) -> None:
    with pytest.raises(ConfigError, match=r"^here: "):
        profile_size(BOARDS[key], profile, "here")
