"""A node whose NVIDIA library is the one of `libnvidia-ml.c`, built here with gcc: hardware by script, the agent's backend in a process above it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.protocol import parse_agent_message

SOURCE = Path(__file__).with_name("libnvidia-ml.c")
LIBRARY_VERSION = "570.158.01"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built library, its file named after its version as the driver's installer does."""
    folder = tmp_path_factory.mktemp("nvml")
    built = folder / f"libnvidia-ml.so.{LIBRARY_VERSION}"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wno-stringop-truncation", "-Wl,-soname,libnvidia-ml.so.1", "-o", str(built), str(SOURCE)], check=True
    )
    (folder / "libnvidia-ml.so.1").symlink_to(built)
    return folder


class Node:
    """A process that holds the backend, and the hardware below it as a script."""

    def __init__(self, library: Path, folder: Path) -> None:
        self._script, self._log = folder / "hardware", folder / "acts"
        self._log.touch()
        self.folder = folder
        (folder / "proc/sys/kernel/random").mkdir(parents=True)
        (folder / "proc/sys/kernel/random/boot_id").write_text("7c1c5d1e-0000-4000-8000-000000000001\n")
        (folder / "proc/driver/nvidia").mkdir(parents=True)
        (folder / "proc/driver/nvidia/version").write_text(
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.133.20  Wed Feb 26 20:14:32 UTC 2025\nGCC version:  gcc version 12.2.0\n"
        )
        for number in (0, 1):
            (folder / f"sys/devices/system/node/node{number}").mkdir(parents=True)
        self._library = library
        self.process: subprocess.Popen[str] | None = None

    def hardware(self, *lines: str) -> None:
        self._script.write_text("\n".join(lines) + "\n")

    def environment(self) -> dict[str, str]:
        """Of a process that is to find this hardware."""
        return {**os.environ, "LD_LIBRARY_PATH": str(self._library), "NVML_SCRIPT": str(self._script), "NVML_LOG": str(self._log)}

    def ask(self, do: str, **values: Any) -> Any:
        if self.process is None:
            command = [sys.executable, "-m", "tests.agent.nvml.session", str(self.folder)]
            self.process = subprocess.Popen(command, env=self.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **values}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the agent's process died"
        return json.loads(line)

    def inspect(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """(inventory, health); both must be messages that the gateway accepts."""
        answer = self.ask("inspect")
        for report in answer.values():
            parse_agent_message(json.dumps(report))
        return answer["inventory"], answer["health"]

    def acts(self) -> list[str]:
        return self._log.read_text().splitlines()

    def stop(self) -> None:
        if self.process is not None and self.process.stdin is not None and self.process.stdout is not None:
            self.process.stdin.close()
            assert self.process.wait(20) == 0
            self.process.stdout.close()
            self.process = None
