"""Who can be heard: contact of every node, site and region at once, told apart by who else still speaks. Pure: numpy, no Django.

Behind one cut all last words lie within `Thresholds.together_seconds`. So somebody is silent *alone* only when another one spoke later than that,
and until this can be said the contact is undecided. Times are Unix seconds; NaN is never.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.health.facts import Contact, Thresholds

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Codes = NDArray[np.int8]
Rows = NDArray[np.int32]

CONTACTS: tuple[Contact, ...] = tuple(Contact)
CODE: dict[Contact, np.int8] = {contact: np.int8(number) for number, contact in enumerate(CONTACTS)}


@dataclass(frozen=True, eq=False)
class RegionSilence:
    """More than the allowed share of a region fell silent together. `agents_heard`: only telemetry is gone, so it is the region's Prometheus."""

    silent: int
    of: int
    since: float
    agents_heard: bool


@dataclass(frozen=True, eq=False)
class ContactView:
    """Contact at one moment. [n] nodes, [m] sites; codes index `CONTACTS`."""

    exporter_at: Floats  # newest GPU sample, or `up` = 1, of the node
    exporter_fresh: Flags
    agent_alive: Flags
    agent_silent: Flags  # enrolled, yet silent while telemetry went on
    node: Codes
    node_at: Floats
    site: Codes
    site_at: Floats
    regions: dict[int, RegionSilence]


def newest_by(rows: NDArray[np.integer], values: Floats, count: int) -> Floats:
    """The greatest value per row; NaN where there is none. NaN values count for nothing."""
    best = np.full(count, -np.inf)
    known = ~np.isnan(values) & (rows >= 0)
    np.maximum.at(best, rows[known], values[known])
    best[best == -np.inf] = np.nan
    return best


