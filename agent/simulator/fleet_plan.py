"""A fleet made up by seed: areas, regions, sites, nodes, GPUs, slices, workloads. The demo's inventory and the simulator's configuration come from it."""

import random
import uuid
from dataclasses import dataclass, replace

from agent.simulator.config import AgentsConfig, GpuConfig, NodeConfig, PortsConfig, SimulatorConfig, SliceConfig, TritonModelConfig, WorkloadConfig
from agent.simulator.metros import AREAS, DISTRICTS, METROS, Metro

TENANT_NAMESPACES = ("tenant-acme", "tenant-globex")
PHY_NAMESPACE = "ran-phy"
TRITON_MODELS = (TritonModelConfig("detector", "3"), TritonModelConfig("asr", "1"), TritonModelConfig("segmenter", "2"), TritonModelConfig("embedder", "5"))
VLLM_MODELS = ("acme/tern-70b-instruct", "globex/heron-8b-chat")
BUS_IDS = (
    "00000000:19:00.0",
    "00000000:3B:00.0",
    "00000000:4C:00.0",
    "00000000:5D:00.0",
    "00000000:9B:00.0",
    "00000000:BB:00.0",
    "00000000:CB:00.0",
    "00000000:DB:00.0",
)
POWER_FEEDS = (("A+B 2N", 12_000), ("A 1N + battery", 8_000), ("A+B N+1", 10_000))


@dataclass(frozen=True)
class SitePlan:
    code: str
    name: str
    kind: str
    latitude: float
    longitude: float
    time_zone: str
    power_feed: str
    power_feed_watts: int
    nodes: tuple[NodeConfig, ...]


@dataclass(frozen=True)
class RegionPlan:
    slug: str
    name: str
    kind: str
    sites: tuple[SitePlan, ...]


@dataclass(frozen=True)
class AreaPlan:
    slug: str
    name: str
    regions: tuple[RegionPlan, ...]


@dataclass(frozen=True)
class FleetPlan:
    """`nodes` are ready for the simulator; everything else is what an inventory wants to know about them."""

    seed: int
    areas: tuple[AreaPlan, ...]

    @property
    def regions(self) -> tuple[RegionPlan, ...]:
        return tuple(region for area in self.areas for region in area.regions)

    @property
    def sites(self) -> tuple[SitePlan, ...]:
        return tuple(site for region in self.regions for site in region.sites)

    @property
    def nodes(self) -> tuple[NodeConfig, ...]:
        return tuple(node for site in self.sites for node in site.nodes)

    def simulator_config(
        self,
        *,
        control_address: str,
        act_log: str,
        step_seconds: float = 2.0,
        ports: PortsConfig | None = None,
        agents: AgentsConfig | None = None,
        bundles: dict[str, str] | None = None,
    ) -> SimulatorConfig:
        """The simulator's configuration for this fleet. `bundles` are the agents' enrolment bundles by host name."""
        nodes = tuple(replace(node, bundle=(bundles or {}).get(node.host_name, "")) for node in self.nodes)
        return SimulatorConfig(
            seed=self.seed,
            control_address=control_address,
            act_log=act_log,
            nodes=nodes,
            step_seconds=step_seconds,
            ports=ports or PortsConfig(),
            agents=agents or AgentsConfig(),
        )


