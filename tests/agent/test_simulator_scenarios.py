"""Each fault has its signature, in the exporters' text and in what the driver says, and leaves the others alone."""

from pathlib import Path

import pytest

from agent.backends.base import ErrorCode
from agent.protocol import Condition
from agent.simulator.config import ScenarioConfig, parse_scenario
from agent.simulator.fields import ConfigError
from agent.simulator.fleet_plan import plan_fleet
from agent.simulator.hardware import Hardware, Silence
from agent.simulator.partitions import HardwareError
from agent.simulator.scenarios import GPU_SCENARIOS, SCENARIOS, ScenarioBook, mild_timeline
from tests.agent.simulated_fleet import CONFIG, NOW, PHY, SLICED, WHOLE, make_hardware, text_of, values_of

HOST = "gpu-ams-07"
XID = "DCGM_FI_DEV_XID_ERRORS"


def start(hardware: Hardware, name: str, **fields: object) -> int:
    return hardware.start_scenario(parse_scenario({"name": name, "duration_seconds": 60, **fields}, ""), NOW).id


def condition_of(hardware: Hardware, gpu: str, now: float) -> Condition:
    return next(one.condition for one in hardware.health(HOST, now).gpus if one.uuid == gpu)


def test_link_cut_silences_all_exporters_and_the_agent_but_not_the_hardware(tmp_path: Path) -> None:
    hardware = make_hardware(tmp_path)
    start(hardware, "link_cut", site="AMS-07")
    assert {hardware.exposition(HOST, exporter, NOW + 1) for exporter in ("dcgm", "node", "triton", "vllm")} == {Silence.BREAK}
    assert hardware.cut_hosts() == {HOST}
    assert hardware.down_hosts() == set()
    assert condition_of(hardware, WHOLE, NOW + 1) is Condition.OK
    assert text_of(hardware, "gpu-lax-01", NOW + 1)
    assert text_of(hardware, HOST, NOW + 61)
    assert hardware.cut_hosts() == set()


