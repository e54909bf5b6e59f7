"""Where each site stands on wall and map: areas, regions and sites in drawing order, with a version that changes when any of them does."""

from __future__ import annotations

import gzip
import hashlib
import json
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from django.apps import apps
from django.db.models import F, Max

from console.access import Access
from console.live.scopes import RegionKey, region_key
from fleet.models import Area

KEPT = 8


@dataclass(frozen=True)
class Layout:
    version: str
    body: bytes  # JSON
    packed: bytes  # the same, gzip


_kept: OrderedDict[tuple[RegionKey, str], Layout] = OrderedDict()
_lock = threading.Lock()


def layout_version(access: Access) -> str:
    """Changes whenever an area, region or site does, or the scope. Three queries by primary key."""
    newest = [apps.get_model("fleet", name).objects.aggregate(newest=Max("pgh_id"))["newest"] for name in ("AreaEvent", "RegionEvent", "SiteEvent")]
    return hashlib.sha256(repr((newest, region_key(access))).encode()).hexdigest()[:24]


def layout_of(access: Access, version: str) -> Layout:
    """The layout of a scope; kept while its version holds."""
    key = (region_key(access), version)
    with _lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    body = json.dumps({"version": version, **read_layout(access)}, separators=(",", ":"), ensure_ascii=False).encode()
    made = Layout(version=version, body=body, packed=gzip.compress(body, 5))
    with _lock:
        _kept[key] = made
        while len(_kept) > KEPT:
            _kept.popitem(last=False)
    return made


def read_layout(access: Access) -> dict[str, Any]:
    """`areas`: [{id, slug, name}]; `regions`: [{id, slug, name, kind, area: index}]; `sites`: columns in drawing order, `region` an index.

    `feed` is the site's power feed in watts; `lat`, `lon` and `feed` are null where unknown. Three queries.
    """
    regions = list(access.regions().order_by("area__slug", "slug").values_list("pk", "slug", "name", "kind", "area_id"))
    areas = list(Area.objects.filter(pk__in={row[4] for row in regions}).order_by("slug").values("id", "slug", "name"))
    area_index = {area["id"]: index for index, area in enumerate(areas)}
    region_index = {row[0]: index for index, row in enumerate(regions)}
    rows = list(
        access.sites()
        .order_by(F("region__area__slug"), F("region__slug"), "code")
        .values_list("pk", "region_id", "code", "name", "latitude", "longitude", "power_feed_watts")
    )
    columns: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(7)]
    ids, region_ids, codes, names, latitudes, longitudes, feeds = columns
    return {
        "areas": areas,
        "regions": [{"id": pk, "slug": slug, "name": name, "kind": kind, "area": area_index[area_id]} for pk, slug, name, kind, area_id in regions],
        "sites": {
            "id": ids,
            "region": [region_index[one] for one in region_ids],
            "code": codes,
            "name": names,
            "lat": [None if one is None else round(one, 4) for one in latitudes],
            "lon": [None if one is None else round(one, 4) for one in longitudes],
            "feed": feeds,
        },
    }
