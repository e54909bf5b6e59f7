"""Who may see and do what: roles on regions for operators, membership for tenants' users.

Every view, API endpoint and socket starts from an `Access`' querysets. What lies outside them does not exist (404).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from django.contrib.auth.models import AnonymousUser
from django.db.models import QuerySet

from console.models import ApiToken, RoleGrant, User
from fleet.models import Gpu, Node, Region, Site, Workload
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

    def regions(self) -> QuerySet[Region]:
        return Region.objects.all() if self.fleet_rank else Region.objects.filter(pk__in=self.region_ranks)

    def sites(self) -> QuerySet[Site]:
        return Site.objects.all() if self.fleet_rank else Site.objects.filter(region_id__in=self.region_ranks)

    def nodes(self) -> QuerySet[Node]:
        return Node.objects.all() if self.fleet_rank else Node.objects.filter(site__region_id__in=self.region_ranks)

    def gpus(self) -> QuerySet[Gpu]:
        return Gpu.objects.all() if self.fleet_rank else Gpu.objects.filter(node__site__region_id__in=self.region_ranks)

    def workloads(self) -> QuerySet[Workload]:
        """Operators: those of their regions. Tenants' users: those of their tenants, wherever they run."""
        if self.fleet_rank:
            return Workload.objects.all()
        if self.region_ranks:
            return Workload.objects.filter(gpu__node__site__region_id__in=self.region_ranks)
        return Workload.objects.filter(tenant_key__in=self.tenant_keys) if self.tenant_keys else Workload.objects.none()


NOBODY = Access(user_id=None, fleet_rank=0, region_ranks={}, tenant_keys=frozenset(), tenant_admin_keys=frozenset())


def access_of(user: User | AnonymousUser, token: ApiToken | None = None) -> Access:
    """The scope of `user`, never wider than `token` when the request came with one. Two queries (three with a token)."""
    if not isinstance(user, User) or not user.is_active:
        return NOBODY
    fleet_rank = 0
    region_ranks: dict[int, int] = {}
    for role, region_id in RoleGrant.objects.filter(user=user).values_list("role", "region_id"):
        rank = _RANK[RoleGrant.Role(role)]
        if region_id is None:
            fleet_rank = max(fleet_rank, rank)
        else:
            region_ranks[region_id] = max(region_ranks.get(region_id, 0), rank)
    memberships = list(Membership.objects.filter(user=user, tenant__suspended_at__isnull=True).values_list("tenant__key", "role"))
    if token is not None:
        narrowed = list(token.regions.values_list("pk", flat=True))
        if narrowed:
            region_ranks = {pk: rank for pk in narrowed if (rank := max(fleet_rank, region_ranks.get(pk, 0)))}
            fleet_rank = 0
    return Access(
        user_id=user.pk,
        fleet_rank=fleet_rank,
        region_ranks=region_ranks,
        tenant_keys=frozenset(key for key, _ in memberships),
        tenant_admin_keys=frozenset(key for key, role in memberships if role == Membership.Role.ADMIN),
    )
