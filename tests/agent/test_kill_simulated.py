"""A kill on the simulated fleet, through the backends that agents use: the hardware itself says that nothing of the radio was touched."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.backends.simulated import SimulatedBackend
from agent.backends.simulated_cluster import SimulatedCluster
from agent.local.control import LocalControl
from agent.protocol import LocalRules, ProtectedSpan, SwitchState
from agent.store import Store
from tests.agent.documents import CONSOLE_KEY, NODE, signed_switch, switch
from tests.agent.local_world import desired
from tests.agent.simulated_fleet import PHY
from tests.agent.test_simulator_cluster import PHY_HOST, Simulator

STATE = desired(LocalRules(operator_namespaces=("ran-phy",)), protected=(ProtectedSpan(PHY, 0, 3),))


@pytest.fixture
def simulator(tmp_path: Path) -> Iterator[Simulator]:
    found = Simulator(tmp_path / "simulator")
    yield found
    found.stop()


def test_ai_pods_end_and_end_again_when_they_come_back_and_phy_stays(simulator: Simulator, tmp_path: Path) -> None:
    backend, cluster = SimulatedBackend(simulator.url, PHY_HOST), SimulatedCluster(simulator.url, PHY_HOST)
    agent = LocalControl(store=Store(":memory:"), node_id=NODE, trusted_keys=(CONSOLE_KEY,), backend=backend, cluster=cluster)
    before = {pod.name for pod in cluster.pods()}
    assert {"pod-0", "pod-3"} <= before
    agent.accept([signed_switch()], STATE, simulator.now)
    states: list[SwitchState] = []
    stopped = 0
    end = simulator.now + 300
    while simulator.now < end:
        found = agent.step(STATE, simulator.now)
        for update in found.updates:
            states.append(update.state)
            stopped = update.stopped
        simulator.now = max(found.due_at, simulator.now + 0.5)
        simulator.hardware.advance(simulator.now)
    assert states[0] is SwitchState.PENDING
    assert SwitchState.APPLIED in states
    deletes = simulator.acts("delete")
    assert deletes
    assert {record["phy"] for record in deletes} == {False}
    assert simulator.acts("evict") == []
    # Three workloads of AI; they were brought back, and stopped again.
    assert stopped > 3
    assert {"pod-0", "pod-1", "pod-2"} <= {pod.name for pod in cluster.pods()}
    agent.accept([signed_switch(switch(2, armed=False))], STATE, simulator.now)
    assert agent.step(STATE, simulator.now).updates[0].state is SwitchState.RELEASED
    done = len(simulator.acts("delete"))
    simulator.hardware.advance(simulator.now + 300)
    simulator.now += 300
    agent.step(STATE, simulator.now)
    assert len(simulator.acts("delete")) == done
    assert before <= {pod.name for pod in cluster.pods()}
    agent.close()
    backend.close()
    cluster.close()
