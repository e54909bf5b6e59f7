"""What viewers of one scope get: built once per tick, handed to all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from console.access import Access
from console.live.viewer import Viewer, bytes_message
from fleet import frames
from fleet.models import Area, Region, Site

RegionKey = tuple[int, ...] | None  # None: the whole fleet


def region_key(access: Access) -> RegionKey:
    region_ids = access.region_ids
    return None if region_ids is None else tuple(region_ids)


@dataclass
class RegionScope:
    """The sites and areas of some regions; `site_ids` sorted, None for the whole fleet."""

    site_ids: NDArray[np.uint32] | None
    area_ids: frozenset[int]

    def cut(self, cells: frames.SiteColumns) -> frames.SiteColumns:
        return cells if self.site_ids is None else frames.only_sites(cells, self.site_ids)


def load_scope(regions: RegionKey) -> RegionScope:
    if regions is None:
        return RegionScope(site_ids=None, area_ids=frozenset(Area.objects.values_list("pk", flat=True)))
    ids = np.fromiter(Site.objects.filter(region_id__in=regions).order_by("pk").values_list("pk", flat=True).iterator(), dtype=np.uint32)
    return RegionScope(site_ids=ids, area_ids=frozenset(Region.objects.filter(pk__in=regions).values_list("area_id", flat=True)))


@dataclass
class Group:
    """Viewers with the same regions and the same chosen areas."""

    scope: RegionScope
    chosen: frozenset[int] | None
    viewers: set[Viewer] = field(default_factory=set)
    _snapshots: dict[int, tuple[int, bytes]] = field(default_factory=dict)

    @property
    def area_ids(self) -> frozenset[int]:
        return self.scope.area_ids if self.chosen is None else self.scope.area_ids & self.chosen

    def deliver(self, arrived: Iterable[tuple[frames.Frame, bytes]]) -> None:
        """Offer one message with the frames of this group's areas. A delta without a row of ours goes too, so that `seq` has no gap."""
        parts: list[bytes] = []
        areas = self.area_ids
        for frame, data in arrived:
            if frame.area_id in areas:
                parts.append(data if self.scope.site_ids is None else self._cut(frame))
        if parts:
            message = bytes_message(b"".join(parts))
            for viewer in self.viewers:
                viewer.offer(message)

    def snapshots(self, wholes: Collection[frames.Frame]) -> list[dict[str, Any]]:
        """One message with the snapshots of this group's areas among `wholes`; none when there are none yet."""
        parts: list[bytes] = []
        for whole in wholes:
            if whole.area_id not in self.area_ids:
                continue
            seq, data = self._snapshots.get(whole.area_id, (-1, b""))
            if seq != whole.seq:
                data = self._cut(whole)
                self._snapshots[whole.area_id] = (whole.seq, data)
            parts.append(data)
        return [bytes_message(b"".join(parts))] if parts else []

    def renew(self, scope: RegionScope) -> None:
        self.scope = scope
        self._snapshots.clear()

    def _cut(self, frame: frames.Frame) -> bytes:
        return frames.encode(frames.Frame(frame.kind, frame.area_id, frame.made_at, frame.seq, self.scope.cut(frame.columns)))
