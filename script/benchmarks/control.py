"""`script/bench control`: a fleet's agents on two gateways - kill switch, commands, reconnection, memory and heartbeats.

    script/bench control [--agents 30000] [--heartbeat 30] [--shots 3] [--commands 500]

Gateways, PostgreSQL (durable), Redis, the console's process and the load agents all run on this machine over plain ws. A load agent is the agent's own link
and signature checks with its journal in memory (`script/benchmarks/control_agents.py`). Prints the load, then one line of JSON; exit status 0 only if every
must held.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from typing import Any

import numpy as np

from script.benchmarks.control_lab import ControlLab

MUSTS = {"kill_s_max": 10.0, "rtt_p99_ms": 200.0, "reconnect_s": 60.0, "kb_per_connection": 30.0, "heartbeat_core_pct": 10.0}


def say(text: str) -> None:
    print(f"# {text}", flush=True)


def run(given: argparse.Namespace, lab: ControlLab) -> dict[str, Any]:
    say(f"Seeding {given.agents} sites, nodes and keys.")
    key = lab.ask_console("seed", agents=given.agents)["console_key"]
    empty = lab.gateway_rss_bytes()
    lab.dial(key, per_second=given.dial_per_second)
    if lab.await_connected(within_seconds=120 + given.agents / given.dial_per_second * 2) is None:
        raise RuntimeError(f"only {lab.tally()['connected']} of {given.agents} agents came to be connected")
    time.sleep(given.settle)
    kilobytes = (lab.gateway_rss_bytes() - empty) / given.agents / 1000
    say(f"{given.agents} agents connected: {kilobytes:.1f} KB each. Counting heartbeats for {given.beats} s.")
    heartbeats = measure_heartbeats(lab, given.beats)
    say(f"Gateways: {heartbeats:.1f} % of a core. {given.commands} commands, {given.per_second:g} a second.")
    answers = lab.ask_console("commands", count=given.commands, per_second=given.per_second)
    times = np.array(answers["seconds"]) * 1000
    kills = []
    releases = []
    for shot in range(given.shots):
        cpu = lab.gateway_cpu_seconds(), lab.load_cpu_seconds()
        kill = lab.ask_console("arm")
        cpu = lab.gateway_cpu_seconds() - cpu[0], lab.load_cpu_seconds() - cpu[1]
        kills.append(kill["seconds"] if kill["applied"] == given.agents else float("inf"))
        released = lab.ask_console("release", switch=kill["switch"])
        releases.append(released["seconds"] if released["released"] == given.agents else float("inf"))
        say(
            f"Kill {shot + 1}: {kill['applied']} answers in {kill['seconds']:.2f} s (armed in {kill['arm_seconds']:.2f} s), released in {released['seconds']:.2f} s."
        )
        say(f"CPU for it: gateways {cpu[0]:.2f} s, load agents {cpu[1]:.2f} s.")
        time.sleep(2)
    before = lab.tally()
    reconnect = measure_reconnection(lab, given)
    after = lab.tally()
    return {
        "agents": given.agents,
        "kill_s_max": rounded(max(kills), 2),
        "kill_s": [rounded(seconds, 2) for seconds in kills],
        "rtt_p50_ms": rounded(float(np.quantile(times, 0.5)), 1) if len(times) else None,
        "rtt_p99_ms": rounded(float(np.quantile(times, 0.99)), 1) if len(times) and not answers["missing"] else None,
        "reconnect_s": rounded(reconnect, 1),
        "kb_per_connection": round(kilobytes, 1),
        "heartbeat_core_pct": round(heartbeats, 1),
        "release_s": [rounded(seconds, 2) for seconds in releases],
        "submit_p50_ms": rounded(float(np.quantile(np.array(answers["submit_seconds"]) * 1000, 0.5)), 1),
        "commands_done": after["commands"],
        "phy_stopped": after["phy_stopped"],
        "refused": after["refused"],
        "dials_again": after["dials"] - before["dials"],
        "load": {"heartbeat_s": given.heartbeat, "commands": given.commands, "commands_per_s": given.per_second, "gateways": 2, "processes": lab.processes},
    }


def rounded(value: float | None, digits: int) -> float | None:
    """None for what did not come about."""
    return None if value is None or not np.isfinite(value) else round(value, digits)


def measure_heartbeats(lab: ControlLab, seconds: float) -> float:
    """Percent of a core that both gateways take while nothing but heartbeats arrives: all of it counts, also their looking at PostgreSQL."""
    cpu, began = lab.gateway_cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    return 100 * (lab.gateway_cpu_seconds() - cpu) / (time.monotonic() - began)


def measure_reconnection(lab: ControlLab, given: argparse.Namespace) -> float | None:
    """Both gateways are killed and started again; seconds from their answering until every agent is welcomed again."""
    lab.restart_gateways()
    say("Both gateways were killed and answer again.")
    load = lab.load_cpu_seconds()
    seconds = lab.await_connected(within_seconds=given.longest)
    say(f"CPU for it: gateways {lab.gateway_cpu_seconds():.2f} s, load agents {lab.load_cpu_seconds() - load:.2f} s.")
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=30_000)
    parser.add_argument("--heartbeat", type=int, default=30, help="seconds between an agent's heartbeats")
    parser.add_argument("--processes", type=int, default=2, help="of load agents; each may hold as many sockets as the system allows descriptors")
    parser.add_argument("--shots", type=int, default=3)
    parser.add_argument("--commands", type=int, default=500)
    parser.add_argument("--per-second", type=float, default=10)
    parser.add_argument("--dial-per-second", type=float, default=400)
    parser.add_argument("--beats", type=float, default=60, help="seconds over which the heartbeats' cost is taken")
    parser.add_argument("--settle", type=float, default=10)
    parser.add_argument("--longest", type=float, default=180, help="seconds to wait at most for all to be connected again")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with ControlLab(agents=given.agents, heartbeat_seconds=given.heartbeat, processes=given.processes) as lab:
        result = run(given, lab)
    held = all(result[name] is not None and result[name] <= limit for name, limit in MUSTS.items())
    print(json.dumps(result))
    return 0 if held and not result["phy_stopped"] and not result["refused"] and result["commands_done"] == given.commands else 1


if __name__ == "__main__":
    sys.exit(main())