def view_contact(
    *,
    now: float,
    thresholds: Thresholds,
    gpu_at: Floats,
    gpu_node_row: Rows,
    up: Floats,
    up_time: Floats,
    heartbeat: Floats,
    has_agent: Flags,
    node_active: Flags,
    node_site_row: Rows,
    site_region: Sequence[int] | NDArray[np.int64],
) -> ContactView:
    """The contact of all nodes and sites. `gpu_at` [g] is NaN for GPUs that do not count (retired)."""
    nodes, sites = len(up), len(site_region)
    together = thresholds.together_seconds
    with np.errstate(invalid="ignore"):
        exporter_at = np.fmax(newest_by(gpu_node_row, gpu_at, nodes), np.where(up == 1, up_time, np.nan))
        exporter_fresh = (now - exporter_at <= thresholds.unknown_seconds) & node_active
        heard = now - heartbeat <= thresholds.agent_seconds
        later = np.isnan(exporter_at) | exporter_fresh | (heartbeat > exporter_at + thresholds.heartbeat_seconds)
        agent_alive = heard & later & node_active
        # The heartbeat is as old as the last sample: the next one, due any second, will tell.
        awaited = heard & ~later & (now - heartbeat <= 1.5 * thresholds.heartbeat_seconds) & node_active
        agent_silent = has_agent & exporter_fresh & ~heard & ~(exporter_at <= heartbeat + 2 * thresholds.heartbeat_seconds)
        node_at = np.where(node_active, np.fmax(exporter_at, heartbeat), np.nan)

    rows = np.where(node_active, node_site_row, -1)
    site_at = newest_by(rows, node_at, sites)
    speaking = exporter_fresh | agent_alive | awaited
    site_speaks = np.bincount(rows[speaking & (rows >= 0)], minlength=sites) > 0
    site_ever = ~np.isnan(site_at)

    node_ever = ~np.isnan(node_at)
    silent = node_ever & ~speaking
    site_of = np.maximum(rows, 0)
    with_site = rows >= 0
    neighbours = with_site & site_speaks[site_of] if sites else np.zeros(nodes, dtype=np.bool_)
    with np.errstate(invalid="ignore"):
        alone = (site_at[site_of] > node_at + together) if sites else np.zeros(nodes, dtype=np.bool_)
    node = np.full(nodes, CODE[Contact.NEVER], dtype=np.int8)
    node[exporter_fresh] = CODE[Contact.REPORTING]
    node[~exporter_fresh & agent_alive] = CODE[Contact.EXPORTER_DOWN]
    node[~exporter_fresh & ~agent_alive & awaited] = CODE[Contact.UNDECIDED]
    node[silent & ~neighbours] = CODE[Contact.LINK_DOWN]
    node[silent & neighbours] = CODE[Contact.UNDECIDED]
    node[silent & neighbours & alone & has_agent] = CODE[Contact.NODE_DOWN]
    node[silent & neighbours & alone & ~has_agent] = CODE[Contact.EXPORTER_DOWN]

    site = np.full(sites, CODE[Contact.NEVER], dtype=np.int8)
    site[site_speaks] = CODE[Contact.REPORTING]
    only_undecided = np.bincount(rows[(node == CODE[Contact.UNDECIDED]) & with_site], minlength=sites) > 0
    site[site_speaks & only_undecided] = CODE[Contact.UNDECIDED]
    site[site_ever & ~site_speaks] = CODE[Contact.LINK_DOWN]

    region = np.asarray(site_region, dtype=np.int64)
    regions, members = _silent_regions(region, site == CODE[Contact.LINK_DOWN], site_ever, site_at, thresholds, agents_heard=False)
    if len(members):
        site[members] = CODE[Contact.REGION_SILENT]
        node[(node == CODE[Contact.LINK_DOWN]) & with_site & (site[site_of] == CODE[Contact.REGION_SILENT])] = CODE[Contact.REGION_SILENT]

    # Telemetry alone is gone from most of a region while agents speak: its Prometheus. A fresh `up` = 0 says the opposite: it lives and cannot scrape.
    with np.errstate(invalid="ignore"):
        scraped = (up == 0) & (now - up_time <= thresholds.unknown_seconds)
    deaf = (node == CODE[Contact.EXPORTER_DOWN]) & agent_alive & ~scraped & ~np.isnan(exporter_at) & with_site
    if deaf.any():
        ever = ~np.isnan(exporter_at) & with_site & node_active
        by_node, members = _silent_regions(region[site_of], deaf, ever, exporter_at, thresholds, agents_heard=True)
        node[members] = CODE[Contact.REGION_SILENT]
        node_at[members] = exporter_at[members]
        regions = by_node | regions
    return ContactView(
        exporter_at=exporter_at,
        exporter_fresh=exporter_fresh,
        agent_alive=agent_alive,
        agent_silent=agent_silent,
        node=node,
        node_at=node_at,
        site=site,
        site_at=site_at,
        regions=regions,
    )


def _silent_regions(
    region: NDArray[np.int64], silent: Flags, ever: Flags, at: Floats, thresholds: Thresholds, *, agents_heard: bool
) -> tuple[dict[int, RegionSilence], NDArray[np.intp]]:
    """Regions of which more than the allowed share of members that ever spoke fell silent together, and the rows of all that did."""
    found: dict[int, RegionSilence] = {}
    together: list[NDArray[np.intp]] = [np.empty(0, dtype=np.intp)]
    rows = np.flatnonzero(silent)
    if len(rows) < thresholds.region_silent_sites:
        return found, together[0]
    rows = rows[np.argsort(region[rows], kind="stable")]
    numbers, starts, counts = np.unique(region[rows], return_index=True, return_counts=True)
    spoke, totals = np.unique(region[ever], return_counts=True)
    total_of = dict(zip(spoke.tolist(), totals.tolist(), strict=True))
    for number, start, count in zip(numbers.tolist(), starts.tolist(), counts.tolist(), strict=True):
        total = total_of.get(number, 0)
        if count < thresholds.region_silent_sites or count <= thresholds.region_silent_ratio * total:
            continue
        members = rows[start : start + count]
        members = members[np.abs(at[members] - np.median(at[members])) <= 2 * thresholds.together_seconds]
        if len(members) >= thresholds.region_silent_sites and len(members) > thresholds.region_silent_ratio * total:
            found[number] = RegionSilence(len(members), total, float(at[members].max()), agents_heard)
            together.append(members)
    return found, np.concatenate(together)
