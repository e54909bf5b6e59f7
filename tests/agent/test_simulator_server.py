"""The hardware process as others meet it: exporters on their own addresses, the control address, and the backend that agents use."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from agent.backends.base import BackendError, ErrorCode
from agent.backends.simulated import SimulatedBackend, open_backend
from agent.converge import Converger
from agent.journal import Journal
from agent.protocol import Condition, ProtectedSpan
from agent.protocol.inventory import Sharing
from agent.simulator.config import PortsConfig, dump_config
from agent.simulator.control_api import ControlApi
from agent.simulator.exporters import ExporterServer
from agent.simulator.hardware import Hardware
from script.servers import free_port, wait_until
from tests.agent.documents import CONSOLE_KEY, NODE, T0, control, document, setting
from tests.agent.simulated_fleet import CONFIG, NOW, PHY, SLICED, WHOLE, make_hardware, values_of

HOST = "gpu-ams-07"


class Simulator:
    """Real sockets around simulated hardware whose clock the test sets."""

    def __init__(self, hardware: Hardware, control_port: int) -> None:
        self.hardware = hardware
        self.now = NOW
        self.exporters = ExporterServer(hardware, lambda: self.now)
        self.control = ControlApi(hardware, lambda: self.now, lambda: self.exporters.scrapes)
        self.url = f"http://127.0.0.1:{control_port}"
        self.client = aiohttp.ClientSession()

    async def scrape(self, host: str, exporter: str = "dcgm") -> str:
        config = self.hardware.config
        async with self.client.get(f"http://{config.exporter_address(config.node(host), exporter)}/metrics") as response:
            assert response.status == 200
            assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            return await response.text()

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        async with self.client.request(method, self.url + path, json=body) as response:
            return response.status, await response.json()


@pytest.fixture
async def simulator(tmp_path: Path) -> AsyncIterator[Simulator]:
    ports = PortsConfig(dcgm=free_port(), triton=free_port(), vllm=free_port(), node=free_port())
    control_port = free_port()
    found = Simulator(make_hardware(tmp_path, ports=ports), control_port)
    await found.exporters.start()
    runner = web.AppRunner(found.control.app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", control_port).start()
    yield found
    await found.client.close()
    await found.exporters.stop()
    await runner.cleanup()
    found.hardware.log.close()


async def test_each_node_answers_on_its_own_address(simulator: Simulator) -> None:
    assert WHOLE in await simulator.scrape(HOST)
    assert PHY in await simulator.scrape("gpu-lax-01")
    assert "nv_inference_count" in await simulator.scrape(HOST, "triton")
    assert "vllm:num_requests_running" in await simulator.scrape(HOST, "vllm")
    assert 'nodename="gpu-lax-01"' in await simulator.scrape("gpu-lax-01", "node")
    assert simulator.exporters.scrapes == 5


async def test_a_cut_site_breaks_connections_and_comes_back(simulator: Simulator) -> None:
    status, scenario = await simulator.ask("POST", "/scenario", {"name": "link_cut", "site": "AMS-07", "duration_seconds": 60})
    assert (status, scenario["until"]) == (201, NOW + 60)
    with pytest.raises(aiohttp.ClientError):
        await simulator.scrape(HOST)
    assert await simulator.scrape("gpu-lax-01")
    simulator.now = NOW + 61
    assert await simulator.scrape(HOST)


async def test_a_hanging_exporter_takes_the_question_and_answers_when_it_is_over(simulator: Simulator) -> None:
    _, scenario = await simulator.ask("POST", "/scenario", {"name": "exporter_frozen", "node": HOST, "mode": "hang"})
    scrape = asyncio.create_task(simulator.scrape(HOST))
    done, _ = await asyncio.wait([scrape], timeout=0.2)
    assert not done
    await simulator.ask("DELETE", f"/scenario/{scenario['id']}")
    assert WHOLE in await asyncio.wait_for(scrape, 5)


async def test_scenarios_are_listed_and_ended_by_what_they_hit(simulator: Simulator) -> None:
    for entry in ({"name": "ecc", "gpu": WHOLE}, {"name": "link_cut", "site": "AMS-07"}, {"name": "link_cut", "site": "LAX-01"}):
        await simulator.ask("POST", "/scenario", entry)
    _, state = await simulator.ask("GET", "/state")
    assert [scenario["name"] for scenario in state["scenarios"]] == ["ecc", "link_cut", "link_cut"]
    assert state["cut"] == [HOST, "gpu-lax-01"]
    _, answer = await simulator.ask("DELETE", "/scenario?name=link_cut&site=AMS-07")
    assert [scenario["site"] for scenario in answer["ended"]] == ["AMS-07"]
    _, answer = await simulator.ask("DELETE", "/scenario")
    assert len(answer["ended"]) == 2
    _, state = await simulator.ask("GET", "/state")
    assert state["scenarios"] == []


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "error"),
    [
        ("POST", "/scenario", {"name": "link_cut", "site": "nowhere"}, 400, "site: there is no site 'nowhere' in this fleet"),
        ("POST", "/scenario", {"name": "link_cut"}, 400, "scenario: name exactly one of site, node, gpu"),
        ("POST", "/scenario", {"name": "ecc", "gpu": WHOLE, "duration_seconds": "long"}, 400, "duration_seconds: expected a number"),
        ("POST", "/scenario", [], 400, "the whole: expected an object"),
        ("DELETE", "/scenario/99", None, 404, "scenario: none with the number 99 is on"),
        ("DELETE", "/scenario?colour=red", None, 400, "colour: unknown field"),
        ("GET", "/acts?after=x", None, 400, "after: expected a whole number"),
        ("GET", "/nodes/nobody/health", None, 404, "node: there is no node 'nobody'"),
        ("PUT", f"/nodes/{HOST}/gpus/{WHOLE}/clocks", {"min_mhz": 1.5, "max_mhz": 2}, 400, "min_mhz: expected a whole number"),
        ("PUT", f"/nodes/{HOST}/gpus/{WHOLE}/clocks", {"min_mhz": 900, "max_mhz": 600}, 422, "min_mhz, max_mhz: 900..600 is not a range"),
        ("GET", "/elsewhere", None, 404, "404"),
    ],
)
async def test_bad_requests_are_answered_with_the_field(simulator: Simulator, method: str, path: str, body: object, status: int, error: str) -> None:
    found, answer = await simulator.ask(method, path, body)
    assert (found, answer["error"][: len(error)]) == (status, error)


async def test_who_waits_for_reachability_hears_at_once(simulator: Simulator) -> None:
    _, first = await simulator.ask("GET", "/reachability")
    waiting = asyncio.create_task(simulator.ask("GET", f"/reachability?version={first['version']}&wait=30"))
    done, _ = await asyncio.wait([waiting], timeout=0.1)
    assert not done
    await simulator.ask("POST", "/scenario", {"name": "node_down", "node": HOST})
    _, answer = await asyncio.wait_for(waiting, 5)
    assert answer["cut"] == answer["down"] == [HOST]


async def test_the_backend_sees_what_the_driver_would_say(simulator: Simulator) -> None:
    backend = SimulatedBackend(simulator.url, HOST)
    inventory = await asyncio.to_thread(backend.inventory, NOW + 5)
    assert (inventory.at, inventory.complete, inventory.gpu_count) == (NOW + 5, True, 2)
    sliced, whole = inventory.gpus
    assert (sliced.uuid, sliced.mig_enabled, sliced.sharing) == (SLICED, True, Sharing.MIG)
    assert [(part.profile, part.start, part.size) for part in sliced.slices or ()] == [
        ("3g.40gb", 0, 4),
        ("2g.20gb", 4, 2),
        ("1g.10gb", 6, 1),
        ("1g.10gb", 7, 1),
    ]
    assert (whole.name, whole.memory_bytes, whole.mig_enabled, whole.slices) == ("NVIDIA H100 80GB HBM3", 81559 << 20, False, ())
    assert [(found.namespace, found.gpu_instance_id) for found in inventory.workloads or ()] == [
        ("tenant-amber", 2),
        ("tenant-birch", 3),
        ("tenant-cedar", 9),
        ("tenant-amber", None),
    ]
    assert inventory.node.topology["links"]["GPU0"]["GPU1"] == "NV18"
    health = await asyncio.to_thread(backend.health, NOW + 5)
    assert [gpu.condition for gpu in health.gpus] == [Condition.OK, Condition.OK]
    backend.close()


async def test_a_lock_set_by_the_backend_is_read_back_scraped_and_logged(simulator: Simulator) -> None:
    backend = SimulatedBackend(simulator.url, HOST)
    await asyncio.to_thread(backend.set_clock_range, WHOLE, 600, 900)
    reading = await asyncio.to_thread(backend.read_clocks, WHOLE)
    assert (reading.sm_mhz, reading.max_sm_mhz) == (900, 1980)
    simulator.now = NOW + 1
    assert values_of(await simulator.scrape(HOST), "DCGM_FI_DEV_SM_CLOCK", WHOLE) == [900]
    await asyncio.to_thread(backend.reset_clock_range, WHOLE)
    _, answer = await simulator.ask("GET", f"/acts?after=1&node={HOST}&kind=act")
    assert [(act["act"], act["arguments"]) for act in answer["acts"]] == [
        ("set_clock_range", {"min_mhz": 600, "max_mhz": 900}),
        ("reset_clock_range", {}),
    ]
    backend.close()


async def test_the_agents_controls_work_through_the_backend(simulator: Simulator, tmp_path: Path) -> None:
    """Cap and layout by a signed document, on the radio's GPU the layout alone; a boot takes both away, and the agent brings them back."""
    whole, radio = SimulatedBackend(simulator.url, HOST), SimulatedBackend(simulator.url, "gpu-lax-01")
    journals = [Journal(tmp_path / f"journal-{number}.sqlite3") for number in (1, 2)]
    capped = Converger(backend=whole, journal=journals[0], node_id=NODE, trusted_keys=(CONSOLE_KEY,))
    sliced = Converger(backend=radio, journal=journals[1], node_id=NODE, trusted_keys=(CONSOLE_KEY,))
    layout = ",".join(f"1g.10gb@{start}" for start in range(6))
    spans = tuple(ProtectedSpan(PHY, start, 1) for start in range(3))
    capped.accept(document(1, control(setting(watts=450, ends_at=None), name="power_cap", gpu_uuid=WHOLE)), T0)
    wanted = (control(setting(layout=layout, ends_at=None), name="mig_layout", gpu_uuid=PHY), control(setting(watts=300), name="power_cap", gpu_uuid=PHY))
    sliced.accept(document(1, *wanted, protected=spans), T0)

    async def states(agent: Converger, now: float) -> dict[str, str]:
        await asyncio.to_thread(agent.converge, now)
        return {found.control: found.state.value for found in agent.observations()}

    assert await states(capped, T0) == {"power_cap": "applied"}
    assert await states(sliced, T0) == {"mig_layout": "applied", "power_cap": "refused"}
    _, answer = await simulator.ask("GET", "/acts?kind=act")
    assert [(act["act"], act["gpu"], act["arguments"]) for act in answer["acts"]] == [
        ("set_power_limit", WHOLE, {"limit_mw": 450_000}),
        ("destroy_mig_instance", PHY, {"gpu_instance_id": 13}),
    ]
    simulator.now = NOW + 30
    assert values_of(await simulator.scrape(HOST), "DCGM_FI_DEV_ENFORCED_POWER_LIMIT", WHOLE) == [450]
    for host in (HOST, "gpu-lax-01"):
        await simulator.ask("POST", "/scenario", {"name": "node_down", "node": host, "duration_seconds": 5})
    simulator.now = NOW + 40
    assert await states(capped, T0 + 60) == {"power_cap": "drifted"}
    assert (await states(sliced, T0 + 60))["mig_layout"] == "drifted"
    assert await states(capped, T0 + 80) == {"power_cap": "applied"}
    assert (await states(sliced, T0 + 80))["mig_layout"] == "applied"
    mig = await asyncio.to_thread(radio.read_mig, PHY)
    assert [(found.profile, found.start) for found in mig.instances] == [("1g.10gb", start) for start in range(6)]
    assert mig.clients == {7: 1, 8: 1, 9: 1}
    for journal in journals:
        journal.close()
    whole.close()
    radio.close()


