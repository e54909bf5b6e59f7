"""What belongs to the radio on this node: known from the signed document alone, never from labels, which a tenant can set."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from agent.backends.cluster import Pod
from agent.protocol import DesiredState, GpuFacts, LocalRules, ProtectedSpan


@dataclass(frozen=True)
class Phy:
    """`known` is False while no document was accepted: then everything may be the radio's, and nothing that reaches it is done."""

    spans: tuple[ProtectedSpan, ...] = ()
    rules: LocalRules = field(default_factory=LocalRules)
    known: bool = True

    @classmethod
    def of(cls, desired: DesiredState | None) -> Phy:
        return cls(spans=desired.protected, rules=desired.rules) if desired else cls(known=False)

    def on_gpu(self, gpu_uuid: str) -> bool:
        """Whether an act on the whole GPU reaches PHY."""
        return not self.known or any(span.gpu_uuid == gpu_uuid for span in self.spans)

    def on_node(self) -> bool:
        """Whether an act on the whole node reaches PHY."""
        return not self.known or bool(self.spans)

    def devices(self, gpus: Iterable[GpuFacts]) -> frozenset[str]:
        """UUIDs of the slices that overlap a protected placement, and of the GPUs that have one: whoever holds such a GPU whole holds the placement."""
        found: set[str] = set()
        for gpu in gpus:
            spans = [span for span in self.spans if span.gpu_uuid == gpu.uuid]
            if spans:
                found.add(gpu.uuid)
            for part in gpu.slices or ():
                if any(part.start < span.start + span.size and span.start < part.start + part.size for span in spans):
                    found.add(part.mig_uuid)
        return frozenset(found - {""})

    def holds(self, pod: Pod, gpus: tuple[GpuFacts, ...]) -> bool:
        """Whether `pod` is the radio's: the operator's namespace or service account, or a holder of a protected placement.

        `gpus` is the inventory of now. A slice that nobody knows may be a protected one while the node has any.
        """
        if not self.known or self.rules.is_operators(pod.namespace, pod.service_account):
            return True
        if not self.spans:
            return False
        protected = self.devices(gpus)
        known = {gpu.uuid for gpu in gpus} | {part.mig_uuid for gpu in gpus for part in gpu.slices or ()}
        return any(uuid in protected or uuid not in known for uuid in pod.gpus)
