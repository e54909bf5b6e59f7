"""`script/bench admission`: the admission door of one node under 500 requests a second, open loop, while its agent is busy with its cycles.

A real agent runs against simulated hardware, out of contact, with a document and a switch in its journal; a page like Triton's says how deep its queues
are. Requests are due at fixed times, whatever the answers do, and their time counts from then. Each answer is compared with the one that the rules give.
The last line is one JSON object; exit status 0 only if every must held.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agent.config import Enrolment
from agent.journal import Journal
from agent.keys import load_or_create_key
from agent.protocol import (
    AdmissionRules,
    DesiredState,
    FrontEnd,
    Grant,
    LocalRules,
    Place,
    PowerSchedule,
    ScopeKind,
    Switch,
    SwitchKind,
    WorkloadRule,
    sign_document,
    sign_switch,
)
from agent.store import Store
from agent.switches import Switches
from script.servers import free_port
from script.stack.layout import CHECKOUT

MUSTS = {"p99_ms": 2.0, "wrong": 0}
NODE, HOST = 7, "bench-0"
CREDENTIALS = {"amber": "credential-of-amber", "birch": "credential-of-birch"}
DEPTHS = {"shallow": 10, "deep": 900, "full": 1000, "killed": 1}
CONNECTIONS = 48
HEADERS = {"FiveQI": "5QI", "Slice_Type": "Slice-Type"}


@dataclass(frozen=True)
class Question:
    """A request and the status that the rules give to it."""

    name: str
    data: bytes
    status: int


def question(name: str, status: int, *, credential: str = CREDENTIALS["amber"], as_json: dict[str, object] | None = None, **headers: str) -> Question:
    lines = [f"X-Masthead-Credential: {credential}"] if credential else []
    lines += [f"X-Masthead-{HEADERS.get(key, key)}: {value}" for key, value in headers.items()]
    body = json.dumps(as_json).encode() if as_json is not None else b""
    first = "POST /admit HTTP/1.1" if as_json is not None else "GET /ext_authz/v1/chat HTTP/1.1"
    lines += ["Host: node", f"Content-Length: {len(body)}"]
    return Question(name, ("\r\n".join([first, *lines]) + "\r\n\r\n").encode() + body, status)


QUESTIONS = (
    question("high priority, shallow", 200, Model="shallow", Priority="8"),
    question("low priority, shallow", 200, Model="shallow", Priority="1"),
    question("high priority, deep", 200, Model="deep", Priority="8"),
    question("low priority, deep", 503, Model="deep", Priority="1"),
    question("ungranted priority, deep", 503, credential=CREDENTIALS["birch"], Model="deep", Priority="10"),
    question("high priority, full", 503, Model="full", Priority="8"),
    question("URLLC, full", 200, Model="full", FiveQI="82"),
    question("ungranted URLLC, full", 503, credential=CREDENTIALS["birch"], Model="full", Slice_Type="urllc"),
    question("high priority, depth unknown", 200, Model="elsewhere", Priority="8"),
    question("low priority, depth unknown", 503, Model="elsewhere", Priority="1"),
    question("URLLC, killed", 503, Model="killed", FiveQI="82"),
    question("JSON, high priority, shallow", 200, as_json={"model": "shallow", "priority": 8}),
    question("JSON, low priority, deep", 503, as_json={"model": "deep", "priority": 1}),
    question("wrong credential", 401, credential="guessed", Model="shallow"),
    question("no number", 400, Model="shallow", Priority="NaN"),
)


def rules() -> LocalRules:
    front_ends = tuple(FrontEnd(hashlib.sha256(text.encode()).hexdigest(), tenant) for tenant, text in CREDENTIALS.items())
    grants = tuple(Grant("amber", model, priority=9, urllc=True) for model in (*DEPTHS, "elsewhere"))
    workloads = tuple(WorkloadRule(f"tenant-{number}", f"t{number}", priority=number % 10, memory_bytes=1 << 30) for number in range(20))
    return LocalRules(
        operator_namespaces=("ran-phy",),
        workloads=workloads,
        power=PowerSchedule(enabled=True),
        admission=AdmissionRules(front_ends=front_ends, grants=grants),
    )


def seed_agent(folder: Path) -> None:
    """What enrolment and the console would have left: key, document, an armed switch for one model."""
    key = Ed25519PrivateKey.generate()
    load_or_create_key(folder / "agent.key")
    Enrolment(node_id=NODE, gateway_url=f"ws://127.0.0.1:{free_port()}/agent", console_keys=(key.public_key().public_bytes_raw(),)).save(
        folder / "enrolment.json"
    )
    now = time.time()
    state = DesiredState(
        target_kind="node",
        target_key=str(NODE),
        version=1,
        issued_at=now,
        not_after=None,
        controls=(),
        protected=(),
        place=Place(area="bench", region="bench", site="B1", node=str(NODE), time_zone="Europe/Berlin"),
        rules=rules(),
    )
    journal = Journal(folder / "journal.sqlite3")
    journal.store_document(sign_document(state, key))
    journal.close()
    store = Store(folder / "local.sqlite3")
    kill = Switch("0c1f7a3e-7d3c-4f0e-9c55-1f6f2f1f0a01", 1, SwitchKind.KILL, ScopeKind.FLEET, "", True, now, model="killed")
    Switches(store, node_id=NODE, trusted_keys=(key.public_key().public_bytes_raw(),)).accept(sign_switch(kill, key), now)
    store.close()


class _Triton(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        lines = [f'nv_inference_pending_request_count{{model="{model}",version="1"}} {depth}' for model, depth in DEPTHS.items()]
        lines += [f'nv_inference_request_success{{model="other-{number}",version="1"}} {number}' for number in range(300)]
        body = "\n".join(lines).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""


@dataclass
class Load:
    """Sends the questions at their times over kept connections, each with one question under way; counts from the time that was due."""

    addresses: list[str | tuple[str, int]]
    seconds: float
    rps: float
    latencies_ms: list[float] = field(default_factory=list)
    wrong: dict[str, int] = field(default_factory=dict)
    late_ms: float = 0.0

    def run(self) -> None:
        selector = selectors.SelectSelector()
        free: deque[socket.socket] = deque()
        for number in range(CONNECTIONS):
            address = self.addresses[number % len(self.addresses)]
            found = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET, socket.SOCK_STREAM)
            found.connect(address)
            if not isinstance(address, str):
                found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(found, selectors.EVENT_READ)
            free.append(found)
        under_way: dict[socket.socket, tuple[float, Question]] = {}
        total, sent = int(self.seconds * self.rps), 0
        started = time.perf_counter() + 0.2
        while sent < total or under_way:
            now = time.perf_counter()
            while sent < total and free and now >= started + sent / self.rps:
                due, found = started + sent / self.rps, free.popleft()
                asked = QUESTIONS[sent % len(QUESTIONS)]
                found.sendall(asked.data)
                under_way[found] = (due, asked)
                self.late_ms = max(self.late_ms, (now - due) * 1000)
                sent += 1
            if now > started + self.seconds + 10:
                break
            pause = max(0.0, started + sent / self.rps - time.perf_counter()) if sent < total and free else 0.05
            for key, _ in selector.select(pause):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                answer = connection.recv(65536)
                due, asked = under_way.pop(connection)
                self.latencies_ms.append((time.perf_counter() - due) * 1000)
                if not answer.startswith(f"HTTP/1.1 {asked.status} ".encode()):
                    self.wrong[asked.name] = self.wrong.get(asked.name, 0) + 1
                free.append(connection)
        for _, asked in under_way.values():
            self.wrong[f"{asked.name}: no answer"] = self.wrong.get(f"{asked.name}: no answer", 0) + 1
        selector.close()
        for found in (*free, *under_way):
            found.close()


def write_configuration(folder: Path, control_port: int, door_port: int, triton_port: int, dcgm_port: int) -> None:
    gpus = [
        {
            "uuid": f"GPU-bench-{index}",
            "index": index,
            "pci_bus_id": f"00000000:{index + 16:02X}:00.0",
            "sku": "h100-sxm-80gb",
            "mig": [
                {
                    "profile": "1g.10gb",
                    "start": start,
                    "gpu_instance_id": 7 + start,
                    "mig_uuid": f"MIG-{index}-{start}",
                    "workload": {"namespace": f"tenant-{(7 * index + start) % 20}", "pod": f"pod-{index}-{start}", "container": "server"},
                }
                for start in range(7)
            ],
        }
        for index in range(8)
    ]
    node = {
        "site": "B1",
        "region": "bench",
        "host_name": HOST,
        "role": "inference",
        "time_zone": "Europe/Berlin",
        "address": "127.91.7.1",
        "gpus": gpus,
        "exporters": ["dcgm"],
    }
    fleet = {"seed": 1, "control_address": f"127.0.0.1:{control_port}", "act_log": str(folder / "acts.jsonl"), "ports": {"dcgm": dcgm_port}, "nodes": [node]}
    (folder / "fleet.json").write_text(json.dumps(fleet))
    (folder / "agent.toml").write_text(
        f'state_dir = "{folder}"\n'
        f'[backend]\nkind = "simulated"\nurl = "http://127.0.0.1:{control_port}"\nnode = "{HOST}"\n'
        f'[cluster]\nkind = "simulated_cluster"\nurl = "http://127.0.0.1:{control_port}"\nnode = "{HOST}"\n'
        f'[local]\nadmission_port = {door_port}\nadmission_socket = "{folder}/admission.sock"\n'
        f'depth_urls = ["http://127.0.0.1:{triton_port}/metrics"]\nusage_url = "http://127.91.7.1:{dcgm_port}/metrics"\n'
    )


def wait_for_port(port: int, seconds: float) -> None:
    """Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=2).close()
            return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"nobody listens on port {port}")


