"""`/wall`: views, panels, scope, the device token of a wall screen."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from console.models import SavedView
from console.tokens import issue_token
from fleet.models import DataQuality, Finding, MaintenanceWindow, Site
from tests.builders import T0, make_area, make_region, make_site, make_tenant, make_user

pytestmark = pytest.mark.django_db


def signed_in(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


def make_finding(site: Site | None, code: str = "xid_79", **fields: Any) -> Finding:
    values = {
        "kind": "site",
        "object_key": site.code if site else "",
        "severity": "critical",
        "summary": "XID 79: GPU has fallen off the bus.",
        "evidence": {"xid": 79},
    }
    return Finding.objects.create(site=site, code=code, since=T0, last_at=T0, **{**values, **fields})


def device(user: Any, *scopes: str, days: int = 30) -> tuple[Any, str]:
    now = timezone.now()
    return issue_token(user=user, name="NOC screen 1", scopes=scopes or ("read:wall",), expires_at=now + timedelta(days=days), now=now)


def test_wall_leads_to_the_view_of_everything() -> None:
    response = signed_in(make_user(role="viewer")).get("/wall")
    assert response.status_code == 302
    assert response.headers["Location"] == "/wall/all"


def test_page_names_its_view_and_gives_scripts_their_addresses() -> None:
    make_site(region=make_region(area=make_area("north")))
    make_site(region=make_region(area=make_area("south")))
    page = signed_in(make_user(role="viewer")).get("/wall/all")
    text = page.content.decode()
    assert page.status_code == 200
    assert 'data-layout="/live/layout"' in text
    assert 'data-next="/wall/north"' in text
    assert 'data-theme="dark"' in text
    assert signed_in(make_user(role="viewer")).get("/wall/all?theme=light").content.decode().count('data-theme="light"') == 1


def test_each_area_is_a_view_and_unknown_views_do_not_exist() -> None:
    make_site(region=make_region(area=make_area("north")))
    region = make_site(region=make_region(area=make_area("south"))).region
    client = signed_in(make_user(role="viewer"))
    assert f"[{region.pk}]" in client.get("/wall/south").content.decode()
    assert client.get("/wall/west").status_code == 404
    assert client.get("/wall/west/panels").status_code == 404


def test_saved_views_own_and_shared_but_never_wider_than_the_scope() -> None:
    mine, foreign = make_region("mine"), make_region("foreign")
    make_site(region=mine)
    make_site(region=foreign)
    user, other = make_user(role="viewer", region=mine), make_user(role="viewer")
    SavedView.objects.create(owner=other, page="wall", slug="shared", name="Shared", query="region=mine&region=foreign", shared=True)
    SavedView.objects.create(owner=other, page="wall", slug="private", name="Private", query="region=mine")
    SavedView.objects.create(owner=other, page="wall", slug="elsewhere", name="Elsewhere", query="region=foreign", shared=True)
    client = signed_in(user)
    assert f"[{mine.pk}]" in client.get("/wall/shared").content.decode()
    assert client.get("/wall/private").status_code == 404
    assert client.get("/wall/elsewhere").status_code == 404


def test_panels_group_open_findings_by_cause_inside_the_view() -> None:
    mine, foreign = make_region(area=make_area("north")), make_region(area=make_area("south"))
    sites = [make_site(region=mine), make_site(region=mine)]
    for site in sites:
        make_finding(site)
    make_finding(sites[0], "row_remap_pending", severity="minor", summary="Rows wait.", evidence={}, advised_action="Reset the GPU at a quiet time.")
    make_finding(make_site("FOREIGN-1", region=foreign), "node_down", summary="Node down", evidence={})
    ended = make_finding(sites[1], "ecc_double_bit", evidence={})
    Finding.objects.filter(pk=ended.pk).update(until=T0)
    client = signed_in(make_user(role="viewer"))
    text = " ".join(client.get("/wall/north/panels").content.decode().split())
    assert "XID 79" in text
    assert "2 sites" in text
    assert "3 open, by cause" in text
    assert "advised: Reset the GPU at a quiet time." in text
    assert "FOREIGN-1" not in text
    assert "Double-bit" not in text
    assert "Node down" in client.get("/wall/all/panels").content.decode()


def test_panels_show_refused_samples_and_maintenance_in_force() -> None:
    site, now = make_site(), timezone.now()
    DataQuality.objects.create(site=site, reason="out_of_range", count=1204, first_at=now, last_at=now)
    DataQuality.objects.create(site=site, reason="too_old", count=7, first_at=now, last_at=now - timedelta(hours=2))
    MaintenanceWindow.objects.create(
        scope_kind="site", scope_key=site.code, starts_at=now - timedelta(hours=1), ends_at=now + timedelta(hours=1), reason="Battery swap", created_by="lead"
    )
    text = signed_in(make_user(role="viewer")).get("/wall/all/panels").content.decode()
    assert "out of range <b>1,204</b>" in text
    assert "too old" not in text
    assert "Battery swap" in text


def test_strangers_and_tenants_have_no_wall() -> None:
    for user in (make_user(), make_user(tenant=make_tenant())):
        client = signed_in(user)
        assert client.get("/wall/all").status_code == 404
        assert client.get("/live/layout").status_code == 404
        assert client.get("/live/frames").status_code == 404
    assert Client().get("/wall/all").status_code == 302
    assert Client().get("/live/frames").status_code == 401


def test_a_device_token_signs_a_wall_in_for_as_long_as_it_lives() -> None:
    token, secret = device(make_user(role="viewer"), days=200)
    client = Client()
    response = client.post("/wall/sign-in", {"token": f" {secret} "})
    assert (response.status_code, response.headers["Location"]) == (302, "/wall")
    page = client.get("/wall/all")
    assert page.status_code == 200
    assert "data-site-url" not in page.content.decode()
    assert client.session.get_expiry_date() == token.expires_at
    assert client.get("/live/layout").status_code == 200


def test_a_wall_only_reads_and_only_the_wall() -> None:
    _, secret = device(make_user(role="administrator"))
    client = Client()
    client.post("/wall/sign-in", {"token": secret})
    for path in ("/", "/sites", "/settings", "/api/v1/about"):
        response = client.get(path)
        assert (response.status_code, response.headers["Location"]) == (302, "/wall")
    assert client.post("/settings", {"first_name": "x"}).status_code == 403
    assert client.post("/accounts/logout/").status_code == 403


def test_a_revoked_wall_is_signed_out_at_its_next_request() -> None:
    token, secret = device(make_user(role="viewer"))
    client = Client()
    client.post("/wall/sign-in", {"token": secret})
    token.revoked_at = datetime.now(UTC)
    token.save()
    response = client.get("/wall/all")
    assert (response.status_code, response.headers["Location"]) == (302, reverse("wall_sign_in"))
    assert client.get("/live/frames").status_code == 401


def test_a_wall_sees_no_more_than_the_regions_of_its_token() -> None:
    mine, foreign = make_region("mine"), make_region("foreign")
    make_site("MINE-1", region=mine)
    make_site("FOREIGN-1", region=foreign)
    now = timezone.now()
    _, secret = issue_token(
        user=make_user(role="administrator"), name="screen", scopes=["read:wall"], expires_at=now + timedelta(days=1), now=now, regions=[mine]
    )
    client = Client()
    client.post("/wall/sign-in", {"token": secret})
    assert client.get("/live/layout").json()["sites"]["code"] == ["MINE-1"]


@pytest.mark.parametrize("wrong", ["", "mh_nothing", "\x00", "x" * 500])
def test_a_wrong_token_is_refused(wrong: str) -> None:
    response = Client().post("/wall/sign-in", {"token": wrong})
    assert response.status_code == 422
    assert "sessionid" not in response.cookies


def test_a_token_of_another_scope_is_not_a_walls() -> None:
    _, secret = device(make_user(role="administrator"), "read:sites", "write:controls")
    assert Client().post("/wall/sign-in", {"token": secret}).status_code == 422
