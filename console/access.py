"""Who may see and do what: roles on regions for operators, membership for tenants' users.

Every view, API endpoint and socket starts from an `Access`' querysets. What lies outside them does not exist (404).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum

from django.contrib.auth.models import AnonymousUser
from django.db.models import QuerySet

from console.models import ApiToken, RoleGrant, User
from fleet.models import Gpu, InventoryImport, Job, Node, Region, Site, Workload
from fleet.models.gpu import WorkloadQuerySet
from tenants.models import Membership


class Right(StrEnum):
    """What a role allows. Roles contain the rights of the ones below them."""

    VIEW = "view"
    OPERATE = "operate"  # set controls, maintenance, notes
    IMPORT = "import"  # change the inventory
    APPROVE = "approve"
    ADMINISTER = "administer"  # users, roles, tokens of others, senders


_RANK = {RoleGrant.Role.VIEWER: 1, RoleGrant.Role.OPERATOR: 2, RoleGrant.Role.LEAD: 3, RoleGrant.Role.ADMINISTRATOR: 4}
_NEEDS = {Right.VIEW: 1, Right.OPERATE: 2, Right.IMPORT: 3, Right.APPROVE: 3, Right.ADMINISTER: 4}
# What a person needs for a right, in words for a 403.
ROLE_FOR = {Right.VIEW: "viewer", Right.OPERATE: "operator", Right.IMPORT: "lead", Right.APPROVE: "lead", Right.ADMINISTER: "administrator"}


@dataclass(frozen=True)
class Access:
    """The scope of one user, perhaps narrowed by an API token.

    `fleet_rank` is the rank held on the whole fleet (0: none); `region_ranks` maps region id to the rank held there.
    """

    user_id: int | None
    fleet_rank: int
    region_ranks: dict[int, int]
    tenant_keys: frozenset[str]
    tenant_admin_keys: frozenset[str]

    @property
    def is_operator_side(self) -> bool:
        """True for NOC people of any role: they see sites. False for tenants' users and for nobody."""
        return self.fleet_rank > 0 or bool(self.region_ranks)

    @property
    def region_ids(self) -> list[int] | None:
        """Regions in scope; `None` is the whole fleet."""
        return None if self.fleet_rank else sorted(self.region_ranks)

    def may(self, right: Right, region_id: int | None = None) -> bool:
        """Whether `right` is held on this region; without one, on the whole fleet."""
        rank = max(self.fleet_rank, self.region_ranks.get(region_id, 0) if region_id is not None else 0)
        return rank >= _NEEDS[right]

    def may_anywhere(self, right: Right) -> bool:
        return max([self.fleet_rank, *self.region_ranks.values()]) >= _NEEDS[right]

    @property
    def may_import(self) -> bool:
        """May change the inventory of some region at least."""
        return self.may_anywhere(Right.IMPORT)

    @property
    def is_administrator(self) -> bool:
        """Administers the whole fleet: users, tenants, senders."""
        return self.may(Right.ADMINISTER)

    def region_ids_with(self, right: Right) -> list[int] | None:
        """Regions where `right` is held; `None` is the whole fleet."""
        return None if self.may(right) else sorted(pk for pk in self.region_ranks if self.may(right, pk))

    def regions(self) -> QuerySet[Region]:
        return Region.objects.all() if self.fleet_rank else Region.objects.filter(pk__in=self.region_ranks)

    def sites(self) -> QuerySet[Site]:
        return Site.objects.all() if self.fleet_rank else Site.objects.filter(region_id__in=self.region_ranks)

    def nodes(self) -> QuerySet[Node]:
        return Node.objects.all() if self.fleet_rank else Node.objects.filter(site__region_id__in=self.region_ranks)

    def gpus(self) -> QuerySet[Gpu]:
        return Gpu.objects.all() if self.fleet_rank else Gpu.objects.filter(node__site__region_id__in=self.region_ranks)

    def workloads(self) -> WorkloadQuerySet:
        """Operators: those of their regions. Tenants' users: those of their tenants, wherever they run."""
        if self.fleet_rank:
            return Workload.objects.all()
        if self.region_ranks:
            return Workload.objects.filter(gpu__node__site__region_id__in=self.region_ranks)
        return Workload.objects.filter(tenant_key__in=self.tenant_keys) if self.tenant_keys else Workload.objects.none()

    def jobs(self) -> QuerySet[Job]:
        """One's own; administrators of the fleet see everybody's."""
        found = Job.objects.select_related("owner")
        return found if self.may(Right.ADMINISTER) else found.filter(owner_id=self.user_id or 0)

    def imports(self) -> QuerySet[InventoryImport]:
        """Those of the jobs that one sees. Without the file, which may be large."""
        return InventoryImport.objects.filter(job__in=self.jobs()).select_related("job__owner", "decided_by").defer("content")


NOBODY = Access(user_id=None, fleet_rank=0, region_ranks={}, tenant_keys=frozenset(), tenant_admin_keys=frozenset())


def access_of(user: User | AnonymousUser, token: ApiToken | None = None) -> Access:
    """The scope of `user`, never wider than `token` when the request came with one. Two queries (three with a token)."""
    if not isinstance(user, User) or not user.is_active:
        return NOBODY
    access = accesses_of([user.pk])[user.pk]
    return access if token is None else narrowed_to(access, token)


def accesses_of(user_ids: Collection[int]) -> dict[int, Access]:
    """The scope of each of these active users. Two queries, however many users."""
    fleet_ranks: dict[int, int] = dict.fromkeys(user_ids, 0)
    region_ranks: dict[int, dict[int, int]] = {user_id: {} for user_id in user_ids}
    for user_id, role, region_id in RoleGrant.objects.filter(user_id__in=user_ids).values_list("user_id", "role", "region_id"):
        rank = _RANK[RoleGrant.Role(role)]
        if region_id is None:
            fleet_ranks[user_id] = max(fleet_ranks[user_id], rank)
        else:
            region_ranks[user_id][region_id] = max(region_ranks[user_id].get(region_id, 0), rank)
    memberships: dict[int, list[tuple[str, str]]] = {user_id: [] for user_id in user_ids}
    found = Membership.objects.filter(user_id__in=user_ids, tenant__suspended_at__isnull=True).values_list("user_id", "tenant__key", "role")
    for user_id, key, role in found:
        memberships[user_id].append((key, role))
    return {
        user_id: Access(
            user_id=user_id,
            fleet_rank=fleet_ranks[user_id],
            region_ranks=region_ranks[user_id],
            tenant_keys=frozenset(key for key, _ in memberships[user_id]),
            tenant_admin_keys=frozenset(key for key, role in memberships[user_id] if role == Membership.Role.ADMIN),
        )
        for user_id in user_ids
    }


def narrowed_to(access: Access, token: ApiToken) -> Access:
    """`access` as far as the token reaches (uses its prefetched `regions`). A limited token whose regions are gone reaches nothing."""
    if not token.is_limited:
        return access
    ranks = {region.pk: rank for region in token.regions.all() if (rank := max(access.fleet_rank, access.region_ranks.get(region.pk, 0)))}
    return replace(access, fleet_rank=0, region_ranks=ranks)
