"""Reads the table of `nvidia-smi topo -m`: how GPUs and NICs of a node are connected, and which CPUs are near. Pure: no Django."""

import re
from dataclasses import dataclass

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_LINK = re.compile(r"^(X|SYS|NODE|PHB|PXB|PIX|NV[0-9]+)$")
_NIC = re.compile(r"^\s*(NIC[0-9]+):\s*(\S+)\s*$")
_CPU_COLUMN = "CPU Affinity"
# Closest first; any NVLink is closer than PCIe.
_CLOSENESS = {"PIX": 1, "PXB": 2, "PHB": 3, "NODE": 4, "SYS": 5}


class TopologyError(ValueError):
    """The text is not such a table; the message names the line."""


@dataclass(frozen=True)
class Topology:
    """`links[a][b]` is the word of the pair (NV18, PIX, SYS, …); `numa` and `cpus` per device, None and "" where the table says nothing."""

    devices: tuple[str, ...]
    links: dict[str, dict[str, str]]
    numa: dict[str, int | None]
    cpus: dict[str, str]
    nics: dict[str, str]

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(device for device in self.devices if device.startswith("GPU"))

    @property
    def numa_nodes(self) -> int:
        """How many NUMA nodes the devices are near to; 0 when the table names none."""
        return len({numa for numa in self.numa.values() if numa is not None})

    def nearest(self, device: str, among: tuple[str, ...]) -> tuple[str, ...]:
        """Those of `among` that are closest to `device`."""
        ranks = {other: 0 if word.startswith("NV") else _CLOSENESS[word] for other, word in self.links[device].items() if other in among}
        return tuple(other for other in among if other in ranks and ranks[other] == min(ranks.values()))

    def as_json(self) -> dict[str, object]:
        """What `Node.topology` keeps."""
        return {"devices": list(self.devices), "links": self.links, "numa": self.numa, "cpus": self.cpus, "nics": self.nics}


def parse_topology(text: str) -> Topology:
    """Parse the whole output, tab separated. Raises `TopologyError` when it is not the table of `nvidia-smi topo -m`."""
    lines = [_ANSI.sub("", line).rstrip("\r\n") for line in text.splitlines()]
    header_number = next((number for number, line in enumerate(lines) if _CPU_COLUMN in line), None)
    if header_number is None:
        raise TopologyError(f"No line holds the column {_CPU_COLUMN!r}: not the output of `nvidia-smi topo -m`.")
    header = [cell.strip() for cell in lines[header_number].split("\t")]
    devices = tuple(header[1 : header.index(_CPU_COLUMN)])
    if not devices or len(set(devices)) != len(devices):
        raise TopologyError(f"Line {header_number + 1}: the header names no devices, or one twice.")
    links: dict[str, dict[str, str]] = {}
    numa: dict[str, int | None] = {}
    cpus: dict[str, str] = {}
    number = header_number + 1
    while number < len(lines) and lines[number].strip():
        cells = [cell.strip() for cell in lines[number].split("\t")]
        device, words, rest = cells[0], cells[1 : len(devices) + 1], [*cells[len(devices) + 1 :], "", ""]
        if device not in devices or device in links:
            raise TopologyError(f"Line {number + 1}: {device!r} is not a device of the header, or stands twice.")
        if len(words) != len(devices) or not all(_LINK.match(word) for word in words):
            raise TopologyError(f"Line {number + 1}: {device} needs one link word for each of {len(devices)} devices.")
        links[device] = {other: word for other, word in zip(devices, words, strict=True) if word != "X"}
        cpus[device] = rest[0] if rest[0] != "N/A" else ""
        numa[device] = int(rest[1]) if rest[1].isdigit() else None
        number += 1
    if missing := [device for device in devices if device not in links]:
        raise TopologyError(f"The table has no row for {', '.join(missing)}.")
    nics = {match[1]: match[2] for match in map(_NIC.match, lines[number:]) if match}
    return Topology(devices=devices, links=links, numa=numa, cpus=cpus, nics=nics)
