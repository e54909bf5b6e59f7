"""`/`: figures with their n of m, the same number of statements however large the fleet, the first run, and a tenant's own view."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from console.access import access_of
from console.summary import CAUSE_WORDS, Scope, cause_words, finding_groups, health_counts, maintenance_now, power_by_area, silent_sites, worst_regions
from fleet.health.store import CODES
from fleet.inventory.reconcile.gpus import MISSING, UNEXPECTED
from fleet.inventory.reconcile.slices import DRIFT
from fleet.models import DataQuality, Finding, MaintenanceWindow, MigSlice, Site, SiteHealth, Workload
from tests.builders import T0, make_area, make_gpu, make_node, make_region, make_site, make_tenant, make_user

pytestmark = pytest.mark.django_db


def signed_in(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


def make_health(site: Site, state: str = "ok", **fields: Any) -> SiteHealth:
    values: dict[str, Any] = {"since": T0, "cause": state, "why": "", "last_contact_at": T0, **fields}
    return SiteHealth.objects.create(site=site, state=state, **values)


def whole_fleet() -> Scope:
    return Scope(access_of(make_user(role="viewer")))


def test_a_site_that_was_never_judged_is_unknown_and_not_reporting() -> None:
    make_health(make_site(), "ok")
    make_health(make_site(), "unknown", last_contact_at=T0 - timedelta(hours=1), out_of_contact_since=T0)
    make_site()
    counts = health_counts(whole_fleet())
    assert {one.state: one.count for one in counts.by_state} == {"ok": 1, "degraded": 0, "down": 0, "unknown": 2, "maintenance": 0}
    assert (counts.reporting, counts.sites, counts.missing, counts.never) == (1, 3, 2, 1)
    assert counts.oldest_contact_at == T0 - timedelta(hours=1)


def test_totals_say_that_a_pull_lacked_something_and_only_to_whom_it_concerns() -> None:
    """Case C12."""
    lacking, whole = make_region("lacking"), make_region("whole")
    make_site("FRA1", region=lacking)
    make_site("AMS1", region=whole)
    now = timezone.now()
    row = DataQuality.objects.create(
        site=Site.objects.get(code="FRA1"), reason="incomplete_pull", count=1, first_at=now, last_at=now, example="edge-fra-store: unavailable"
    )
    fleet, scoped = signed_in(make_user(role="viewer")), signed_in(make_user(role="viewer", region=whole))
    for page in ("/", "/overview/panels"):
        text = fleet.get(page).content.decode()
        assert "Totals are incomplete." in text
        assert "The last pull lacked FRA1." in text
        assert "edge-fra-store" in text
        assert "Totals are incomplete." not in scoped.get(page).content.decode()
    found = fleet.get("/api/v1/overview").json()["incomplete"]
    assert (found["site_codes"], found["reason"]) == (["FRA1"], "edge-fra-store: unavailable")
    assert scoped.get("/api/v1/overview").json()["incomplete"] is None
    DataQuality.objects.filter(pk=row.pk).update(site=None)
    assert "any site may be affected" in fleet.get("/").content.decode()
    DataQuality.objects.filter(pk=row.pk).update(last_at=now - timedelta(minutes=10))
    assert "Totals are incomplete." not in fleet.get("/").content.decode()


def test_worst_regions_by_share_of_sites_down_weighs_most() -> None:
    fine, small, large, silent = (make_region(name) for name in ("fine", "small", "large", "silent"))
    make_health(make_site(region=fine))
    make_health(make_site(region=small), "down")
    for state in ("down", "ok", "ok"):
        make_health(make_site(region=large), state)
    make_site(region=silent)
    make_region("empty")
    lines = worst_regions(whole_fleet(), 8)
    assert [(line.slug, line.worst, line.reporting, line.sites) for line in lines] == [
        ("small", "down", 1, 1),
        ("silent", "unknown", 0, 1),
        ("large", "down", 3, 3),
    ]


def test_power_compares_draw_and_feed_of_the_same_sites_only() -> None:
    region = make_region(area=make_area("north"))
    make_health(make_site(region=region, power_feed_watts=1000), power_watts=900.0)
    make_health(make_site(region=region, power_feed_watts=5000), power_watts=None)
    make_health(make_site(region=region), power_watts=300.0)
    make_site(region=make_region(area=make_area("south")))
    north, south = power_by_area(whole_fleet())
    assert (north.watts, north.fed_watts, north.feed_watts, north.sites_with_power, north.sites, north.ratio) == (1200.0, 900.0, 1000, 2, 3, 0.9)
    assert (south.watts, south.ratio, south.sites_with_power, south.sites) == (None, None, 0, 1)


def test_findings_of_no_site_are_for_who_sees_the_whole_fleet() -> None:
    site = make_site()
    values: dict[str, Any] = {"severity": "warning", "summary": "s", "since": T0, "last_at": T0}
    Finding.objects.create(kind="sender", object_key="p1", code="series_missing", **values)
    Finding.objects.create(kind="site", object_key=site.code, site=site, code="node_down", **values)
    assert finding_groups(whole_fleet(), 9)[1] == 2
    assert [group.code for group in finding_groups(Scope(access_of(make_user(role="viewer", region=site.region))), 9)[0]] == ["node_down"]
    assert finding_groups(Scope(access_of(make_user(role="viewer", region=make_region()))), 9) == ([], 0)


def test_codes_have_words() -> None:
    assert cause_words("hw_thermal_slowdown") == "Thermal throttling"
    assert cause_words("some_new_code") == "Some new code"
    assert cause_words("xid_79") == "XID 79"


def test_every_finding_of_ours_has_words() -> None:
    assert {*CODES, UNEXPECTED, MISSING, DRIFT} - set(CAUSE_WORDS) == set()


def test_silent_sites_longest_first_with_their_total() -> None:
    for hours in (1, 3, 2):
        make_health(make_site(f"S-{hours}"), "unknown", out_of_contact_since=T0 - timedelta(hours=hours))
    make_health(make_site())
    sites, total = silent_sites(whole_fleet(), 2)
    assert ([site.code for site in sites], total) == (["S-3", "S-2"], 3)


def test_maintenance_of_ones_own_regions() -> None:
    site, now = make_site(), timezone.now()
    for kind, key in (("site", site.code), ("region", site.region.slug), ("region", make_region().slug), ("fleet", "")):
        MaintenanceWindow.objects.create(scope_kind=kind, scope_key=key, starts_at=now, ends_at=now + timedelta(hours=1), reason=kind, created_by="x")
    mine = Scope(access_of(make_user(role="viewer", region=site.region)))
    assert sorted(window.reason for window in maintenance_now(mine, now=now, limit=9)) == ["fleet", "region", "site"]
    assert len(maintenance_now(whole_fleet(), now=now, limit=9)) == 4


def test_page_says_n_of_m_and_links_to_the_missing() -> None:
    make_health(make_site())
    make_health(make_site("GONE-1"), "unknown", out_of_contact_since=T0)
    text = " ".join(signed_in(make_user(role="viewer")).get("/").content.decode().split())
    assert "1 of 2 reporting" in text
    assert "/sites?out_of_contact=true" in text
    assert "GONE-1" in text


def test_first_run_is_a_checklist() -> None:
    text = signed_in(make_user(role="viewer")).get("/").content.decode()
    assert "No sites yet" in text
    assert "Connect Prometheus" in text


def test_the_same_statements_for_few_and_many() -> None:
    region = make_region()
    client = signed_in(make_user(role="viewer"))
    client.get("/")
    counts = []
    for more in (3, 57):
        for n in range(more):
            site = make_site(region=region)
            make_health(site, "unknown", out_of_contact_since=T0)
            Finding.objects.create(kind="site", object_key=site.code, site=site, code=f"code_{n % 4}", severity="major", summary="s", since=T0, last_at=T0)
        for address in ("/", "/overview/panels"):
            with CaptureQueriesContext(connection) as statements:
                assert client.get(address).status_code == 200
            counts.append(len(statements))
    assert counts[:2] == counts[2:]


def test_a_region_viewer_sees_only_its_region() -> None:
    mine, foreign = make_site("MINE-1"), make_site("FOREIGN-1")
    for site in (mine, foreign):
        make_health(site, "unknown", out_of_contact_since=T0)
    text = signed_in(make_user(role="viewer", region=mine.region)).get("/").content.decode()
    assert "MINE-1" in text
    assert "FOREIGN-1" not in text


def test_a_tenants_user_sees_its_own_workloads_and_no_site() -> None:
    mine, other = make_tenant("amber"), make_tenant("birch")
    node = make_node(site=make_site("SECRET-SITE"))
    for key, pod in (("amber", "own-pod"), ("birch", "foreign-pod")):
        gpu = make_gpu(node=node)
        piece = MigSlice.objects.create(gpu=gpu, gpu_instance_id=7, profile="1g.10gb", start=0, size=1, created_at=T0)
        Workload.objects.create(gpu=gpu, slice=piece, namespace="ns", pod=pod, sharing="mig", tenant_key=key, started_at=T0, last_seen_at=T0)
    text = signed_in(make_user(tenant=mine)).get("/").content.decode()
    assert "own-pod" in text
    assert "1g.10gb" in text
    assert "foreign-pod" not in text
    assert "SECRET-SITE" not in text
    assert other.name not in text
    assert signed_in(make_user(tenant=mine)).get("/overview/panels").status_code == 404
