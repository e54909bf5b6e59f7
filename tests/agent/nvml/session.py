"""Runs the agent's NVML backend in a process of its own (NVIDIA's binding loads the library by name): one JSON command a line in, one answer out."""

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agent.actions import ParameterError, Target, discover_actions
from agent.backends.base import BackendError
from agent.backends.nvml import open_backend
from agent.inspection import inspect
from agent.journal import Journal
from agent.protocol import ProtectedSpan


def main() -> None:
    folder = Path(sys.argv[1])
    backend = open_backend({"proc": str(folder / "proc"), "sys": str(folder / "sys"), "nvidia_smi": str(folder / "nvidia-smi")})
    journal = Journal(folder / "journal.sqlite3")
    actions = discover_actions()
    for line in sys.stdin:
        command = json.loads(line)
        answer: Any = None
        try:
            match command["do"]:
                case "inspect":
                    inventory, health = inspect(backend, journal, time.time())
                    answer = {"inventory": inventory.to_json(), "health": health.to_json()}
                case "set":
                    actions["clock_range"].apply(Target(backend, command["gpu"]), {"min_mhz": command["low"], "max_mhz": command["high"]})
                case "reset":
                    actions["clock_range"].undo(Target(backend, command["gpu"]))
                case "gpu_reset":
                    backend.reset_gpu(command["gpu"])
                case "read":
                    answer = asdict(backend.read_clocks(command["gpu"]))
                case "apply" | "look" | "undo" as what:
                    action = actions[command["control"]]
                    spans = tuple(ProtectedSpan(command["gpu"], *span) for span in command.get("protected", ()))
                    target = Target(backend, command["gpu"], protected=spans, last=command.get("last", {}), before=command.get("before", ""))
                    if what == "apply":
                        action.check(command["parameters"])
                        answer = {"before": action.remember(target)}
                        action.apply(target, command["parameters"])
                    elif what == "undo":
                        action.undo(target)
                    else:
                        answer = asdict(action.read(target, command["parameters"]))
        except BackendError as error:
            answer = {"error": error.code.value, "message": str(error), "facts": error.facts}
        except ParameterError as error:
            answer = {"error": "parameters", "message": str(error)}
        print(json.dumps(answer), flush=True)
    journal.close()
    backend.close()


main()
