"""Configuration of the simulator: one JSON file, read by the hardware process and by the agents process.

```
{
  "seed": 7,
  "step_seconds": 2.0,                    time step of the physics (a clock lock shows within one step)
  "control_address": "127.0.0.1:9460",    control API and the wire between the simulated backend and the hardware
  "act_log": "acts.jsonl",                append-only log of every act on the hardware (JSON lines)
  "ports": {"dcgm": 9400, "triton": 8002, "vllm": 8000, "node": 9100},
  "agents": {"state_directory": "agents", "processes": 2, "converge_seconds": 10, "inspect_seconds": 30},
  "timeline": [{"at_seconds": 60, "name": "link_cut", "site": "AMS-004", "duration_seconds": 120}],
  "nodes": [{
    "site": "AMS-004", "region": "amsterdam", "host_name": "gpu-ams-004", "role": "du", "time_zone": "Europe/Amsterdam",
    "latitude": 52.37, "longitude": 4.9, "address": "127.20.0.4",
    "driver_version": "570.158.01", "cuda_version": "12.8", "kubelet_version": "v1.33.4",
    "exporters": ["dcgm", "triton", "node"],
    "triton_models": [{"name": "detector", "version": "3"}],
    "vllm_model": "",
    "bundle": "eyJ…",                     enrolment bundle of the node's agent, the text that the console shows ("": it has enrolled already, or has no agent)
    "gpus": [{
      "uuid": "GPU-…", "index": 0, "pci_bus_id": "00000000:19:00.0", "sku": "h100-sxm-80gb", "serial": "165…",
      "mig": [{"profile": "1g.10gb", "start": 0, "gpu_instance_id": 7, "purpose": "phy", "mig_uuid": "MIG-…",
               "workload": {"namespace": "ran-phy", "pod": "l1-0", "container": "cuphy"}}],
      "workload": null
    }]
  }]
}
```

`mig` is null when MIG mode is off, a list (maybe empty) when it is on. Relative paths start at the file's folder.
An unknown or wrong field is a `ConfigError` that names it, e.g. `nodes[3].gpus[0].uuid`.
"""

import ipaddress
import json
import zoneinfo
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from agent.simulator.fields import ConfigError, Fields

EXPORTERS = ("dcgm", "triton", "vllm", "node")
ROLES = ("du", "cu", "inference")
PURPOSES = ("phy", "ai")


@dataclass(frozen=True)
class WorkloadConfig:
    """A pod's container on a GPU or a slice."""

    namespace: str
    pod: str
    container: str


@dataclass(frozen=True)
class SliceConfig:
    """A GPU instance: `start` is its first memory position (0-7)."""

    profile: str
    start: int
    gpu_instance_id: int
    purpose: str = "ai"
    mig_uuid: str = ""
    workload: WorkloadConfig | None = None


@dataclass(frozen=True)
class GpuConfig:
    uuid: str
    index: int
    pci_bus_id: str
    sku: str
    serial: str = ""
    mig: tuple[SliceConfig, ...] | None = None
    workload: WorkloadConfig | None = None

    @property
    def carries_phy(self) -> bool:
        return any(part.purpose == "phy" for part in self.mig or ())


@dataclass(frozen=True)
class TritonModelConfig:
    name: str
    version: str = "1"


@dataclass(frozen=True)
class NodeConfig:
    """A node with its GPUs and exporters. `address` is a loopback address of its own: Prometheus finds `address:port` per exporter."""

    site: str
    region: str
    host_name: str
    role: str
    time_zone: str
    address: str
    gpus: tuple[GpuConfig, ...]
    latitude: float | None = None
    longitude: float | None = None
    driver_version: str = "570.158.01"
    cuda_version: str = "12.8"
    kubelet_version: str = "v1.33.4"
    exporters: tuple[str, ...] = ("dcgm", "node")
    triton_models: tuple[TritonModelConfig, ...] = ()
    vllm_model: str = ""
    bundle: str = ""


@dataclass(frozen=True)
class PortsConfig:
    dcgm: int = 9400
    triton: int = 8002
    vllm: int = 8000
    node: int = 9100

    def of(self, exporter: str) -> int:
        return {"dcgm": self.dcgm, "triton": self.triton, "vllm": self.vllm, "node": self.node}[exporter]


@dataclass(frozen=True)
class AgentsConfig:
    state_directory: str = "agents"
    processes: int = 2
    converge_seconds: float = 10.0
    inspect_seconds: float = 30.0


