"""What reached the hardware is written before it is answered, and is there after a restart."""

import json
from pathlib import Path

import pytest

from agent.backends.base import ErrorCode
from agent.simulator.act_log import ActLog, ActLogError
from agent.simulator.config import parse_scenario
from agent.simulator.partitions import HardwareError
from tests.agent.simulated_fleet import NOW, SLICED, WHOLE, make_hardware, text_of, values_of

HOST = "gpu-ams-07"


def test_every_act_is_logged_with_its_result(tmp_path: Path) -> None:
    hardware = make_hardware(tmp_path)
    hardware.set_clock_range(HOST, WHOLE, 600, 900, NOW + 1)
    hardware.reset_clock_range(HOST, WHOLE, NOW + 2)
    with pytest.raises(HardwareError) as refusal:
        hardware.set_clock_range(HOST, WHOLE, 900, 600, NOW + 3)
    assert refusal.value.code is ErrorCode.INVALID
    with pytest.raises(HardwareError):
        hardware.set_clock_range(HOST, "GPU-none", 600, 900, NOW + 4)
    acts = [json.loads(line) for line in (tmp_path / "acts.jsonl").read_text().splitlines()][1:]
    assert [(act["seq"], act["at"], act["act"], act["gpu"], act["result"]) for act in acts] == [
        (2, NOW + 1, "set_clock_range", WHOLE, "ok"),
        (3, NOW + 2, "reset_clock_range", WHOLE, "ok"),
        (4, NOW + 3, "set_clock_range", WHOLE, "invalid_argument"),
        (5, NOW + 4, "set_clock_range", "GPU-none", "target_not_present"),
    ]
    assert acts[0]["arguments"] == {"min_mhz": 600, "max_mhz": 900}


def test_a_restart_keeps_locks_counters_and_faults(tmp_path: Path) -> None:
    first = make_hardware(tmp_path)
    first.set_clock_range(HOST, WHOLE, 600, 900, NOW + 1)
    first.set_clock_range(HOST, SLICED, 600, 1200, NOW + 1)
    first.reset_clock_range(HOST, SLICED, NOW + 2)
    first.start_scenario(parse_scenario({"name": "ecc", "gpu": SLICED, "duration_seconds": 600}, ""), NOW + 3)
    first.advance(NOW + 30)
    first.save()
    boot_id = first.boot_id(HOST)
    first.log.close()

    second = make_hardware(tmp_path, now=NOW + 60)
    for exporter in ("dcgm", "triton", "vllm", "node"):
        assert text_of(second, HOST, NOW + 60, exporter) == text_of(first, HOST, NOW + 60, exporter)
    text = text_of(second, HOST, NOW + 60)
    assert values_of(text, "DCGM_FI_DEV_SM_CLOCK", WHOLE) == [900]
    assert values_of(text, "DCGM_FI_DEV_XID_ERRORS", SLICED) == [48] * 4
    assert second.boot_id(HOST) == boot_id
    assert values_of(text_of(second, HOST, NOW + 700), "DCGM_FI_DEV_ROW_REMAP_PENDING", SLICED) == [0] * 4
    assert [record["seq"] for record in second.log.records] == list(range(1, len(second.log.records) + 1))


def test_a_restart_after_a_boot_has_no_lock(tmp_path: Path) -> None:
    first = make_hardware(tmp_path)
    first.set_clock_range(HOST, WHOLE, 600, 900, NOW + 1)
    first.start_scenario(parse_scenario({"name": "node_down", "node": HOST, "duration_seconds": 5}, ""), NOW + 2)
    first.advance(NOW + 10)
    boot_id = first.boot_id(HOST)
    first.log.close()
    second = make_hardware(tmp_path, now=NOW + 20)
    assert second.boot_id(HOST) == boot_id
    reading = second.read_clocks(HOST, WHOLE, NOW + 20)
    assert reading.sm_mhz is not None
    assert reading.sm_mhz > 900


def test_a_fault_that_was_ended_does_not_come_back(tmp_path: Path) -> None:
    first = make_hardware(tmp_path)
    number = first.start_scenario(parse_scenario({"name": "link_cut", "site": "AMS-07", "duration_seconds": 600}, ""), NOW).id
    kept = first.start_scenario(parse_scenario({"name": "link_cut", "site": "LAX-01", "duration_seconds": 600}, ""), NOW).id
    first.stop_scenario(number, NOW + 5)
    first.log.close()
    second = make_hardware(tmp_path, now=NOW + 60)
    assert second.cut_hosts() == {"gpu-lax-01"}
    second.log.close()
    third = make_hardware(tmp_path, now=NOW + 90)
    assert third.cut_hosts() == {"gpu-lax-01"}
    assert kept not in third.book.active
    third.advance(NOW + 601)
    assert third.cut_hosts() == set()


def test_a_torn_last_line_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "acts.jsonl"
    log = ActLog(path)
    log.append("start", NOW)
    log.close()
    with path.open("ab") as file:
        file.write(b'{"seq":2,"kind":"act","no')
    log = ActLog(path)
    assert len(log.records) == 1
    assert log.append("act", NOW, node="n")["seq"] == 2
    log.close()
    assert [json.loads(line)["seq"] for line in path.read_text().splitlines()] == [1, 2]


@pytest.mark.parametrize("text", ["nonsense\n", '{"seq":2,"kind":"start"}\n', "[]\n"])
def test_a_file_that_is_no_act_log_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "acts.jsonl"
    path.write_text(text)
    with pytest.raises(ActLogError, match="line 1 is not record 1"):
        ActLog(path)


def test_records_are_found_by_number_node_and_kind(tmp_path: Path) -> None:
    log = ActLog(tmp_path / "acts.jsonl")
    for number in range(4):
        log.append("act" if number % 2 else "boot", NOW + number, node=f"n{number}")
    assert [record["seq"] for record in log.since(1)] == [2, 3, 4]
    assert [record["seq"] for record in log.since(0, node="n2")] == [3]
    assert [record["seq"] for record in log.since(0, kind="act", limit=1)] == [2]
    log.close()


def test_a_damaged_checkpoint_is_no_hindrance(tmp_path: Path) -> None:
    hardware = make_hardware(tmp_path)
    hardware.save()
    hardware.log.close()
    hardware.checkpoint.write_bytes(hardware.checkpoint.read_bytes()[:100])
    assert text_of(make_hardware(tmp_path, now=NOW + 5), HOST, NOW + 5)
