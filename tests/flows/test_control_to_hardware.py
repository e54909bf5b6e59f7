"""One control, end to end without a browser: submitted in the console, through gateway and the agent's own process, to the NVIDIA library; and back."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from fleet.agents import enrolment
from fleet.control import controls
from fleet.control.observed import controls_of
from fleet.models import AgentConnection, Gpu, Node, ObservedControl, Policy
from tests.agent.nvml.node import Node as Hardware
from tests.agent.nvml.node import library
from tests.builders import make_gpu, make_node, make_user
from tests.fleet.gateway_process import GatewayProcess, gateway, gateway_process, until

__all__ = ["gateway", "gateway_process", "library"]
pytestmark = pytest.mark.processes
UUIDS = ["GPU-94984c2c-f7b1-5f83-a5f3-94cc8bd7f758", "GPU-56825b1e-9cb4-5f8a-a057-33673ac0406d"]


class AgentProcess:
    """`masthead-agent` on a node of its own, with NVML."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self._config = hardware.folder / "agent.toml"
        folder = hardware.folder
        self._config.write_text(
            f'state_dir = "{folder / "state"}"\nconverge_seconds = 0.2\ninspect_seconds = 0.5\n'
            f'[backend]\nkind = "nvml"\nproc = "{folder / "proc"}"\nsys = "{folder / "sys"}"\n'
        )
        self.process: subprocess.Popen[bytes] | None = None

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "agent", *arguments, "--config", str(self._config)]

    def call(self, *arguments: str, text: str = "") -> str:
        done = subprocess.run(self._command(*arguments), env=self._hardware.environment(), input=text, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def running(self, *, end: signal.Signals = signal.SIGTERM) -> Iterator[None]:
        with (self._hardware.folder / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(self._command("run"), env=self._hardware.environment(), stdout=log, stderr=log)
        try:
            yield
        finally:
            self.process.send_signal(end)
            status = self.process.wait(20)
        assert status == (0 if end is signal.SIGTERM else -end)


@pytest.fixture
def hardware(library: Path, tmp_path: Path) -> Hardware:
    hardware = Hardware(library, tmp_path)
    hardware.hardware(*(f"gpu {index} uuid {uuid}" for index, uuid in enumerate(UUIDS)))
    return hardware


def lock(gpu: Gpu, *, seconds: float) -> None:
    now = timezone.now()
    controls.submit_clock_range(
        gpu=gpu, min_mhz=1200, max_mhz=1400, ends_at=now + timedelta(seconds=seconds), reason="heat", user=make_user(), idempotency_key=None, now=now
    )


def state_of(gpu: Gpu) -> str:
    views = controls_of([gpu], now=timezone.now()).get(gpu.uuid, [])
    return views[0].state if views else ""


def enrolled_agent(node: Node, hardware: Hardware) -> AgentProcess:
    (bundle,) = enrolment.issue_bundles(nodes=[node], user=make_user(), now=timezone.now())
    agent = AgentProcess(hardware)
    assert f"Enrolled as node {node.pk}." in agent.call("enrol", "--bundle", "-", text=bundle.text)
    return agent


def test_a_clock_range_is_set_read_back_shown_and_withdrawn(gateway: GatewayProcess, hardware: Hardware) -> None:
    node = make_node()
    gpu = make_gpu(UUIDS[1], node=node, index=1)
    agent = enrolled_agent(node, hardware)
    with agent.running():
        until(lambda: AgentConnection.objects.filter(node=node, connected=True).exists(), 30)
        until(lambda: Gpu.objects.filter(uuid=UUIDS[0], node=node).exists(), 30)
        lock(gpu, seconds=3600)
        until(lambda: state_of(gpu) == "applied", 30)
        assert ObservedControl.objects.get().observed["sm_mhz"] == 1400
        controls.withdraw(policy=Policy.objects.get(), user=make_user(), reason="cool again", now=timezone.now())
        until(lambda: state_of(gpu) == "ended", 30)
        assert json.loads(agent.call("status"))["controls"][0]["state"] == "ended"
    assert hardware.acts() == [f"set {UUIDS[1]} 1200 1400", f"reset {UUIDS[1]} 0 0"]
    until(lambda: AgentConnection.objects.filter(node=node, connected=False).exists(), 30)


def test_an_agent_killed_with_a_lock_on_undoes_it_at_its_next_start_without_a_gateway(gateway: GatewayProcess, hardware: Hardware) -> None:
    node = make_node()
    gpu = make_gpu(UUIDS[0], node=node)
    agent = enrolled_agent(node, hardware)
    with agent.running(end=signal.SIGKILL):
        lock(gpu, seconds=12)
        until(lambda: state_of(gpu) == "applied", 30)
        gateway.kill()
    assert hardware.acts() == [f"set {UUIDS[0]} 1200 1400"]
    with agent.running():
        until(lambda: hardware.acts()[-1] == f"reset {UUIDS[0]} 0 0", 30)
    gateway.start()
    with agent.running():
        until(lambda: state_of(gpu) == "ended", 30)
