"""Sites that are out of contact for days: somebody has to go there. A finding says so, with what waits for the site."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import Count, Q

from fleet.health.findings import Found, close_findings, open_findings
from fleet.models import CommandTarget, Finding, Gpu, Node, ObjectKind, Policy, SiteHealth, Switch

CODE = "manual_intervention"
AFTER = timedelta(hours=72)
# More than these at once are told in the next round.
MOST = 2000


def note_long_silence(*, now: datetime) -> int:
    """Open the finding of every site silent for so long, and end it where the site is back. Returns how many are open. A few statements."""
    silent = list(
        SiteHealth.objects.filter(out_of_contact_since__lte=now - AFTER).select_related("site__region__area").order_by("out_of_contact_since", "pk")[:MOST]
    )
    waiting = _waiting([row.site_id for row in silent], now)
    switches = list(Switch.objects.in_force(now))
    found = []
    for row in silent:
        site = row.site
        place = {"fleet": "", "area": site.region.area.slug, "region": site.region.slug, "site": site.code}
        held = [f"{switch.kind} on {switch.scope_kind} {switch.scope_key}".strip() for switch in switches if place.get(switch.scope_kind) == switch.scope_key]
        commands, controls = waiting.get(site.pk, (0, 0))
        since = row.out_of_contact_since
        if since is None:
            continue
        found.append(
            Found(
                kind=ObjectKind.SITE,
                object_key=site.code,
                site_id=site.pk,
                code=CODE,
                severity=Finding.Severity.MAJOR,
                summary=f"Out of contact since {since:%Y-%m-%d %H:%M} UTC. Its agents go on with what they last heard; {commands} commands, {controls} controls and {len(held)} switches wait.",
                advised_action="Call the site or send somebody: power, link, then the agents. What expired meanwhile is not done when it is back.",
                evidence={"out_of_contact_since": since.isoformat(), "commands": commands, "controls": controls, "switches": held[:20]},
                at=now,
            )
        )
    open_findings(found)
    still = {one.object_key for one in found}
    back = [key for key in Finding.objects.open().filter(code=CODE).values_list("object_key", flat=True) if key not in still]
    if back and len(silent) < MOST:
        close_findings(ObjectKind.SITE, back, at=now, because="The site is back", codes=[CODE])
    return len(found)


def _waiting(site_ids: list[int], now: datetime) -> dict[int, tuple[int, int]]:
    """Per site: command targets that are not over, and controls set on its nodes and GPUs since it fell silent. Two statements."""
    targets = CommandTarget.objects.open().filter(node__site_id__in=site_ids).order_by().values_list("node__site_id").annotate(count=Count("pk"))
    commands = dict(targets)
    controls: dict[int, int] = {}
    health = {row.site_id: row.out_of_contact_since for row in SiteHealth.objects.filter(site_id__in=site_ids)}
    policies = Policy.objects.in_force(now).filter(Q(scope_kind=ObjectKind.GPU) | Q(scope_kind=ObjectKind.NODE))
    earliest = min((since for since in health.values() if since is not None), default=now)
    keys = {key: (kind, at) for kind, key, at in policies.filter(created_at__gte=earliest).values_list("scope_kind", "scope_key", "created_at")}
    if keys:
        places = dict(Gpu.objects.filter(uuid__in=keys, node__site_id__in=site_ids).values_list("uuid", "node__site_id"))
        ids = [int(key) for key, (kind, _) in keys.items() if kind == ObjectKind.NODE]
        places |= {str(pk): site for pk, site in Node.objects.filter(pk__in=ids, site_id__in=site_ids).values_list("pk", "site_id")}
        for key, site in places.items():
            since = health.get(site)
            if since is not None and keys[key][1] >= since:
                controls[site] = controls.get(site, 0) + 1
    return {site: (commands.get(site, 0), controls.get(site, 0)) for site in site_ids}
