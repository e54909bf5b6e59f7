"""`/regions`: totals with their n of m, what is not OK, who sends for it."""

import pytest
from django.test import Client
from django.utils import timezone

from fleet.models import HealthState, Sender
from tests.builders import make_site
from tests.console.pages import Cast, a_site, text_of

pytestmark = pytest.mark.django_db


def test_counts_by_state_add_up_and_sites_without_health_are_unknown() -> None:
    cast = Cast()
    a_site("OK-1", cast.west)
    a_site("DOWN-1", cast.west, state=HealthState.DOWN, why="All GPUs are lost.", power_watts=None)
    make_site("NEW-1", region=cast.west)
    row = cast.client("operator").get("/regions").context["list"].rows[0]
    assert (row.site_count, row.sites_ok, row.sites_down, row.sites_degraded, row.sites_maintenance) == (3, 1, 1, 0, 0)
    page = text_of(cast.client("operator").get("/regions/west"))
    assert "power, 1 of 3 sites" in page
    assert "All GPUs are lost." in page
    assert '<b>1</b><span><svg class="mark mark-unknown"' in page


def test_power_that_nobody_reports_is_not_zero() -> None:
    cast = Cast()
    a_site("OK-1", cast.west, power_watts=None)
    assert "not reported" in text_of(cast.client("operator").get("/regions"))
    assert "0 W" not in text_of(cast.client("operator").get("/regions/west"))


def test_senders_with_their_last_sign_of_life() -> None:
    cast = Cast()
    sender = Sender.objects.create(name="prom-west", token_hash="x", last_used_at=timezone.now())
    sender.regions.set([cast.west])
    Sender.objects.create(name="prom-east", token_hash="y").regions.set([cast.east])
    page = text_of(cast.client("viewer").get("/regions/west"))
    assert "prom-west" in page
    assert "prom-east" not in page


def test_strangers() -> None:
    cast = Cast()
    assert cast.client("stranger").get("/regions/west").status_code == 404
    assert cast.client("stranger").get("/regions/nowhere").status_code == 404
    assert cast.client("tenant_user").get("/regions/west").status_code == 404
    assert Client().get("/regions/west").status_code == 302


def test_only_who_may_operate_there_gets_the_button() -> None:
    cast = Cast()
    assert "Plan maintenance" in text_of(cast.client("operator").get("/regions/west"))
    assert "Plan maintenance" not in text_of(cast.client("viewer").get("/regions/west"))
