"""The demo's people, tenants, inventory and tokens. Everything is found again: running it twice changes nothing."""

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction

from console.models import RoleGrant, User
from fleet import signing
from fleet.enrolment import issue_bundles
from fleet.models import AgentIdentity, Area, Gpu, MigSlice, Node, ProtectedPlacement, Region, Sender, Site
from tenants.models import Membership, NamespaceMapping, Tenant

ROLES = {
    "viewer": RoleGrant.Role.VIEWER,
    "operator": RoleGrant.Role.OPERATOR,
    "lead": RoleGrant.Role.LEAD,
    "administrator": RoleGrant.Role.ADMINISTRATOR,
}
TENANTS = {"acme": ("Acme Vision", "tenant-acme"), "globex": ("Globex Language", "tenant-globex")}
SENDER = "demo-prometheus"
BUNDLES_VALID_FOR = timedelta(days=30)


@dataclass(frozen=True)
class Bundles:
    """Enrolment bundles by host name, and what they are good for."""

    gateway_url: str
    console_key: str
    expires_at: float
    texts: dict[str, str]


def seed_people(passwords: Mapping[str, str]) -> None:
    """One user per role on the whole fleet, and one per tenant. A password that changed is set again."""
    for name, password in passwords.items():
        user, _ = User.objects.get_or_create(username=name)
        if not user.check_password(password):
            user.set_password(password)
            user.save(update_fields=["password"])
        if name in ROLES:
            RoleGrant.objects.get_or_create(user=user, role=ROLES[name], region=None)
        else:
            title, namespace = TENANTS[name]
            tenant, _ = Tenant.objects.get_or_create(key=name, defaults={"name": title})
            Membership.objects.get_or_create(tenant=tenant, user=user, defaults={"role": Membership.Role.ADMIN})
            NamespaceMapping.objects.get_or_create(namespace=namespace, site=None, defaults={"tenant": tenant})


def seed_sender(token: str) -> None:
    """The one Prometheus of the demo: it sends for, and discovers, every region."""
    digest = hashlib.sha256(token.encode()).hexdigest()
    sender, _ = Sender.objects.update_or_create(name=SENDER, defaults={"token_hash": digest})
    sender.regions.set(Region.objects.all())


def bundles_for(known: str, *, now: datetime) -> str:
    """JSON of a bundle per node, `known` (an earlier answer, or "") again while it is good for the gateway, the key and every node."""
    nodes = list(Node.objects.filter(retired_at__isnull=True))
    key = signing.public_key().hex()
    if known:
        earlier = Bundles(**json.loads(known))
        unused = set(Node.objects.filter(retired_at__isnull=True).exclude(pk__in=AgentIdentity.objects.values("node")).values_list("host_name", flat=True))
        fresh = earlier.expires_at > now.timestamp() or not unused
        if fresh and (earlier.gateway_url, earlier.console_key) == (settings.GATEWAY_URL, key) and {node.host_name for node in nodes} <= set(earlier.texts):
            return known
    issued = issue_bundles(nodes=nodes, user=User.objects.get(username="administrator"), now=now, valid_for=BUNDLES_VALID_FOR)
    texts = {bundle.node.host_name: bundle.text for bundle in issued}
    return json.dumps(asdict(Bundles(settings.GATEWAY_URL, key, (now + BUNDLES_VALID_FOR).timestamp(), texts)))


def new_token() -> str:
    return secrets.token_urlsafe(32)


@transaction.atomic
def seed_inventory(rows: Mapping[str, list[dict[str, Any]]], *, now: datetime) -> None:
    for row in rows["sites"]:
        area, _ = Area.objects.get_or_create(slug=row["area"], defaults={"name": row["area_name"]})
        region, _ = Region.objects.get_or_create(slug=row["region"], defaults={"name": row["region_name"], "kind": row["region_kind"], "area": area})
        fields = ("name", "kind", "latitude", "longitude", "time_zone", "power_feed", "power_feed_watts", "expected_nodes")
        Site.objects.get_or_create(code=row["code"], defaults={"region": region, **{name: row[name] for name in fields}})
    sites = dict(Site.objects.values_list("code", "pk"))
    for row in rows["nodes"]:
        fields = ("role", "expected_gpus", "exporter_address", "triton_address", "vllm_address", "node_exporter_address")
        Node.objects.update_or_create(site_id=sites[row["site"]], host_name=row["host_name"], defaults={name: row[name] for name in fields})
    nodes = dict(Node.objects.values_list("host_name", "pk"))
    for row in rows["gpus"]:
        gpu, new = Gpu.objects.get_or_create(
            uuid=row["uuid"],
            defaults={
                "node_id": nodes[row["host_name"]],
                "mig_enabled": bool(row["mig"]),
                **{name: row[name] for name in ("sku", "index", "pci_bus_id", "serial")},
            },
        )
        if new and "phy" in row["mig"]:
            for start in range(3):
                MigSlice.objects.create(gpu=gpu, gpu_instance_id=7 + start, profile="1g.10gb", start=start, size=1, purpose="phy", created_at=now)
                ProtectedPlacement.objects.create(gpu=gpu, start=start, size=1)
