"""Controls that an agent can converge to. Each file of this package is one: it defines `ACTION`, and nothing else has to know it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from agent.backends.base import Backend
from agent.backends.cluster import Cluster
from agent.protocol import ProtectedSpan

Scalars = dict[str, int | float | str | bool | None]
Parameters = Mapping[str, int | float | str | bool | None]
PERSISTENCE_WARNING = "Persistence mode is off, will not last."


class ParameterError(Exception):
    """The parameters of a control cannot be used; the text names the field."""


@dataclass(frozen=True)
class Reading:
    """What the hardware shows. `holds`: the control is in force (None: the hardware cannot tell now). `observed` goes to the console.

    `final`: what is not in force now does not come by waiting. `hands_off`: it is not ours to apply again.
    """

    holds: bool | None
    observed: Scalars = field(default_factory=dict)
    detail: str = ""
    final: bool = False
    hands_off: bool = False


@dataclass(frozen=True)
class Target:
    """What a control acts on. `gpu_uuid` "" is the node itself; `cluster` None: the node is in none that this agent may speak to.

    `protected` are this GPU's memory positions that are the radio's, `last` is what was observed of the control last,
    `before` what `remember` gave before the first act, `waited_seconds` how long ago the last act was, while its effect is waited for.
    """

    backend: Backend
    gpu_uuid: str
    cluster: Cluster | None = None
    protected: tuple[ProtectedSpan, ...] = ()
    last: Mapping[str, int | float | str | bool | None] = field(default_factory=dict)
    before: str = ""
    waited_seconds: float = 0.0


class Action(Protocol):
    """A control. Everything that touches hardware or cluster raises BackendError or ClusterError."""

    name: str
    # Of the node itself, not of one GPU.
    node_wide: bool
    # It acts on all slices of the GPU alike, so it is refused where the radio has a protected placement.
    gpu_wide: bool
    # How long the hardware may take until a reading shows the effect.
    settle_seconds: float

    def check(self, parameters: Parameters) -> None:
        """Raises ParameterError. Nothing is asked of the hardware."""

    def remember(self, target: Target) -> str:
        """What `undo` needs to know of the time before the first act, "" when nothing; at most 300 characters."""

    def apply(self, target: Target, parameters: Parameters) -> None:
        """Idempotent."""

    def read(self, target: Target, parameters: Parameters | None) -> Reading:
        """Read back; without parameters the control is meant to be off."""

    def undo(self, target: Target) -> None:
        """Idempotent."""


def discover_actions() -> dict[str, Action]:
    """All controls of this package by name."""
    found: dict[str, Action] = {}
    for module_info in pkgutil.iter_modules(__path__):
        module: Any = importlib.import_module(f"{__name__}.{module_info.name}")
        action: Action = module.ACTION
        found[action.name] = action
    return found
