"""Rows of a whole fleet, inserted by COPY in seconds: for benchmarks and for looking at pages. Deterministic by seed.

Not how a fleet comes to be in life: that is the import, the agents and telemetry.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, models, transaction
from psycopg import sql
from psycopg.types.json import Jsonb

from fleet.models import (
    AgentConnection,
    Area,
    Finding,
    Gpu,
    GpuHealth,
    GpuReading,
    HealthTransition,
    MigSlice,
    Node,
    NodeHealth,
    ProtectedPlacement,
    Region,
    Site,
    SiteHealth,
    SliceReading,
    Workload,
)
from tenants.models import NamespaceMapping, Tenant

PLACES = ("Phoenix", "Denver", "Austin", "Tampa", "Boise", "Reno", "Omaha", "Tulsa", "Fresno", "Toledo", "Mesa", "Salem")
QUARTERS = ("Maryvale", "Riverside", "Old Town", "Airport", "Harbor", "Hillcrest", "University", "Stadium", "Market", "Lakeside")
STATES = ("ok", "degraded", "down", "unknown", "maintenance")
WHY = {
    "ok": ("reporting", "All that is expected reports, and nothing is wrong."),
    "degraded": ("hw_thermal_slowdown", "1 of 2 GPUs is slowed by heat (88 °C)."),
    "down": ("gpu_lost", "All GPUs are lost (XID 79)."),
    "unknown": ("link_down", "No sample and no heartbeat: the link to the site is down."),
    "maintenance": ("maintenance", "Planned: driver 580.95, CHG-20871."),
}
GIB = 1024**3


@dataclass(frozen=True)
class FleetCounts:
    areas: int
    regions: int
    sites: int
    nodes: int
    gpus: int
    slices: int
    workloads: int


def fill_fleet(*, sites: int, now: datetime, sites_per_region: int = 50, regions_per_area: int = 60, gpus_per_node: int = 2, seed: int = 1) -> FleetCounts:
    """Insert a fleet of `sites` sites, one node each, with GPUs (first MIG with PHY, second MIG without, then whole L40S), values, health, workloads."""
    rng = random.Random(seed)  # noqa: S311 (a made-up fleet, the same each time)
    with transaction.atomic():
        regions = _places(max(1, -(-sites // sites_per_region)), regions_per_area)
        site_ids = _sites(sites, regions, sites_per_region, rng)
        states = [rng.choices(STATES, (93, 3, 1, 2, 1))[0] for _ in range(sites)]
        node_ids = _nodes(site_ids, states, now, rng)
        gpus = _gpus(node_ids, gpus_per_node, now, rng)
        slice_count, workload_count = _slices_and_workloads(gpus, now, rng)
        _health(site_ids, node_ids, gpus, states, gpus_per_node, now, rng)
        _readings(gpus, states, gpus_per_node, now, rng)
        _findings(site_ids, gpus, states, gpus_per_node, now)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    return FleetCounts(Area.objects.count(), len(regions), len(site_ids), len(node_ids), len(gpus), slice_count, workload_count)


def copy_rows(model: type[models.Model], fields: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """COPY into the model's table; values as psycopg takes them, foreign keys by `<name>_id`."""
    names = {name: str(field.column) for field in model._meta.concrete_fields for name in (field.name, field.attname)}
    identifiers: list[sql.Composable] = [sql.Identifier(names[name]) for name in fields]
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(model._meta.db_table), sql.SQL(", ").join(identifiers))
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for row in rows:
            copy.write_row(row)


def _has(model: type[models.Model], name: str) -> bool:
    return any(field.name == name for field in model._meta.concrete_fields)


def _ids(queryset: models.QuerySet[Any], *order: str) -> list[int]:
    return list(queryset.order_by(*order).values_list("pk", flat=True))