@dataclass(frozen=True)
class ScenarioConfig:
    """One fault: `name` as in `agent.simulator.scenarios`, its target (exactly one of site, node, gpu), and when (seconds after the start)."""

    name: str
    site: str = ""
    node: str = ""
    gpu: str = ""
    at_seconds: float = 0.0
    duration_seconds: float = 60.0
    every_seconds: float | None = None
    mode: str = ""
    lead_seconds: float = 12.0


@dataclass(frozen=True)
class SimulatorConfig:
    seed: int
    control_address: str
    act_log: str
    nodes: tuple[NodeConfig, ...]
    step_seconds: float = 2.0
    ports: PortsConfig = field(default_factory=PortsConfig)
    agents: AgentsConfig = field(default_factory=AgentsConfig)
    timeline: tuple[ScenarioConfig, ...] = ()

    @property
    def control_url(self) -> str:
        return f"http://{self.control_address}"

    def exporter_address(self, node: NodeConfig, exporter: str) -> str:
        """`host:port` of a node's exporter, "" when it has none: what the inventory records for service discovery."""
        return f"{node.address}:{self.ports.of(exporter)}" if exporter in node.exporters else ""

    def node(self, host_name: str) -> NodeConfig:
        for node in self.nodes:
            if node.host_name == host_name:
                return node
        raise ConfigError(f"nodes: there is no node {host_name!r}")


def load_config(path: Path) -> SimulatorConfig:
    """Reads and checks a configuration file. Relative paths become absolute."""
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON: {error}") from error
    config = parse_config(data)
    folder = path.resolve().parent
    agents = replace(config.agents, state_directory=str(folder / config.agents.state_directory))
    return replace(config, act_log=str(folder / config.act_log), agents=agents)


def load_timeline(path: Path) -> tuple[ScenarioConfig, ...]:
    """A list of scenarios from a JSON or YAML file, as in the configuration's `timeline`."""
    try:
        data = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: neither JSON nor YAML: {error}") from error
    return Fields({"timeline": data}, "").many("timeline", parse_scenario)


def dump_config(config: SimulatorConfig) -> dict[str, Any]:
    """The JSON object of a configuration; `parse_config` of it gives an equal one."""
    return asdict(config)


def parse_config(data: object) -> SimulatorConfig:
    fields = Fields(data, "")
    config = SimulatorConfig(
        seed=fields.integer("seed", low=0, high=2**31 - 1),
        step_seconds=fields.number("step_seconds", 2.0, low=0.05, high=60),
        control_address=_host_and_port(fields, "control_address"),
        act_log=fields.text("act_log", empty=False),
        ports=_ports(fields.raw("ports", {}), "ports"),
        agents=_agents(fields.raw("agents", {}), "agents"),
        timeline=fields.many("timeline", parse_scenario, ()),
        nodes=fields.many("nodes", _node),
    )
    fields.finish()
    _refuse_repeats(config)
    return config


def parse_scenario(data: object, path: str) -> ScenarioConfig:
    fields = Fields(data, path)
    scenario = ScenarioConfig(
        name=fields.text("name", empty=False),
        site=fields.text("site", ""),
        node=fields.text("node", ""),
        gpu=fields.text("gpu", ""),
        at_seconds=fields.number("at_seconds", 0, low=0, high=10**9),
        duration_seconds=fields.number("duration_seconds", 60, low=0.1, high=10**9),
        every_seconds=fields.optional_number("every_seconds", low=1, high=10**9),
        mode=fields.text("mode", ""),
        lead_seconds=fields.number("lead_seconds", 12, low=0, high=10**6),
    )
    fields.finish()
    if sum(bool(target) for target in (scenario.site, scenario.node, scenario.gpu)) != 1:
        raise ConfigError(f"{path or 'scenario'}: name exactly one of site, node, gpu")
    if scenario.every_seconds is not None and scenario.every_seconds <= scenario.duration_seconds:
        raise ConfigError(f"{fields.name('every_seconds')}: must be longer than duration_seconds")
    return scenario


def _host_and_port(fields: Fields, key: str) -> str:
    value = fields.text(key)
    host, _, port = value.rpartition(":")
    try:
        good = ipaddress.ip_address(host).is_loopback and 1 <= int(port) <= 65535
    except ValueError:
        good = False
    if not good:
        raise ConfigError(f"{fields.name(key)}: expected a loopback address and a port such as 127.0.0.1:9460, found {value!r}")
    return value


def _ports(data: object, path: str) -> PortsConfig:
    fields = Fields(data, path)
    ports = PortsConfig(**{name: fields.integer(name, getattr(PortsConfig, name), low=1, high=65535) for name in EXPORTERS})
    fields.finish()
    if len({ports.of(name) for name in EXPORTERS}) < len(EXPORTERS):
        raise ConfigError(f"{path}: two exporters share a port")
    return ports


