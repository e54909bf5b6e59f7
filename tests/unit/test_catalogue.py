"""The SKU catalogue says what the boards can do."""

import pytest

from fleet import catalogue
from fleet.catalogue import CatalogueError, UnknownSku, load, sku, sku_for_model


@pytest.mark.parametrize(
    ("model_name", "key"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"),
        ("NVIDIA-H100-80GB-HBM3", "h100-sxm-80gb"),
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "h100-sxm-80gb"),
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb.me", "h100-sxm-80gb"),
        ("NVIDIA-L40S-SHARED", "l40s-48gb"),
        ("nvidia l40s", "l40s-48gb"),
        ("NVIDIA H100 PCIe", "h100-pcie-80gb"),
        ("NVIDIA H100 NVL", "h100-nvl-94gb"),
        ("NVIDIA H200", "h200-141gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
    ],
)
def test_a_board_is_found_by_any_of_its_names(model_name: str, key: str) -> None:
    found = sku_for_model(model_name)
    assert found is not None
    assert found.key == key


@pytest.mark.parametrize("model_name", ["", "NVIDIA H200 NVL", "Tesla T4", "NVIDIA H100"])
def test_an_unknown_board_is_not_guessed(model_name: str) -> None:
    assert sku_for_model(model_name) is None


def test_limits_of_the_boards() -> None:
    h100 = sku("h100-sxm-80gb")
    assert (h100.power_min_watts, h100.power_max_watts, h100.sm_clock_max_mhz) == (200, 700, 1980)
    assert (h100.slowdown_celsius, h100.shutdown_celsius) == (87, 92)
    l40s = sku("l40s-48gb")
    assert (l40s.power_min_watts, l40s.power_max_watts, l40s.sm_clock_max_mhz) == (100, 350, 2520)
    assert (l40s.slowdown_celsius, l40s.shutdown_celsius, l40s.mig_capable) == (93, 96, False)
    assert sku("a100-80gb").sm_clock_max_mhz == 1410
    assert sku("h100-pcie-80gb").slowdown_celsius is None


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("h100-sxm-80gb", ["1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]),
        ("h100-pcie-80gb", ["1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]),
        ("h100-nvl-94gb", ["1g.12gb", "1g.12gb+me", "1g.24gb", "2g.24gb", "3g.47gb", "4g.47gb", "7g.94gb"]),
        ("h200-141gb", ["1g.18gb", "1g.18gb+me", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"]),
        ("a100-40gb", ["1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"]),
        ("a100-80gb", ["1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]),
    ],
)
def test_profiles_share_ids_and_placements(key: str, names: list[str]) -> None:
    profiles = sku(key).profiles
    assert [profile.name for profile in profiles] == names
    assert [profile.id for profile in profiles] == [19, 20, 15, 14, 9, 5, 0]
    assert [profile.max_instances for profile in profiles] == [7, 1, 4, 3, 2, 1, 1]
    ones = (0, 1, 2, 3, 4, 5, 6)
    assert [profile.placements for profile in profiles] == [ones, ones, (0, 2, 4, 6), (0, 2, 4), (0, 4), (0,), (0,)]
    assert [profile.size for profile in profiles] == [1, 1, 2, 2, 4, 4, 8]
    assert [profile.compute_slices for profile in profiles] == [1, 1, 1, 2, 3, 4, 7]


def test_every_figure_has_a_source_and_a_version() -> None:
    for entry in catalogue.SKUS.values():
        assert entry.version
        assert entry.sources or entry.key == catalogue.UNKNOWN
        for profile in entry.profiles:
            assert all(start + profile.size <= 8 for start in profile.placements)


def test_no_such_sku() -> None:
    with pytest.raises(UnknownSku, match="'h900' is not a SKU"):
        sku("h900")


def test_a_catalogue_that_contradicts_itself_is_refused() -> None:
    entry = "{name: X, model_names: [Board], architecture: a, memory_mib: 1, multiprocessors: 1, profile_table: %s, "
    entry += "power_watts: [1, 2], sm_clock_mhz: [1, 2], slowdown_celsius: 1, shutdown_celsius: 2, sources: [%s]}"
    head = "version: '1'\nsources: {s: S}\nprofile_tables: {}\nskus:\n  "
    with pytest.raises(CatalogueError, match="no table 'nothing'"):
        load(head + "x: " + entry % ("nothing", "s"))
    with pytest.raises(CatalogueError, match="no source 'nowhere'"):
        load(head + "x: " + entry % ("null", "nowhere"))
    with pytest.raises(CatalogueError, match="also a name of 'x'"):
        load(head + "x: " + entry % ("null", "s") + "\n  y: " + entry % ("null", "s"))
