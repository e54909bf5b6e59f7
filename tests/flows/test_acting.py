"""Acts from the API to simulated hardware and back, over real processes: a drain, a refused reset of PHY, a kill; the act log is the judge."""

import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from script.stack.browser import wait
from script.stack.session import Session
from script.stack.stack import Stack

pytestmark = pytest.mark.processes
WITHIN_SECONDS = 60
OPERATORS = {"ran-phy", "kube-system", "gpu-mon"}  # the radio, and what runs on every node by itself


@pytest.fixture(scope="module")
def operator(stack: Stack) -> Iterator[Session]:
    session = Session(stack.url)
    assert session.sign_in("operator", stack.layout.account_passwords()["operator"])
    sites = len(stack.plan.sites)
    assert wait(lambda: sum(cell.is_live for cell in session.cells().values()) == sites, within_seconds=120)
    yield session
    session.close()


@pytest.fixture(scope="module")
def simulator(stack: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=stack.simulator_url, timeout=10) as client:
        yield client


def pods(simulator: httpx.Client, host: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = simulator.get(f"/nodes/{host}/pods").raise_for_status().json()["pods"]
    return found


def node_id(session: Session, host: str) -> int:
    (found,) = [one for one in session.get_json("/api/v1/nodes/", q=host)["results"] if one["host_name"] == host]
    return int(found["id"])


def run(session: Session, kind: str, selection: dict[str, Any], **more: Any) -> dict[str, Any]:
    seen = session.post_json("/api/v1/commands/preview/", {"kind": kind, "selection": selection, **more}).raise_for_status().json()
    body = {"kind": kind, "selection": selection, "preview_hash": seen["hash"], "reason": "drill", "confirm": seen["content"]["phrase"], **more}
    made: dict[str, Any] = session.post_json("/api/v1/commands/", body, headers={"Idempotency-Key": str(uuid.uuid4())}).raise_for_status().json()
    return made


def finished(session: Session, command: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def over() -> bool:
        found.update(session.get_json(f"/api/v1/commands/{command['id']}/"))
        return found["state"] not in ("running", "awaiting", "paused")

    assert wait(over, within_seconds=WITHIN_SECONDS), found
    return found


def test_a_drain_evicts_ai_pods_leaves_phy_and_ends_with_its_result(stack: Stack, operator: Session, simulator: httpx.Client) -> None:
    host = next(node.host_name for node in stack.plan.nodes if node.role == "du")
    before = pods(simulator, host)
    radio = {pod["name"] for pod in before if pod["namespace"] == "ran-phy"}
    assert radio
    assert [pod for pod in before if pod["namespace"] not in OPERATORS]
    node = node_id(operator, host)
    done = finished(operator, run(operator, "drain", {"nodes": [node]}, parameters={"deadline_seconds": 40, "grace_seconds": 0}))
    (target,) = operator.get_json(f"/api/v1/commands/{done['id']}/targets/")["results"]
    assert (done["state"], target["state"]) == ("done", "done"), target

    def left() -> list[dict[str, Any]]:
        return [pod for pod in pods(simulator, host) if pod["namespace"] not in OPERATORS]

    assert wait(lambda: not left(), within_seconds=20), left()
    assert {pod["name"] for pod in pods(simulator, host) if pod["namespace"] == "ran-phy" and pod["phase"] == "Running"} == radio
    undone = finished(operator, run(operator, "uncordon", {"nodes": [node]}))
    assert undone["states"] == {"done": 1}


def test_a_reset_of_a_gpu_with_phy_is_refused_before_it_leaves_the_console(stack: Stack, operator: Session) -> None:
    gpu = next(gpu for node in stack.plan.nodes for gpu in node.gpus if gpu.carries_phy)
    seen = operator.post_json("/api/v1/commands/preview/", {"kind": "gpu_reset", "selection": {"gpus": [gpu.uuid]}}).raise_for_status().json()
    assert (seen["content"]["targets"], seen["content"]["refused"][0]["rule"]) == (0, "phy")


def test_diagnostics_of_every_node_come_back(stack: Stack, operator: Session) -> None:
    nodes = [one["id"] for one in operator.get_json("/api/v1/nodes/", page_size=100)["results"]]
    done = finished(operator, run(operator, "diagnostics", {"nodes": nodes}))
    targets = operator.get_json(f"/api/v1/commands/{done['id']}/targets/")["results"]
    assert done["states"] == {"done": len(nodes)}, [one for one in targets if one["state"] != "done"]
    outputs = [one["output"] for one in targets]
    assert all("boot" in output for output in outputs)


def test_a_kill_stops_every_ai_pod_and_no_phy_and_holds_until_it_is_released(stack: Stack, operator: Session, simulator: httpx.Client) -> None:
    hosts = [node.host_name for node in stack.plan.nodes]
    armed = operator.post_json("/api/v1/switches/", {"kind": "kill", "scope_kind": "fleet", "scope_key": "", "reason": "drill"}).raise_for_status().json()

    def running() -> tuple[int, int]:
        found = [pod for host in hosts for pod in pods(simulator, host) if pod["phase"] == "Running"]
        return sum(pod["namespace"] not in OPERATORS for pod in found), sum(pod["namespace"] == "ran-phy" for pod in found)

    radio = running()[1]
    assert radio
    assert wait(lambda: running() == (0, radio), within_seconds=WITHIN_SECONDS), running()

    def applied() -> bool:
        standing = operator.get_json(f"/api/v1/switches/{armed['id']}/")["standing"]
        return bool(standing["applied"] == standing["nodes"] == len(hosts) and standing["remaining"] == 0)

    assert wait(applied, within_seconds=WITHIN_SECONDS), operator.get_json(f"/api/v1/switches/{armed['id']}/answers/")
    operator.post_json(f"/api/v1/switches/{armed['id']}/release/", {"reason": "drill over"}).raise_for_status()
    assert wait(lambda: operator.get_json(f"/api/v1/switches/{armed['id']}/")["standing"]["released"] == len(hosts), within_seconds=WITHIN_SECONDS)
    assert wait(lambda: running()[0] > 0, within_seconds=WITHIN_SECONDS), "work comes back"


def test_the_act_log_shows_nothing_done_to_phy_and_the_audit_holds(stack: Stack, operator: Session, simulator: httpx.Client) -> None:
    log = next(stack.layout.root.rglob("acts.jsonl"), None) or next(path for path in stack.layout.root.rglob("*.jsonl"))
    assert not [line for line in log.read_text().splitlines() if '"phy": true' in line and '"result": "ok"' in line]
    actions = (
        {one["action"] for one in operator.get_json("/api/v1/audit/", page_size=1000)["results"]} if operator.client.get("/api/v1/audit/").is_success else set()
    )
    assert not actions or {"command.submitted", "switch.armed"} <= actions
