"""A world with one of everything that the API shows, in the region north and the tenant amber."""

from datetime import timedelta
from typing import Any

from django.test import Client
from django.utils import timezone

from console.models import RoleGrant, SavedView
from console.tokens import issue_token
from fleet import jobs
from fleet.health.maintenance import create_window, find_scope
from fleet.models import (
    AuditEntry,
    Breaker,
    Command,
    CommandTarget,
    DataQuality,
    Disagreement,
    Finding,
    Freeze,
    HealthTransition,
    InventoryImport,
    KeyChangeRequest,
    Policy,
    Sender,
    Switch,
    Workload,
    XidEvent,
)
from fleet.telemetry.senders import create_sender
from tenants.models import Membership, NamespaceMapping
from tests.builders import T0, make_area, make_gpu, make_node, make_region, make_site, make_tenant, make_user
from tests.console.api_support import strict

Keys = dict[str, dict[str, Any]]


def make_world() -> Keys:
    """Make it; by the first word of a path (`sites`) the values of its parameters."""
    now, north, amber = timezone.now(), make_region("north", area=make_area("de")), make_tenant("amber")
    site = make_site("N-1", region=north)
    node = make_node("n-1", site=site)
    gpu = make_gpu("GPU-north", node=node)
    lead = make_user("lena", role="lead", region=north)
    about = {"kind": "site", "object_key": "N-1", "site": site}
    job = jobs.create_job(kind="inventory_import", title="t", owner=lead)
    InventoryImport.objects.create(job=job, kind="sites", format="csv", file_name="f", content=b"code\n")
    token, _ = issue_token(user=lead, name="t", scopes=["read:*"], expires_at=now + timedelta(days=1), now=now)
    create_sender(name="prom", regions=[north])
    window = create_window(scope=find_scope("site", "N-1"), starts_at=now, ends_at=now + timedelta(hours=1), reason="r", actor="lena", now=now)
    finding = Finding.objects.create(**about, code="x", severity="major", summary="s", since=T0, last_at=T0)
    transition = HealthTransition.objects.create(**about, from_state="ok", to_state="down", cause="c", why="w", at=T0)
    said = {"held_source": "import", "seen_source": "agent", "since": T0, "last_at": T0}
    disagreement = Disagreement.objects.create(**about, field="name", **said)
    quality = DataQuality.objects.create(sender=Sender.objects.get(), site=site, reason="stale", count=1, first_at=T0, last_at=T0)
    xid = XidEvent.objects.create(gpu=gpu, xid=79, first_at=T0, last_at=T0, source="gauge")
    workload = Workload.objects.create(gpu=gpu, namespace="ns", pod="p", sharing="whole", tenant_key="amber", started_at=T0, last_seen_at=T0)
    asked = {"scope_kind": "gpu", "scope_key": gpu.uuid, "parameters": {}, "reason": "r", "starts_at": T0, "created_by": lead, "created_at": T0}
    policy = Policy.objects.create(control="clock_range", **asked)
    change = KeyChangeRequest.objects.create(node=node, public_key=b"k" * 32, requested_at=T0)
    entry = AuditEntry.objects.create(at=T0, actor="lena", action="site.note", kind="site", object_key="N-1")
    command = Command.objects.create(
        kind="drain", reason="r", risk=1, state="done", preview={"plan": [[node.pk, ""]]}, preview_hash="0" * 64, waves=[1], failure_share=0.2,
        not_after=now + timedelta(hours=1), created_by=lead, created_at=now,
    )  # fmt: skip
    CommandTarget.objects.create(command=command, node=node, wave=0, state="done")
    switch = Switch.objects.create(
        kind="kill", scope_kind="region", scope_key="north", reason="r", armed_by=lead, armed_at=now, body=b"x", signature=b"x" * 64, key_id="k"
    )
    breaker = Breaker.objects.create(rule="region", scope_kind="region", scope_key="north", why="w", tripped_at=now)
    freeze = Freeze.objects.create(
        scope_kind="site", scope_key="N-1", starts_at=now, ends_at=now + timedelta(hours=1), reason="r", created_by="lena", created_at=now
    )
    view = SavedView.objects.create(owner=lead, page="sites", slug="v", name="V")
    member = Membership.objects.create(user=lead, tenant=amber, role="member")
    mapping = NamespaceMapping.objects.create(tenant=amber, namespace="ns", site=site)
    client = Client()
    client.force_login(lead)
    client.get("/api/v1/about")
    session = strict(client.get("/api/v1/sessions/"))["results"]
    return {
        "areas": {"slug": "de"},
        "regions": {"slug": "north"},
        "sites": {"code": "N-1", "panel": "power"},
        "nodes": {"pk": node.pk},
        "gpus": {"uuid": gpu.uuid, "panel": "power"},
        "skus": {"key": gpu.sku},
        "workloads": {"pk": workload.pk},
        "controls": {"pk": policy.pk},
        "key-changes": {"pk": change.pk},
        "maintenance": {"pk": window.pk},
        "commands": {"pk": command.pk, "command": command.pk},
        "breakers": {"pk": breaker.pk},
        "freezes": {"pk": freeze.pk},
        "switches": {"pk": switch.pk, "switch": switch.pk},
        "users": {"pk": lead.pk},
        "role-grants": {"pk": RoleGrant.objects.get(user=lead).pk},
        "tenants": {"key": "amber"},
        "memberships": {"pk": member.pk},
        "namespaces": {"pk": mapping.pk},
        "tokens": {"prefix": token.prefix},
        "senders": {"name": "prom"},
        "findings": {"pk": finding.pk},
        "transitions": {"pk": transition.pk},
        "disagreements": {"pk": disagreement.pk},
        "data-quality": {"pk": quality.pk},
        "xid-events": {"pk": xid.pk},
        "jobs": {"pk": job.pk, "job": job.pk},
        "imports": {"pk": job.pk, "job": job.pk},
        "views": {"pk": view.pk},
        "sessions": {"pk": session[0]["id"] if session else 1},
        "audit": {"pk": entry.pk},
    }
