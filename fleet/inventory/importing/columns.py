"""What a row of each kind holds: its columns, how their text is read, and which name an object. Pure: no Django.

A parser takes the text of a cell and returns a JSON value; it raises ValueError with a sentence for the row's error.
"""

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from zoneinfo import available_timezones

from fleet.catalogue import SKUS, UNKNOWN, sku_for_model
from fleet.inventory.importing.read import UNPRINTABLE
from fleet.inventory.mig import POSITIONS

Value = str | int | float | bool | None
_CODE = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
_SLUG = re.compile(r"^[A-Za-z0-9_-]+$")
_HOST = re.compile(r"^(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$")
_ADDRESS = re.compile(r"^(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})$")
_GPU_UUID = re.compile(r"^GPU-[0-9a-fA-F-]{8,60}$")
_PCI = re.compile(r"^(?:([0-9A-Fa-f]{1,8}):)?([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-7])$")
_SPAN = re.compile(r"^([0-7])(?:-([0-7])|:([1-8]))?$")
_WHOLE = re.compile(r"^[+-]?[0-9]{1,18}$")
_NUMBER = re.compile(r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?$")
_ZONES = frozenset(available_timezones())
_TRUE, _FALSE = ("true", "yes", "1", "on", "enabled"), ("false", "no", "0", "off", "disabled")


@dataclass(frozen=True)
class Column:
    """One field of a row. `default` stands for an empty cell of a new object; an empty cell of a known object changes nothing unless the column is there."""

    name: str
    parse: Callable[[str], Value]
    required: bool = False
    default: Value = None
    help: str = ""


@dataclass(frozen=True)
class Kind:
    """`key` are the columns that together name an object."""

    name: str
    title: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


def _text(text: str, *, longest: int) -> str:
    if UNPRINTABLE.search(text):
        raise ValueError("has characters that cannot be printed.")
    if len(text) > longest:
        raise ValueError(f"has {len(text)} characters; at most {longest} fit.")
    return text


def _code(text: str) -> str:
    if not _CODE.match(_text(text, longest=40)):
        raise ValueError("may hold letters, digits, dot, dash and underscore, and starts with a letter or digit.")
    return text


def _slug(text: str) -> str:
    if not _SLUG.match(_text(text, longest=40)):
        raise ValueError("may hold letters, digits, dash and underscore.")
    return text


def _choice(text: str, *, of: tuple[str, ...]) -> str:
    value = text.lower()
    if value not in of:
        raise ValueError(f"{text[:40]!r} is none of {', '.join(of)}.")
    return value


def _number(text: str, *, low: float, high: float) -> float:
    if not _NUMBER.match(text):
        raise ValueError(f"{text[:40]!r} is not a number (decimal point, no thousands separators).")
    value = float(text)
    if not math.isfinite(value) or not low <= value <= high:
        raise ValueError(f"{text[:40]} is not within {low:g}..{high:g}.")
    return value


def _whole(text: str, *, low: int, high: int) -> int:
    if not _WHOLE.match(text):
        raise ValueError(f"{text[:40]!r} is not a whole number.")
    value = int(text)
    if not low <= value <= high:
        raise ValueError(f"{value} is not within {low}..{high}.")
    return value


def _truth(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError(f"{text[:40]!r} is neither true nor false.")


def _zone(text: str) -> str:
    if text not in _ZONES:
        raise ValueError(f"{text[:60]!r} is no time zone; write it as Europe/Berlin.")
    return text


def _host(text: str) -> str:
    if not _HOST.match(text):
        raise ValueError(f"{text[:60]!r} is no host name.")
    return text


def _address(text: str) -> str:
    found = _ADDRESS.match(_text(text, longest=255))
    if not found or not 1 <= int(found[2]) <= 65535:
        raise ValueError(f"{text[:60]!r} is no host:port.")
    return text


def _gpu_uuid(text: str) -> str:
    if not _GPU_UUID.match(text):
        raise ValueError(f"{text[:60]!r} is no GPU UUID (GPU-…).")
    return text


def _pci(text: str) -> str:
    found = _PCI.match(text)
    if not found:
        raise ValueError(f"{text[:40]!r} is no PCI address (00000000:19:00.0).")
    return f"{int(found[1] or '0', 16):08X}:{found[2].upper()}:{found[3].upper()}.{found[4]}"


def _sku(text: str) -> str:
    if text in SKUS and text != UNKNOWN:
        return text
    if board := sku_for_model(text):
        return board.key
    known = ", ".join(key for key in SKUS if key != UNKNOWN)
    raise ValueError(f"{text[:60]!r} is no model of the catalogue; it has {known}.")


def parse_spans(text: str) -> list[tuple[int, int]]:
    """Protected placements as (start, size): `0-2` is one span, `0:1 1:1 2:1` three of one position, `all` the whole GPU, `none` has none."""
    if text.lower() == "none":
        return []
    if text.lower() == "all":
        return [(0, POSITIONS)]
    spans: list[tuple[int, int]] = []
    for part in re.split(r"[\s,;]+", text.strip()):
        found = _SPAN.match(part)
        if not found:
            raise ValueError(f"{part[:40]!r} is no placement; write 0-2, or start:size as in 0:1 1:1 2:1.")
        start = int(found[1])
        size = int(found[2]) - start + 1 if found[2] else int(found[3] or 1)
        if size < 1 or start + size > POSITIONS:
            raise ValueError(f"{part[:40]!r} goes beyond the positions 0-{POSITIONS - 1}.")
        spans.append((start, size))
    spans.sort()
    for (start, size), (following, _) in itertools.pairwise(spans):
        if following < start + size:
            raise ValueError(f"the placements {start}:{size} and {following} overlap.")
    return spans


def write_spans(spans: list[tuple[int, int]]) -> str:
    """The one spelling of protected placements; `none` when there are none."""
    return " ".join(f"{start}:{size}" for start, size in sorted(spans)) or "none"


def _spans(text: str) -> str:
    return write_spans(parse_spans(text))


SITES = Kind(
    name="sites",
    title="Sites",
    key=("code",),
    columns=(
        Column("code", _code, required=True, help="Names the site, e.g. MUC-0042."),
        Column("name", partial(_text, longest=120), help="Empty: the code."),
        Column("region", _slug, required=True, help="Slug of its region."),
        Column("area", _slug, help="Slug of the region's area: a region that does not exist yet is added to it."),
        Column("kind", partial(_choice, of=("cell", "edge", "central")), default="cell", help="cell, edge or central."),
        Column("latitude", partial(_number, low=-90, high=90), help="Degrees north."),
        Column("longitude", partial(_number, low=-180, high=180), help="Degrees east."),
        Column("time_zone", _zone, default="UTC", help="As in Europe/Berlin."),
        Column("power_feed", partial(_text, longest=60), default="", help="Name of the feed, e.g. A+B 2N."),
        Column("power_feed_watts", partial(_whole, low=0, high=2_000_000_000), help="What the feed gives, in watts."),
        Column("expected_nodes", partial(_whole, low=0, high=100_000), help="How many nodes should be there."),
    ),
)
NODES = Kind(
    name="nodes",
    title="Nodes",
    key=("site", "host_name"),
    columns=(
        Column("site", _code, required=True, help="Code of its site."),
        Column("host_name", _host, required=True, help="Short or fully qualified; the first label names the node."),
        Column("role", partial(_choice, of=("du", "cu", "inference")), required=True, help="du, cu or inference."),
        Column("expected_gpus", partial(_whole, low=0, high=64), help="How many GPUs should be there."),
        Column("exporter_address", _address, default="", help="host:port of dcgm-exporter."),
        Column("triton_address", _address, default="", help="host:port of Triton's metrics."),
        Column("vllm_address", _address, default="", help="host:port of vLLM's metrics."),
        Column("node_exporter_address", _address, default="", help="host:port of node-exporter."),
    ),
)
GPUS = Kind(
    name="gpus",
    title="GPUs",
    key=("uuid",),
    columns=(
        Column("uuid", _gpu_uuid, required=True, help="GPU-…, as nvidia-smi -L prints it."),
        Column("site", _code, required=True, help="Code of the site."),
        Column("node", _host, required=True, help="Host name of its node."),
        Column("sku", _sku, required=True, help="Key of the catalogue (h100-sxm-80gb), or the model's name."),
        Column("index", partial(_whole, low=0, high=63), help="As enumerated; not stable."),
        Column("pci_bus_id", _pci, default="", help="00000000:19:00.0."),
        Column("serial", partial(_text, longest=40), default="", help="Serial number of the board."),
        Column("mig_enabled", _truth, default=False, help="true or false."),
        Column("protected_placements", _spans, help="Memory positions kept for PHY: 0:1 1:1 2:1 (start:size), all, none; empty changes nothing."),
    ),
)
KINDS = {kind.name: kind for kind in (SITES, NODES, GPUS)}
