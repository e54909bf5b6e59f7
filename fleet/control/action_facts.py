"""What the guard rails must know about targets, read in the same number of queries for one and for thirty thousand."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Count, Exists, OuterRef, Q

from fleet.control.command_kinds import KINDS, CommandKind
from fleet.control.guardrails import Place, Target
from fleet.inventory import protection
from fleet.models import AgentIdentity, Breaker, CommandTarget, Freeze, Gpu, MigSlice, Node, ObjectKind, ProtectedPlacement, Workload

DAY = timedelta(hours=24)
DISRUPTIVE = tuple(name for name, kind in KINDS.items() if kind.act.disruptive)
# What a drain leaves behind until somebody uncordons.
CORDONING, UNCORDONING = "drain", "uncordon"


@dataclass(frozen=True)
class Wanted:
    """A target as it was chosen: a node, or a GPU of it by its UUID."""

    node_id: int
    gpu_uuid: str = ""

    @property
    def key(self) -> str:
        return self.gpu_uuid or f"node:{self.node_id}"


@dataclass(frozen=True)
class Facts:
    """Targets in the order in which they were wanted (those of nodes that do not exist are left out), and the sites and regions around them, by code and slug."""

    targets: tuple[Target, ...]
    sites: Mapping[str, Place]
    regions: Mapping[str, Place]


def read_facts(kind: CommandKind, wanted: Sequence[Wanted], *, now: datetime, besides: UUID | None = None) -> Facts:
    """`besides`: a command whose own targets do not count as being in flight (its primary key)."""
    ids = {one.node_id for one in wanted}
    nodes = {node.pk: node for node in Node.objects.filter(pk__in=ids).select_related("site__region__area", "agent_connection")}
    enrolled = set(AgentIdentity.objects.filter(node_id__in=ids, revoked_at__isnull=True).values_list("node_id", flat=True))
    gpus = {gpu.uuid: gpu for gpu in Gpu.objects.filter(node_id__in=ids)}
    protected = set(ProtectedPlacement.objects.filter(gpu__node_id__in=ids).exclude(gpu__presence=Gpu.Presence.RETIRED).values_list("gpu__uuid", flat=True))
    protected |= set(Gpu.objects.filter(protection.LACKS_PHY, node_id__in=ids).values_list("uuid", flat=True))
    phy_nodes = {gpus[uuid].node_id for uuid in protected if uuid in gpus}
    load = _workloads(ids)
    acts = _acts(ids, kind.name, now=now)
    acting = set(CommandTarget.objects.in_flight().filter(node_id__in=ids, command__kind__in=DISRUPTIVE).values_list("node_id", flat=True))
    covered = _Covers(now=now)
    targets = []
    for one in wanted:
        node = nodes.get(one.node_id)
        if node is None:
            continue
        gpu = gpus.get(one.gpu_uuid) if one.gpu_uuid else None
        region = node.site.region
        scope = load.get(one.gpu_uuid or one.node_id, _Load())
        place = (region.area.slug, region.slug, node.site.code, str(node.pk))
        connection = getattr(node, "agent_connection", None)
        targets.append(
            Target(
                key=one.key,
                node_id=node.pk,
                site=node.site.code,
                region=region.slug,
                area=region.area.slug,
                label=f"GPU {one.gpu_uuid} of {node.host_name}" if one.gpu_uuid else f"{node.host_name} ({node.site.code})",
                gpu_uuid=one.gpu_uuid,
                present=not one.gpu_uuid or (gpu is not None and gpu.node_id == node.pk and gpu.presence != Gpu.Presence.MISSING),
                retired=node.retired_at is not None or (gpu is not None and gpu.presence == Gpu.Presence.RETIRED),
                has_agent=node.pk in enrolled,
                reachable=connection is not None and connection.connected,
                carries_phy=one.gpu_uuid in protected if one.gpu_uuid else node.pk in phy_nodes,
                serves_phy=node.pk in phy_nodes,
                actions_today=acts[node.pk][0],
                same_actions_today=acts[node.pk][1],
                acted_on=node.pk in acting,
                frozen=covered.freeze(place),
                breaker=covered.breaker(place),
                workloads=scope.count,
                phy_workloads=scope.phy,
                tenants=tuple(sorted(scope.tenants)),
            )
        )
    sites = {target.site for target in targets}
    regions = {target.region for target in targets}
    disrupted = disrupted_nodes(regions, besides=besides)
    return Facts(tuple(targets), _sites(sites, disrupted), _regions(regions, disrupted))


class _Load:
    def __init__(self) -> None:
        self.count = self.phy = 0
        self.tenants: set[str] = set()


def _workloads(node_ids: Iterable[int]) -> dict[int | str, _Load]:
    """Running workloads by node id and by GPU UUID."""
    found: dict[int | str, _Load] = defaultdict(_Load)
    rows = Workload.objects.running().filter(gpu__node_id__in=node_ids)
    for node_id, uuid, tenant, purpose, count in rows.values_list("gpu__node_id", "gpu__uuid", "tenant_key", "slice__purpose").annotate(count=Count("pk")):
        for key in (node_id, uuid):
            load = found[key]
            if purpose == MigSlice.Purpose.PHY:
                load.phy += count
            else:
                load.count += count
                if tenant:
                    load.tenants.add(tenant)
    return found


def _acts(node_ids: Iterable[int], kind: str, *, now: datetime) -> dict[int, tuple[int, int]]:
    """Per node: disruptive acts released within the last day, and those of this kind. Acts that never began do not count."""
    rows = CommandTarget.objects.filter(node_id__in=node_ids, released_at__gt=now - DAY, command__kind__in=DISRUPTIVE).filter(
        Q(accepted_at__isnull=False) | ~Q(state__in=CommandTarget.TERMINAL)
    )
    every: Counter[int] = Counter()
    same: Counter[int] = Counter()
    for node_id, its, count in rows.values_list("node_id", "command__kind").annotate(count=Count("pk")):
        every[node_id] += count
        same[node_id] += count if its == kind else 0
    return defaultdict(lambda: (0, 0), {node_id: (every[node_id], same[node_id]) for node_id in every})


class _Covers:
    """Freezes in force and breakers that are open, asked by place (area, region, site, node)."""

    def __init__(self, *, now: datetime) -> None:
        frozen = Freeze.objects.filter(starts_at__lte=now, ends_at__gt=now, ended_at__isnull=True)
        self._freezes = {(one.scope_kind, one.scope_key): f"{one.reason} (until {one.ends_at:%Y-%m-%d %H:%M} UTC)" for one in frozen}
        self._breakers = {(one.scope_kind, one.scope_key): one.why for one in Breaker.objects.filter(reset_at__isnull=True)}

    def freeze(self, place: tuple[str, str, str, str]) -> str:
        return _covering(self._freezes, place)

    def breaker(self, place: tuple[str, str, str, str]) -> str:
        return _covering(self._breakers, place)


def _covering(found: Mapping[tuple[str, str], str], place: tuple[str, str, str, str]) -> str:
    if not found:
        return ""
    area, region, site, node = place
    keys: tuple[tuple[str, str], ...] = (
        (ObjectKind.FLEET.value, ""),
        (ObjectKind.AREA.value, area),
        (ObjectKind.REGION.value, region),
        (ObjectKind.SITE.value, site),
        (ObjectKind.NODE.value, node),
    )
    return next((found[key] for key in keys if key in found), "")


def disrupted_nodes(regions: Iterable[str], *, besides: UUID | None = None) -> dict[int, tuple[str, str]]:
    """Nodes that do no AI work because of an act of ours: {node id: (site code, region slug)}. In flight, or cordoned by a drain and not uncordoned since."""
    uncordoned = CommandTarget.objects.filter(
        node_id=OuterRef("node_id"), command__kind=UNCORDONING, state=CommandTarget.State.DONE, finished_at__gte=OuterRef("accepted_at")
    )
    within = CommandTarget.objects.filter(node__site__region__slug__in=list(regions), node__retired_at__isnull=True)
    flying = within.in_flight().filter(command__kind__in=DISRUPTIVE)
    left = within.filter(command__kind=CORDONING, accepted_at__isnull=False).filter(~Exists(uncordoned))
    if besides is not None:
        left = left.exclude(command_id=besides)
    rows = flying.values_list("node_id", "node__site__code", "node__site__region__slug").union(
        left.values_list("node_id", "node__site__code", "node__site__region__slug")
    )
    return {node_id: (site, region) for node_id, site, region in rows}


def _sites(codes: Iterable[str], disrupted: Mapping[int, tuple[str, str]]) -> dict[str, Place]:
    rows = Node.objects.filter(site__code__in=list(codes), retired_at__isnull=True)
    serving = ProtectedPlacement.objects.filter(gpu__node_id=OuterRef("pk")).exclude(gpu__presence=Gpu.Presence.RETIRED)
    counts = rows.annotate(phy=Exists(serving)).values_list("site__code").annotate(nodes=Count("pk"), serving=Count("pk", filter=Q(phy=True)))
    down: dict[str, set[int]] = defaultdict(set)
    for node_id, (site, _) in disrupted.items():
        down[site].add(node_id)
    return {code: Place(nodes=nodes, phy_nodes=phy, disrupted=frozenset(down[code])) for code, nodes, phy in counts}


def _regions(slugs: Iterable[str], disrupted: Mapping[int, tuple[str, str]]) -> dict[str, Place]:
    rows = Node.objects.filter(site__region__slug__in=list(slugs), retired_at__isnull=True)
    down: dict[str, set[int]] = defaultdict(set)
    for node_id, (_, region) in disrupted.items():
        down[region].add(node_id)
    return {slug: Place(nodes=nodes, disrupted=frozenset(down[slug])) for slug, nodes in rows.values_list("site__region__slug").annotate(nodes=Count("pk"))}
