"""What is to be done in a chaos run, made up by its seed: each node's orders, which attempts are on PHY, what expires, who is killed and which links are cut."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from agent.simulator.config import NodeConfig
from script.benchmarks.chaos_stack import VICTIMS

# Attempts on PHY: some the console must refuse, some the agent (the console cannot tell whose a pod is; forged orders went past the console's guard rails).
PHY_ATTEMPTS = ("reboot", "gpu_reset", "evict", "forged reboot", "forged gpu_reset")
EXPIRING = ("evict", "drain", "diagnostics", "reboot")


@dataclass(frozen=True)
class Step:
    """`purpose` as in `chaos_judge.Order`; `forged`: signed with the console's key past its guard rails."""

    kind: str
    purpose: str = "work"
    forged: bool = False


@dataclass(frozen=True)
class Fault:
    """After `at` seconds: `victim` is killed, or the link of the node with this host name is cut for `seconds`."""

    at: float
    victim: str = ""
    host: str = ""
    seconds: float = 0.0


def carries_phy(node: NodeConfig) -> bool:
    return any(part.purpose == "phy" for gpu in node.gpus for part in gpu.mig or ())


def plan_steps(nodes: Sequence[NodeConfig], *, commands: int, phy: int, expiring: int, seed: int) -> dict[str, list[Step]]:
    """Steps by host name, in order."""
    chance = random.Random(f"{seed}/steps")  # noqa: S311 (made up, the same each time)
    found: dict[str, list[Step]] = {node.host_name: [] for node in nodes}
    order = list(nodes)
    chance.shuffle(order)
    made = turn = 0
    while made < commands:
        node = order[turn % len(order)]
        turn += 1
        blocks = [["drain", "uncordon"], ["evict"], ["diagnostics"]]
        if not carries_phy(node):
            blocks += [["drain", "gpu_reset", "uncordon"], ["reboot"]]
        block = chance.choice(blocks)[: commands - made]
        found[node.host_name] += [Step(kind) for kind in block]
        made += len(block)
    with_phy = [node.host_name for node in order if carries_phy(node)]
    for number in range(phy):
        words = PHY_ATTEMPTS[number % len(PHY_ATTEMPTS)].split()
        _put(found[with_phy[number % len(with_phy)]], Step(words[-1], "phy", forged=len(words) == 2), chance)
    for number in range(expiring):
        node = order[number % len(order)]
        kinds = [kind for kind in EXPIRING if kind != "reboot" or not carries_phy(node)]
        _put(found[node.host_name], Step(kinds[(number // len(order) + number) % len(kinds)], "expiring"), chance)
    return found


def _put(steps: list[Step], step: Step, chance: random.Random) -> None:
    """At a random place, but never between a drain and what belongs to it: an attempt must find the node as it always is."""
    places = [
        place for place in range(len(steps) + 1) if place == 0 or steps[place - 1].purpose != "work" or steps[place - 1].kind not in ("drain", "gpu_reset")
    ]
    steps.insert(chance.choice(places), step)


def plan_faults(hosts: Sequence[str], *, kills_each: int, cuts: int, seconds: float, first: float, seed: int) -> list[Fault]:
    """Kills evenly over `seconds` from `first` on, every victim as often as the others; cuts of a few seconds to half a minute between them."""
    chance = random.Random(f"{seed}/faults")  # noqa: S311 (as above)
    victims: list[str] = []
    for _ in range(kills_each):
        lap = list(VICTIMS)
        chance.shuffle(lap)
        victims += lap
    step = seconds / max(1, len(victims))
    found = [Fault(first + step * (number + chance.random() * 0.5), victim=victim) for number, victim in enumerate(victims)]
    found += [Fault(first + chance.random() * seconds, host=chance.choice(hosts), seconds=chance.uniform(3, 25)) for _ in range(cuts)]
    return sorted(found, key=lambda fault: fault.at)
