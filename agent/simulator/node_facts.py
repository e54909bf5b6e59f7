"""What a simulated GPU says of itself in an inventory."""

from __future__ import annotations

from agent.protocol import GpuFacts, WorkloadFacts
from agent.protocol.inventory import Sharing
from agent.simulator import boards
from agent.simulator.config import GpuConfig
from agent.simulator.partitions import slices_of


def gpu_facts(gpu: GpuConfig, count: int, *, power_limit_watts: float) -> GpuFacts:
    """`count`: how many GPUs the node has."""
    board = boards.BOARDS[gpu.sku]
    return GpuFacts(
        uuid=gpu.uuid,
        index=gpu.index,
        pci_bus_id=gpu.pci_bus_id,
        serial=gpu.serial,
        name=board.model_name,
        memory_bytes=board.memory_mib * 1024 * 1024,
        power_limit_watts=power_limit_watts,
        numa_node=0 if count <= 2 else int(gpu.index >= count / 2),
        mig_enabled=gpu.mig is not None,
        persistence_mode=True,
        sharing=Sharing.WHOLE if gpu.mig is None else Sharing.MIG,
        slices=slices_of(gpu),
    )


def workload_facts(gpu: GpuConfig) -> list[WorkloadFacts]:
    found = []
    if gpu.workload is not None:
        found.append(WorkloadFacts(gpu.uuid, None, gpu.workload.namespace, gpu.workload.pod, gpu.workload.container, Sharing.WHOLE))
    for part in gpu.mig or ():
        if part.workload is not None:
            found.append(WorkloadFacts(gpu.uuid, part.gpu_instance_id, part.workload.namespace, part.workload.pod, part.workload.container, Sharing.MIG))
    return found
