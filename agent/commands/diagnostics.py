"""Diagnostics: what is needed to judge a node from afar, as text. Names, versions and readings; no labels, environments, logs or keys."""

from __future__ import annotations

from agent import VERSION
from agent.backends.base import BackendError
from agent.backends.cluster import ClusterError
from agent.commands import Context, Memo, Refusal, Turn, object_schema
from agent.commands.drain import says
from agent.evictions import in_order, name_of
from agent.protocol import GpuFacts
from agent.protocol.command import MAX_OUTPUT_BYTES, CommandBody, CommandState, layout_hash

MOST_PODS = 150
_CUT = "\n… cut: the bundle is longer than 16 KiB\n"


class Diagnostics:
    name = "diagnostics"
    exclusive = False
    needs_boot_id = False
    schema = object_schema()

    def subject(self, body: CommandBody) -> str:
        return body.gpu_uuid

    def refusal(self, context: Context) -> Refusal | None:
        return None

    def step(self, context: Context, memo: Memo) -> Turn:
        lines: list[str] = []
        # A driver that does not answer is what the bundle is asked for: it says so, and says the rest.
        for title, part in (("agent", _agent), ("node", _node), ("health", _health), ("gpus", _gpus), ("pods", _pods)):
            try:
                lines += part(context)
            except BackendError as error:
                lines += ["", f"{title} unknown ({error})"]
        return Turn(CommandState.DONE, detail=f"{len(lines)} lines.", output=_bounded("\n".join(lines) + "\n"))

    def settle(self, context: Context, memo: Memo) -> Turn:
        return self.step(context, memo)

    def cancel(self, context: Context, memo: Memo) -> Turn | None:
        return Turn(CommandState.CANCELLED, detail="Cancelled.")


def _agent(context: Context) -> list[str]:
    try:
        boot_id = context.backend.boot_id()
    except BackendError as error:
        boot_id = f"unknown ({error})"
    return [f"at {context.now:.0f}", f"agent {VERSION}", f"boot {boot_id}"]


def _node(context: Context) -> list[str]:
    report = context.inventory()
    count = "unknown" if report.gpu_count is None else str(report.gpu_count)
    return [
        f"driver {report.node.driver_version or 'unknown'}",
        f"cuda {report.node.cuda_version or 'unknown'}",
        f"kubelet {report.node.kubelet_version or 'unknown'}",
        f"gpus {len(report.gpus)} answer of {count}; inventory {'complete' if report.complete else 'incomplete'}",
    ]


def _health(context: Context) -> list[str]:
    health = context.health()
    lines = ["", "health"]
    if health.driver_error:
        lines.append(f"  driver: {health.driver_error}")
    if health.driver_mismatch:
        lines.append(f"  driver: module {health.driver_mismatch.loaded_module or 'unknown'}, library {health.driver_mismatch.library or 'unknown'}")
    return [*lines, *(f"  {found.uuid or 'unknown GPU'} index {found.index} {found.condition.value} {found.detail}".rstrip() for found in health.gpus)]


def _gpus(context: Context) -> list[str]:
    lines = ["", "gpus"]
    for gpu in context.inventory().gpus:
        lines += _gpu(context, gpu)
    return lines


def _gpu(context: Context, gpu: GpuFacts) -> list[str]:
    lines = [f"  {gpu.uuid} index {gpu.index} {gpu.pci_bus_id} {gpu.name or 'unknown model'} MIG layout {layout_hash(gpu) or 'unknown'}"]
    lines += [f"    slice {part.profile} at {part.start}+{part.size} {part.mig_uuid or 'without UUID'}" for part in gpu.slices or ()]
    try:
        clocks = context.backend.read_clocks(gpu.uuid)
    except BackendError as error:
        return [*lines, f"    clocks unknown ({error})"]
    sm_mhz = "unknown" if clocks.sm_mhz is None else f"{clocks.sm_mhz} MHz"
    return [*lines, f"    SM clock {sm_mhz}, limited by {', '.join(clocks.limited_by) or 'nothing'}"]


def _pods(context: Context) -> list[str]:
    lines = ["", "pods"]
    try:
        cluster = context.kubernetes()
        cordon, pods = cluster.cordon(), cluster.pods()
    except ClusterError as error:
        return [*lines, f"  {says(error)}"]
    lines.append(f"  node {'cordoned by ' + (cordon.owner or 'somebody else') if cordon.unschedulable else 'takes pods'}")
    lines += [f"  {name_of(pod)} {pod.phase}{' ending' if pod.is_terminating else ''} priority {pod.priority}" for pod in in_order(pods)[:MOST_PODS]]
    return lines if len(pods) <= MOST_PODS else [*lines, f"  and {len(pods) - MOST_PODS} more"]


def _bounded(text: str) -> str:
    """At most 16 KiB of text that a message may carry."""
    clean = "".join(character if character.isprintable() or character in "\n\t" else "?" for character in text)
    data = clean.encode()
    if len(data) <= MAX_OUTPUT_BYTES:
        return clean
    return data[: MAX_OUTPUT_BYTES - len(_CUT.encode())].decode(errors="ignore") + _CUT


COMMAND = Diagnostics()
