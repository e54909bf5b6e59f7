"""A site that is out of contact for 72 hours needs somebody: found once, with what waits for it, and over when it is back."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from fleet.control import switches
from fleet.control.long_silence import CODE, note_long_silence
from fleet.models import Finding, Site, SiteHealth
from tests.builders import T0, make_node, make_region, make_site, make_user
from tests.fleet.command_world import key, make_agent, submitted  # noqa: F401 (fixture)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("key")]
HOURS = timedelta(hours=1)


def silent(site: Site, hours: float) -> SiteHealth:
    return SiteHealth.objects.create(site=site, state="unknown", since=T0, out_of_contact_since=T0 - hours * HOURS)


@pytest.mark.parametrize(("hours", "found"), [(71.9, 0), (72, 1), (500, 1)])
def test_after_72_hours(hours: float, found: int) -> None:
    silent(make_site("N-1"), hours)
    assert note_long_silence(now=T0) == found
    assert note_long_silence(now=T0 + timedelta(minutes=1)) in (found, 1 if hours > 71.9 else 0)
    assert Finding.objects.open().filter(code=CODE).count() == found


def test_it_says_what_waits_and_ends_when_the_site_is_back() -> None:
    site = make_site("N-1", region=make_region("north"))
    node = make_agent(make_node(site=site), connected=False)
    health = silent(site, 80)
    submitted("drain", [node])
    switches.arm(kind="kill", scope_kind="region", scope_key="north", reason="fire", user=make_user(), now=T0)
    note_long_silence(now=T0)
    finding = Finding.objects.open().get(code=CODE)
    assert (finding.evidence["commands"], finding.evidence["switches"]) == (1, ["kill on region north"])
    assert "1 commands" in finding.summary
    SiteHealth.objects.filter(pk=health.pk).update(out_of_contact_since=None)
    assert note_long_silence(now=T0 + HOURS) == 0
    finding.refresh_from_db()
    assert finding.until is not None


def test_the_same_number_of_statements_for_3_and_for_60_sites() -> None:
    counts = []
    for number in (3, 60):
        region = make_region()
        for _ in range(number):
            silent(make_site(region=region), 100)
        note_long_silence(now=T0)
        with CaptureQueriesContext(connection) as seen:
            note_long_silence(now=T0 + HOURS)
        counts.append(len(seen))
    assert counts[0] == counts[1]
