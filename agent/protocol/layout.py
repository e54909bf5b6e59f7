"""A MIG layout as text: `1g.10gb@0,3g.40gb@4`, instances by first memory position; `none` for MIG mode without an instance, `off` for a whole GPU. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

POSITIONS = 8
OFF, NONE = "off", "none"
_PLACEMENT = re.compile(r"([1-9]g\.[1-9][0-9]{0,3}gb(?:[+-][a-z][a-z.]{0,8})?)@([0-7])")


class LayoutError(ValueError):
    """The text is not a layout, or the layout cannot be; says which part and why."""


class Instance(NamedTuple):
    """A GPU instance's place: `profile` by name (1g.10gb) from memory position `start` (0-7)."""

    start: int
    profile: str

    def __str__(self) -> str:
        return f"{self.profile}@{self.start}"


def parse_layout(text: str) -> tuple[Instance, ...] | None:
    """The instances by start, None for "off". Raises LayoutError."""
    if text == OFF:
        return None
    if text == NONE:
        return ()
    found: dict[int, Instance] = {}
    for part in text.split(","):
        match = _PLACEMENT.fullmatch(part.strip())
        if match is None:
            raise LayoutError(f"{part.strip()[:40]!r} is not a profile at a position, such as 1g.10gb@0")
        instance = Instance(int(match[2]), match[1])
        if instance.start in found:
            raise LayoutError(f"two instances start at position {instance.start}")
        found[instance.start] = instance
    return tuple(found[start] for start in sorted(found))


def format_layout(instances: Iterable[Instance] | None) -> str:
    return OFF if instances is None else ",".join(str(instance) for instance in sorted(instances)) or NONE
