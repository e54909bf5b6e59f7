"""The views of the wall: everything, one per area, and saved ones (page "wall", query `area=<slug>&region=<slug>`)."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Q
from django.http import QueryDict
from django.utils.translation import gettext as _

from console.access import Access
from console.models import SavedView
from fleet.models import Region

ALL = "all"


@dataclass(frozen=True)
class WallView:
    """`region_ids` None: everything in scope."""

    slug: str
    name: str
    region_ids: tuple[int, ...] | None


def wall_views(access: Access) -> list[WallView]:
    """In the order of the key `n`. A saved view with nothing in scope is left out. Two queries."""
    regions = list(access.regions().select_related("area").order_by("area__slug", "slug"))
    views = [WallView(ALL, _("all regions"), None)]
    by_area: dict[str, list[Region]] = {}
    for region in regions:
        by_area.setdefault(region.area.slug, []).append(region)
    if len(by_area) > 1:
        views += [WallView(slug, found[0].area.name, tuple(region.pk for region in found)) for slug, found in by_area.items() if slug != ALL]
    taken = {view.slug for view in views}
    for saved in SavedView.objects.filter(Q(owner_id=access.user_id) | Q(shared=True), page="wall").order_by("name", "pk"):
        query = QueryDict(saved.query)
        areas, slugs = set(query.getlist("area")), set(query.getlist("region"))
        ids = tuple(region.pk for region in regions if region.area.slug in areas or region.slug in slugs)
        if ids and saved.slug not in taken:
            taken.add(saved.slug)
            views.append(WallView(saved.slug, saved.name, ids))
    return views
