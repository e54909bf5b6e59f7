"""The GPU models that Masthead knows, read once from `skus.yaml`. Pure: no Django.

`sku(key)` is what `Gpu.sku` names; `sku_for_model(name)` finds it from what NVML, DCGM or Kubernetes call the board.
A figure that no source gives is None: unknown, never 0. Live readings of an agent go before the catalogue.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

UNKNOWN = "unknown"
_FILE = Path(__file__).with_name("skus.yaml")


class CatalogueError(Exception):
    """`skus.yaml` contradicts itself; the text names the entry."""


class UnknownSku(KeyError):
    """No SKU has this key."""

    def __str__(self) -> str:
        return f"{self.args[0]!r} is not a SKU of the catalogue"


@dataclass(frozen=True)
class MigProfile:
    """One GPU-instance profile of a board. `placements` are the memory positions it may start at; it takes `size` of them."""

    name: str
    id: int
    max_instances: int
    memory_mib: int | None
    multiprocessors: int | None
    compute_slices: int
    placements: tuple[int, ...]
    size: int

    @property
    def has_media_extensions(self) -> bool:
        return self.name.endswith("+me")


@dataclass(frozen=True)
class Sku:
    """One board. Watts, MHz, MiB and °C; None is "not known". `sources` are sentences that say where the figures come from."""

    key: str
    name: str
    model_names: tuple[str, ...]
    architecture: str
    memory_mib: int | None
    multiprocessors: int | None
    power_min_watts: int | None
    power_max_watts: int | None
    sm_clock_min_mhz: int | None
    sm_clock_max_mhz: int | None
    slowdown_celsius: int | None
    shutdown_celsius: int | None
    profiles: tuple[MigProfile, ...]
    sources: tuple[str, ...]
    version: str

    @property
    def mig_capable(self) -> bool:
        return bool(self.profiles)

    def profile(self, name: str) -> MigProfile | None:
        """The profile of that name, None when this board has none such."""
        return next((profile for profile in self.profiles if profile.name == name), None)


def _normal(model_name: str) -> str:
    """One spelling for a board's names: `NVIDIA-H100-80GB-HBM3-MIG-1g.10gb` and `NVIDIA H100 80GB HBM3` are the same board."""
    words = re.sub(r"[\s_-]+", " ", model_name).strip().upper()
    words = re.sub(r" (MIG [0-9]+G\.[0-9]+GB(\+ME|\.ME)?|SHARED)$", "", words)
    return words.removeprefix("NVIDIA ").removeprefix("TESLA ")


def _profiles(table: dict[str, Any]) -> tuple[MigProfile, ...]:
    return tuple(
        MigProfile(
            name=row["name"],
            id=row["id"],
            max_instances=row["max_instances"],
            memory_mib=row["memory_mib"],
            multiprocessors=row["multiprocessors"],
            compute_slices=row["compute_slices"],
            placements=tuple(row["placements"]),
            size=row["size"],
        )
        for row in table["profiles"]
    )


def load(text: str) -> dict[str, Sku]:
    """Read a catalogue. Raises `CatalogueError` naming the entry that refers to something missing or names a board twice."""
    data = yaml.safe_load(text)
    tables, sources, version = data["profile_tables"], data["sources"], str(data["version"])
    skus: dict[str, Sku] = {}
    seen: dict[str, str] = {}
    for key, row in data["skus"].items():
        table = row["profile_table"]
        if table is not None and table not in tables:
            raise CatalogueError(f"skus.{key}.profile_table: there is no table {table!r}")
        named = [*row["sources"], *(tables[table]["sources"] if table else [])]
        for source in named:
            if source not in sources:
                raise CatalogueError(f"skus.{key}.sources: there is no source {source!r}")
        for model_name in row["model_names"]:
            if (other := seen.setdefault(_normal(model_name), key)) != key:
                raise CatalogueError(f"skus.{key}.model_names: {model_name!r} is also a name of {other!r}")
        skus[key] = Sku(
            key=key,
            name=row["name"],
            model_names=tuple(row["model_names"]),
            architecture=row["architecture"],
            memory_mib=row["memory_mib"],
            multiprocessors=row["multiprocessors"],
            power_min_watts=row["power_watts"][0],
            power_max_watts=row["power_watts"][1],
            sm_clock_min_mhz=row["sm_clock_mhz"][0],
            sm_clock_max_mhz=row["sm_clock_mhz"][1],
            slowdown_celsius=row["slowdown_celsius"],
            shutdown_celsius=row["shutdown_celsius"],
            profiles=_profiles(tables[table]) if table else (),
            sources=tuple(sources[source] for source in dict.fromkeys(named)),
            version=version,
        )
    return skus


SKUS = MappingProxyType(load(_FILE.read_text(encoding="utf-8")))
_BY_MODEL = {_normal(model_name): sku for sku in SKUS.values() for model_name in sku.model_names}


def sku(key: str) -> Sku:
    """The SKU of that key. Raises `UnknownSku`."""
    try:
        return SKUS[key]
    except KeyError:
        raise UnknownSku(key) from None


def sku_for_model(model_name: str) -> Sku | None:
    """The SKU of a board by the name that NVML, DCGM (`modelName`) or Kubernetes (`nvidia.com/gpu.product`) give it; None when unknown."""
    return _BY_MODEL.get(_normal(model_name))
