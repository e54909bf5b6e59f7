"""Controls that an agent can converge to. Each file of this package is one: it defines `ACTION`, and nothing else has to know it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from agent.backends.base import Backend

Parameters = Mapping[str, int | float | str | bool | None]


class ParameterError(Exception):
    """The parameters of a control cannot be used; the text names the field."""


@dataclass(frozen=True)
class Reading:
    """What the hardware shows. `holds`: the control is in force (None: the hardware cannot tell now). `observed` goes to the console."""

    holds: bool | None
    observed: dict[str, int | float | str | bool | None] = field(default_factory=dict)
    detail: str = ""


class Action(Protocol):
    name: str
    # It acts on all slices of the GPU alike, so it is refused where the radio has a protected placement.
    gpu_wide: bool
    # How long the hardware may take until a reading shows the effect.
    settle_seconds: float

    def check(self, parameters: Parameters) -> None:
        """Raises ParameterError. Nothing is asked of the hardware."""

    def apply(self, backend: Backend, gpu_uuid: str, parameters: Parameters) -> None:
        """Idempotent. Raises BackendError."""

    def read(self, backend: Backend, gpu_uuid: str, parameters: Parameters | None) -> Reading:
        """Read back; without parameters the control is meant to be off. Raises BackendError."""

    def undo(self, backend: Backend, gpu_uuid: str) -> None:
        """Idempotent. Raises BackendError."""


def discover_actions() -> dict[str, Action]:
    """All controls of this package by name."""
    found: dict[str, Action] = {}
    for module_info in pkgutil.iter_modules(__path__):
        module: Any = importlib.import_module(f"{__name__}.{module_info.name}")
        action: Action = module.ACTION
        found[action.name] = action
    return found
