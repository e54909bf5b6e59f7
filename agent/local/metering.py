"""What each workload had between two cycles: time, GPUs, slices, VRAM, energy. Pure; `agent/spool.py` adds it up by the hour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent.backends.cluster import Pod
from agent.local.placement import Layout, holders
from agent.local.usage import Usage
from agent.protocol import LocalRules
from agent.spool import Metered

GIB = 1 << 30
# A longer gap is no cycle: nobody looked, and what was used in it is not invented.
LONGEST_SECONDS = 60.0


@dataclass(frozen=True)
class Look:
    """What one cycle saw."""

    at: float
    pods: tuple[Pod, ...]
    usage: Usage | None


def metered(before: Look | None, now: Look, *, layout: Layout, rules: LocalRules) -> list[Metered]:
    """Of each running pod that was there before too and holds a device. A device's compute and energy are shared alike by the pods on it."""
    if before is None or not 0 < now.at - before.at <= LONGEST_SECONDS:
        return []
    seconds = now.at - before.at
    energy = _energy(before.usage, now.usage)
    held = holders(now.pods)
    earlier = {pod.uid for pod in before.pods if pod.phase == "Running"}
    found: list[Metered] = []
    for pod in now.pods:
        devices = [layout.devices[uuid] for uuid in pod.gpus if uuid in layout.devices]
        if pod.phase != "Running" or pod.uid not in earlier or not devices:
            continue
        rule = rules.workload_rule(pod.namespace, pod.service_account)
        shares = [device.compute_share / len(held[device.uuid]) for device in devices]
        joules = [energy.get(device.gpu_uuid) for device in devices]
        used = [now.usage.of(device).used_bytes if now.usage is not None and len(held[device.uuid]) == 1 else None for device in devices]
        found.append(
            Metered(
                uid=pod.uid,
                namespace=pod.namespace,
                pod=pod.name,
                tenant=rule.tenant if rule else "",
                seconds=seconds,
                gpus=sum(shares),
                slices=sum(1 for device in devices if device.slice is not None),
                vram_gib=_sum([None if value is None else value / GIB for value in used]),
                energy_joules=_sum([None if joule is None else joule * share for joule, share in zip(joules, shares, strict=True)]),
            )
        )
    return found


def _sum(values: list[float | None]) -> float | None:
    """None as soon as one is not known."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _energy(before: Usage | None, now: Usage | None) -> Mapping[str, float]:
    """Joules of each GPU between two readings; none where the counter is missing or fell (it began anew)."""
    if before is None or now is None:
        return {}
    return {uuid: joules - before.energy_joules[uuid] for uuid, joules in now.energy_joules.items() if joules >= before.energy_joules.get(uuid, joules + 1)}
