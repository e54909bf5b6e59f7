"""Power limits and MIG on the simulated hardware: what agents set is seen in the exporters, and goes the way it goes on a real node."""

from pathlib import Path

import pytest

from agent.backends.base import ErrorCode
from agent.simulator.config import parse_scenario
from agent.simulator.hardware import Hardware
from agent.simulator.partitions import HardwareError
from tests.agent.simulated_fleet import L40S, NOW, PHY, SLICED, WHOLE, make_hardware, text_of, values_of

HOST, RADIO = "gpu-ams-07", "gpu-lax-01"


def layout(hardware: Hardware, host: str, gpu: str, now: float) -> str:
    return ",".join(f"{found.profile}@{found.start}" for found in hardware.read_mig(host, gpu, now).instances)


def reboot(hardware: Hardware, host: str, now: float) -> None:
    hardware.start_scenario(parse_scenario({"name": "node_down", "node": host, "duration_seconds": 5}, ""), now)
    hardware.advance(now + 10)


def free_the_last_slice(hardware: Hardware, now: float) -> int:
    """Takes the only AI slice of the radio's GPU that has no workload away; returns its id."""
    last = hardware.read_mig(RADIO, PHY, now).instances[-1].gpu_instance_id
    hardware.act(RADIO, PHY, "destroy_mig_instance", {"gpu_instance_id": last}, now)
    return last


def test_power_and_clock_follow_the_cap_and_the_limit_is_reported(tmp_path: Path) -> None:
    hardware = make_hardware(tmp_path)
    before = hardware.read_power(HOST, WHOLE, NOW)
    assert (before.min_mw, before.limit_mw, before.max_mw, before.default_mw) == (200_000, 700_000, 700_000, 700_000)
    clock = hardware.read_clocks(HOST, WHOLE, NOW).sm_mhz
    hardware.act(HOST, WHOLE, "set_power_limit", {"limit_mw": 210_500}, NOW + 1)
    text = text_of(hardware, HOST, NOW + 60)
    assert values_of(text, "DCGM_FI_DEV_ENFORCED_POWER_LIMIT", WHOLE) == [210.5]
    assert values_of(text, "DCGM_FI_DEV_POWER_USAGE", WHOLE)[0] <= 210.5 * 1.01
    reading = hardware.read_clocks(HOST, WHOLE, NOW + 60)
    assert reading.sm_mhz is not None
    assert clock is not None
    assert reading.sm_mhz < clock
    assert "power_cap" in reading.limited_by
    assert next(gpu for gpu in hardware.inventory(HOST, NOW + 60).gpus if gpu.uuid == WHOLE).power_limit_watts == 210.5
    assert values_of(text, "DCGM_FI_DEV_ENFORCED_POWER_LIMIT", SLICED) == [700] * 4
    hardware.act(HOST, WHOLE, "reset_power_limit", {}, NOW + 61)
    assert hardware.read_power(HOST, WHOLE, NOW + 61).limit_mw == 700_000


@pytest.mark.parametrize("milliwatts", [199_999, 700_001])
def test_a_limit_outside_what_the_board_takes_is_refused_and_logged(tmp_path: Path, milliwatts: int) -> None:
    hardware = make_hardware(tmp_path)
    with pytest.raises(HardwareError) as refusal:
        hardware.act(HOST, WHOLE, "set_power_limit", {"limit_mw": milliwatts}, NOW + 1)
    assert refusal.value.code is ErrorCode.INVALID
    assert hardware.log.records[-1]["result"] == "invalid_argument"
    assert hardware.read_power(HOST, WHOLE, NOW + 1).limit_mw == 700_000


def test_instances_go_and_come_by_placement_and_the_exporter_shows_them(tmp_path: Path) -> None:
    hardware = make_hardware(tmp_path)
    text_of(hardware, RADIO, NOW)
    with pytest.raises(HardwareError) as held:
        hardware.act(RADIO, PHY, "destroy_mig_instance", {"gpu_instance_id": 10}, NOW + 1)
    assert held.value.code is ErrorCode.IN_USE
    last = free_the_last_slice(hardware, NOW + 1)
    assert len(values_of(text_of(hardware, RADIO, NOW + 2), "DCGM_FI_DEV_FB_USED", PHY)) == 6
    with pytest.raises(HardwareError) as room:
        hardware.act(RADIO, PHY, "create_mig_instance", {"profile": "2g.20gb", "start": 4}, NOW + 3)
    assert room.value.code is ErrorCode.NO_ROOM
    record = hardware.act(RADIO, PHY, "create_mig_instance", {"profile": "1g.10gb", "start": 6}, NOW + 4)
    assert record["gpu_instance_id"] == last
    assert record["mig_uuid"].startswith("MIG-")
    assert record["mig_uuid"] != "MIG-6"
    page = text_of(hardware, RADIO, NOW + 5)
    assert len(values_of(page, "DCGM_FI_DEV_FB_USED", PHY)) == 7
    assert len(values_of(text_of(hardware, HOST, NOW + 5), "DCGM_FI_DEV_FB_USED", SLICED)) == 4
    assert [record["result"] for record in hardware.log.since(0, kind="act")] == ["in_use", "ok", "insufficient_resources", "ok"]