async def test_faults_reach_the_agent_through_the_backend(simulator: Simulator) -> None:
    backend = SimulatedBackend(simulator.url, HOST)
    boot_id = await asyncio.to_thread(backend.boot_id)
    await simulator.ask("POST", "/scenario", {"name": "gpu_lost", "gpu": WHOLE, "duration_seconds": 60})
    health = await asyncio.to_thread(backend.health, NOW)
    assert {gpu.uuid: gpu.condition for gpu in health.gpus} == {SLICED: Condition.OK, WHOLE: Condition.LOST}
    with pytest.raises(BackendError) as lost:
        await asyncio.to_thread(backend.set_clock_range, WHOLE, 600, 900)
    assert lost.value.code is ErrorCode.GPU_LOST
    await simulator.ask("DELETE", "/scenario")
    assert await asyncio.to_thread(backend.boot_id) != boot_id
    await simulator.ask("POST", "/scenario", {"name": "node_down", "node": HOST, "duration_seconds": 60})
    inventory = await asyncio.to_thread(backend.inventory, NOW)
    assert (inventory.complete, inventory.gpus) == (False, ())
    health = await asyncio.to_thread(backend.health, NOW)
    assert health.driver_error == f"node {HOST} is down"
    with pytest.raises(BackendError) as down:
        await asyncio.to_thread(backend.read_clocks, SLICED)
    assert down.value.code is ErrorCode.UNAVAILABLE
    neighbour = SimulatedBackend(simulator.url, "gpu-lax-01")
    with pytest.raises(BackendError) as absent:
        await asyncio.to_thread(neighbour.read_clocks, WHOLE)
    assert absent.value.code is ErrorCode.NOT_PRESENT
    neighbour.close()
    backend.close()


