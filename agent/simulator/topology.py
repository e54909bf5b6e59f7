"""`nvidia-smi topo -m` of a simulated node, in the parsed form that agents report."""

from typing import Any


def node_topology(gpus: list[tuple[int, bool]]) -> dict[str, Any]:
    """`gpus` are (index, has NVLink). Boards with NVLink see each other by NV18, others by PCIe; one NIC per NUMA node of up to four GPUs."""
    nodes = 2 if len(gpus) > 2 else 1
    half = (len(gpus) + nodes - 1) // nodes
    place = {f"GPU{index}": number // max(half, 1) for number, (index, _) in enumerate(gpus)}
    place |= {f"NIC{number}": number for number in range(nodes)}
    nvlink = {f"GPU{index}" for index, has in gpus if has}

    def word(a: str, b: str) -> str:
        if a in nvlink and b in nvlink:
            return "NV18"
        if place[a] != place[b]:
            return "SYS"
        return "NODE" if a.startswith("GPU") and b.startswith("GPU") else "PIX"

    names = list(place)
    return {
        "devices": names,
        "links": {a: {b: word(a, b) for b in names if b != a} for a in names},
        "numa": {name: place[name] if name.startswith("GPU") else None for name in names},
        "cpus": {name: f"{32 * place[name]}-{32 * place[name] + 31}" if name.startswith("GPU") else "" for name in names},
        "nics": {f"NIC{number}": f"mlx5_{number}" for number in range(nodes)},
    }
