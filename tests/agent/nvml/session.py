"""Runs the agent's NVML backend in a process of its own (NVIDIA's binding loads the library by name): one JSON command a line in, one answer out."""

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agent.actions import discover_actions
from agent.backends.base import BackendError
from agent.backends.nvml import open_backend
from agent.inspection import inspect
from agent.journal import Journal


def main() -> None:
    folder = Path(sys.argv[1])
    backend = open_backend({"proc": str(folder / "proc"), "sys": str(folder / "sys")})
    journal = Journal(folder / "journal.sqlite3")
    action = discover_actions()["clock_range"]
    for line in sys.stdin:
        command = json.loads(line)
        answer: Any = None
        try:
            match command["do"]:
                case "inspect":
                    inventory, health = inspect(backend, journal, time.time())
                    answer = {"inventory": inventory.to_json(), "health": health.to_json()}
                case "set":
                    action.apply(backend, command["gpu"], {"min_mhz": command["low"], "max_mhz": command["high"]})
                case "reset":
                    action.undo(backend, command["gpu"])
                case "read":
                    answer = asdict(backend.read_clocks(command["gpu"]))
        except BackendError as error:
            answer = {"error": error.code.value, "message": str(error)}
        print(json.dumps(answer), flush=True)
    journal.close()
    backend.close()


main()
