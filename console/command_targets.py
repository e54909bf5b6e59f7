"""Which targets a command is for: what a person chose, looked up in that person's scope and nowhere else.

Something outside the scope is answered as something that does not exist, and one such name refuses the whole choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Exists, OuterRef, QuerySet
from django.http import QueryDict

from console.access import Access, Right
from console.filters import GpuFilter, ListFilter, NodeFilter, SiteFilter
from fleet.control.action_facts import Wanted
from fleet.control.command_kinds import KINDS
from fleet.control.commands import CommandRefused, retry_targets
from fleet.models import Command, CommandTarget, Gpu, Node
from fleet.models.command import CommandQuerySet

MOST = 60_000
_FILTERS: Mapping[str, type[ListFilter]] = {"sites": SiteFilter, "nodes": NodeFilter, "gpus": GpuFilter}


class MissingRightOnTargets(Exception):
    """The right is not held on every region that the targets lie in; `regions` names some of them."""

    def __init__(self, right: Right, regions: Sequence[str]) -> None:
        super().__init__(f"This needs the right '{right}' in {', '.join(regions)}.")
        self.right = right
        self.regions = regions


@dataclass(frozen=True)
class Selection:
    """One of these: `sites` (codes), `nodes` (ids), `gpus` (UUIDs), `list` with `query` (as in the page's address) and `expected` (its count), or `retry_of` (a command's id)."""

    wanted: tuple[Wanted, ...]
    stored: dict[str, Any]


def resolve(access: Access, kind: str, selection: object) -> Selection:
    """The targets, nodes for kinds that act on nodes and GPUs for those that act on GPUs. Raises CommandRefused, MissingRightOnTargets."""
    found = KINDS.get(kind)
    if found is None:
        raise CommandRefused({"kind": f"None of {', '.join(KINDS)}."})
    if not isinstance(selection, dict) or len(selection.keys() & {"sites", "nodes", "gpus", "list", "retry_of"}) != 1:
        raise CommandRefused({"selection": "One of sites, nodes, gpus, list (with query and expected), retry_of."})
    if "retry_of" in selection:
        wanted = _retried(access, kind, selection["retry_of"])
    elif found.per_gpu:
        wanted = _gpus(_chosen(access, selection, gpus=True))
    else:
        wanted = _nodes(_chosen(access, selection, gpus=False))
    right = Right.VIEW if found.act.reach.value == "nothing" else Right.OPERATE
    _require(access, right, wanted)
    return Selection(tuple(wanted), dict(selection))


def _require(access: Access, right: Right, wanted: Sequence[Wanted]) -> None:
    if access.may(right):
        return
    regions = Node.objects.filter(pk__in={one.node_id for one in wanted}).order_by().values_list("site__region_id", "site__region__slug").distinct()
    missing = sorted(slug for pk, slug in regions if not access.may(right, pk))
    if missing:
        raise MissingRightOnTargets(right, missing[:5])


def _nodes(nodes: QuerySet[Any]) -> list[Wanted]:
    return [Wanted(pk) for pk in nodes.filter(retired_at__isnull=True).order_by("pk").values_list("pk", flat=True)[:MOST]]


def _gpus(gpus: QuerySet[Any]) -> list[Wanted]:
    rows = gpus.exclude(presence=Gpu.Presence.RETIRED).order_by("pk").values_list("node_id", "uuid")[:MOST]
    return [Wanted(node_id, uuid) for node_id, uuid in rows]


def _chosen(access: Access, selection: Mapping[str, Any], *, gpus: bool) -> QuerySet[Any]:
    """Nodes or GPUs of what was chosen."""
    if "list" in selection:
        name, rows = _filtered(access, selection)
    else:
        name = next(iter(selection.keys() & _FILTERS.keys()))
        rows = _named(access, name, selection[name])
    if gpus:
        paths = {"sites": "node__site__in", "nodes": "node__in"}
        return rows if name == "gpus" else access.gpus().filter(**{paths[name]: rows})
    if name == "gpus":
        return access.nodes().filter(pk__in=rows.values("node_id"))
    return rows if name == "nodes" else access.nodes().filter(site__in=rows)


def _named(access: Access, name: str, keys: object) -> QuerySet[Any]:
    if not isinstance(keys, list) or not 0 < len(keys) <= MOST:
        raise CommandRefused({f"selection.{name}": f"A list of 1 to {MOST}."})
    if name == "nodes":
        if any(isinstance(key, bool) or not isinstance(key, int) or not 0 < key < 2**63 for key in keys):
            raise CommandRefused({"selection.nodes": "Ids of nodes are whole numbers."})
        rows: QuerySet[Any] = access.nodes().filter(pk__in=keys, retired_at__isnull=True)
    else:
        if any(not isinstance(key, str) or not 0 < len(key) <= 80 or not key.isprintable() for key in keys):
            raise CommandRefused({f"selection.{name}": "Short printable texts."})
        rows = access.sites().filter(code__in=keys) if name == "sites" else access.gpus().filter(uuid__in=keys).exclude(presence=Gpu.Presence.RETIRED)
    missing = len(set(keys)) - rows.count()
    if missing:
        raise CommandRefused({f"selection.{name}": f"{missing} of them do not exist."})
    return rows


def _filtered(access: Access, selection: Mapping[str, Any]) -> tuple[str, QuerySet[Any]]:
    name, query, expected = selection["list"], selection.get("query", ""), selection.get("expected")
    if name not in _FILTERS:
        raise CommandRefused({"selection.list": f"One of {', '.join(_FILTERS)}."})
    if not isinstance(query, str) or len(query) > 4000 or "\x00" in query:
        raise CommandRefused({"selection.query": "The filter as it stands in the page's address."})
    if isinstance(expected, bool) or not isinstance(expected, int):
        raise CommandRefused({"selection.expected": "The count that was shown, a whole number."})
    parameters = QueryDict(query, mutable=True)
    for other in ("ordering", "page", "page_size", "cursor", "columns"):
        parameters.pop(other, None)
    filters = _FILTERS[name](parameters, queryset=getattr(access, name)())
    unknown = sorted(set(parameters) - set(filters.filters))
    if unknown or not filters.is_valid():
        raise CommandRefused({"selection.query": f"Unknown or wrong: {', '.join(unknown) or ', '.join(filters.errors)}."})
    count = filters.qs.count()
    if expected != count:
        raise CommandRefused({"selection.expected": f"{count} match now, not {expected}."})
    return name, filters.qs


def counted(access: Access, selection: dict[str, Any]) -> dict[str, Any]:
    """A filter whose count was not exact on its page (more than 10,000 rows) gets the exact one, which is then shown and frozen. Others stay as they are."""
    if selection.get("expected") != -1 or selection.get("list") not in _FILTERS or not isinstance(selection.get("query"), str):
        return selection
    filters = _FILTERS[selection["list"]](QueryDict(selection["query"]), queryset=getattr(access, selection["list"])())
    return {**selection, "expected": filters.qs.count() if filters.is_valid() else -1}


def _retried(access: Access, kind: str, key: object) -> list[Wanted]:
    command = visible_commands(access).filter(pk=key).first() if isinstance(key, str) and len(key) == 36 else None
    if command is None or command.kind != kind or command.state in Command.OPEN:
        raise CommandRefused({"selection.retry_of": "There is no finished command of this kind and id."})
    return retry_targets(command)


def visible_commands(access: Access) -> CommandQuerySet:
    """Commands of which every target lies in the scope."""
    if not access.is_operator_side:
        return Command.objects.none()
    if access.fleet_rank:
        return Command.objects.all()
    elsewhere = CommandTarget.objects.filter(command=OuterRef("pk")).exclude(node__site__region_id__in=access.region_ranks)
    return Command.objects.filter(~Exists(elsewhere))
