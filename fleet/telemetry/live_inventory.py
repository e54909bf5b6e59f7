"""The inventory in the rows of the live state, refreshed while the process runs."""

from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
from django.db import connection

from fleet.inventory.host_names import host_label
from fleet.models import AgentConnection, Area, Gpu, Node, Site
from fleet.telemetry.ingest import Ingest
from fleet.telemetry.live_state import Ints, LiveState

_CHUNK = 10_000
# Each version of a row that matters here is a row of one of these: their newest numbers change when the inventory does.
_VERSIONS = ("fleet_areaevent", "fleet_regionevent", "fleet_siteevent", "fleet_nodeevent", "fleet_gpuevent")
Version = tuple[int | None, ...]


class UnknownArea(ValueError):
    """No area has this slug."""


@dataclass
class Inventory:
    """What the process covers, read in one go."""

    version: Version
    sites: list[tuple[int, str, int, int]] = field(default_factory=list)  # id, code, area id, region id
    nodes: list[tuple[int, str, int]] = field(default_factory=list)  # id, host name, site id
    gpus: list[tuple[int, str, int]] = field(default_factory=list)  # id, UUID, node id


def read_version() -> Version:
    """Changes whenever a site, node or GPU does. One cheap statement."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT " + ", ".join(f"(SELECT max(pgh_id) FROM {table})" for table in _VERSIONS))  # noqa: S608 - constant names
        return tuple(cursor.fetchone())


def find_areas(slugs: list[str]) -> list[int] | None:
    """Database ids of these areas; None for the whole fleet. Raises UnknownArea naming the slug."""
    if not slugs:
        return None
    ids = dict(Area.objects.filter(slug__in=slugs).values_list("slug", "id"))
    missing = [slug for slug in slugs if slug not in ids]
    if missing:
        raise UnknownArea(f"--areas: no area is called {missing[0]!r}")
    return list(ids.values())


def read_inventory(area_ids: list[int] | None) -> Inventory:
    """All sites, nodes and GPUs in use of these areas (None: the whole fleet)."""
    version = read_version()
    sites, nodes, gpus = Site.objects.all(), Node.objects.filter(retired_at__isnull=True), Gpu.objects.exclude(presence=Gpu.Presence.RETIRED)
    gpus = gpus.filter(node__retired_at__isnull=True)
    if area_ids is not None:
        sites = sites.filter(region__area_id__in=area_ids)
        nodes = nodes.filter(site__region__area_id__in=area_ids)
        gpus = gpus.filter(node__site__region__area_id__in=area_ids)
    return Inventory(
        version,
        list(sites.order_by("id").values_list("id", "code", "region__area_id", "region_id").iterator(chunk_size=_CHUNK)),
        list(nodes.order_by("id").values_list("id", "host_name", "site_id").iterator(chunk_size=_CHUNK)),
        list(gpus.order_by("id").values_list("id", "uuid", "node_id").iterator(chunk_size=_CHUNK)),
    )


def apply_inventory(state: LiveState, inventory: Inventory, ingest: Ingest | None = None) -> None:
    """Bring the rows up to date; what left the inventory becomes inactive. Series that waited for something new are read anew."""
    site_ids, node_ids = {row[0] for row in inventory.sites}, {row[0] for row in inventory.nodes}
    # Read at slightly different moments: what stands on something not read yet comes with the next refresh.
    nodes = [row for row in inventory.nodes if row[2] in site_ids]
    gpus = [row for row in inventory.gpus if row[2] in node_ids]
    before = _active(state)
    places = _places(state)
    state.site_active[:] = state.node_active[:] = state.gpu_active[:] = False
    state.add_sites(inventory.sites)
    state.add_nodes(nodes)
    state.add_gpus(gpus)
    if ingest is None:
        return
    now_active = _active(state)
    ingest.table.forget_waiting(now_active - before)
    gpu_rows, node_rows = (np.flatnonzero(old != new[: len(old)]) for old, new in zip(places, _places(state), strict=True))
    if len(gpu_rows) or len(node_rows):
        ingest.table.forget_rows(gpu_rows, node_rows, state.slice_gpu_row)
    if before != now_active:
        ingest.sightings.forget_unknown()


def _places(state: LiveState) -> tuple[Ints, Ints]:
    """Region of each GPU and of each node, by row; -1 when it is not in use. A series is taken for the place that its GPU or node had."""
    region = state.site_region
    gpus = np.where(state.gpu_active, region[state.gpu_site_row] if len(region) else -1, -1)
    nodes = np.where(state.node_active, region[state.node_site_row] if len(region) else -1, -1)
    return gpus, nodes


def _active(state: LiveState) -> set[str]:
    """Names of everything that a series may wait for, as `SeriesTable.ignore(until_known=…)` names it."""
    return {
        *(f"site:{state.site_code[row]}" for row in state.site_active.nonzero()[0]),
        *(f"host:{host_label(state.node_host[row])}" for row in state.node_active.nonzero()[0]),
        *(f"gpu:{state.gpu_uuid[row]}" for row in state.gpu_active.nonzero()[0]),
    }


def read_heartbeats(area_ids: list[int] | None, since: float) -> list[tuple[int, float]]:
    """(node id, Unix seconds) of agents' heartbeats newer than `since`."""
    rows = AgentConnection.objects.filter(heartbeat_at__gt=datetime.fromtimestamp(since, tz=UTC))
    if area_ids is not None:
        rows = rows.filter(node__site__region__area_id__in=area_ids)
    return [(node_id, at.timestamp()) for node_id, at in rows.values_list("node_id", "heartbeat_at").iterator(chunk_size=_CHUNK) if at is not None]


def apply_heartbeats(state: LiveState, beats: list[tuple[int, float]]) -> None:
    for node_id, at in beats:
        row = state.node_row_of_id.get(node_id)
        if row is not None and not at <= state.node_heartbeat[row]:
            state.node_heartbeat[row] = at
