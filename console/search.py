"""Find sites, nodes, GPUs, regions and workloads by what people type: exact identifiers first, then names that begin so, then that contain it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.db.models import Case, IntegerField, Q, QuerySet, Value, When
from django.urls import reverse

from console.access import Access
from fleet.models import Gpu, Node, Site, Workload

KINDS = ("site", "node", "gpu", "workload", "region")


@dataclass(frozen=True)
class Hit:
    kind: str
    label: str
    hint: str
    url: str
    state: str = ""  # health state, where the kind has one
    key: str = ""  # what a filter takes for it


def suggest(access: Access, text: str, *, kinds: Iterable[str] = KINDS, limit: int = 20) -> list[Hit]:
    """At most `limit` hits over all kinds, the better matches of each kind first. One query a kind."""
    text = text.strip()[:100].replace("\x00", "\N{REPLACEMENT CHARACTER}")
    if not text or not access.is_operator_side:
        return []
    wanted = [kind for kind in KINDS if kind in set(kinds)]
    found = [(rank, order, hit) for order, kind in enumerate(wanted) for rank, hit in _FIND[kind](access, text, limit)]
    found.sort(key=lambda entry: entry[:2])
    return [hit for _, _, hit in found[:limit]]


def _ranked(queryset: QuerySet, field: str, text: str, also: Q, limit: int) -> QuerySet:
    """The best `limit` rows whose `field` or others match, with `rank`: 0 exact, 1 begins so, 2 contains it. Joins are made for these alone."""
    rank = Case(
        When(**{f"{field}__iexact": text}, then=Value(0)), When(**{f"{field}__istartswith": text}, then=Value(1)), default=Value(2), output_field=IntegerField()
    )
    best = queryset.filter(Q(**{f"{field}__icontains": text}) | also).annotate(rank=rank).order_by("rank", field).values("pk")[:limit]
    return queryset.model._default_manager.filter(pk__in=best).annotate(rank=rank).order_by("rank", field)


def _sites(access: Access, text: str, limit: int) -> list[tuple[int, Hit]]:
    rows = _ranked(access.sites(), "code", text, Q(name__icontains=text), limit).select_related("region", "health")
    return [(row.rank, Hit("site", f"{row.code} {row.name}", row.region.name, reverse("site", args=[row.code]), _state(row), row.code)) for row in rows]


def _nodes(access: Access, text: str, limit: int) -> list[tuple[int, Hit]]:
    rows = _ranked(access.nodes().filter(retired_at__isnull=True), "host_name", text, Q(), limit).select_related("site", "health")
    return [(row.rank, Hit("node", row.host_name, row.site.code, reverse("node", args=[row.pk]), _state(row), row.host_name)) for row in rows]


def _gpus(access: Access, text: str, limit: int) -> list[tuple[int, Hit]]:
    """By UUID (with or without "GPU-"), by its beginning, or by the whole serial number."""
    uuid = text if text.upper().startswith(("GPU-", "MIG-")) else f"GPU-{text}"
    uuid = uuid[:4].upper() + uuid[4:].lower()
    rows = access.gpus().filter(Q(uuid__startswith=uuid) | Q(uuid=text) | Q(serial=text)).select_related("node__site", "health").order_by("uuid")[:limit]
    return [
        (
            0 if text in (row.uuid, row.serial) else 1,
            Hit("gpu", row.uuid, f"{row.node.host_name} · {row.node.site.code}", reverse("gpu", args=[row.uuid]), _state(row), row.uuid),
        )
        for row in rows
    ]


def _regions(access: Access, text: str, limit: int) -> list[tuple[int, Hit]]:
    rows = _ranked(access.regions(), "slug", text, Q(name__icontains=text), limit).select_related("area")
    return [(row.rank, Hit("region", row.name, row.area.name, reverse("region", args=[row.slug]), key=row.slug)) for row in rows]


def _workloads(access: Access, text: str, limit: int) -> list[tuple[int, Hit]]:
    """Running ones, by pod or namespace; they are shown on their GPU's page."""
    matching = access.workloads().running().filter(Q(pod__icontains=text) | Q(namespace=text.lower()))
    best = matching.order_by("pod", "pk").values("pk")[:limit]
    rows = Workload.objects.filter(pk__in=best).select_related("gpu__node__site").order_by("pod", "pk")
    return [
        (
            0 if row.pod == text else 2,
            Hit("workload", row.pod, f"{row.namespace} · {row.gpu.node.site.code}", reverse("gpu", args=[row.gpu.uuid]) + "#workloads", key=row.pod),
        )
        for row in rows
    ]


def _state(row: Site | Node | Gpu) -> str:
    health = getattr(row, "health", None)
    return health.state if health else "unknown"


_FIND = {"site": _sites, "node": _nodes, "gpu": _gpus, "workload": _workloads, "region": _regions}
