"""The simulated silicon: the same seed and time give the same values, and what is set on it shows."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np

from agent.simulator.load import LocalTime, key_of, smooth_noise, uniform
from agent.simulator.physics import Physics
from tests.agent.simulated_fleet import CONFIG, L40S, NOW, SLICED, WHOLE, make_hardware, text_of, values_of

DAY = 86400.0


def test_same_seed_and_times_give_the_same_text(tmp_path: Path) -> None:
    one, other = make_hardware(tmp_path / "one"), make_hardware(tmp_path / "other")
    for now in (NOW + 3, NOW + 4.2, NOW + 100):
        other.advance(now)
    for exporter in ("dcgm", "triton", "vllm", "node"):
        assert text_of(one, "gpu-ams-07", NOW + 100, exporter) == text_of(other, "gpu-ams-07", NOW + 100, exporter)


def test_another_seed_gives_other_values(tmp_path: Path) -> None:
    one, other = make_hardware(tmp_path / "one"), make_hardware(tmp_path / "other", seed=8)
    assert text_of(one, "gpu-ams-07", NOW) != text_of(other, "gpu-ams-07", NOW)


def test_a_later_start_sees_nearly_the_same_gauges(tmp_path: Path) -> None:
    early, late = Physics(CONFIG, NOW - 3600), Physics(CONFIG, NOW)
    early.advance(NOW)
    for name in ("sm_mhz", "celsius", "watts", "utilization"):
        np.testing.assert_allclose(early.columns[f"gpu.{name}"], late.columns[f"gpu.{name}"], rtol=0.01, atol=1)


def test_a_clock_lock_shows_within_a_step_and_power_follows(tmp_path: Path) -> None:
    hardware, free = make_hardware(tmp_path / "locked"), make_hardware(tmp_path / "free")
    hardware.set_clock_range("gpu-ams-07", WHOLE, 600, 1000, NOW)
    assert hardware.read_clocks("gpu-ams-07", WHOLE, NOW).sm_mhz == 990
    after = NOW + CONFIG.step_seconds
    assert values_of(text_of(hardware, "gpu-ams-07", after), "DCGM_FI_DEV_SM_CLOCK", WHOLE) == [990]
    late = NOW + 120
    locked_text, free_text = text_of(hardware, "gpu-ams-07", late), text_of(free, "gpu-ams-07", late)
    watts, free_watts = (values_of(text, "DCGM_FI_DEV_POWER_USAGE", WHOLE)[0] for text in (locked_text, free_text))
    assert watts < 0.75 * free_watts
    assert values_of(locked_text, "DCGM_FI_DEV_GPU_TEMP", WHOLE)[0] < values_of(free_text, "DCGM_FI_DEV_GPU_TEMP", WHOLE)[0]
    assert values_of(locked_text, "DCGM_FI_DEV_SM_CLOCK", SLICED) == values_of(free_text, "DCGM_FI_DEV_SM_CLOCK", SLICED)


def test_without_the_lock_the_clock_is_back(tmp_path: Path) -> None:
    hardware = make_hardware(tmp_path)
    before = hardware.read_clocks("gpu-ams-07", WHOLE, NOW).sm_mhz
    hardware.set_clock_range("gpu-ams-07", WHOLE, 600, 1000, NOW)
    hardware.reset_clock_range("gpu-ams-07", WHOLE, NOW + 5)
    assert hardware.read_clocks("gpu-ams-07", WHOLE, NOW + 5).sm_mhz == before


def test_a_lock_above_the_board_holds_at_its_maximum_and_an_idle_gpu_obeys_the_lower_bound(tmp_path: Path) -> None:
    idle = replace(CONFIG, nodes=(replace(CONFIG.nodes[2], gpus=(replace(CONFIG.nodes[2].gpus[0], workload=None),)),))
    hardware = make_hardware(tmp_path, nodes=idle.nodes)
    reading = hardware.read_clocks("gpu-lax-02", L40S, NOW)
    assert (reading.sm_mhz, reading.limited_by) == (210, ("idle",))
    hardware.set_clock_range("gpu-lax-02", L40S, 1500, 9000, NOW)
    assert hardware.read_clocks("gpu-lax-02", L40S, NOW).sm_mhz == 1500
    hardware.set_clock_range("gpu-lax-02", L40S, 9000, 9000, NOW)
    assert hardware.read_clocks("gpu-lax-02", L40S, NOW).sm_mhz == 2520


def test_energy_is_the_integral_of_power(tmp_path: Path) -> None:
    hardware = make_hardware(tmp_path)
    readings = [text_of(hardware, "gpu-ams-07", NOW + second) for second in range(61)]
    energy = [values_of(text, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", WHOLE)[0] for text in readings]
    watts = [values_of(text, "DCGM_FI_DEV_POWER_USAGE", WHOLE)[0] for text in readings[1:]]
    assert all(later > earlier for earlier, later in itertools.pairwise(energy))
    np.testing.assert_allclose((energy[-1] - energy[0]) / 1000, sum(watts), rtol=1e-3)


def test_load_follows_local_time() -> None:
    """The radio's evening peak comes at each site's own evening."""
    physics = Physics(CONFIG, NOW)
    phy = [row for row, part in enumerate(physics.parts) if part.slice and part.slice.purpose == "phy"]
    hours = range(24)
    means = [np.mean([physics.load.demand(NOW - NOW % DAY + day * DAY + hour * 3600)[phy].mean() for day in range(4)]) for hour in hours]
    peak_utc = int(np.argmax(means))
    assert (peak_utc - 8) % 24 in range(16, 24)  # Los Angeles is 8 hours behind UTC in November
    assert max(means) > 1.5 * min(means)


def test_local_time_knows_summer_time() -> None:
    clock = LocalTime(["Europe/Amsterdam", "UTC"])
    winter, summer = 1_768_478_400.0, 1_784_116_800.0  # 2026-01-15 and 2026-07-15, 12:00 UTC
    assert clock.hours(winter).tolist() == [13, 12]
    assert clock.hours(summer).tolist() == [14, 12]


def test_values_stay_within_what_the_boards_can(tmp_path: Path) -> None:
    physics = Physics(CONFIG, NOW)
    for hour in range(0, 24, 4):
        physics.advance(NOW + hour * 3600)
        c = physics.columns
        assert (c["gpu.sm_mhz"] <= physics.max_mhz).all()
        assert (c["gpu.watts"] <= c["gpu.limit_watts"] * 1.02).all()
        assert ((c["part.active"] >= 0) & (c["part.active"] <= 1)).all()
        assert (c["part.free_mib"] >= 0).all()
        assert (c["gpu.celsius"] < 87).all()


def test_noise_is_smooth_and_bounded() -> None:
    keys = np.array([key_of(1, str(number)) for number in range(200)], dtype=np.uint64)
    values = np.array([smooth_noise(keys, NOW + step, 60, 3) for step in range(120)])
    assert np.abs(values).max() <= 1
    assert np.abs(np.diff(values, axis=0)).max() < 0.08
    assert 0.4 < uniform(keys, 1).mean() < 0.6


def test_inference_counters_follow_the_load(tmp_path: Path) -> None:
    hardware = make_hardware(tmp_path)
    first, last = text_of(hardware, "gpu-ams-07", NOW, "triton"), text_of(hardware, "gpu-ams-07", NOW + 300, "triton")

    def counter(text: str, name: str) -> float:
        return next(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(f'{name}{{model="detector",version="3"}}'))

    requests = counter(last, "nv_inference_request_success") - counter(first, "nv_inference_request_success")
    duration = counter(last, "nv_inference_request_duration_us") - counter(first, "nv_inference_request_duration_us")
    assert requests > 100
    assert 5_000 < duration / requests < 200_000
    parts = ("queue", "compute_input", "compute_infer", "compute_output")
    total = sum(counter(last, f"nv_inference_{part}_duration_us") for part in parts)
    np.testing.assert_allclose(total, counter(last, "nv_inference_request_duration_us"), rtol=1e-6)


def test_histograms_are_cumulative_and_end_in_their_count(tmp_path: Path) -> None:
    text = text_of(make_hardware(tmp_path), "gpu-ams-07", NOW + 30, "vllm")
    for name in ("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds"):
        buckets = [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(f"vllm:{name}_bucket")]
        count = next(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(f"vllm:{name}_count"))
        assert buckets == sorted(buckets)
        assert buckets[-1] == count > 0