def plan_fleet(areas: int = 2, regions: int = 3, sites: int = 50, seed: int = 7) -> FleetPlan:
    """`areas` × `regions` per area × `sites` per region, one node per site. The same arguments give the same fleet, down to the UUIDs.

    Of three sites two are cell sites with a DU node: H100 with MIG 7 × 1g, positions 0-2 PHY and 3-6 AI. The third runs inference without PHY:
    H100 cut into AI slices, whole H100, or L40S. The first site of a region is its regional edge: four whole H100.
    """
    total = areas * regions
    numbers = iter(range(total * sites))
    built = []
    for area_number in range(areas):
        slug, name = AREAS[area_number % len(AREAS)]
        round_number = area_number // len(AREAS)
        metros = [metro for metro in METROS if metro.area == (slug, name)]
        built_regions = []
        for region_number in range(regions):
            metro = metros[region_number % len(metros)]
            repeat = round_number * (1 + (regions - 1) // len(metros)) + region_number // len(metros)
            built_regions.append(_plan_region(metro, repeat, [next(numbers) for _ in range(sites)], seed))
        suffix = f"-{round_number + 1}" if round_number else ""
        built.append(AreaPlan(slug=slug + suffix, name=name + suffix.replace("-", " "), regions=tuple(built_regions)))
    return FleetPlan(seed=seed, areas=tuple(built))


def _plan_region(metro: Metro, repeat: int, numbers: list[int], seed: int) -> RegionPlan:
    suffix = f"-{repeat + 1}" if repeat else ""
    code = metro.code + (str(repeat + 1) if repeat else "")
    slug = metro.name.lower().replace(" ", "-").replace(".", "") + suffix
    sites = tuple(_plan_site(metro, code, slug, place, number, seed) for place, number in enumerate(numbers))
    return RegionPlan(slug=slug, name=metro.name + suffix.replace("-", " "), kind="edge", sites=sites)


def _plan_site(metro: Metro, region_code: str, region: str, place: int, number: int, seed: int) -> SitePlan:
    code = f"{region_code}-{place + 1:03d}"
    chance = random.Random(f"{seed}/{code}")
    edge = place == 0
    district = DISTRICTS[place % len(DISTRICTS)]
    lap = place // len(DISTRICTS)
    feed, watts = POWER_FEEDS[chance.randrange(len(POWER_FEEDS))]
    spread = 0.01 if edge else 0.14
    latitude, longitude = round(metro.latitude + chance.gauss(0, spread), 5), round(metro.longitude + chance.gauss(0, spread * 1.4), 5)
    node = _plan_node(metro, code, region, place, number, seed, chance)
    return SitePlan(
        code=code,
        name=f"{metro.name} Regional Edge" if edge else f"{metro.name} {district}" + (f" {lap + 1}" if lap else ""),
        kind="edge" if edge else "cell",
        latitude=latitude,
        longitude=longitude,
        time_zone=metro.time_zone,
        power_feed=feed,
        power_feed_watts=watts,
        nodes=(replace(node, latitude=latitude, longitude=longitude),),
    )


def _plan_node(metro: Metro, code: str, region: str, place: int, number: int, seed: int, chance: random.Random) -> NodeConfig:
    host_name = f"gpu-{code.lower()}"
    edge, inference = place == 0, place % 3 == 0
    if not inference:
        role = "du"
        sku = "h100-sxm-80gb" if chance.random() < 0.6 else "h100-pcie-80gb"
        gpus = tuple(_gpu(seed, host_name, index, sku, _phy_layout(seed, host_name, index, chance), None) for index in range(1 + (chance.random() < 0.15)))
    elif edge:
        role = "inference"
        gpus = tuple(_gpu(seed, host_name, index, "h100-sxm-80gb", None, _tenant_workload(chance, "llm", host_name, index)) for index in range(4))
    else:
        role = "inference"
        kind = (place // 3) % 3
        if kind == 0:
            gpus = (_gpu(seed, host_name, 0, "h100-sxm-80gb", _ai_layout(seed, host_name, chance), None),)
        elif kind == 1:
            gpus = tuple(_gpu(seed, host_name, index, "l40s-48gb", None, _tenant_workload(chance, "vision", host_name, index)) for index in range(2))
        else:
            gpus = (_gpu(seed, host_name, 0, "h100-sxm-80gb", None, _tenant_workload(chance, "llm", host_name, 0)),)
    serves_language = any(gpu.workload and gpu.workload.container == "vllm" for gpu in gpus)
    first = chance.randrange(len(TRITON_MODELS))
    models = () if edge else tuple(TRITON_MODELS[(first + step) % len(TRITON_MODELS)] for step in range(1 + chance.randrange(2)))
    exporters = ["dcgm", "node"] + (["vllm"] if serves_language else []) + (["triton"] if models else [])
    return NodeConfig(
        site=code,
        region=region,
        host_name=host_name,
        role=role,
        time_zone=metro.time_zone,
        address=loopback_address(number),
        gpus=gpus,
        exporters=tuple(exporters),
        triton_models=models,
        vllm_model=VLLM_MODELS[chance.randrange(len(VLLM_MODELS))] if serves_language else "",
    )


def loopback_address(number: int) -> str:
    """The loopback address of the fleet's node `number`: 127.20.0.1 and up, so that it meets no other server's 127.0.0.1."""
    return f"127.{20 + number // 62_500}.{number // 250 % 250}.{number % 250 + 1}"


def _gpu(seed: int, host_name: str, index: int, sku: str, mig: tuple[SliceConfig, ...] | None, workload: WorkloadConfig | None) -> GpuConfig:
    identity = _uuid(seed, f"{host_name}/gpu{index}")
    return GpuConfig(
        uuid=f"GPU-{identity}",
        index=index,
        pci_bus_id=BUS_IDS[index],
        sku=sku,
        serial=str(1_650_000_000_000 + identity.int % 10**9),
        mig=mig,
        workload=workload,
    )


def _uuid(seed: int, name: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_URL, f"masthead-simulator/{seed}/{name}")


def _phy_layout(seed: int, host_name: str, index: int, chance: random.Random) -> tuple[SliceConfig, ...]:
    parts = []
    for start in range(7):
        phy = start < 3
        workload = WorkloadConfig(PHY_NAMESPACE, f"l1-{host_name}-{index}-{start}", "cuphy") if phy else None
        if not phy and chance.random() < 0.75:
            workload = _tenant_workload(chance, "edge", host_name, index * 7 + start)
        parts.append(_slice(seed, host_name, index, "1g.10gb", start, 7 + start, "phy" if phy else "ai", workload))
    return tuple(parts)


def _ai_layout(seed: int, host_name: str, chance: random.Random) -> tuple[SliceConfig, ...]:
    shapes = (
        (("3g.40gb", 0, 2), ("2g.20gb", 4, 3), ("1g.10gb", 6, 9)),
        (("4g.40gb", 0, 1), ("3g.40gb", 4, 2)),
        (("2g.20gb", 0, 3), ("2g.20gb", 2, 4), ("3g.40gb", 4, 2)),
    )
    shape = shapes[chance.randrange(len(shapes))]
    return tuple(
        _slice(seed, host_name, 0, profile, start, instance, "ai", _tenant_workload(chance, "model", host_name, start)) for profile, start, instance in shape
    )


def _slice(seed: int, host_name: str, index: int, profile: str, start: int, instance: int, purpose: str, workload: WorkloadConfig | None) -> SliceConfig:
    return SliceConfig(
        profile=profile,
        start=start,
        gpu_instance_id=instance,
        purpose=purpose,
        mig_uuid=f"MIG-{_uuid(seed, f'{host_name}/gpu{index}/gi{instance}')}",
        workload=workload,
    )


def _tenant_workload(chance: random.Random, app: str, host_name: str, number: int) -> WorkloadConfig:
    namespace = TENANT_NAMESPACES[chance.randrange(len(TENANT_NAMESPACES))]
    tag = "".join(chance.choice("bcdfghjklmnpqrstvwxz2456789") for _ in range(5))
    container = "vllm" if app == "llm" else "server"
    return WorkloadConfig(namespace, f"{app}-{host_name.removeprefix('gpu-')}-{number}-{tag}", container)
