"""The kinds of one-shot commands: what each takes, what it touches, how long it may wait. Adding one is an entry here and one file in `agent/commands/`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from jsonschema import Draft202012Validator

from fleet.control.guardrails import Act, Reach

GRACE = {
    "type": "integer",
    "minimum": -1,
    "maximum": 3600,
    "default": -1,
    "title": "Grace period (seconds)",
    "description": "Time that each pod gets to end; -1: its own.",
}


@dataclass(frozen=True)
class CommandKind:
    """`schema`: JSON Schema (draft 2020-12) of the parameters, with units in titles. `undo`: how to take it back, "" where nothing does."""

    name: str
    title: str
    act: Act
    schema: Mapping[str, Any]
    not_after: timedelta
    undo: str
    explains: str
    per_gpu: bool = False
    most_targets: int = 30_000
    checks: tuple[str, ...] = field(default=("boot_id",))  # preconditions taken from the inventory when a target is frozen

    def errors(self, parameters: object) -> dict[str, str]:
        """Every bad field with what is wrong; empty when all is well. Numbers that are not finite are refused."""
        if not isinstance(parameters, dict):
            return {"parameters": "Must be an object."}
        found: dict[str, str] = {}
        for error in Draft202012Validator(self.schema).iter_errors(parameters):
            name = ".".join(str(part) for part in error.absolute_path)
            found.setdefault(f"parameters.{name}" if name else "parameters", error.message)
        for name, value in parameters.items():
            if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
                found[f"parameters.{name}"] = "Must be a finite number."
        return found

    def complete(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters with defaults filled in."""
        return {name: one["default"] for name, one in self.schema["properties"].items() if "default" in one} | dict(parameters)


def _schema(**properties: Mapping[str, Any]) -> dict[str, Any]:
    required = [name for name, one in properties.items() if "default" not in one]
    return {"type": "object", "properties": dict(properties), "required": required, "additionalProperties": False}


def _flag(title: str, description: str) -> dict[str, Any]:
    return {"type": "boolean", "default": False, "title": title, "description": description}


def _text(title: str, description: str, longest: int, **more: Any) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": longest, "title": title, "description": description, **more}


_KINDS = (
    CommandKind(
        name="drain",
        title="Drain",
        act=Act(kind="drain", word="drain", reach=Reach.WORKLOADS, disruptive=True),
        schema=_schema(
            deadline_seconds={
                "type": "integer",
                "minimum": 10,
                "maximum": 86_400,
                "default": 1800,
                "title": "Deadline (seconds)",
                "description": "What is left then is named with what blocks it; nothing is forced.",
            },
            grace_seconds=GRACE,
            allow_local_data=_flag("Lose local data", "Also pods whose emptyDir data would be lost."),
            allow_unmanaged=_flag("Unmanaged pods", "Also pods that nobody brings back."),
        ),
        not_after=timedelta(hours=1),
        undo="Uncordon: the node takes pods again. What was evicted comes back by its controller, elsewhere perhaps.",
        explains="Cordons the node in our name and evicts its AI pods, the lowest priority first. PHY pods stay.",
    ),
    CommandKind(
        name="uncordon",
        title="Uncordon",
        act=Act(kind="uncordon", word="uncordon", reach=Reach.WORKLOADS, disruptive=False),
        schema=_schema(),
        not_after=timedelta(hours=1),
        undo="Cordon the node again.",
        explains="Takes our own cordon away. A cordon that somebody else set stays, and is named.",
        checks=(),
    ),
    CommandKind(
        name="evict",
        title="Evict a workload",
        act=Act(kind="evict", word="evict", reach=Reach.WORKLOADS, disruptive=False),
        schema=_schema(
            namespace=_text("Namespace", "Of the pod.", 63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"),
            pod=_text("Pod", "Its name.", 253),
            uid=_text("Pod UID", "The pod that is meant; another one of the same name is left alone.", 64),
            grace_seconds=GRACE,
            deadline_seconds={
                "type": "integer",
                "minimum": 10,
                "maximum": 3600,
                "default": 300,
                "title": "Deadline (seconds)",
                "description": "How long to go on asking while a disruption budget forbids it.",
            },
        ),
        not_after=timedelta(minutes=15),
        undo="",
        explains="Evicts one pod through the Eviction API; disruption budgets hold. A PHY pod is refused.",
    ),
    CommandKind(
        name="gpu_reset",
        title="Reset GPU",
        act=Act(kind="gpu_reset", word="reset", reach=Reach.DEVICE, disruptive=True, noun="GPU"),
        schema=_schema(),
        not_after=timedelta(minutes=30),
        undo="",
        explains="Resets the GPU. Everything on it ends; clock locks, caps and MIG instances are made again from the desired state.",
        per_gpu=True,
        checks=("boot_id", "mig_layout"),
    ),
    CommandKind(
        name="reboot",
        title="Reboot node",
        act=Act(kind="reboot", word="reboot", reach=Reach.DEVICE, disruptive=True),
        schema=_schema(),
        not_after=timedelta(minutes=30),
        undo="",
        explains="Restarts the node. Everything on it ends.",
    ),
    CommandKind(
        name="diagnostics",
        title="Diagnostics bundle",
        act=Act(kind="diagnostics", word="diagnose", reach=Reach.NOTHING, disruptive=False),
        schema=_schema(),
        not_after=timedelta(hours=1),
        undo="Nothing is changed.",
        explains="Collects versions, the last health report, clocks and what runs, as text.",
        checks=(),  # it changes nothing: also of use just after a boot
    ),
)
KINDS: Mapping[str, CommandKind] = {kind.name: kind for kind in _KINDS}