def test_a_node_down_boots_at_the_end(tmp_path: Path) -> None:
    hardware = make_hardware(tmp_path)
    boot_id = hardware.boot_id(HOST)
    hardware.set_clock_range(HOST, WHOLE, 600, 900, NOW)
    start(hardware, "node_down", node=HOST)
    assert hardware.exposition(HOST, "node", NOW + 1) is Silence.BREAK
    assert hardware.down_hosts() == hardware.cut_hosts() == {HOST}
    with pytest.raises(HardwareError) as refusal:
        hardware.boot_id(HOST)
    assert refusal.value.code is ErrorCode.UNAVAILABLE
    text = text_of(hardware, HOST, NOW + 61)
    assert hardware.boot_id(HOST) != boot_id
    assert values_of(text, "DCGM_FI_DEV_SM_CLOCK", WHOLE)[0] > 900
    assert values_of(text, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", WHOLE)[0] < 700 * 61 * 1000
    assert f"node_boot_time_seconds {NOW + 60:.12e}" in text_of(hardware, HOST, NOW + 61, "node")


def test_exporter_down_silences_dcgm_only(tmp_path: Path) -> None:
    hardware = make_hardware(tmp_path)
    start(hardware, "exporter_down", node=HOST)
    assert hardware.exposition(HOST, "dcgm", NOW + 1) is Silence.BREAK
    assert text_of(hardware, HOST, NOW + 1, "node")
    assert hardware.cut_hosts() == set()


def test_a_frozen_exporter_serves_the_same_text_again(tmp_path: Path) -> None:
    hardware = make_hardware(tmp_path)
    start(hardware, "exporter_frozen", node=HOST)
    first = text_of(hardware, HOST, NOW + 1)
    assert text_of(hardware, HOST, NOW + 59) == first
    assert text_of(hardware, HOST, NOW + 61) != first


def test_a_frozen_exporter_may_hang(tmp_path: Path) -> None:
    hardware = make_hardware(tmp_path)
    start(hardware, "exporter_frozen", node=HOST, mode="hang")
    assert hardware.exposition(HOST, "dcgm", NOW + 1) is Silence.HANG
    assert text_of(hardware, HOST, NOW + 1, "node")
    assert text_of(hardware, HOST, NOW + 61)


def test_a_lost_gpu_tells_79_first_then_vanishes(tmp_path: Path) -> None:
    hardware = make_hardware(tmp_path)
    start(hardware, "gpu_lost", gpu=WHOLE, lead_seconds=15)
    text = text_of(hardware, HOST, NOW + 10)
    assert values_of(text, XID, WHOLE) == [79]
    assert 'err_code="79",err_msg="GPU has fallen off the bus"' in text
    assert condition_of(hardware, WHOLE, NOW + 10) is Condition.LOST
    assert [gpu.uuid for gpu in hardware.inventory(HOST, NOW + 10).gpus] == [SLICED]
    assert hardware.inventory(HOST, NOW + 10).gpu_count == 2
    with pytest.raises(HardwareError) as refusal:
        hardware.read_clocks(HOST, WHOLE, NOW + 10)
    assert refusal.value.code is ErrorCode.GPU_LOST
    text = text_of(hardware, HOST, NOW + 16)
    assert WHOLE not in text
    assert len(values_of(text, XID, SLICED)) == 4
    text = text_of(hardware, HOST, NOW + 61)
    assert values_of(text, XID, WHOLE) == [0]
    assert condition_of(hardware, WHOLE, NOW + 61) is Condition.OK


def test_an_ecc_error_asks_for_a_reset_and_ends_with_it(tmp_path: Path) -> None:
    hardware = make_hardware(tmp_path)
    start(hardware, "ecc", gpu=SLICED)
    text = text_of(hardware, HOST, NOW + 1)
    assert values_of(text, XID, SLICED) == [48] * 4
    assert values_of(text, "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", SLICED) == [1] * 4
    assert values_of(text, "DCGM_FI_DEV_ROW_REMAP_PENDING", SLICED) == [1] * 4
    assert values_of(text, XID, WHOLE) == [0]
    assert condition_of(hardware, SLICED, NOW + 1) is Condition.RESET_REQUIRED
    text = text_of(hardware, HOST, NOW + 61)
    assert values_of(text, "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", SLICED) == [0] * 4
    assert values_of(text, "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", SLICED) == [1] * 4
    assert condition_of(hardware, SLICED, NOW + 61) is Condition.OK


def test_thermal_throttle_heats_then_halves_the_clock(tmp_path: Path) -> None:
    hardware = make_hardware(tmp_path)
    before = text_of(hardware, HOST, NOW)
    start(hardware, "thermal_throttle", gpu=WHOLE)
    text = text_of(hardware, HOST, NOW + 40)
    assert values_of(text, "DCGM_FI_DEV_GPU_TEMP", WHOLE)[0] >= 87
    assert int(values_of(text, "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", WHOLE)[0]) & 0x40
    assert values_of(text, "DCGM_FI_DEV_SM_CLOCK", WHOLE)[0] <= values_of(before, "DCGM_FI_DEV_SM_CLOCK", WHOLE)[0] / 2
    assert "hw_thermal" in hardware.read_clocks(HOST, WHOLE, NOW + 40).limited_by
    cool = text_of(hardware, HOST, NOW + 200)
    assert values_of(cool, "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", WHOLE)[0] == 0


def test_a_noisy_neighbour_takes_one_slice_and_slows_requests_beside_it(tmp_path: Path) -> None:
    hardware = make_hardware(tmp_path)

    def median(now: float) -> float:
        text = text_of(hardware, HOST, now, "triton")
        return next(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if 'model="detector"' in line and 'quantile="0.5"' in line)

    quiet = median(NOW)
    start(hardware, "noisy_neighbour", gpu=SLICED)
    text = text_of(hardware, HOST, NOW + 5)
    assert [value > 0.95 for value in values_of(text, "DCGM_FI_PROF_DRAM_ACTIVE", SLICED)] == [False, False, True, False]
    assert values_of(text, "DCGM_FI_DEV_FB_USED", SLICED)[2] > 0.95 * 9984
    assert median(NOW + 5) > 2 * quiet


def test_a_noisy_neighbour_is_never_a_slice_of_the_radio(tmp_path: Path) -> None:
    hardware = make_hardware(tmp_path)
    start(hardware, "noisy_neighbour", gpu=PHY)
    active = values_of(text_of(hardware, "gpu-lax-01", NOW + 5), "DCGM_FI_PROF_DRAM_ACTIVE", PHY)
    assert [value > 0.95 for value in active] == [False] * 5 + [True, False]


def test_a_power_spike_draws_more_than_the_limit(tmp_path: Path) -> None:
    hardware = make_hardware(tmp_path)
    start(hardware, "power_spike", gpu=WHOLE)
    text = text_of(hardware, HOST, NOW + 20)
    assert values_of(text, "DCGM_FI_DEV_POWER_USAGE", WHOLE)[0] > values_of(text, "DCGM_FI_DEV_ENFORCED_POWER_LIMIT", WHOLE)[0] == 700
    assert values_of(text_of(hardware, HOST, NOW + 80), "DCGM_FI_DEV_POWER_USAGE", WHOLE)[0] < 700


def test_an_application_fault_leaves_its_code_on_the_gauge(tmp_path: Path) -> None:
    hardware = make_hardware(tmp_path)
    start(hardware, "xid", gpu=WHOLE, mode="43")
    assert values_of(text_of(hardware, HOST, NOW + 1), XID, WHOLE) == [43]
    assert values_of(text_of(hardware, HOST, NOW + 100), XID, WHOLE) == [43]
    assert condition_of(hardware, WHOLE, NOW + 100) is Condition.OK


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_fault_ends_early_when_stopped(tmp_path: Path, name: str) -> None:
    hardware = make_hardware(tmp_path)
    number = start(hardware, name, **({"gpu": WHOLE} if name in GPU_SCENARIOS else {"node": HOST}))
    assert hardware.stop_scenario(number, NOW + 2) is not None
    assert hardware.book.active == {}
    assert hardware.stop_scenario(number, NOW + 3) is None
    assert WHOLE in text_of(hardware, HOST, NOW + 70)
    ends = [record for record in hardware.log.records if record["kind"] == "scenario_end"]
    assert len(ends) == 1


def test_a_site_as_target_hits_all_its_gpus(tmp_path: Path) -> None:
    hardware = make_hardware(tmp_path)
    start(hardware, "power_spike", site="AMS-07")
    assert hardware.physics.faults.power_spike.tolist() == [True, True, False, False]


def test_a_timeline_plays_at_its_times_and_again(tmp_path: Path) -> None:
    played = ScenarioConfig(name="link_cut", site="AMS-07", at_seconds=30, duration_seconds=20, every_seconds=100)
    hardware = make_hardware(tmp_path, timeline=(played,))

    def cut_at(second: float) -> bool:
        hardware.advance(NOW + second)
        return bool(hardware.cut_hosts())

    assert [cut_at(second) for second in (29, 31, 49, 51, 129, 131, 151, 231)] == [False, True, True, False, False, True, False, True]


def test_events_missed_while_nobody_asked_are_played_in_order(tmp_path: Path) -> None:
    played = (
        ScenarioConfig(name="ecc", gpu=WHOLE, at_seconds=10, duration_seconds=20),
        ScenarioConfig(name="node_down", node=HOST, at_seconds=40, duration_seconds=20),
    )
    asked, unasked = make_hardware(tmp_path / "asked", timeline=played), make_hardware(tmp_path / "unasked", timeline=played)
    for second in range(0, 100, 7):
        asked.advance(NOW + second)
    assert text_of(asked, HOST, NOW + 100) == text_of(unasked, HOST, NOW + 100)
    assert asked.log.records == unasked.log.records


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        ({"name": "meteor", "site": "AMS-07"}, "name"),
        ({"name": "link_cut", "site": "XXX"}, "site"),
        ({"name": "gpu_lost", "node": "XXX"}, "node"),
        ({"name": "gpu_lost", "gpu": "GPU-x"}, "gpu"),
        ({"name": "link_cut", "gpu": WHOLE}, "gpu"),
        ({"name": "exporter_frozen", "node": HOST, "mode": "slow"}, "mode"),
        ({"name": "xid", "gpu": WHOLE, "mode": "many"}, "mode"),
        ({"name": "ecc", "gpu": WHOLE, "mode": "x"}, "mode"),
    ],
)
def test_a_fault_that_cannot_be_names_the_field(tmp_path: Path, entry: dict[str, str], field: str) -> None:
    hardware = make_hardware(tmp_path)
    with pytest.raises(ConfigError, match=f"^{field}: "):
        hardware.start_scenario(parse_scenario(entry, ""), NOW)
    assert hardware.book.active == {}


def test_the_mild_timeline_always_plays_something_small() -> None:
    config = plan_fleet(sites=20).simulator_config(control_address="127.0.0.1:9460", act_log="acts.jsonl")
    timeline = mild_timeline(config)
    assert timeline == mild_timeline(config)
    book = ScenarioBook(config)
    for number, entry in enumerate(timeline):
        book.check(entry, f"timeline[{number}]")
        book.schedule(entry, NOW)
    for minute in range(1, 120):
        while book.due(NOW + minute * 60) is not None:
            pass
        hit = {host for scenario in book.active.values() for host in scenario.hosts}
        assert 1 <= len(hit) <= 12, minute
        if minute < 4:
            assert not book.hit_hosts("link_cut", "node_down", "exporter_down", "exporter_frozen", "gpu_lost")


def test_the_configuration_is_not_touched(tmp_path: Path) -> None:
    start(make_hardware(tmp_path), "gpu_lost", gpu=WHOLE)
    assert CONFIG.nodes[0].gpus[1].uuid == WHOLE
