"""Seed the lab's database: a fleet of sites, its health, and signed-in viewers whose session keys are printed as JSON."""

from __future__ import annotations

import json
import random
import sys
from datetime import UTC, datetime, timedelta
from importlib import import_module

import django

CITIES = (
    ("Atlanta", 33.75, -84.39, "America/New_York"),
    ("Seattle", 47.61, -122.33, "America/Los_Angeles"),
    ("Dallas", 32.78, -96.8, "America/Chicago"),
    ("Denver", 39.74, -104.99, "America/Denver"),
    ("Phoenix", 33.45, -112.07, "America/Phoenix"),
    ("Chicago", 41.88, -87.63, "America/Chicago"),
    ("New York", 40.71, -74.0, "America/New_York"),
    ("Miami", 25.76, -80.19, "America/New_York"),
    ("Los Angeles", 34.05, -118.24, "America/Los_Angeles"),
    ("Minneapolis", 44.98, -93.27, "America/Chicago"),
)
PER_REGION = 50
USERS = 200
STATES = ("ok", "degraded", "down", "unknown", "maintenance")
WEIGHTS = (0.955, 0.028, 0.003, 0.006, 0.008)
FINDINGS = (
    ("hw_thermal_slowdown", "major", "HW thermal slowdown at 91 °C.", "Check air flow, fans and inlet temperature.", 0.012),
    ("xid", "critical", "XID 79: GPU has fallen off the bus.", "Restart the node.", 0.0012),
    ("out_of_contact", "indeterminate", "No sample and no heartbeat.", "", 0.005),
    ("ecc_double_bit", "major", "Double-bit ECC errors rose by 2.", "Drain and reset the GPU; then run the field diagnostic.", 0.002),
    ("row_remap_pending", "minor", "Rows wait for a reset.", "Reset the GPU at a quiet time.", 0.003),
)


def seed(sites: int, regions_per_area: int, sessions: int) -> list[str]:
    from django.conf import settings
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY

    from console.models import RoleGrant, User
    from fleet.models import Area, DataQuality, Finding, MaintenanceWindow, Region, Site, SiteHealth

    chance = random.Random(7)  # noqa: S311 (a made-up fleet, the same each time)
    now = datetime.now(UTC)
    region_count = (sites + PER_REGION - 1) // PER_REGION
    areas, regions, made = [], [], []
    for number in range(region_count):
        at, k = divmod(number, regions_per_area)
        city, latitude, longitude, _ = CITIES[at % len(CITIES)]
        if k == 0:
            areas.append(Area.objects.create(slug=city.lower().replace(" ", "-") + (f"-{at}" if at >= len(CITIES) else ""), name=city))
        regions.append(Region(area=areas[-1], slug=f"{areas[-1].slug}-{k + 1:02d}", name=f"{city} {k + 1:02d}"))
    Region.objects.bulk_create(regions)
    for number in range(sites):
        region = regions[number // PER_REGION]
        city, latitude, longitude, zone = CITIES[(number // PER_REGION // regions_per_area) % len(CITIES)]
        made.append(
            Site(
                region=region,
                code=f"{region.slug.upper()}-{number % PER_REGION + 1:03d}",
                name=f"{region.name} cell {number % PER_REGION + 1}",
                latitude=round(latitude + chance.gauss(0, 0.9), 4),
                longitude=round(longitude + chance.gauss(0, 1.2), 4),
                time_zone=zone,
                power_feed="A",
                power_feed_watts=1800,
            )
        )
    Site.objects.bulk_create(made, batch_size=5000)
    chosen = chance.choices(STATES, WEIGHTS, k=sites)
    silent = [now - timedelta(seconds=chance.randint(60, 9000)) if state == "unknown" else None for state in chosen]
    SiteHealth.objects.bulk_create(
        [
            SiteHealth(
                site=site,
                state=state,
                since=gone or now - timedelta(seconds=chance.randint(60, 90_000)),
                cause="link_down" if gone else state,
                why="No sample and no heartbeat." if gone else "All nodes answer.",
                last_contact_at=gone or now,
                out_of_contact_since=gone,
                gpus_reporting=0 if gone else 2,
                gpus_expected=2,
                power_watts=None if gone else chance.uniform(700, 1700),
            )
            for site, state, gone in zip(made, chosen, silent, strict=True)
        ],
        batch_size=5000,
    )
    findings = []
    for code, severity, summary, advised, share in FINDINGS:
        for site in chance.sample(made, max(1, int(sites * share))):
            since = now - timedelta(seconds=chance.randint(60, 9000))
            evidence = {"xid": 79} if code == "xid" else {}
            one = Finding(kind="site", object_key=site.code, site=site, code=code, severity=severity, summary=summary, advised_action=advised)
            one.evidence, one.since, one.last_at = evidence, since, since
            findings.append(one)
    Finding.objects.bulk_create(findings, batch_size=5000)
    DataQuality.objects.create(sender=None, site=made[0], reason="blank", count=412, first_at=now, last_at=now)
    DataQuality.objects.create(sender=None, site=made[1], reason="out_of_range", count=3, first_at=now, last_at=now)
    MaintenanceWindow.objects.create(
        scope_kind="region",
        scope_key=regions[-1].slug,
        starts_at=now - timedelta(hours=1),
        ends_at=now + timedelta(hours=2),
        reason="Battery swap",
        created_by="lead",
    )
    users = User.objects.bulk_create([User(username=f"viewer{n}", password="!") for n in range(USERS)])  # noqa: S106 (no password has this hash)
    RoleGrant.objects.bulk_create([RoleGrant(user=user, role="viewer") for user in users])
    store = import_module(settings.SESSION_ENGINE).SessionStore
    keys = []
    for number in range(sessions):
        user = users[number % USERS]
        session = store()
        session.update({SESSION_KEY: str(user.pk), BACKEND_SESSION_KEY: settings.AUTHENTICATION_BACKENDS[0], HASH_SESSION_KEY: user.get_session_auth_hash()})
        session.create()
        keys.append(session.session_key)
    return keys


if __name__ == "__main__":
    django.setup()
    print(json.dumps(seed(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
