"""What is wrong, in words: facts → conditions of one GPU, node or site. Pure: no Django.

Each function that yields conditions also yields the codes that the moment cannot judge: those stay as they were.
"""

from __future__ import annotations

from dataclasses import replace

from fleet.health.facts import (
    AgentWord,
    Condition,
    Contact,
    GpuFacts,
    NodeFacts,
    Severity,
    SiteFacts,
    State,
    Thresholds,
    clock_time,
    is_known,
    or_none,
)
from fleet.health.signs import codes_beside, sign_conditions


def gpu_conditions(facts: GpuFacts, thresholds: Thresholds) -> tuple[list[Condition], set[str]]:
    """Conditions of a GPU at this moment, and the codes that it cannot judge."""
    undecided = set(codes_beside(facts.judged))
    found = [*sign_conditions(facts, thresholds), *facts.xids]
    found += _presence(facts, thresholds, undecided)
    return found, undecided


_LOST = Condition(
    code="gpu_lost",
    severity=Severity.CRITICAL,
    state=State.DOWN,
    why="",
    since=float("nan"),
    advised="Restart the node (bare metal); if the GPU stays away, contact support.",
)
_RESET_REQUIRED = Condition(
    code="reset_required",
    severity=Severity.MAJOR,
    state=State.DOWN,
    why="The driver says that this GPU must be reset before it can be used.",
    since=float("nan"),
    advised="Drain and reset the GPU.",
)
_SERIES_MISSING = Condition(
    code="series_missing",
    severity=Severity.MINOR,
    state=State.UNKNOWN,
    why="",
    since=float("nan"),
    advised="Restart the node's GPU exporter.",
    recover_seconds=0,
)


def _presence(facts: GpuFacts, thresholds: Thresholds, undecided: set[str]) -> list[Condition]:
    """gpu_lost, reset_required, series_missing: is the GPU there at all? Adds to `undecided` what cannot be said."""
    fresh = facts.now - facts.sampled_at <= thresholds.unknown_seconds  # NaN: False
    exporter_speaks = facts.contact is Contact.REPORTING and facts.now - facts.exporter_at <= thresholds.unknown_seconds
    stopped = not fresh and exporter_speaks and facts.exporter_at > facts.sampled_at + thresholds.together_seconds  # never sampled: False
    evidence = {"last_sample_at": or_none(facts.sampled_at), "gpus_fresh": facts.gpus_fresh, "gpus_of_node": facts.gpus_of_node}
    if facts.agent is not AgentWord.OK and facts.agent is not AgentWord.RESET_REQUIRED:
        undecided.add("reset_required")
    if not fresh:
        undecided |= {"gpu_lost", "series_missing"} if not stopped else {"gpu_lost"}
    if facts.agent is AgentWord.LOST:
        detail = f": {facts.agent_detail}" if facts.agent_detail else ""
        return [replace(_LOST, why=f"The node's agent reports this GPU lost{detail}.", since=facts.agent_at, evidence=evidence)]
    if facts.agent is AgentWord.RESET_REQUIRED:
        return [replace(_RESET_REQUIRED, since=facts.agent_at, evidence={"detail": facts.agent_detail})]
    if not stopped:
        return []
    when = clock_time(facts.sampled_at)
    if facts.agent is AgentWord.OK:
        return [replace(_SERIES_MISSING, why=f"Its series stopped at {when} though the node's agent still sees the GPU.", since=facts.sampled_at)]
    if facts.gpus_fresh == 0 and facts.gpus_of_node > 1:
        return [replace(_SERIES_MISSING, why=f"The series of all GPUs of the node stopped at {when} while its exporter answers.", since=facts.sampled_at)]
    others = f"{facts.gpus_fresh} of {facts.gpus_of_node} GPUs of the node report" if facts.gpus_fresh else "the node's exporter answers"
    return [replace(_LOST, why=f"Its series stopped at {when} while {others}.", since=facts.sampled_at, evidence=evidence)]


def _since(at: float) -> str:
    return f"silent since {clock_time(at)}" if is_known(at) else "not heard yet"