def _places(count: int, regions_per_area: int) -> list[tuple[int, str]]:
    areas = -(-count // regions_per_area)
    first = Area.objects.bulk_create([Area(slug=f"area-{n:02d}", name=f"{PLACES[n % len(PLACES)]} market") for n in range(areas)])
    names = [f"{PLACES[n % len(PLACES)]} {n // len(PLACES) + 1}" if n >= len(PLACES) else PLACES[n] for n in range(count)]
    rows = [Region(area=first[n // regions_per_area], slug=f"{names[n].lower().replace(' ', '-')}", name=names[n]) for n in range(count)]
    return [(region.pk, region.slug) for region in Region.objects.bulk_create(rows)]


def _sites(count: int, regions: list[tuple[int, str]], per_region: int, rng: random.Random) -> list[int]:
    def rows() -> Iterator[Sequence[Any]]:
        for n in range(count):
            region_id, slug = regions[n // per_region]
            name = f"{QUARTERS[n % len(QUARTERS)]} {n % per_region}"
            yield region_id, f"{slug[:3].upper()}-{n:05d}", name, "cell", rng.uniform(26, 47), rng.uniform(-120, -75), "America/Phoenix", "A+B 2N", 12000, 1

    copy_rows(Site, ["region_id", "code", "name", "kind", "latitude", "longitude", "time_zone", "power_feed", "power_feed_watts", "expected_nodes"], rows())
    return _ids(Site.objects.all(), "pk")[-count:]


def _nodes(site_ids: list[int], states: list[str], now: datetime, rng: random.Random) -> list[int]:
    drivers = ("580.82.07", "580.95.05")
    fields = ["site_id", "host_name", "role", "driver_version", "cuda_version", "kubelet_version", "agent_version", "boot_id", "topology", "exporter_address",
              "triton_address", "vllm_address", "node_exporter_address", "expected_gpus", "last_seen_at", "numa_nodes"]  # fmt: skip
    topology = Jsonb(
        {
            "devices": ["GPU0", "GPU1", "NIC0"],
            "links": {"GPU0": {"GPU1": "NV18", "NIC0": "PIX"}, "GPU1": {"GPU0": "NV18", "NIC0": "SYS"}, "NIC0": {"GPU0": "PIX", "GPU1": "SYS"}},
            "numa": {"GPU0": 0, "GPU1": 1},
            "cpus": {"GPU0": "0-31", "GPU1": "32-63"},
            "nics": {"NIC0": "mlx5_0"},
        }
    )
    extra = {name: value for name, value in (("sources", Jsonb({})),) if _has(Node, name)}
    rows = (
        [
            site_id,
            f"gpu-{n:05d}-1",
            "du",
            rng.choice(drivers),
            "13.0",
            "v1.33.4",
            "0.1.0",
            "",
            topology,
            "10.0.0.1:9400",
            "",
            "",
            "",
            2,
            now,
            2,
            *extra.values(),
        ]
        for n, site_id in enumerate(site_ids)
    )
    copy_rows(Node, [*fields, *extra], rows)
    ids = _ids(Node.objects.all(), "pk")[-len(site_ids) :]
    contact = {name: 0 for name in ("clock_offset_seconds",) if _has(AgentConnection, name)}
    connections = [
        AgentConnection(
            node_id=pk,
            gateway="g1",
            connected=state != "unknown",
            connected_at=now - timedelta(hours=5),
            heartbeat_at=now,
            disconnected_at=now if state == "unknown" else None,
            **contact,
        )
        for pk, state in zip(ids, states, strict=True)
    ]
    AgentConnection.objects.bulk_create(connections, batch_size=5000)
    return ids


def _gpus(node_ids: list[int], per_node: int, now: datetime, rng: random.Random) -> list[tuple[int, str, int]]:
    """(id, uuid, index on the node)."""
    found = []
    for node_id in node_ids:
        for index in range(per_node):
            found.append((node_id, index, f"GPU-{uuid.UUID(int=rng.getrandbits(128), version=4)}"))
    fields = ["uuid", "node_id", "sku", "index", "pci_bus_id", "serial", "mig_enabled", "presence", "first_seen_at", "last_seen_at"]
    extra = {name: value for name, value in (("sources", Jsonb({})),) if _has(Gpu, name)}
    rows = (
        [
            text,
            node_id,
            "h100-sxm-80gb" if index < 2 else "l40s-48gb",
            index,
            f"0000:{27 + index * 8:02x}:00.0",
            f"165{n:010d}",
            index < 2,
            "present",
            now - timedelta(days=90),
            now,
            *extra.values(),
        ]
        for n, (node_id, index, text) in enumerate(found)
    )
    copy_rows(Gpu, [*fields, *extra], rows)
    ids = _ids(Gpu.objects.all(), "pk")[-len(found) :]
    return [(pk, text, index) for pk, (_, index, text) in zip(ids, found, strict=True)]


def _slices_and_workloads(gpus: list[tuple[int, str, int]], now: datetime, rng: random.Random) -> tuple[int, int]:
    tenants = [Tenant.objects.get_or_create(key=key, defaults={"name": name})[0] for key, name in (("acme", "Acme Vision"), ("globex", "Globex Mobility"))]
    for tenant in tenants:
        NamespaceMapping.objects.get_or_create(tenant=tenant, namespace=f"{tenant.key}-prod", site=None)
    layouts = ([(n, 1) for n in range(7)], [(0, 4), (4, 2), (6, 1)])
    profiles = {1: "1g.10gb", 2: "2g.20gb", 4: "4g.40gb"}
    spans = [(pk, index, number, start, size) for pk, _, index in gpus if index < 2 for number, (start, size) in enumerate(layouts[index])]
    copy_rows(
        MigSlice,
        ["gpu_id", "gpu_instance_id", "compute_instance_id", "mig_uuid", "profile", "start", "size", "purpose", "created_at"],
        (
            (pk, 7 + n if size == 1 else n + 1, 0, "", profiles[size], start, size, "phy" if index == 0 and start < 3 else "ai", now - timedelta(days=30))
            for pk, index, n, start, size in spans
        ),
    )
    copy_rows(ProtectedPlacement, ["gpu_id", "start", "size"], ((pk, start, 1) for pk, _, index in gpus if index == 0 for start in range(3)))
    copy_rows(
        SliceReading,
        ["gpu_id", "gpu_instance_id", "sampled_at", "engine_active_ratio", "memory_used_bytes", "memory_free_bytes", "memory_reserved_bytes"],
        ((pk, 7 + n if size == 1 else n + 1, now, rng.random(), rng.random() * 8 * GIB * size, 2 * GIB, 0.2 * GIB) for pk, _, n, _, size in spans),
    )
    slices = MigSlice.objects.filter(purpose="ai").order_by("pk").values_list("pk", "gpu_id")
    pods = ((gpu_id, pk, *_pod(n), "mig", now - timedelta(hours=n % 200), now) for n, (pk, gpu_id) in enumerate(slices) if n % 8)
    whole = ((pk, None, *_pod(n), "whole", now - timedelta(hours=3), now) for n, (pk, _, index) in enumerate(gpus) if index >= 2)
    fields = ["gpu_id", "slice_id", "namespace", "pod", "container", "tenant_key", "sharing", "started_at", "last_seen_at"]
    copy_rows(Workload, fields, pods)
    copy_rows(Workload, fields, whole)
    return len(spans), Workload.objects.count()


def _pod(n: int) -> tuple[str, str, str, str]:
    key, model = (("acme", "yolo-v8"), ("globex", "llama-8b-fp8"))[n % 2]
    return f"{key}-prod", f"{model}-{n:07x}", "server", key


def _health(
    site_ids: list[int], node_ids: list[int], gpus: list[tuple[int, str, int]], states: list[str], per_node: int, now: datetime, rng: random.Random
) -> None:
    since = [now - timedelta(minutes=rng.randrange(3, 60 * 24 * 12)) for _ in states]
    copy_rows(
        SiteHealth,
        ["site_id", "state", "since", "cause", "why", "last_contact_at", "out_of_contact_since", "nodes_reporting", "gpus_reporting", "gpus_expected", "power_watts", "gpu_utilization_ratio"],
        (
            (pk, state, at, *WHY[state], now if state != "unknown" else at, at if state == "unknown" else None, int(state != "unknown"), _reporting(state, per_node), per_node,
             None if state == "unknown" else rng.uniform(500, 1300), None if state == "unknown" else rng.random())
            for pk, state, at in zip(site_ids, states, since, strict=True)
        ),
    )  # fmt: skip
    copy_rows(
        NodeHealth,
        ["node_id", "state", "since", "cause", "why", "heartbeat_at", "exporter_up", "exporter_up_at"],
        ((pk, state, at, *WHY[state], now, state not in ("unknown", "down"), now) for pk, state, at in zip(node_ids, states, since, strict=True)),
    )
    copy_rows(
        GpuHealth,
        ["gpu_id", "state", "since", "cause", "why", "last_xid", "last_xid_at"],
        (
            (pk, states[n // per_node], since[n // per_node], *WHY[states[n // per_node]], *((79, now) if states[n // per_node] == "down" else (None, None)))
            for n, (pk, _, _) in enumerate(gpus)
        ),
    )


def _reporting(state: str, per_node: int) -> int:
    return {"unknown": 0, "down": 0}.get(state, per_node)


def _readings(gpus: list[tuple[int, str, int]], states: list[str], per_node: int, now: datetime, rng: random.Random) -> None:
    fields = ["gpu_id", "sampled_at", "sm_clock_hertz", "memory_clock_hertz", "gpu_temperature_celsius", "temperature_margin_celsius", "power_watts", "power_limit_watts",
              "utilization_ratio", "engine_active_ratio", "memory_used_bytes", "memory_free_bytes", "pcie_replay_total", "ecc_dbe_total", "xid"]  # fmt: skip
    copy_rows(
        GpuReading,
        fields,
        (
            (pk, now - timedelta(hours=2) if states[n // per_node] == "unknown" else now - timedelta(seconds=rng.randrange(10)), rng.uniform(1.2e9, 1.98e9), 2.6e9, rng.uniform(48, 88),
             None, rng.uniform(180, 690), 700.0, rng.random(), rng.random(), rng.uniform(10, 70) * GIB, 8 * GIB, 0.0, 0.0, 0.0)
            for n, (pk, _, _) in enumerate(gpus)
        ),
    )  # fmt: skip


def _findings(site_ids: list[int], gpus: list[tuple[int, str, int]], states: list[str], per_node: int, now: datetime) -> None:
    findings, transitions = [], []
    for n, state in enumerate(states):
        if state in ("degraded", "down"):
            code, why = WHY[state]
            severity, advised = ("critical", "Drain the node and reset the GPU.") if state == "down" else ("major", "Check the site's cooling.")
            findings.append(
                Finding(
                    kind="gpu",
                    object_key=gpus[n * per_node][1],
                    site_id=site_ids[n],
                    code=code,
                    severity=severity,
                    summary=why,
                    advised_action=advised,
                    since=now - timedelta(hours=2),
                    last_at=now,
                    count=3,
                )
            )
        if state != "ok":
            code, why = WHY[state]
            code_of = HealthTransition(
                kind="site", object_key="", site_id=site_ids[n], from_state="ok", to_state=state, cause=code, why=why, at=now - timedelta(hours=2)
            )
            transitions.append(code_of)
    codes = dict(Site.objects.filter(pk__in=[row.site_id for row in transitions]).values_list("pk", "code"))
    for row in transitions:
        row.object_key = codes[row.site_id or 0]
    Finding.objects.bulk_create(findings, batch_size=5000)
    HealthTransition.objects.bulk_create(transitions, batch_size=5000)
