"""A small simulated fleet for tests, with the node of the dcgm-exporter fixture in it."""

from dataclasses import replace
from pathlib import Path

from agent.simulator.act_log import ActLog
from agent.simulator.config import GpuConfig, NodeConfig, ScenarioConfig, SimulatorConfig, SliceConfig, TritonModelConfig, WorkloadConfig
from agent.simulator.hardware import Hardware

NOW = 1_795_168_800.0  # 2026-11-20T10:00:00Z
SLICED = "GPU-9e70f4bf-4149-5cf4-8d85-f2134add9a9d"
WHOLE = "GPU-0777e5cf-4427-55c6-829c-971c05870535"
PHY = "GPU-11111111-0000-5000-8000-000000000001"
L40S = "GPU-22222222-0000-5000-8000-000000000002"


def _fixture_node() -> NodeConfig:
    slices = (
        SliceConfig("3g.40gb", 0, 2, workload=WorkloadConfig("tenant-amber", "asr-predictor-6c8d9f7b5-2xkq9", "server")),
        SliceConfig("2g.20gb", 4, 3, workload=WorkloadConfig("tenant-birch", "embed-0", "server")),
        SliceConfig("1g.10gb", 6, 9, workload=WorkloadConfig("tenant-cedar", "jupyter-lee", "notebook")),
        SliceConfig("1g.10gb", 7, 10),
    )
    return NodeConfig(
        site="AMS-07",
        region="amsterdam",
        host_name="gpu-ams-07",
        role="inference",
        time_zone="Europe/Amsterdam",
        address="127.91.0.1",
        gpus=(
            GpuConfig(SLICED, 0, "00000000:19:00.0", "h100-sxm-80gb", mig=slices),
            GpuConfig(WHOLE, 1, "00000000:3B:00.0", "h100-sxm-80gb", workload=WorkloadConfig("tenant-amber", "llm-70b-0", "trtllm")),
        ),
        exporters=("dcgm", "triton", "vllm", "node"),
        triton_models=(TritonModelConfig("detector", "3"), TritonModelConfig("asr", "1")),
        vllm_model="acme/tern-70b-instruct",
    )


def _phy_node() -> NodeConfig:
    slices = tuple(
        SliceConfig(
            "1g.10gb",
            start,
            7 + start,
            "phy" if start < 3 else "ai",
            f"MIG-{start}",
            WorkloadConfig("ran-phy" if start < 3 else "tenant-acme", f"pod-{start}", "main") if start < 6 else None,
        )
        for start in range(7)
    )
    gpu = GpuConfig(PHY, 0, "00000000:19:00.0", "h100-pcie-80gb", mig=slices)
    return NodeConfig("LAX-01", "los-angeles", "gpu-lax-01", "du", "America/Los_Angeles", "127.91.0.2", (gpu,))


def _l40s_node() -> NodeConfig:
    gpu = GpuConfig(L40S, 0, "00000000:19:00.0", "l40s-48gb", workload=WorkloadConfig("tenant-acme", "vision-0", "server"))
    return NodeConfig("LAX-02", "los-angeles", "gpu-lax-02", "inference", "America/Los_Angeles", "127.91.0.3", (gpu,))


CONFIG = SimulatorConfig(seed=7, control_address="127.0.0.1:9460", act_log="acts.jsonl", nodes=(_fixture_node(), _phy_node(), _l40s_node()), step_seconds=1.0)


def make_hardware(folder: Path, *, now: float = NOW, timeline: tuple[ScenarioConfig, ...] = (), **changes: object) -> Hardware:
    """Hardware whose act log lies in `folder`: the same folder again is a restart of the same hardware."""
    return Hardware(replace(CONFIG, **changes), ActLog(folder / "acts.jsonl"), now, timeline)  # type: ignore[arg-type]


def text_of(hardware: Hardware, host: str, now: float, exporter: str = "dcgm") -> str:
    """The text of an exporter that must answer."""
    text = hardware.exposition(host, exporter, now)
    assert isinstance(text, str), text
    return text


def values_of(text: str, family: str, gpu_uuid: str) -> list[float]:
    """All values of a family's lines about one GPU, in order of the text."""
    return [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(f"{family}{{") and gpu_uuid in line]
