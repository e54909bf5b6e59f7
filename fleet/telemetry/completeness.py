"""Whether what is shown is all there is: pulls whose answer lacked something, and the sites that it may lack (case C12)."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Q

from fleet.models import DataQuality, Gpu, Sender, Site
from fleet.telemetry.fields import Refusal
from fleet.telemetry.kept import add_quality
from fleet.telemetry.quality import Tally

MOST_SITES = 500  # more than this are not named one by one: then it is "any of the sender's"


@dataclass(frozen=True)
class Brought:
    """What one partial answer did hold: site codes and GPU UUIDs in its labels."""

    site_codes: frozenset[str]
    gpu_uuids: frozenset[str]


@dataclass(frozen=True)
class Incomplete:
    """Totals of these regions are incomplete. `site_codes` empty: any of their sites may lack something."""

    reason: str
    last_at: datetime
    site_codes: tuple[str, ...] = ()


def note_incomplete(sender: Sender | None, *, reason: str, partial: Iterable[Brought], everywhere: bool, now: datetime) -> None:
    """Count a pull that lacked something against its sender and the sites that its answers did not bring; against no site in particular when they
    cannot be told (`everywhere`: a whole question went unanswered)."""
    sites = [] if everywhere or sender is None else _lacking(sender, list(partial))
    at = now.timestamp()
    places = sites if 0 < len(sites) <= MOST_SITES else [None]
    add_quality({(sender.pk if sender is not None else None, site, Refusal.INCOMPLETE_PULL): Tally(1, at, at, reason[:300]) for site in places})


def _lacking(sender: Sender, partial: list[Brought]) -> list[int]:
    """Ids of the sender's sites with GPUs that at least one of the answers lacks."""
    site_of_gpu = dict(Gpu.objects.filter(node__site__region__senders=sender, retired_at__isnull=True).values_list("uuid", "node__site_id"))
    ids = dict(Site.objects.filter(pk__in=set(site_of_gpu.values())).values_list("code", "pk"))
    lacking: set[int] = set()
    for answer in partial:
        brought = {ids[code] for code in answer.site_codes if code in ids} | {site_of_gpu[uuid] for uuid in answer.gpu_uuids if uuid in site_of_gpu}
        lacking |= set(ids.values()) - brought
    return sorted(lacking)


def incomplete_now(*, now: datetime, region_ids: Iterable[int] | None = None) -> Incomplete | None:
    """What totals of these regions (None: the whole fleet) lack at present; None when the last pulls were complete. Two statements at most."""
    rows = DataQuality.objects.filter(reason=Refusal.INCOMPLETE_PULL, last_at__gte=now - timedelta(seconds=3 * settings.SCRAPE_INTERVAL_SECONDS))
    if region_ids is not None:
        wanted = list(region_ids)
        of_senders = Q(sender__in=Sender.objects.filter(regions__in=wanted)) | Q(sender=None)
        rows = rows.filter(Q(site__region_id__in=wanted) | Q(site=None) & of_senders)
    found = list(rows.order_by("-last_at").values_list("site__code", "example", "last_at"))
    if not found:
        return None
    codes = sorted(code for code, _, _ in found if code is not None)
    return Incomplete(found[0][1], found[0][2], () if len(codes) < len(found) else tuple(codes))
