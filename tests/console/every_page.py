"""A small fleet in all states, and the address of every page about it: for tests that go over all pages."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from console.models import User
from fleet import jobs
from fleet.control import audit
from fleet.job_kinds import runner_of
from fleet.models import (
    AgentIdentity,
    Breaker,
    Command,
    CommandTarget,
    DataQuality,
    Freeze,
    InventoryImport,
    Job,
    KeyChangeRequest,
    MaintenanceWindow,
    Node,
    Policy,
    Sender,
    Site,
    Switch,
    SwitchAnswer,
    XidEvent,
)
from script.benchmarks.fleet_rows import fill_fleet
from tests.console.pages import signed_in

SITES, GPUS_PER_NODE = 60, 3


def fill(administrator: User, *, now: datetime) -> list[str]:
    """Sites in all five states with one node each, and one of everything that a page may show. The addresses, the standing pages first."""
    fill_fleet(sites=SITES, now=now, sites_per_region=20, regions_per_area=2, gpus_per_node=GPUS_PER_NODE, seed=5)
    site = Site.objects.filter(health__state="degraded").order_by("pk").first() or Site.objects.order_by("pk")[0]
    node = site.nodes.get()
    phy, split, whole = node.gpus.order_by("index")
    XidEvent.objects.create(gpu=phy, xid=79, first_at=now, last_at=now, count=2, source="gauge")
    MaintenanceWindow.objects.create(scope_kind="site", scope_key=site.code, starts_at=now, ends_at=now + timedelta(hours=2), reason="CHG-1", created_by="adam")
    Policy.objects.create(
        control="clock_range", scope_kind="gpu", scope_key=whole.uuid, parameters={"min_mhz": 900, "max_mhz": 1200}, reason="heat", starts_at=now,
        ends_at=now + timedelta(hours=1), created_by=administrator, created_at=now,
    )  # fmt: skip
    AgentIdentity.objects.create(node=node, public_key=b"k" * 32, enrolled_at=now)
    KeyChangeRequest.objects.create(node=node, public_key=b"n" * 32, requested_at=now)
    sender = Sender.objects.create(name="prom-1", token_hash="x")
    sender.regions.set([site.region])
    DataQuality.objects.create(site=site, sender=sender, reason="out_of_range", count=4, first_at=now, last_at=now, example='DCGM_FI_DEV_GPU_TEMP{gpu="0"} 511')
    act = audit.record(
        actor="adam",
        action="maintenance.extend",
        now=now,
        kind="site",
        key=site.code,
        reason="slower than planned",
        before={"ends_at": "10:00"},
        after={"ends_at": "11:00"},
    )
    common = {
        "rule": "region",
        "scope_kind": "region",
        "scope_key": site.region.slug,
        "why": "11 nodes disrupted within 10 min, more than 10.",
        "tripped_at": now,
    }
    Breaker.objects.create(**common)
    Breaker.objects.create(**common, reset_at=now, reset_by="adam", reset_reason="drill", backlog="skip")
    Freeze.objects.create(
        scope_kind="site", scope_key=site.code, starts_at=now, ends_at=now + timedelta(hours=4), reason="festival", created_by="adam", created_at=now
    )
    running, waiting = _commands(administrator, node, now)
    switch = Switch.objects.create(
        kind="kill", scope_kind="site", scope_key=site.code, reason="smoke in the rack", armed_by=administrator, armed_at=now, body=b"x", signature=b"x" * 64,
        key_id="k", preview={"sites": 1, "nodes": 1, "workloads": 4},
    )  # fmt: skip
    SwitchAnswer.objects.create(
        switch=switch, node=node, version=1, state="pending", stopped=3, remaining=1, detail="llm-0 holds", at=now, sequence=1, received_at=now
    )
    reviewed, unmapped = _imports(signed_in(administrator), site.region.slug, now)
    return [
        "/", "/map", "/wall/all", "/sites?page_size=10", "/sites?state=down&q=a", "/sites?state=nonsense", "/nodes?page_size=10", "/gpus?page_size=10", "/regions",
        f"/sites/{site.code}", f"/nodes/{node.pk}", f"/gpus/{phy.uuid}", f"/gpus/{split.uuid}", f"/gpus/{whole.uuid}", f"/regions/{site.region.slug}",
        f"/gpus/{split.uuid}/hold/mig_layout", f"/gpus/{whole.uuid}/hold/power_cap", f"/nodes/{node.pk}/hold/cordon",
        "/commands", "/commands/new", f"/commands/new?kind=drain&nodes={node.pk}", f"/commands/{running}", f"/commands/{waiting}", "/approvals", "/switches", f"/switches/{switch.pk}", "/guard-rails",
        "/search?q=maryvale", "/audit", f"/audit/{act.pk}", "/jobs", f"/jobs/{reviewed.pk}", "/imports/new", f"/imports/{reviewed.pk}", f"/imports/{reviewed.pk}?outcome=error",
        f"/imports/{unmapped.pk}/columns", "/settings/agents", "/settings/senders", "/settings/users", f"/settings/users/{administrator.pk}",
        "/accounts/reauthenticate/", "/settings/tenants", "/settings/tenants/acme", "/settings/tokens",
    ]  # fmt: skip


def _commands(owner: User, node: Node, now: datetime) -> tuple[UUID, UUID]:
    """One that runs, with a target that is blocked and one that failed; one of somebody else that waits for an approval."""
    plan: dict[str, Any] = {
        "title": "Drain", "kind": "drain", "explains": "Evicts.", "targets": 2, "sites": 2, "workloads": 8, "tenants": ["acme"], "phy_placements": 0, "unreachable": 1,
        "refused": [{"target": "du-9", "rule": "node_rate", "why": "Three disruptive acts within 24 h."}], "refused_count": 1, "skipped": [], "skipped_count": 0,
        "by_region": {"north": 2}, "examples": ["du-1", "du-2"], "waves": [1, 1], "parameters": {"deadline_seconds": 1800}, "undo": "Uncordon.", "plan": [[node.pk, ""]],
        "budget": [{"region": "north", "nodes": 60, "used": 3, "wanted": 2, "limit": 10}], "risk": 3, "phrase": "drain 2 nodes", "approvals": 1,
    }  # fmt: skip
    common: dict[str, Any] = {"kind": "drain", "reason": "CHG-7", "risk": 3, "preview": plan, "preview_hash": "0" * 64, "waves": [1, 1], "failure_share": 0.2}
    common |= {"created_at": now, "not_after": now + timedelta(hours=1), "approvals_needed": 1}
    running = Command.objects.create(**common, state="running", created_by=owner, wave=0)
    other = Node.objects.exclude(pk=node.pk).order_by("pk")[0]
    CommandTarget.objects.create(
        command=running, node=node, wave=0, state="running", blocked=["budget llm-a keeps llm-a-0"], progress={"evicted": 3}, accepted_at=now, released_at=now
    )
    CommandTarget.objects.create(
        command=running, node=other, wave=1, state="failed", code="timeout", detail="No result came.", output="line\nline", finished_at=now
    )
    asker = User.objects.create_user("asker", password="asker")
    waiting = Command.objects.create(**common, state="awaiting", created_by=asker, approve_by=now + timedelta(hours=1))
    CommandTarget.objects.create(command=waiting, node=node, wave=0)
    return running.pk, waiting.pk


def _imports(client: Client, region: str, now: datetime) -> tuple[InventoryImport, InventoryImport]:
    """One that waits for its decision, with an error and a new row; one whose columns wait to be mapped."""
    for content in (f"code,region,name,latitude\nW-1,{region},West one,1\nW-2,{region},,91\n", f"Site,region,remark\nW-1,{region},x\n"):
        client.post("/imports/new", {"kind": "sites", "on_duplicate": "update", "file": SimpleUploadedFile("sites.csv", content.encode())})
    checked = jobs.run(Job.objects.get(state=Job.State.QUEUED).pk, runner_of, now)
    assert checked is not None
    return InventoryImport.objects.get(job=checked), InventoryImport.objects.exclude(job=checked).get()
