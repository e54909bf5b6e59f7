"""The table of `nvidia-smi topo -m`."""

from itertools import combinations
from pathlib import Path

import pytest

from fleet.inventory.topology import TopologyError, parse_topology

FIXTURES = Path(__file__).parent.parent / "fixtures"
H100 = (FIXTURES / "nvidia-smi-topo-8xh100.txt").read_text()
L40S = (FIXTURES / "nvidia-smi-topo-4xl40s-pcie.txt").read_text()


def test_eight_h100_with_nvlink() -> None:
    topology = parse_topology(H100)
    assert topology.gpus == tuple(f"GPU{number}" for number in range(8))
    assert {topology.links[one][two] for one, two in combinations(topology.gpus, 2)} == {"NV18"}
    assert all(topology.links[f"GPU{number}"][f"NIC{number}"] == "PIX" for number in range(8))
    assert [topology.numa[gpu] for gpu in topology.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert topology.numa_nodes == 2
    assert topology.cpus["GPU7"] == "52-103,156-207"
    assert topology.nics["NIC7"] == "mlx5_7"
    nics = tuple(device for device in topology.devices if device.startswith("NIC"))
    assert topology.nearest("GPU5", nics) == ("NIC5",)


def test_four_l40s_on_pcie() -> None:
    topology = parse_topology(L40S)
    pairs = {(one, two): topology.links[one][two] for one, two in combinations(topology.gpus, 2)}
    assert {pair for pair, word in pairs.items() if word == "PIX"} == {("GPU0", "GPU1"), ("GPU2", "GPU3")}
    assert topology.nearest("NIC0", topology.gpus) == ("GPU2", "GPU3")
    assert topology.nics == {"NIC0": "mlx5_0"}
    assert (topology.numa_nodes, topology.cpus["GPU0"], topology.numa["NIC0"], topology.cpus["NIC0"]) == (1, "0-31", None, "")
    assert topology.as_json()["devices"] == ["GPU0", "GPU1", "GPU2", "GPU3", "NIC0"]


def test_terminal_underlines_are_no_part_of_the_names() -> None:
    lines = L40S.splitlines()
    lines[0] = lines[0].replace("GPU0", "\x1b[4mGPU0").replace("GPU NUMA ID", "GPU NUMA ID\x1b[0m")
    assert parse_topology("\n".join(lines)) == parse_topology(L40S)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not the output"),
        ("NVIDIA-SMI has failed", "not the output"),
        ("\tCPU Affinity\n", "names no devices"),
        ("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPIX\t0\n", "no row for GPU1"),
        ("\tGPU0\tCPU Affinity\nGPU9\t X \t0\n", "Line 2: 'GPU9'"),
        ("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tfast\t0\n", "Line 2: GPU0 needs one link word"),
    ],
)
def test_what_is_not_the_table_is_refused(text: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        parse_topology(text)
