"""The NVML backend through NVIDIA's real binding, against a library that plays `libnvidia-ml.so.1` and is built here."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.nvml.node import Node, library

__all__ = ["library"]

CASES = Path(__file__).parent.parent / "cases"
C30 = json.loads((CASES / "C30-nvml-errors" / "nvml.json").read_text())
EXPECT = json.loads((CASES / "C30-nvml-errors" / "expect.json").read_text())
ALL = [gpu["uuid"] for gpu in C30["reset-required"]["gpus"]]
PROFILES = "profile 0 19 7 1 9984 MIG 1g.10gb\nprofile 2 9 2 3 40448 MIG 3g.40gb\nprofile 3 5 1 4 40448 MIG 4g.40gb\n"


@pytest.fixture
def node(library: Path, tmp_path: Path) -> Iterator[Node]:
    node = Node(library, tmp_path)
    yield node
    node.stop()


def script_of(case: dict[str, Any]) -> list[str]:
    """A C30 situation as a script of the library."""
    lines = [f"init {case['nvmlInit']}"]
    for gpu in case.get("gpus", []):
        index = gpu["index"]
        lines += [f"gpu {index} {key} {gpu[key]}" for key in ("uuid", "temp") if key in gpu] or [f"gpu {index} temp 0"]
        if "error" in gpu:
            lines.append(f"error {index} {gpu['error']['call']} {gpu['error']['code']}")
        if "fan" in gpu:
            lines.append(f"error {index} nvmlDeviceGetFanSpeed {gpu['fan']['error']['code']}")
    return lines


def healthy() -> list[str]:
    return [f"gpu {index} uuid {uuid}" for index, uuid in enumerate(ALL)]


def conditions(health: dict[str, Any]) -> dict[str, str]:
    return {gpu["uuid"]: gpu["condition"] for gpu in health["gpus"]}


def test_c30_one_lost_gpu_hides_no_other_and_is_named_by_what_was_known(node: Node) -> None:
    node.hardware(*healthy())
    node.inspect()
    node.hardware(*script_of(C30["lost"]))
    inventory, health = node.inspect()
    assert len(inventory["gpus"]) == EXPECT["lost"]["reported"]
    assert (inventory["complete"], inventory["gpu_count"]) == (True, 8)
    assert conditions(health) == {uuid: "lost" if uuid == EXPECT["lost"]["lost_uuid"] else "ok" for uuid in ALL}


def test_c30_lost_gpus_are_named_after_a_restart_of_the_agent_too(node: Node) -> None:
    node.hardware(*healthy())
    node.inspect()
    node.stop()
    node.hardware(*script_of(C30["lost"]))
    assert conditions(node.inspect()[1])[EXPECT["lost"]["lost_uuid"]] == "lost"


def test_c30_a_gpu_that_needs_a_reset_is_named_so_and_stays_in_the_inventory(node: Node) -> None:
    node.hardware(*script_of(C30["reset-required"]))
    inventory, health = node.inspect()
    assert len(inventory["gpus"]) == EXPECT["reset-required"]["reported"]
    found = conditions(health)
    assert found.pop(EXPECT["reset-required"]["needs_reset"]) == "reset_required"
    assert set(found.values()) == {"ok"}
    assert next(gpu["detail"] for gpu in health["gpus"] if gpu["condition"] == "reset_required").startswith("The GPU needs a reset.")


def test_c30_a_version_mismatch_is_unknown_with_both_versions_and_ends_without_a_restart(node: Node) -> None:
    node.hardware(*healthy())
    node.inspect()
    node.hardware(*script_of(C30["mismatch"]))
    inventory, health = node.inspect()
    assert (inventory["gpus"], inventory["complete"], inventory["gpu_count"]) == ([], False, None)
    assert health["driver_mismatch"] == {"loaded_module": C30["mismatch"]["loaded_module"], "library": C30["mismatch"]["library"]}
    assert conditions(health) == dict.fromkeys(ALL, EXPECT["mismatch"]["state"])
    assert len(health["gpus"]) == EXPECT["mismatch"]["inventory_gpus"]
    assert node.ask("set", gpu=ALL[0], low=1200, high=1400)["error"] == "driver_mismatch"
    node.hardware(*healthy())
    inventory, health = node.inspect()
    assert len(inventory["gpus"]) == 8
    assert health["driver_mismatch"] is None


def test_c30_what_a_gpu_does_not_have_is_no_fault(node: Node) -> None:
    node.hardware(*script_of(C30["not-supported"]), "error 0 nvmlDeviceGetPowerManagementLimit 3", "error 0 nvmlDeviceGetSerial 3")
    inventory, health = node.inspect()
    assert set(conditions(health).values()) == {"ok"}
    assert (inventory["gpus"][0]["power_limit_watts"], inventory["gpus"][0]["serial"], inventory["gpus"][0]["mig_enabled"]) == (None, "", False)


def test_a_gpu_that_the_driver_no_longer_lists_is_lost_until_the_next_boot(node: Node) -> None:
    node.hardware(*healthy())
    node.inspect()
    node.hardware(*(f"gpu {index} uuid {uuid}" for index, uuid in enumerate(ALL[1:])))
    assert conditions(node.inspect()[1]) == {uuid: "lost" if uuid == ALL[0] else "ok" for uuid in ALL}
    (node.folder / "proc/sys/kernel/random/boot_id").write_text("7c1c5d1e-0000-4000-8000-000000000002\n")
    assert conditions(node.inspect()[1]) == dict.fromkeys(ALL[1:], "ok")


def test_facts_of_node_and_gpu(node: Node) -> None:
    node.hardware(
        f"gpu 0 uuid {ALL[0]}", "gpu 0 pci 00000000:3B:00.0", "gpu 0 numa 0", "gpu 0 limit 350500", "gpu 0 mps 2", "gpu 0 persistence 0", "cuda 12040"
    )
    inventory, _ = node.inspect()
    facts = inventory["node"]
    assert (facts["driver_version"], facts["cuda_version"], facts["numa_nodes"]) == ("570.133.20", "12.4", 2)
    assert inventory["gpus"] == [
        {
            "uuid": ALL[0],
            "index": 0,
            "pci_bus_id": "00000000:3B:00.0",
            "serial": "1650522000000",
            "name": "NVIDIA H100 80GB HBM3",
            "memory_bytes": 85520809984,
            "power_limit_watts": 350.5,
            "numa_node": 0,
            "mig_enabled": False,
            "persistence_mode": False,
            "sharing": "mps",
            "slices": [],
        }
    ]


@pytest.mark.parametrize("names", ["profiles_v2 1", "profiles_v2 0"], ids=["named by NVML", "older driver"])
def test_mig_instances_with_their_placements(node: Node, names: str) -> None:
    instances = [f"mig 0 {7 + start} 0 19 {start} 1 MIG-{start}" for start in range(3)] + ["mig 0 2 -1 9 4 4 -"]
    node.hardware(f"gpu 0 uuid {ALL[0]}", "gpu 0 mig 1", names, PROFILES, *instances)
    (gpu,) = node.inspect()[0]["gpus"]
    assert (gpu["mig_enabled"], gpu["sharing"]) == (True, "mig")
    assert [(found["profile"], found["start"], found["size"], found["gpu_instance_id"]) for found in gpu["slices"]] == [
        ("1g.10gb", 0, 1, 7),
        ("1g.10gb", 1, 1, 8),
        ("1g.10gb", 2, 1, 9),
        ("3g.40gb", 4, 4, 2),
    ]
    assert [(found["compute_instance_id"], found["mig_uuid"]) for found in gpu["slices"]] == [(0, "MIG-0"), (0, "MIG-1"), (0, "MIG-2"), (None, "")]


def test_instances_that_may_not_be_asked_are_unknown_not_none(node: Node) -> None:
    node.hardware(f"gpu 0 uuid {ALL[0]}", "gpu 0 mig 1", PROFILES, "mig 0 7 0 19 0 1 MIG-0", "error 0 nvmlDeviceGetGpuInstances 4")
    (gpu,) = node.inspect()[0]["gpus"]
    assert (gpu["mig_enabled"], gpu["slices"]) == (True, None)


@pytest.mark.parametrize("error", [999, 4, 10, 18], ids=["unknown", "no permission", "timeout", "in use"])
def test_a_mig_mode_that_cannot_be_asked_is_unknown_and_so_are_the_slices(node: Node, error: int) -> None:
    """A false "off" would end every slice of the GPU, and the workloads on them, in the console."""
    node.hardware(f"gpu 0 uuid {ALL[0]}", "gpu 0 mig 1", PROFILES, "mig 0 7 0 19 0 1 MIG-0", f"error 0 nvmlDeviceGetMigMode {error}")
    inventory, _ = node.inspect()
    (gpu,) = inventory["gpus"]
    assert (inventory["complete"], gpu["mig_enabled"], gpu["slices"], gpu["sharing"]) == (True, None, None, None)


@pytest.mark.parametrize("error", [3, 13], ids=["not supported", "function not found"])
def test_a_gpu_or_driver_without_mig_has_it_off_and_no_slices(node: Node, error: int) -> None:
    node.hardware(f"gpu 0 uuid {ALL[0]}", f"error 0 nvmlDeviceGetMigMode {error}")
    (gpu,) = node.inspect()[0]["gpus"]
    assert (gpu["mig_enabled"], gpu["slices"]) == (False, [])


def test_topology_as_nvidia_smi_says_it(node: Node) -> None:
    lines = [line for index in range(4) for line in (f"gpu {index} uuid {ALL[index]}", f"gpu {index} numa {index // 2}")]
    bus = {index: f"00000000:{index + 1:02X}:00.0" for index in range(4)}
    for index in range(4):
        path = node.folder / "sys/bus/pci/devices" / bus[index].lower()[-12:]
        path.mkdir(parents=True)
        (path / "numa_node").write_text(f"{index // 2}\n")
    switch = [f"link {gpu} {link} 2 00000000:C1:00.0" for gpu in (0, 1) for link in range(18)]
    direct = [f"link 2 {link} 0 {bus[3]}" for link in range(4)] + [f"link 3 {link} 0 {bus[2]}" for link in range(4)]
    node.hardware(*lines, *switch, *direct, "topo 0 2 50", "topo 0 3 40", "topo 1 2 30", "topo 1 3 20", "topo 0 1 50")
    topology = node.inspect()[0]["node"]["topology"]
    assert topology["devices"] == ["GPU0", "GPU1", "GPU2", "GPU3"]
    assert topology["links"]["GPU0"] == {"GPU0": "X", "GPU1": "NV18", "GPU2": "SYS", "GPU3": "NODE"}
    assert topology["links"]["GPU1"] == {"GPU0": "NV18", "GPU1": "X", "GPU2": "PHB", "GPU3": "PXB"}
    assert topology["links"]["GPU2"]["GPU3"] == "NV4"
    assert topology["numa"] == {"GPU0": 0, "GPU1": 0, "GPU2": 1, "GPU3": 1}
    assert topology["cpus"]["GPU0"] == "0-31,128-129"


def test_locks_the_clock_reads_back_and_takes_the_lock_away(node: Node) -> None:
    node.hardware(*healthy())
    assert node.ask("set", gpu=ALL[3], low=1200, high=1400) is None
    assert node.ask("read", gpu=ALL[3]) == {"sm_mhz": 1400, "max_sm_mhz": 1980, "limited_by": [], "persistence_mode": True}
    assert node.ask("read", gpu=ALL[2])["sm_mhz"] == 1980
    node.hardware(*healthy(), "epoch 1", "gpu 3 reasons 0x41")
    assert node.ask("read", gpu=ALL[3]) == {"sm_mhz": 1980, "max_sm_mhz": 1980, "limited_by": ["idle", "hw_thermal"], "persistence_mode": True}
    assert node.ask("reset", gpu=ALL[3]) is None
    assert node.acts() == [f"set {ALL[3]} 1200 1400", f"reset {ALL[3]} 0 0"]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("error 0 nvmlDeviceSetGpuLockedClocks 4", "not_permitted"),
        ("error 0 nvmlDeviceSetGpuLockedClocks 3", "not_supported"),
        ("error 0 nvmlDeviceSetGpuLockedClocks 2", "invalid_argument"),
        ("error 0 all 15", "gpu_lost"),
        ("error 0 nvmlDeviceSetGpuLockedClocks 16", "reset_required"),
        ("error 0 nvmlDeviceSetGpuLockedClocks 999", "unavailable"),
        ("gpu 0 uuid GPU-another", "target_not_present"),
    ],
)
def test_errors_say_what_is_wrong_and_nothing_is_done(node: Node, line: str, code: str) -> None:
    node.hardware(f"gpu 0 uuid {ALL[0]}", line)
    assert node.ask("set", gpu=ALL[0], low=1200, high=1400)["error"] == code
    assert node.acts() == []


def test_without_a_driver_the_agent_says_so_and_finds_it_later(node: Node) -> None:
    node.hardware("init 9")
    inventory, health = node.inspect()
    assert (inventory["complete"], health["driver_error"]) == (False, "NVML: Driver Not Loaded")
    node.hardware(*healthy())
    assert len(node.inspect()[0]["gpus"]) == 8


def test_without_the_library_the_agent_says_so(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "node").mkdir()
    node = Node(tmp_path / "empty", tmp_path / "node")
    _, health = node.inspect()
    node.stop()
    assert "NVML Shared Library Not Found" in health["driver_error"]


def test_a_reset_lets_go_of_the_library_and_takes_it_up_again(node: Node) -> None:
    node.hardware(*healthy())
    node.inspect()
    smi = node.folder / "nvidia-smi"
    smi.write_text(f'#!/bin/sh\necho "$@" >{node.folder}/said\n')
    smi.chmod(0o755)
    assert node.ask("gpu_reset", gpu=ALL[0]) is None
    assert (node.folder / "said").read_text().split() == ["--gpu-reset", "-i", ALL[0]]
    assert len(node.inspect()[0]["gpus"]) == len(ALL)
    smi.write_text("#!/bin/sh\necho 'GPU 00000000:19:00.0: In use by another client'; exit 255\n")
    assert node.ask("gpu_reset", gpu=ALL[0])["error"] == "in_use"
