"""The kinds of object that an import changes: what the inventory holds of them, what may refer to what, how they are written.

A target is loaded for the keys of one file (a few statements, whatever the number of rows) and then answers row by row without a query.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import models

from fleet.bulk import update_rows
from fleet.inventory.importing.check import CheckedRow
from fleet.inventory.importing.columns import SITES, Kind, Value
from fleet.models import Area, Node, Region, Site

Values = Mapping[str, Value]
_PART = 5000
CREATED_AT_ONCE = 2000
Advance = Callable[[int], Any]


def parts(items: Sequence[Any], size: int = _PART) -> Iterable[Sequence[Any]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]


class Target(ABC):
    """`load` before all else. `held` are the objects that the inventory has, by key."""

    kind: Kind
    model: type[models.Model]

    def __init__(self, region_ids: Iterable[int] | None, now: datetime) -> None:
        """`region_ids`: regions that may be changed; None is the whole fleet."""
        self.region_ids = None if region_ids is None else set(region_ids)
        self.now = now
        self.held: dict[str, Any] = {}

    @staticmethod
    @abstractmethod
    def key_of(values: Values) -> str: ...

    @abstractmethod
    def load(self, rows: Sequence[Values], *, lock: bool) -> None:
        """Fetch the objects that these rows name and those that they refer to; `lock` them for writing."""

    @abstractmethod
    def check(self, row: CheckedRow) -> None:
        """Add the errors that need the inventory: what the row refers to, and whether it may be changed."""

    @abstractmethod
    def regions_of(self, key: str, values: Values) -> set[int | None]:
        """Regions that a row touches: where the object is now, and where the row puts it. None is a place that does not exist."""

    def may_write(self, key: str, values: Values) -> bool:
        """Whether the row may be written now: rights end and sites move between check and apply."""
        return self.region_ids is None or self.regions_of(key, values) <= self.region_ids

    @abstractmethod
    def current(self, held: Any) -> dict[str, Value]:
        """An object of the inventory as a row of the import would write it."""

    def complete(self, values: Values) -> dict[str, Value]:
        """The values of a new object: what the row does not say gets its default."""
        return {column.name: values.get(column.name, column.default) for column in self.kind.columns if column.name not in self.not_kept}

    not_kept: tuple[str, ...] = ()  # columns that are no property of the object itself

    def observed(self, held: Any, field: str) -> bool:
        """Whether what the inventory holds there was seen (by an agent or telemetry), so that a row that says otherwise is a conflict."""
        return False

    @abstractmethod
    def create(self, rows: Sequence[Values], advance: Advance) -> None: ...

    @abstractmethod
    def update(self, changes: Sequence[tuple[str, Values]], advance: Advance) -> None:
        """Write these values over the held objects of these keys."""

    @abstractmethod
    def users(self, keys: Sequence[str]) -> dict[str, str]:
        """Which of these objects cannot be deleted again, and why."""

    def delete(self, keys: Sequence[str], advance: Advance) -> None:
        for part in parts(keys, CREATED_AT_ONCE):
            self.model._default_manager.filter(pk__in=[self.held[key].pk for key in part]).delete()
            advance(len(part))

    def made(self) -> dict[str, Any]:
        """What else was made on the way, for the undo."""
        return {}

    def unmake(self, made: Mapping[str, Any]) -> None:  # noqa: B027 - most make nothing else
        """Take away what `made` names, where nothing uses it by now."""

    def may_change(self, region_id: int) -> bool:
        return self.region_ids is None or region_id in self.region_ids


class SiteTarget(Target):
    kind = SITES
    model = Site
    not_kept = ("area",)
    _fields = ("name", "region", "kind", "latitude", "longitude", "time_zone", "power_feed", "power_feed_watts", "expected_nodes")

    def __init__(self, region_ids: Iterable[int] | None, now: datetime) -> None:
        super().__init__(region_ids, now)
        self.regions: dict[str, Region] = {}
        self.areas: dict[str, Area] = {}
        self._made: dict[str, list[str]] = {"areas": [], "regions": []}

    @staticmethod
    def key_of(values: Values) -> str:
        return str(values["code"])

    def load(self, rows: Sequence[Values], *, lock: bool) -> None:
        self.regions = {region.slug: region for region in Region.objects.select_related("area")}
        self.areas = {area.slug: area for area in Area.objects.all()}
        codes = sorted({str(row["code"]) for row in rows if row.get("code")})
        for part in parts(codes):
            sites = Site.objects.filter(code__in=part).order_by("pk")
            self.held.update({site.code: site for site in (sites.select_for_update() if lock else sites)})
        slugs = {region.pk: region for region in self.regions.values()}
        for site in self.held.values():
            site.region = slugs[site.region_id]

    def regions_of(self, key: str, values: Values) -> set[int | None]:
        held, region = self.held.get(key), self.regions.get(str(values.get("region")))
        return ({held.region_id} if held is not None else set()) | ({region.pk if region else None} if values.get("region") else set())

    def check(self, row: CheckedRow) -> None:
        held = self.held.get(row.key)
        if held is not None and not self.may_change(held.region_id):
            row.refuse("code", "is not yours to use.")
            return
        slug, area = row.values.get("region"), row.values.get("area")
        if not isinstance(slug, str):
            return
        region = self.regions.get(slug)
        if region is None:
            if not area:
                row.refuse("region", f"{slug!r} does not exist; give its area too, and it is added.")
            elif self.region_ids is not None:
                row.refuse("region", f"{slug!r} does not exist, and only who may change the whole fleet can add it.")
        elif not self.may_change(region.pk):
            row.refuse("region", f"{slug!r} is not yours to change.")
        elif area and region.area.slug != area:
            row.refuse("area", f"the region {slug!r} lies in the area {region.area.slug!r}, not in {area!r}.")

    def current(self, held: Site) -> dict[str, Value]:
        return {
            "code": held.code,
            "name": held.name,
            "region": held.region.slug,
            "kind": held.kind,
            "latitude": held.latitude,
            "longitude": held.longitude,
            "time_zone": str(held.time_zone),
            "power_feed": held.power_feed,
            "power_feed_watts": held.power_feed_watts,
            "expected_nodes": held.expected_nodes,
        }

    def complete(self, values: Values) -> dict[str, Value]:
        complete = super().complete(values)
        complete["name"] = complete["name"] or complete["code"]
        return complete

    def _assign(self, site: Site, values: Values) -> None:
        for name in self._fields:
            if name not in values:
                continue
            if name == "region":
                site.region = self.regions[str(values["region"])]
            else:
                setattr(site, name, (values[name] or site.code) if name == "name" else values[name])

    def _make_regions(self, rows: Sequence[Values]) -> None:
        for values in rows:
            slug, area_slug = str(values["region"]), values.get("area")
            if slug in self.regions or not isinstance(area_slug, str):
                continue
            if area_slug not in self.areas:
                self.areas[area_slug] = Area.objects.create(slug=area_slug, name=area_slug)
                self._made["areas"].append(area_slug)
            self.regions[slug] = Region.objects.create(slug=slug, name=slug, area=self.areas[area_slug])
            self._made["regions"].append(slug)

    def create(self, rows: Sequence[Values], advance: Advance) -> None:
        self._make_regions(rows)
        for part in parts(rows, CREATED_AT_ONCE):
            sites = []
            for values in part:
                site = Site(code=str(values["code"]))
                self._assign(site, self.complete(values))
                sites.append(site)
            Site.objects.bulk_create(sites)
            advance(len(part))

    def update(self, changes: Sequence[tuple[str, Values]], advance: Advance) -> None:
        self._make_regions([values for _, values in changes if "region" in values])
        for part in parts(changes):
            for key, values in part:
                self._assign(self.held[key], values)
            update_rows(Site, self._fields, [self.held[key] for key, _ in part])
            advance(len(part))

    def users(self, keys: Sequence[str]) -> dict[str, str]:
        used: dict[str, str] = {}
        for part in parts(keys):
            ids = {self.held[key].pk: key for key in part}
            for site_id in Node.objects.filter(site_id__in=ids).values_list("site_id", flat=True).distinct():
                used[ids[site_id]] = "has nodes by now."
        return used

    def made(self) -> dict[str, Any]:
        return {name: slugs for name, slugs in self._made.items() if slugs}

    def unmake(self, made: Mapping[str, Any]) -> None:
        Region.objects.filter(slug__in=made.get("regions", []), sites__isnull=True, senders__isnull=True).delete()
        Area.objects.filter(slug__in=made.get("areas", []), regions__isnull=True).delete()