def _agents(data: object, path: str) -> AgentsConfig:
    fields = Fields(data, path)
    agents = AgentsConfig(
        state_directory=fields.text("state_directory", "agents", empty=False),
        processes=fields.integer("processes", 2, low=1, high=64),
        converge_seconds=fields.number("converge_seconds", 10, low=0.1, high=3600),
        inspect_seconds=fields.number("inspect_seconds", 30, low=0.5, high=3600),
    )
    fields.finish()
    return agents


def _workload(data: object, path: str) -> WorkloadConfig | None:
    if data is None:
        return None
    fields = Fields(data, path)
    workload = WorkloadConfig(**{key: fields.text(key, empty=False) for key in ("namespace", "pod", "container")})
    fields.finish()
    return workload


def _slice(data: object, path: str) -> SliceConfig:
    fields = Fields(data, path)
    part = SliceConfig(
        profile=fields.text("profile", empty=False),
        start=fields.integer("start", low=0, high=7),
        gpu_instance_id=fields.integer("gpu_instance_id", low=0, high=255),
        purpose=fields.text("purpose", "ai", choices=PURPOSES),
        mig_uuid=fields.text("mig_uuid", ""),
        workload=_workload(fields.raw("workload", None), fields.name("workload")),
    )
    fields.finish()
    return part


def _gpu(data: object, path: str) -> GpuConfig:
    fields = Fields(data, path)
    gpu = GpuConfig(
        uuid=fields.text("uuid", empty=False),
        index=fields.integer("index", low=0, high=63),
        pci_bus_id=fields.text("pci_bus_id", empty=False),
        sku=fields.text("sku", empty=False),
        serial=fields.text("serial", ""),
        mig=None if fields.raw("mig", None) is None else fields.many("mig", _slice),
        workload=_workload(fields.raw("workload", None), fields.name("workload")),
    )
    fields.finish()
    if not gpu.uuid.startswith("GPU-"):
        raise ConfigError(f"{fields.name('uuid')}: must start with GPU-")
    if gpu.mig is not None and gpu.workload is not None:
        raise ConfigError(f"{fields.name('workload')}: in MIG mode workloads are on slices")
    return gpu


def _triton_model(data: object, path: str) -> TritonModelConfig:
    fields = Fields(data, path)
    model = TritonModelConfig(name=fields.text("name", empty=False), version=fields.text("version", "1", empty=False))
    fields.finish()
    return model


def _exporter(data: object, path: str) -> str:
    if data not in EXPORTERS:
        raise ConfigError(f"{path}: {data!r} is none of {', '.join(EXPORTERS)}")
    return str(data)


def _node(data: object, path: str) -> NodeConfig:
    fields = Fields(data, path)
    node = NodeConfig(
        site=fields.text("site", empty=False),
        region=fields.text("region", empty=False),
        host_name=fields.text("host_name", empty=False),
        role=fields.text("role", choices=ROLES),
        time_zone=fields.text("time_zone", "UTC"),
        address=fields.text("address"),
        gpus=fields.many("gpus", _gpu),
        latitude=fields.optional_number("latitude", low=-90, high=90),
        longitude=fields.optional_number("longitude", low=-180, high=180),
        driver_version=fields.text("driver_version", NodeConfig.driver_version, empty=False),
        cuda_version=fields.text("cuda_version", NodeConfig.cuda_version),
        kubelet_version=fields.text("kubelet_version", NodeConfig.kubelet_version),
        exporters=fields.many("exporters", _exporter, ("dcgm", "node")),
        triton_models=fields.many("triton_models", _triton_model, ()),
        vllm_model=fields.text("vllm_model", ""),
        bundle=fields.text("bundle", ""),
    )
    fields.finish()
    try:
        zoneinfo.ZoneInfo(node.time_zone)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError) as error:
        raise ConfigError(f"{fields.name('time_zone')}: unknown time zone {node.time_zone!r}") from error
    try:
        loopback = ipaddress.IPv4Address(node.address).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ConfigError(f"{fields.name('address')}: expected an address in 127.0.0.0/8, found {node.address!r}")
    return node


def _refuse_repeats(config: SimulatorConfig) -> None:
    seen: dict[tuple[str, str], str] = {}
    for number, node in enumerate(config.nodes):
        keys = [("host_name", node.host_name, f"nodes[{number}].host_name"), ("address", node.address, f"nodes[{number}].address")]
        keys += [("uuid", gpu.uuid, f"nodes[{number}].gpus[{place}].uuid") for place, gpu in enumerate(node.gpus)]
        for kind, value, path in keys:
            if (kind, value) in seen:
                raise ConfigError(f"{path}: {value!r} is already used by {seen[kind, value]}")
            seen[kind, value] = path