def test_a_backend_without_a_simulator_says_so() -> None:
    backend = open_backend({"url": f"http://127.0.0.1:{free_port()}", "node": HOST})
    assert backend.inventory(NOW).complete is False
    assert "cannot be asked" in backend.health(NOW).driver_error
    with pytest.raises(BackendError) as unavailable:
        backend.set_clock_range(WHOLE, 600, 900)
    assert unavailable.value.code is ErrorCode.UNAVAILABLE
    with pytest.raises(BackendError, match="url and node"):
        open_backend({"url": "http://127.0.0.1:1"})
    with pytest.raises(BackendError, match=r"backend\.url"):
        open_backend({"url": "https://example.org", "node": HOST})


@pytest.mark.processes
def test_the_process_serves_keeps_its_state_and_refuses_a_taken_port(tmp_path: Path) -> None:
    ports = PortsConfig(dcgm=free_port(), triton=free_port(), vllm=free_port(), node=free_port())
    config = replace(CONFIG, control_address=f"127.0.0.1:{free_port()}", ports=ports)
    path = tmp_path / "simulator.json"
    path.write_text(json.dumps(dump_config(config)))
    command = [sys.executable, "-m", "agent.simulator", "hardware", "--config", str(path), "--timeline", "mild"]
    backend = SimulatedBackend(config.control_url, HOST)

    def serve() -> subprocess.Popen[str]:
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: backend.inventory(time.time()).complete, timeout_seconds=20, what="the simulator")
        return process

    def stop(process: subprocess.Popen[str], number: signal.Signals) -> str:
        process.send_signal(number)
        return process.communicate(timeout=20)[1]

    first = serve()
    try:
        backend.set_clock_range(WHOLE, 600, 900)
        boot_id = backend.boot_id()
        second = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        assert second.returncode == 1
        assert second.stderr.splitlines()[-1].startswith("simulator: ports.dcgm: cannot listen on 127.91.0.1:")
    finally:
        stop(first, signal.SIGKILL)
    again = serve()
    try:
        assert backend.read_clocks(WHOLE).sm_mhz == 900
        assert backend.boot_id() == boot_id
    finally:
        errors = stop(again, signal.SIGTERM)
    backend.close()
    assert again.returncode == 0
    assert "Traceback" not in errors
    assert (tmp_path / "acts.state.npz").exists()
