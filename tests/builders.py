"""Small builders for rows that tests need. Each returns a saved row; everything not given has a plain default."""

import itertools
import uuid
from datetime import UTC, datetime
from typing import Any

from console.models import RoleGrant, User
from fleet.models import Area, Gpu, MigSlice, Node, ProtectedPlacement, Region, Site
from tenants.models import Membership, Tenant

T0 = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)
_numbers = itertools.count(1)


def make_area(slug: str | None = None) -> Area:
    slug = slug or f"area-{next(_numbers)}"
    return Area.objects.get_or_create(slug=slug, defaults={"name": slug.title()})[0]


def make_region(slug: str | None = None, *, area: Area | None = None, **fields: Any) -> Region:
    slug = slug or f"region-{next(_numbers)}"
    return Region.objects.create(slug=slug, name=fields.pop("name", slug.title()), area=area or make_area(), **fields)


def make_site(code: str | None = None, *, region: Region | None = None, **fields: Any) -> Site:
    code = code or f"SITE-{next(_numbers):05d}"
    return Site.objects.create(code=code, name=fields.pop("name", f"Site {code}"), region=region or make_region(), **fields)


def make_node(host_name: str | None = None, *, site: Site | None = None, **fields: Any) -> Node:
    return Node.objects.create(
        host_name=host_name or f"node-{next(_numbers)}", site=site or make_site(), role=fields.pop("role", Node.Role.INFERENCE), **fields
    )


def make_gpu(gpu_uuid: str | None = None, *, node: Node | None = None, **fields: Any) -> Gpu:
    return Gpu.objects.create(
        uuid=gpu_uuid or f"GPU-{uuid.uuid4()}",
        node=node or make_node(),
        sku=fields.pop("sku", "h100-sxm-80gb"),
        presence=fields.pop("presence", Gpu.Presence.PRESENT),
        index=fields.pop("index", 0),
        **fields,
    )


def make_phy_gpu(*, node: Node | None = None, **fields: Any) -> Gpu:
    """An H100 in the default layout: 7 × 1g, positions 0-2 PHY (protected), 3-6 AI."""
    gpu = make_gpu(node=node, mig_enabled=True, **fields)
    for start in range(7):
        purpose = MigSlice.Purpose.PHY if start < 3 else MigSlice.Purpose.AI
        MigSlice.objects.create(gpu=gpu, gpu_instance_id=7 + start, profile="1g.10gb", start=start, size=1, purpose=purpose, created_at=T0)
    for start in range(3):
        ProtectedPlacement.objects.create(gpu=gpu, start=start, size=1)
    return gpu


def make_user(username: str | None = None, *, role: str | None = None, region: Region | None = None, tenant: Tenant | None = None, **fields: Any) -> User:
    """A user with an optional role (whole fleet unless `region`) and an optional tenant membership. The password is the user name twice."""
    username = username or f"user{next(_numbers)}"
    user = User.objects.create_user(username=username, password=username * 2, **fields)
    if role:
        RoleGrant.objects.create(user=user, role=role, region=region)
    if tenant:
        Membership.objects.create(user=user, tenant=tenant, role=Membership.Role.MEMBER)
    return user


def make_tenant(key: str | None = None) -> Tenant:
    key = key or f"tenant-{next(_numbers)}"
    return Tenant.objects.create(key=key, name=key.title())
