"""`/map`: its frame, what has no place, and who may see it. What it draws is looked at in chromium (`test_live_pages.py`)."""

import json
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from tests.builders import make_region, make_site, make_tenant, make_user

pytestmark = pytest.mark.django_db
OUTLINES = Path(__file__).parents[2] / "static/vendor/outlines/outlines.json"


def signed_in(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


def test_map_says_how_many_sites_have_no_place() -> None:
    make_site(latitude=1.0, longitude=2.0)
    make_site()
    text = signed_in(make_user(role="viewer")).get("/map").content.decode()
    assert "1 site has no coordinates." in text
    assert 'data-outlines="/static/vendor/outlines/outlines.json"' in text


def test_an_empty_fleet_has_an_empty_map_that_says_so() -> None:
    make_site()
    text = signed_in(make_user(role="viewer", region=make_region())).get("/map").content.decode()
    assert "No sites yet" in text
    assert "js/pages/map.js" not in text


def test_strangers_and_tenants_have_no_map() -> None:
    for user in (make_user(), make_user(tenant=make_tenant())):
        assert signed_in(user).get("/map").status_code == 404
    assert Client().get("/map").status_code == 302


def test_outlines_are_whole_numbers_inside_the_world() -> None:
    outlines = json.loads(OUTLINES.read_text())
    steps = outlines["steps"]
    for name in ("land", "countries", "states"):
        assert outlines[name]
        for line in outlines[name]:
            x, y = line[0], line[1]
            for dx, dy in zip(line[2::2], line[3::2], strict=True):
                x, y = x + dx, y + dy
                assert -180 * steps <= x <= 180 * steps
                assert -90 * steps <= y <= 90 * steps