def node_conditions(facts: NodeFacts, thresholds: Thresholds) -> tuple[list[Condition], set[str]]:
    """Conditions of a node itself (its GPUs have their own), and the codes that the moment cannot judge."""
    found: list[Condition] = []
    undecided: set[str] = set()
    speaks = facts.contact is Contact.REPORTING
    ages = {"exporter_at": or_none(facts.exporter_at), "heartbeat_at": or_none(facts.heartbeat_at), "up": or_none(facts.exporter_up)}
    if facts.contact is Contact.EXPORTER_DOWN:
        stopped = "its series stopped" if is_known(facts.exporter_at) else "nothing came from it yet"
        answer = "Prometheus cannot scrape it" if facts.exporter_up == 0 else stopped
        agent = f"its agent spoke at {clock_time(facts.heartbeat_at)}" if facts.has_agent else "no agent is enrolled that could say whether the node lives"
        found.append(
            Condition(
                code="exporter_down",
                severity=Severity.MAJOR,
                state=State.DEGRADED if facts.has_agent else State.UNKNOWN,
                why=f"GPU exporter {_since(facts.exporter_at)} ({answer}); {agent}.",
                since=facts.exporter_at if is_known(facts.exporter_at) else facts.now,
                advised="Restart the GPU exporter on the node.",
                evidence=ages,
                recover_seconds=0,
            )
        )
    elif facts.contact is Contact.NODE_DOWN:
        found.append(
            Condition(
                code="node_down",
                severity=Severity.CRITICAL,
                state=State.DOWN,
                why=f"Exporter and agent silent since {clock_time(facts.contact_at)} while other nodes of the site report.",
                since=facts.contact_at,
                advised="Check the node's power and management controller.",
                evidence=ages,
                recover_seconds=0,
            )
        )
    elif not speaks:
        undecided |= {"exporter_down", "node_down"}
    if is_known(facts.frozen_since) and speaks:
        found.append(
            Condition(
                code="exporter_frozen",
                severity=Severity.MAJOR,
                state=State.DEGRADED,
                why=f"GPU exporter answers, yet its readings have not changed since {clock_time(facts.frozen_since)}: it repeats old ones.",
                since=facts.frozen_since,
                advised="Restart dcgm-exporter on the node.",
                evidence={"readings_stand_since": facts.frozen_since, "gpus": facts.gpus_fresh},
                recover_seconds=0,
            )
        )
    elif not speaks:
        undecided.add("exporter_frozen")
    if facts.agent_silent and speaks:
        found.append(
            Condition(
                code="agent_silent",
                severity=Severity.MINOR,
                state=State.DEGRADED,
                why=f"The node's agent {_since(facts.heartbeat_at)}; telemetry still comes. The node cannot be controlled.",
                since=facts.heartbeat_at if is_known(facts.heartbeat_at) else facts.now,
                advised="Check the agent's service on the node.",
                evidence=ages,
                recover_seconds=0,
            )
        )
    elif facts.has_agent and not facts.now - facts.heartbeat_at <= thresholds.agent_seconds:
        undecided.add("agent_silent")
    if facts.driver_fault:
        found.append(
            Condition(
                code="driver_mismatch" if facts.is_mismatch else "driver_error",
                severity=Severity.CRITICAL,
                state=State.DEGRADED,
                why=f"The driver cannot be asked: {facts.driver_fault}. The node's {facts.gpus_expected} GPUs are unknown.",
                since=facts.driver_fault_at,
                advised="Reload the driver or reboot the node." if facts.is_mismatch else "Look at the driver's log on the node.",
                evidence={"detail": facts.driver_fault},
                recover_seconds=0,
            )
        )
    found += _gpu_count(facts, undecided, speaks)
    if facts.profiling_suspects:
        listed = ", ".join(facts.profiling_suspects[:2]) + (" …" if len(facts.profiling_suspects) > 2 else "")
        found.append(
            Condition(
                code="profiling_suspect",
                severity=Severity.WARNING,
                state=State.OK,
                why=f"GR_ENGINE_ACTIVE reads 0 on {len(facts.profiling_suspects)} busy GPUs ({listed}): profiling values are not used.",
                since=facts.exporter_at,
                advised="Restart the GPU exporter or its host engine.",
                evidence={"metric": "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gpus": list(facts.profiling_suspects)},
                samples=thresholds.confirm_samples,
            )
        )
    elif not speaks:
        undecided.add("profiling_suspect")
    return found, undecided


def _gpu_count(facts: NodeFacts, undecided: set[str], speaks: bool) -> list[Condition]:
    if not speaks or facts.gpus_fresh == 0 or facts.gpus_expected == 0:
        undecided.add("gpu_count")
        return []
    if facts.gpus_fresh == facts.gpus_expected:
        return []
    few = facts.gpus_fresh < facts.gpus_expected
    return [
        Condition(
            code="gpu_count",
            severity=Severity.MAJOR if few else Severity.WARNING,
            state=State.DEGRADED if few else State.OK,
            why=f"{facts.gpus_fresh} of {facts.gpus_expected} expected GPUs report."
            if few
            else f"{facts.gpus_fresh} GPUs report, {facts.gpus_expected} are expected.",
            since=facts.exporter_at,
            advised="Look for a lost GPU." if few else "Correct the expected count in the inventory.",
            evidence={"present": facts.gpus_fresh, "expected": facts.gpus_expected},
        )
    ]


def site_conditions(facts: SiteFacts) -> tuple[list[Condition], set[str]]:
    """`out_of_contact`, the only condition of a site itself."""
    if facts.contact is Contact.UNDECIDED:
        return [], {"out_of_contact"}
    if facts.contact not in (Contact.LINK_DOWN, Contact.REGION_SILENT):
        return [], set()
    since = clock_time(facts.contact_at)
    if facts.contact is Contact.REGION_SILENT:
        many = f"{facts.region_silent_sites} of {facts.region_sites} sites of the region"
        why, advised = f"{many} fell silent together: our link to the region, or its Prometheus. Last contact {since}.", ""
    else:
        reach = "link or node" if facts.nodes <= 1 else "link"
        why, advised = f"Site out of contact since {since} ({reach}): neither exporters nor agents are heard.", "Check the site's link and power."
    return [
        Condition(
            code="out_of_contact",
            severity=Severity.MAJOR,
            state=State.UNKNOWN,
            why=why,
            since=facts.contact_at,
            advised=advised,
            evidence={"cause": facts.contact.value, "last_contact_at": or_none(facts.contact_at)},
            recover_seconds=0,
        )
    ], set()
