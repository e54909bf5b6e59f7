"""Kinds of one-shot commands. Each file of this package is one: it defines `COMMAND`, and nothing else has to know it.

A kind is a machine of short steps, so that a command of an hour holds no thread. Before each step the executor has journalled the memo that
the step before it returned; a step that acts finds its intent there. After a crash `settle` gets the last memo and reads back what became of it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from jsonschema import Draft202012Validator

from agent.backends.base import Backend
from agent.backends.cluster import Cluster, ClusterError, ClusterErrorCode
from agent.phy import Phy
from agent.protocol import HealthReport, InventoryReport
from agent.protocol.command import CommandBody, CommandCode, CommandState

# Whose cordons the commands are: written on the node, and asked for again before it is lifted.
CORDON_OWNER = "masthead/command"

Memo = dict[str, Any]


@dataclass(frozen=True)
class Context:
    """What a step may ask and touch. `now` and `begun_at` are Unix seconds of the node's clock; `cluster` None: this agent has none."""

    body: CommandBody
    backend: Backend
    cluster: Cluster | None
    phy: Phy
    now: float
    begun_at: float

    def inventory(self) -> InventoryReport:
        return self.backend.inventory(self.now)

    def health(self) -> HealthReport:
        return self.backend.health(self.now)

    def kubernetes(self) -> Cluster:
        """Raises ClusterError where this agent has no access to Kubernetes."""
        if self.cluster is None:
            raise ClusterError(ClusterErrorCode.NOT_PERMITTED, "this agent has no access to it")
        return self.cluster

    def parameter(self, name: str, default: Any) -> Any:
        found = self.body.parameters.get(name)
        return default if found is None else found


@dataclass(frozen=True)
class Refusal:
    """Why a command does not begin; nothing was touched."""

    code: CommandCode
    detail: str


@dataclass(frozen=True)
class Turn:
    """What one step brought. `state` RUNNING goes on after `again_seconds`; a final one is the command's end. `memo` None keeps the old one."""

    state: CommandState
    code: CommandCode = CommandCode.NONE
    detail: str = ""
    memo: Memo | None = None
    again_seconds: float = 0.0
    progress: dict[str, int | float | str | bool | None] = field(default_factory=dict)
    blocked: tuple[str, ...] = ()
    output: str = ""


class CommandKind(Protocol):
    name: str
    # JSON Schema (draft 2020-12) of the parameters, with units in titles and limits.
    schema: Mapping[str, Any]
    # Runs alone on the node: it waits for what runs, and what comes later waits for it.
    exclusive: bool
    # Cannot be without a boot id to compare: without one it could happen twice should the journal be lost.
    needs_boot_id: bool

    def subject(self, body: CommandBody) -> str:
        """Two commands of a kind and a subject never overlap, and an earlier one never begins after a later one."""

    def refusal(self, context: Context) -> Refusal | None:
        """Asked right before it begins; touches nothing. May raise BackendError or ClusterError: then it is asked again for a while."""

    def step(self, context: Context, memo: Memo) -> Turn:
        """The next step; `memo` {} is the first. Backend and cluster errors are the kind's own to judge."""

    def settle(self, context: Context, memo: Memo) -> Turn:
        """The agent was away since `memo` was journalled: what became of it? Must not do again what may have been done."""

    def cancel(self, context: Context, memo: Memo) -> Turn | None:
        """The command is cancelled: its end, or None where it cannot be stopped any more and goes on to its end."""


class SchemaOf:
    """Checks parameters against a kind's schema: the same judgement as the console's."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._validator = Draft202012Validator(dict(schema))

    def problem(self, parameters: Mapping[str, Any]) -> str:
        """The first bad parameter with what is wrong, "" when all is well."""
        errors = sorted(self._validator.iter_errors(dict(parameters)), key=lambda error: [str(part) for part in error.absolute_path])
        if not errors:
            return ""
        path = ".".join(str(part) for part in errors[0].absolute_path)
        return f"{path}: {errors[0].message}" if path else str(errors[0].message)


def object_schema(**properties: Mapping[str, Any]) -> dict[str, Any]:
    """An object of these properties and no others; those without a default are required."""
    required = [name for name, one in properties.items() if "default" not in one]
    return {"type": "object", "properties": dict(properties), "required": required, "additionalProperties": False}


def discover_commands() -> dict[str, CommandKind]:
    """All kinds of this package by name."""
    found: dict[str, CommandKind] = {}
    for module_info in pkgutil.iter_modules(__path__):
        module: Any = importlib.import_module(f"{__name__}.{module_info.name}")
        kind: CommandKind = module.COMMAND
        found[kind.name] = kind
    return found
