"""What `nvidia-smi topo -m` prints, from the same calls."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import pynvml

_WORDS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "PIX",
    pynvml.NVML_TOPOLOGY_SINGLE: "PIX",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
    pynvml.NVML_TOPOLOGY_NODE: "NODE",
    pynvml.NVML_TOPOLOGY_SYSTEM: "SYS",
}
_CPU_WORDS = 16


def read_topology(handles: dict[str, tuple[Any, str]], sys: Path) -> dict[str, Any]:
    """{devices, links: {a: {b: word}}, numa: {device: node}, cpus: {device: "0-31"}} of GPUs by name ("GPU0") → (handle, PCI bus id).

    What a GPU does not tell is left out.
    """
    if not handles:
        return {}
    nvlinks = {name: _nvlinks(handle) for name, (handle, _) in handles.items()}
    links: dict[str, dict[str, str]] = {name: {name: "X"} for name in handles}
    for a, b in combinations(handles, 2):
        count = _shared_nvlinks(nvlinks[a], nvlinks[b], a_bus=handles[a][1], b_bus=handles[b][1])
        word = f"NV{count}" if count else _common_ancestor(handles[a][0], handles[b][0])
        if word:
            links[a][b] = links[b][a] = word
    numa: dict[str, int] = {}
    cpus: dict[str, str] = {}
    for name, (handle, bus) in handles.items():
        try:
            node = int((sys / "bus/pci/devices" / bus.lower()[-12:] / "numa_node").read_text())
            if node >= 0:
                numa[name] = node
        except (OSError, ValueError):
            pass  # a kernel without NUMA has no such file
        if affinity := _affinity(handle):
            cpus[name] = affinity
    return {"devices": list(handles), "links": links, "numa": numa, "cpus": cpus}


def _nvlinks(handle: Any) -> dict[str, int]:
    """Active NVLinks by what is at their other end: "switch", or the PCI bus id of a GPU."""
    found: dict[str, int] = {}
    for link in range(int(pynvml.NVML_NVLINK_MAX_LINKS)):
        try:
            if not pynvml.nvmlDeviceGetNvLinkState(handle, link):
                continue
            kind = pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)
            if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                end = "switch"
            else:
                bus = pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId
                end = (bus.decode(errors="replace") if isinstance(bus, bytes) else bus).lower()[-12:]
        except pynvml.NVMLError:
            break  # links are numbered without gaps; a GPU without NVLink refuses the first
        found[end] = found.get(end, 0) + 1
    return found


def _shared_nvlinks(a: dict[str, int], b: dict[str, int], *, a_bus: str, b_bus: str) -> int:
    direct = max(a.get(b_bus.lower()[-12:], 0), b.get(a_bus.lower()[-12:], 0))
    return direct or min(a.get("switch", 0), b.get("switch", 0))


def _common_ancestor(a: Any, b: Any) -> str:
    try:
        return _WORDS.get(pynvml.nvmlDeviceGetTopologyCommonAncestor(a, b), "")
    except pynvml.NVMLError:
        return ""


def _affinity(handle: Any) -> str:
    """CPUs near the GPU as ranges, e.g. "0-31,64-95"."""
    try:
        words = list(pynvml.nvmlDeviceGetCpuAffinity(handle, _CPU_WORDS))
    except pynvml.NVMLError:
        return ""
    cpus = [64 * number + bit for number, word in enumerate(words) for bit in range(64) if word >> bit & 1]
    ranges: list[list[int]] = []
    for cpu in cpus:
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(f"{first}-{last}" if first != last else str(first) for first, last in ranges)