def test_what_agents_set_is_gone_after_a_boot_and_the_radio_is_back(tmp_path: Path) -> None:
    hardware = make_hardware(tmp_path)
    hardware.act(RADIO, PHY, "set_power_limit", {"limit_mw": 300_000}, NOW + 1)
    free_the_last_slice(hardware, NOW + 1)
    reboot(hardware, RADIO, NOW + 2)
    assert layout(hardware, RADIO, PHY, NOW + 20) == "1g.10gb@0,1g.10gb@1,1g.10gb@2"
    assert hardware.read_power(RADIO, PHY, NOW + 20).limit_mw == 350_000
    assert len(values_of(text_of(hardware, RADIO, NOW + 20), "DCGM_FI_DEV_FB_USED", PHY)) == 3
    assert {found.namespace for found in hardware.inventory(RADIO, NOW + 20).workloads or ()} == {"ran-phy"}


def test_a_layout_that_no_agent_changed_is_restored_by_the_nodes_own_boot(tmp_path: Path) -> None:
    hardware = make_hardware(tmp_path)
    before = layout(hardware, HOST, SLICED, NOW)
    reboot(hardware, HOST, NOW + 1)
    assert layout(hardware, HOST, SLICED, NOW + 20) == before


def test_the_log_says_which_acts_reach_the_radio(tmp_path: Path) -> None:
    hardware = make_hardware(tmp_path)
    free_the_last_slice(hardware, NOW + 1)
    hardware.act(RADIO, PHY, "create_mig_instance", {"profile": "1g.10gb", "start": 6}, NOW + 2)
    hardware.act(HOST, WHOLE, "set_power_limit", {"limit_mw": 450_000}, NOW + 3)
    hardware.act(RADIO, PHY, "set_power_limit", {"limit_mw": 300_000}, NOW + 4)
    hardware.act(RADIO, PHY, "set_clock_range", {"min_mhz": 600, "max_mhz": 900}, NOW + 5)
    assert [record["phy"] for record in hardware.log.since(0, kind="act")] == [False, False, False, True, True]


def test_mode_is_refused_while_something_is_there_and_without_mig(tmp_path: Path) -> None:
    hardware = make_hardware(tmp_path)
    for host, gpu, enabled, code in (
        (HOST, WHOLE, True, ErrorCode.IN_USE),
        (RADIO, PHY, False, ErrorCode.IN_USE),
        ("gpu-lax-02", L40S, True, ErrorCode.NOT_SUPPORTED),
    ):
        with pytest.raises(HardwareError) as refusal:
            hardware.act(host, gpu, "set_mig_mode", {"enabled": enabled}, NOW + 1)
        assert refusal.value.code is code
    hardware.partitions.set_workload(WHOLE, None, None)
    hardware.repartition()
    hardware.act(HOST, WHOLE, "set_mig_mode", {"enabled": True}, NOW + 2)
    hardware.act(HOST, WHOLE, "create_mig_instance", {"profile": "4g.40gb", "start": 0}, NOW + 3)
    hardware.act(HOST, WHOLE, "create_mig_instance", {"profile": "3g.40gb", "start": 4}, NOW + 4)
    assert layout(hardware, HOST, WHOLE, NOW + 5) == "4g.40gb@0,3g.40gb@4"
    assert hardware.read_mig("gpu-lax-02", L40S, NOW).enabled is None


def test_a_restart_of_the_simulator_keeps_limits_and_instances(tmp_path: Path) -> None:
    first = make_hardware(tmp_path)
    first.act(HOST, WHOLE, "set_power_limit", {"limit_mw": 450_000}, NOW + 1)
    free_the_last_slice(first, NOW + 2)
    made = first.act(RADIO, PHY, "create_mig_instance", {"profile": "1g.10gb", "start": 6}, NOW + 3)
    first.advance(NOW + 20)
    first.save()
    first.log.close()
    second = make_hardware(tmp_path, now=NOW + 60)
    assert second.read_power(HOST, WHOLE, NOW + 60).limit_mw == 450_000
    instance = second.read_mig(RADIO, PHY, NOW + 60).instances[-1]
    assert (instance.gpu_instance_id, instance.mig_uuid) == (made["gpu_instance_id"], made["mig_uuid"])
    for host in (HOST, RADIO):
        assert text_of(second, host, NOW + 60) == text_of(first, host, NOW + 60)


def test_a_change_of_one_gpu_leaves_every_other_figure_alone(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    changed, other = make_hardware(tmp_path / "a"), make_hardware(tmp_path / "b")
    free_the_last_slice(changed, NOW + 1)
    for hardware in (changed, other):
        hardware.advance(NOW + 90)
    for exporter in ("dcgm", "triton", "vllm", "node"):
        assert text_of(changed, HOST, NOW + 90, exporter) == text_of(other, HOST, NOW + 90, exporter)
