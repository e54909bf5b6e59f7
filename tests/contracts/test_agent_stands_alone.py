"""The agent is a distribution of its own: it works without Django, without our apps, and without NVIDIA's binding unless NVML is used."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
_LOOK = """
import importlib, pkgutil, sys
import agent
for module in pkgutil.walk_packages(agent.__path__, "agent."):
    if not module.name.startswith(("agent.simulator", "agent.backends.", "agent.__main__")):
        importlib.import_module(module.name)
import agent.__main__
strangers = {name.split(".")[0] for name in sys.modules} & {"django", "rest_framework", "celery", "console", "slo", "tenants", "fleet", "pynvml", "numpy"}
sys.exit(", ".join(sorted(strangers)) or 0)
"""


def test_importing_the_agent_pulls_in_nothing_of_the_console() -> None:
    done = subprocess.run([sys.executable, "-c", _LOOK], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_control_and_backend_is_found_by_being_a_file() -> None:
    look = "from agent.actions import discover_actions; print(*discover_actions())"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, cwd=ROOT, check=True)
    files = sorted(path.stem for path in (ROOT / "agent" / "actions").glob("*.py") if path.stem != "__init__")
    assert done.stdout.split() == files
