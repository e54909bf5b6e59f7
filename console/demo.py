"""The demo's people, tenants, inventory and tokens. Everything is found again: running it twice changes nothing."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings

from console.models import RoleGrant, User
from fleet import jobs
from fleet.agents.enrolment import issue_bundles
from fleet.control import signing
from fleet.inventory.importing import pipeline
from fleet.job_kinds import runner_of
from fleet.models import AgentIdentity, Area, InventoryImport, Node, Region, Sender
from fleet.telemetry.senders import create_sender, rotate_token, verify_token
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


class DemoError(Exception):
    """The demo's own inventory was refused."""


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


def sender_token(known: str, *, now: datetime) -> str:
    """The token of the demo's one Prometheus, which sends for and discovers every region: `known` while it is valid, else a new one."""
    sender = verify_token(known, now=now) if known else None
    if sender is None:
        sender = Sender.objects.filter(name=SENDER).first()
        known = rotate_token(sender, now=now) if sender else create_sender(name=SENDER, regions=[], honor_labels=True)[1]
        sender = Sender.objects.get(name=SENDER)
    sender.regions.set(Region.objects.all())
    return known


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


def seed_inventory(rows: Mapping[str, list[dict[str, Any]]], names: Mapping[str, Mapping[str, str]], *, now: datetime) -> None:
    """Import what was not imported before, the way a person would: file, check, apply. `DemoError` with the first errors when rows are refused."""
    owner = User.objects.get(username="administrator")
    for kind in ("sites", "nodes", "gpus"):
        content = json.dumps(rows[kind]).encode()
        if not InventoryImport.objects.filter(kind=kind, content=content, applied_at__isnull=False).exists():
            _import(owner, kind, content, now)
    for model, known in ((Area, names["areas"]), (Region, names["regions"])):
        for slug, name in known.items():
            model.objects.filter(slug=slug).exclude(name=name).update(name=name)


def _import(owner: User, kind: str, content: bytes, now: datetime) -> None:
    found = pipeline.start_import(owner=owner, kind=kind, file_name=f"demo-{kind}.json", content=content, on_duplicate="update", region_ids=None)
    jobs.run(found.pk, runner_of, now)
    found.refresh_from_db()
    if found.counts.get("error"):
        errors = [error for row in found.rows.filter(outcome="error")[:3] for error in row.errors]
        raise DemoError(f"{kind}: {found.counts['error']} rows are refused, first {errors}")
    if found.counts.get("new") or found.counts.get("changed"):
        pipeline.queue_apply(found, user=owner, reason="Inventory of the demo", region_ids=None, now=now)
        jobs.run(found.pk, runner_of, now)
        found.refresh_from_db()
        if found.applied_at is None:
            raise DemoError(f"{kind}: the import was not applied: {found.job.error}")
