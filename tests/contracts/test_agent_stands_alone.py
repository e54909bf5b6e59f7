"""The agent is a distribution of its own: it works without Django, without our apps, and without NVIDIA's binding unless NVML is used."""

import os
import re
import subprocess
import sys
import sysconfig
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


def test_the_wheel_is_built_and_installed_as_the_readme_says(tmp_path: Path) -> None:
    """Built by the locked tool, without a network; what it depends on is taken from here."""
    readme = (ROOT / "README.md").read_text()
    build = re.search(r"\(cd agent && \.\./\.venv/bin/hatchling (.*) -d \.\./dist\)", readme)
    wheel = re.search(r"pip install '\./(.*\.whl)\[nvml,kubernetes\]'", readme)
    assert build is not None
    assert wheel is not None
    subprocess.run([sys.executable, "-m", "hatchling", *build[1].split(), "-d", str(tmp_path)], cwd=ROOT / "agent", check=True, capture_output=True)
    assert [path.name for path in tmp_path.iterdir()] == [wheel[1]]
    fresh = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(fresh)], check=True)
    install = [str(fresh / "bin" / "pip"), "install", "-q", "--no-index", "--no-deps", "--disable-pip-version-check", str(tmp_path / wheel[1])]
    subprocess.run(install, check=True, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}
    for command in ([str(fresh / "bin" / "masthead-agent"), "--version"], [str(fresh / "bin" / "python"), "-c", "import agent; print(agent.__file__)"]):
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        assert "0.1.0" in done.stdout or str(fresh) in done.stdout
