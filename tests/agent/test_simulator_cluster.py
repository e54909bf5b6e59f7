"""Pods, cordons, budgets, resets and reboots of the simulated fleet, through the backends that agents use; every act is in the act log."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agent.backends.base import BackendError, ErrorCode
from agent.backends.cluster import ClusterError, ClusterErrorCode, EvictionOutcome
from agent.backends.simulated import SimulatedBackend
from agent.backends.simulated_cluster import SimulatedCluster, open_cluster
from agent.commands import CORDON_OWNER
from agent.phy import Phy
from agent.protocol import Condition, ProtectedSpan
from agent.simulator.cluster import END_SECONDS, RETURN_SECONDS, Budget
from agent.simulator.config import ScenarioConfig
from agent.simulator.control_api import ControlApi
from agent.simulator.hardware import REBOOT_SECONDS, Hardware
from tests.agent.orders import Node, order, phy
from tests.agent.simulated_fleet import NOW, PHY, SLICED, WHOLE, make_hardware

HOST, PHY_HOST = "gpu-ams-07", "gpu-lax-01"
SPAN = ProtectedSpan(PHY, 0, 3)


class Simulator:
    """Simulated hardware behind its real control address, on a thread of its own; the test sets the clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = NOW
        self.hardware = make_hardware(folder)
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self.url = ""
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        assert self._ready.wait(10)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._runner = web.AppRunner(ControlApi(self.hardware, lambda: self.now, lambda: 0).app, access_log=None)

        async def start() -> None:
            await self._runner.setup()
            site = web.TCPSite(self._runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
            self._ready.set()

        self._loop.run_until_complete(start())
        self._loop.run_forever()
        self._loop.run_until_complete(self._runner.cleanup())
        self._loop.close()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self.hardware.log.close()

    def acts(self, *names: str) -> list[dict[str, Any]]:
        return [record for record in self.hardware.log.records if record["kind"] == "act" and (not names or record["act"] in names)]

    def node(self, folder: Path, host: str, known: Phy) -> Node:
        folder.mkdir(exist_ok=True)
        return Node(folder, SimulatedBackend(self.url, host), SimulatedCluster(self.url, host), phy=known, now=self.now, due_at=self.now)

    def drive(self, node: Node, seconds: float) -> None:
        """The agent and the simulator on one clock."""
        end = self.now + seconds
        while node.due_at <= end:
            self.now = node.now = max(self.now, node.due_at)
            self.hardware.advance(self.now)
            node.work()
        self.now = node.now = end
        self.hardware.advance(end)
        node.work()


@pytest.fixture
def simulator(tmp_path: Path) -> Iterator[Simulator]:
    found = Simulator(tmp_path)
    yield found
    found.stop()


@pytest.fixture
def nodes() -> Iterator[list[Node]]:
    found: list[Node] = []
    yield found
    for node in found:
        node.journal.close()
        node.backend.close()
        if node.cluster is not None:
            node.cluster.close()


def names(hardware: Hardware, host: str) -> list[str]:
    return sorted(pod.name for pod in hardware.cluster.pods(host) if pod.owner_kind not in ("DaemonSet", "Node"))


def workloads(hardware: Hardware, host: str, now: float) -> list[str]:
    return sorted(found.pod for found in hardware.inventory(host, now).workloads or ())


def test_a_drain_leaves_the_radio_and_what_it_evicts_leaves_the_silicon(simulator: Simulator, tmp_path: Path, nodes: list[Node]) -> None:
    node = simulator.node(tmp_path / "agent", PHY_HOST, phy(SPAN))
    nodes.append(node)
    assert names(simulator.hardware, PHY_HOST) == [f"pod-{number}" for number in range(6)]
    node.give(order(1, issued_at=NOW, not_after=NOW + 600))
    simulator.drive(node, 20)
    assert node.outcome(1) == ("done", "")
    assert node.latest[1].progress["phy_left_alone"] == 3
    assert names(simulator.hardware, PHY_HOST) == ["pod-0", "pod-1", "pod-2"]
    assert workloads(simulator.hardware, PHY_HOST, simulator.now) == ["pod-0", "pod-1", "pod-2"]
    assert [(act["act"], act["arguments"].get("pod"), act.get("phy")) for act in simulator.acts()] == [
        ("cordon", None, None),
        *(("evict", name, False) for name in sorted(("pod-3", "pod-4", "pod-5"), key=lambda name: sum(name.encode()) % 10)),
    ]
    simulator.drive(node, 60)
    assert names(simulator.hardware, PHY_HOST) == ["pod-0", "pod-1", "pod-2"], "nothing comes back while it is cordoned"
    node.give(order(2, "uncordon", issued_at=simulator.now, not_after=simulator.now + 60))
    assert node.outcome(2) == ("done", "")
    simulator.drive(node, RETURN_SECONDS)
    assert workloads(simulator.hardware, PHY_HOST, simulator.now) == [f"pod-{number}" for number in range(6)]


def test_what_comes_back_has_its_old_name_and_another_uid(simulator: Simulator) -> None:
    cluster = SimulatedCluster(simulator.url, HOST)
    before = {pod.name: pod for pod in cluster.pods()}
    old = before["embed-0"]
    assert cluster.evict(old).outcome is EvictionOutcome.EVICTED
    assert {pod.name: pod for pod in cluster.pods()}["embed-0"].is_terminating
    simulator.now += END_SECONDS
    assert "embed-0" not in {pod.name for pod in cluster.pods()}
    assert cluster.evict(old).outcome is EvictionOutcome.GONE
    simulator.now += RETURN_SECONDS
    new = {pod.name: pod for pod in cluster.pods()}["embed-0"]
    assert new.uid != old.uid
    assert new.started_at == simulator.now
    assert cluster.evict(old).outcome is EvictionOutcome.GONE
    cluster.delete(old)
    assert [act["arguments"]["uid"] for act in simulator.acts("evict", "delete")] == [old.uid]
    cluster.close()


def test_a_budget_forbids_evictions_in_its_name_and_deletions_pass_it(simulator: Simulator) -> None:
    cluster = SimulatedCluster(simulator.url, HOST)
    simulator.hardware.cluster.set_budget(HOST, "tenant-amber", Budget("llm-a", 1), NOW)
    ours = [pod for pod in cluster.pods() if pod.namespace == "tenant-amber"]
    assert len(ours) == 2
    assert cluster.evict(ours[0]).outcome is EvictionOutcome.EVICTED
    answer = cluster.evict(ours[1])
    assert (answer.outcome, answer.detail) == (EvictionOutcome.BUDGET, "llm-a")
    cluster.delete(ours[1])
    assert [(act["act"], act["result"]) for act in simulator.acts()] == [("evict", "ok"), ("evict", "budget llm-a"), ("delete", "ok")]
    cluster.close()


def test_cordons_have_owners(simulator: Simulator) -> None:
    cluster = SimulatedCluster(simulator.url, HOST)
    person = simulator.hardware.cluster
    assert cluster.set_cordon(CORDON_OWNER).owner == CORDON_OWNER
    person.clear_cordon(HOST, "", NOW)
    assert (cluster.cordon().unschedulable, cluster.cordon().mark) == (False, CORDON_OWNER)
    person.set_cordon(HOST, "", NOW)
    assert (cluster.cordon().unschedulable, cluster.cordon().owner) == (True, "")
    assert cluster.clear_cordon(CORDON_OWNER).unschedulable
    assert cluster.cordon().mark == ""
    cluster.close()


def test_an_api_server_that_is_away_and_a_node_that_is_down(simulator: Simulator) -> None:
    cluster = SimulatedCluster(simulator.url, HOST)
    simulator.hardware.start_scenario(ScenarioConfig(name="api_down", node=HOST, duration_seconds=30), NOW)
    with pytest.raises(ClusterError) as caught:
        cluster.pods()
    assert caught.value.code is ClusterErrorCode.UNAVAILABLE
    simulator.now += 31
    assert cluster.pods()
    nowhere = SimulatedCluster(simulator.url, "gpu-none")
    with pytest.raises(ClusterError) as caught:
        nowhere.cordon()
    assert caught.value.code is ClusterErrorCode.NOT_FOUND
    for found in (cluster, nowhere):
        found.close()
    with pytest.raises(ClusterError, match=r"cluster\.url"):
        open_cluster({"url": "no address", "node": HOST})
    with pytest.raises(ClusterError, match="exactly the options"):
        open_cluster({"url": simulator.url})


def test_a_reset_is_refused_while_something_runs_and_heals_once_it_is_drained(simulator: Simulator, tmp_path: Path, nodes: list[Node]) -> None:
    node = simulator.node(tmp_path / "agent", HOST, phy())
    nodes.append(node)
    simulator.hardware.start_scenario(ScenarioConfig(name="ecc", gpu=WHOLE, duration_seconds=3600), NOW)
    node.give(order(1, "gpu_reset", gpu_uuid=WHOLE, issued_at=NOW, not_after=NOW + 600))
    assert node.outcome(1) == ("failed", "blocked")
    node.give(order(2, issued_at=NOW, not_after=NOW + 600))
    simulator.drive(node, 20)
    assert node.outcome(2) == ("done", "")
    node.give(order(3, "gpu_reset", gpu_uuid=WHOLE, issued_at=NOW, not_after=NOW + 600))
    assert node.outcome(3) == ("done", "")
    assert node.latest[3].progress == {"before": "reset_required", "after": "ok"}
    assert [act["result"] for act in simulator.acts("reset_gpu")] == ["in_use", "ok"]
    assert all(found.condition is Condition.OK for found in simulator.hardware.health(HOST, simulator.now).gpus)


def test_a_reset_of_a_gpu_that_carries_phy_never_reaches_the_hardware(simulator: Simulator, tmp_path: Path, nodes: list[Node]) -> None:
    node = simulator.node(tmp_path / "agent", PHY_HOST, phy(SPAN))
    nodes.append(node)
    boot = simulator.hardware.boot_id(PHY_HOST)
    node.give(order(1, "gpu_reset", gpu_uuid=PHY, issued_at=NOW, not_after=NOW + 60), order(2, "reboot", boot_id=boot, issued_at=NOW, not_after=NOW + 60))
    assert node.outcome(1) == node.outcome(2) == ("failed", "phy")
    assert simulator.acts() == []


def test_a_reboot_takes_the_node_down_and_is_done_when_it_has_booted(simulator: Simulator, tmp_path: Path, nodes: list[Node]) -> None:
    node = simulator.node(tmp_path / "agent", HOST, phy())
    nodes.append(node)
    boot = simulator.hardware.boot_id(HOST)
    node.give(order(1, "reboot", boot_id=boot, issued_at=NOW, not_after=NOW + 60))
    assert node.outcome(1) == ("running", "")
    assert HOST in simulator.hardware.down_hosts()
    node.restart()
    simulator.drive(node, REBOOT_SECONDS + 10)
    assert node.outcome(1) == ("done", "")
    assert len(simulator.acts("reboot")) == 1
    assert simulator.hardware.boot_id(HOST) != boot


def test_a_restarted_simulator_remembers_pods_cordons_budgets_and_resets(tmp_path: Path) -> None:
    first = make_hardware(tmp_path)
    pods = {pod.name: pod for pod in first.cluster.pods(HOST)}
    first.cluster.set_cordon(HOST, CORDON_OWNER, NOW)
    first.cluster.set_budget(HOST, "tenant-birch", Budget("embed", 0), NOW)
    for name in ("asr-predictor-6c8d9f7b5-2xkq9", "jupyter-lee", "llm-70b-0"):
        pod = pods[name]
        first.cluster.evict(HOST, pod.namespace, pod.name, pod.uid, None, NOW)
    first.advance(NOW + END_SECONDS + 1)
    first.reset_gpu(HOST, WHOLE, NOW + 5)
    evidence, later = first.reset_evidence(HOST, WHOLE), NOW + 60
    assert workloads(first, HOST, NOW + 5) == ["embed-0"]
    first.save()
    first.log.close()
    again = make_hardware(tmp_path, now=later)
    again.advance(later + 1)
    assert again.reset_evidence(HOST, WHOLE) == evidence
    assert again.cluster.cordon(HOST).owner == CORDON_OWNER
    assert names(again, HOST) == ["embed-0"]
    assert workloads(again, HOST, later + 1) == ["embed-0"]
    again.cluster.clear_cordon(HOST, CORDON_OWNER, later)
    again.advance(later + 2)
    assert len(names(again, HOST)) == 4
    back = {pod.name: pod.uid for pod in again.cluster.pods(HOST)}
    assert back["jupyter-lee"] != pods["jupyter-lee"].uid
    again.log.close()


def test_an_evicted_pod_does_not_come_back_with_a_boot_while_the_node_is_cordoned(tmp_path: Path) -> None:
    hardware = make_hardware(tmp_path)
    hardware.cluster.set_cordon(HOST, CORDON_OWNER, NOW)
    pod = next(pod for pod in hardware.cluster.pods(HOST) if pod.name == "embed-0")
    hardware.cluster.evict(HOST, pod.namespace, pod.name, pod.uid, None, NOW)
    hardware.reboot(HOST, NOW + 1)
    hardware.advance(NOW + 60)
    assert "embed-0" not in names(hardware, HOST)
    assert "embed-0" not in workloads(hardware, HOST, NOW + 60)
    hardware.log.close()


def test_a_place_that_is_gone_takes_no_pod_back(tmp_path: Path) -> None:
    hardware = make_hardware(tmp_path)
    pod = next(pod for pod in hardware.cluster.pods(HOST) if pod.name == "jupyter-lee")
    hardware.cluster.set_cordon(HOST, "", NOW)
    hardware.cluster.delete(HOST, pod.namespace, pod.name, pod.uid, 0, NOW)
    hardware.advance(NOW + 5)
    hardware.act(HOST, SLICED, "destroy_mig_instance", {"gpu_instance_id": 9}, NOW + 6)
    hardware.cluster.clear_cordon(HOST, "", NOW + 7)
    hardware.advance(NOW + 60)
    assert "jupyter-lee" not in names(hardware, HOST)
    hardware.log.close()


def test_bad_requests_name_the_field(simulator: Simulator) -> None:
    backend = SimulatedBackend(simulator.url, HOST)
    with pytest.raises(BackendError) as caught:
        backend.reset_gpu("GPU-none")
    assert caught.value.code is ErrorCode.NOT_PRESENT
    for path, body, words in (
        ("/evictions", {"namespace": "a"}, "name: missing"),
        ("/evictions", {"namespace": "a", "name": "b", "uid": "c", "grace_seconds": -1}, "grace_seconds"),
        ("/cordon", {"owner": 1}, "owner"),
        ("/budgets/tenant-amber", {"name": "x", "allowed": "none"}, "allowed"),
    ):
        status, answer = backend._wire.ask("PUT" if path != "/evictions" else "POST", path, body)
        assert (status, words in answer["error"]) == (400, True), answer
    backend.close()