def wait_for_door(address: tuple[str, int], seconds: float) -> None:
    """Until the door decides as the depths say, so that the load finds the agent warm. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with socket.create_connection(address, timeout=2) as found:
                found.sendall(QUESTIONS[1].data)
                if found.recv(4096).startswith(b"HTTP/1.1 200"):
                    return
        except OSError:
            pass
        if time.monotonic() > deadline:
            raise TimeoutError("the admission door did not open")
        time.sleep(0.1)


def percentile(values: list[float], share: float) -> float:
    """Nearest rank."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def run(seconds: float, rps: float) -> Load:
    """Raises TimeoutError or OSError, with what the processes said, when there is no door to ask."""
    with tempfile.TemporaryDirectory(prefix="masthead-bench-") as name:
        folder = Path(name)
        control_port, door_port = free_port(), free_port()
        triton = ThreadingHTTPServer(("127.0.0.1", 0), _Triton)
        triton.daemon_threads = True
        serving = threading.Thread(target=triton.serve_forever, daemon=True)
        serving.start()
        write_configuration(folder, control_port, door_port, triton.server_port, free_port())
        seed_agent(folder)
        commands = (
            [sys.executable, "-m", "agent.simulator", "hardware", "--config", str(folder / "fleet.json")],
            [sys.executable, "-m", "agent", "run", "--config", str(folder / "agent.toml")],
        )
        with (folder / "log").open("wb") as log:
            children = []
            try:
                for command, port in zip(commands, (control_port, door_port), strict=True):
                    children.append(subprocess.Popen(command, cwd=CHECKOUT, stdout=log, stderr=log))
                    wait_for_port(port, 30)
                wait_for_door(("127.0.0.1", door_port), 30)
                load = Load([("127.0.0.1", door_port), str(folder / "admission.sock")], seconds, rps)
                load.run()
            except (TimeoutError, OSError) as error:
                raise TimeoutError(f"{error}\n{(folder / 'log').read_text()[-3000:]}") from error
            finally:
                for child in children:
                    child.terminate()
                for child in children:
                    child.wait(10)
                triton.shutdown()
                triton.server_close()
                serving.join()
    return load


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rps", type=float, default=500)
    options = parser.parse_args()
    try:
        load = run(options.seconds, options.rps)
    except TimeoutError as error:
        print(error, file=sys.stderr)
        return 1
    for name, count in load.wrong.items():
        print(f"wrong: {name}: {count}", file=sys.stderr)
    print(
        f"slowest {max(load.latencies_ms):.2f} ms, p99.9 {percentile(load.latencies_ms, 0.999):.2f} ms, sent at most {load.late_ms:.2f} ms late",
        file=sys.stderr,
    )
    result = {
        "requests": len(load.latencies_ms),
        "rps": options.rps,
        "p50_ms": round(percentile(load.latencies_ms, 0.5), 3),
        "p99_ms": round(percentile(load.latencies_ms, 0.99), 3),
        "wrong": sum(load.wrong.values()),
    }
    print(json.dumps(result))
    asked = int(options.seconds * options.rps)
    return 0 if all(result[key] <= bound for key, bound in MUSTS.items()) and result["requests"] == asked else 1


if __name__ == "__main__":
    sys.exit(main())
