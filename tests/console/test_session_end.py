"""When a sign-in ends: acts and pages renew it, what pages fetch by themselves does not, walls never end; the browser warns before it does (WCAG 2.2.1)."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from playwright.sync_api import Browser, Page

from console.models import User
from console.session_end import ENDS, STARTED
from console.tokens import issue_token
from fleet.models import MaintenanceWindow
from tests.builders import make_site, make_tenant, make_user
from tests.console.axe import violations
from tests.console.browser import chromium, opened, playwright, wait_until  # noqa: F401 (fixtures)
from tests.console.pages import signed_in

pytestmark = pytest.mark.django_db
HOUR = 3600


@pytest.fixture
def operator() -> User:
    return make_user("olga", role="operator")


@pytest.fixture
def client(operator: User) -> Client:
    found = signed_in(operator)
    found.get("/settings")
    return found


def ends_in(client: Client, seconds: float, *, started_ago: float = 0) -> None:
    """As if the person's last act were so long ago that this is what is left."""
    session = client.session
    session[ENDS] = time.time() + seconds
    session[STARTED] = time.time() - started_ago
    session.set_expiry(3 * 24 * HOUR)  # only our own end is at work here
    session.save()


def left(client: Client) -> float:
    return float(client.session[ENDS] - time.time())


def ask(client: Client) -> Any:
    return client.get("/accounts/session").json()


def test_a_sign_in_lasts_long_for_the_noc_and_short_for_others(client: Client) -> None:
    assert left(client) == pytest.approx(12 * HOUR, abs=30)
    for person in (make_user("tina", tenant=make_tenant("acme")), make_user("nora")):
        theirs = signed_in(person)
        theirs.get("/settings")
        assert left(theirs) == pytest.approx(30 * 60, abs=30)
        assert theirs.session.get_expiry_age() == pytest.approx(30 * 60, abs=30), "the session itself ends with it"


@pytest.mark.parametrize("path", ["/settings", "/sites", "/sites?state=down", "/wall/all", "/no-such-page"])
def test_opening_a_page_renews_it(client: Client, path: str) -> None:
    ends_in(client, 100)
    client.get(path)
    assert left(client) == pytest.approx(12 * HOUR, abs=30)


def test_an_act_renews_it_also_through_the_api(client: Client) -> None:
    site = make_site("PHX-1")
    times = {"starts_at": "2030-01-01T10:00", "ends_at": "2030-01-01T12:00"}
    ends_in(client, 100)
    client.post("/maintenance/plan", {"scope_kind": "site", "scope_key": site.code, "reason": "CHG-1", **times})
    assert MaintenanceWindow.objects.count() == 1
    assert left(client) == pytest.approx(12 * HOUR, abs=30)
    ends_in(client, 100)
    assert client.post("/api/v1/sessions/revoke-others").status_code == 200
    assert left(client) == pytest.approx(12 * HOUR, abs=30)


@pytest.mark.parametrize("path", ["/live/layout", "/live/frames", "/charts/sites/PHX-1/power", "/api/v1/sites/", "/api/v1/profile", "/accounts/session"])
def test_what_pages_and_programs_poll_does_not(client: Client, path: str) -> None:
    make_site("PHX-1")
    ends_in(client, 100)
    client.get(path)
    assert left(client) <= 100


@pytest.mark.parametrize("path", ["/overview/panels", "/wall/all/panels", "/sites/PHX-1", "/jobs"])
def test_nor_does_what_a_page_fetches_by_itself(client: Client, path: str) -> None:
    make_site("PHX-1")
    ends_in(client, 100)
    assert client.get(path, headers={"X-Automatic": "1"}).status_code == 200
    assert left(client) <= 100


def test_after_its_end_pages_lead_to_the_sign_in_and_back(client: Client) -> None:
    ends_in(client, -1)
    answer = client.get("/sites?state=down")
    assert (answer.status_code, answer["Location"]) == (302, "/accounts/login/?next=/sites%3Fstate%3Ddown")
    assert not client.session.keys(), "nothing of it is left"


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/live/layout", {}),
        ("/live/frames", {}),
        ("/charts/sites/PHX-1/power", {"Accept": "application/json"}),
        ("/api/v1/sites/", {}),
        ("/overview/panels", {"X-Automatic": "1"}),
        ("/sites", {"HX-Request": "true"}),
        ("/accounts/session", {}),
    ],
)
def test_after_its_end_scripts_and_programs_get_401(client: Client, path: str, headers: dict[str, str]) -> None:
    ends_in(client, -1)
    assert client.get(path, headers=headers).status_code == 401


def test_a_form_sent_too_late_changes_nothing_and_comes_back_to_its_page(client: Client) -> None:
    ends_in(client, -1)
    late = {"scope_kind": "site", "scope_key": make_site("PHX-1").code, "reason": "CHG-1", "starts_at": "2030-01-01T10:00", "ends_at": "2030-01-01T12:00"}
    answer = client.post("/maintenance/plan", late, headers={"Referer": "http://testserver/sites/PHX-1"})
    assert answer["Location"] == "/accounts/login/?next=http%3A//testserver/sites/PHX-1"
    assert client.post("/maintenance/plan", late, headers={"Referer": "https://evil.example/"})["Location"] == "/accounts/login/?next=/"
    assert not MaintenanceWindow.objects.exists()


def test_the_absolute_end_cannot_be_moved(client: Client) -> None:
    ends_in(client, 100, started_ago=23 * HOUR)
    client.get("/settings")
    assert left(client) == pytest.approx(HOUR, abs=30)
    client.get("/settings")
    assert left(client) == pytest.approx(HOUR, abs=30)
    assert ask(client)["last"] is True
    ends_in(client, -1, started_ago=24 * HOUR)
    assert client.get("/settings").status_code == 302


def test_signing_in_again_begins_anew(client: Client, operator: User) -> None:
    ends_in(client, -1, started_ago=24 * HOUR)
    client.get("/settings")
    client.post("/accounts/login/", {"login": "olga", "password": "olgaolga"})
    client.get("/settings")
    assert left(client) == pytest.approx(12 * HOUR, abs=30)
    assert ask(client)["last"] is False


@pytest.mark.parametrize(("asked", "max_age"), [({"remember": "on"}, 12 * HOUR), ({}, "")])
def test_closing_the_browser_ends_it_unless_one_asked_to_be_kept(operator: User, asked: dict[str, str], max_age: int | str) -> None:
    client = Client()
    client.post("/accounts/login/", {"login": "olga", "password": "olgaolga", **asked})
    client.get("/settings")
    assert client.cookies["sessionid"]["max-age"] == (pytest.approx(max_age, abs=30) if max_age else "")
    assert client.session.get_expiry_age() == pytest.approx(12 * HOUR, abs=30), "here it ends at its time either way"


def test_how_long_it_lasts_is_told_and_renewed_on_request(client: Client) -> None:
    ends_in(client, 100)
    told = client.get("/accounts/session")
    assert told["Cache-Control"] == "no-store"
    assert told.json()["left"] == pytest.approx(100, abs=10)
    assert told.json()["last"] is False
    renewed = client.post("/accounts/session").json()
    assert renewed["left"] == pytest.approx(12 * HOUR, abs=30)
    assert client.delete("/accounts/session").status_code == 405


def test_staying_needs_the_token_of_our_own_pages(operator: User) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(operator)
    strict.get("/settings")
    assert strict.post("/accounts/session").status_code == 403
    token = ask(strict)["csrf"]
    assert strict.post("/accounts/session", headers={"X-CSRFToken": token}).status_code == 200


def test_nobody_signed_in_is_401() -> None:
    assert Client().get("/accounts/session").status_code == 401
    assert Client().post("/accounts/session").status_code == 401


def test_a_wall_has_no_such_end() -> None:
    make_site()
    now = timezone.now()
    _, secret = issue_token(user=make_user(role="viewer"), name="NOC screen 1", scopes=("read:wall",), expires_at=now + timedelta(days=90), now=now)
    wall = Client()
    assert wall.post("/wall/sign-in", {"token": secret}).status_code == 302
    page = wall.get("/wall/all")
    assert page.status_code == 200
    assert "session-end" not in page.content.decode()
    assert ENDS not in wall.session
    assert wall.session.get_expiry_date() > now + timedelta(days=89)
    assert int(wall.cookies["sessionid"]["max-age"]) > 89 * 24 * HOUR, "it goes on when the screen restarts"
    ends_in(wall, -1, started_ago=48 * HOUR)  # a person's session that became a wall's
    assert wall.get("/wall/all").status_code == 200


def test_a_token_of_the_api_knows_no_sign_in(operator: User) -> None:
    now = timezone.now()
    _, secret = issue_token(user=operator, name="script", scopes=("read:sites",), expires_at=now + timedelta(days=1), now=now)
    program = Client()
    assert program.get("/api/v1/sites/", headers={"Authorization": f"Bearer {secret}"}).status_code == 200
    assert "sessionid" not in program.cookies


def text_of_dialog(page: Page) -> str:
    return page.inner_text("#session-end")


@pytest.mark.browser
def test_the_browser_warns_and_one_key_stays(chromium: Browser, client: Client) -> None:  # noqa: F811
    with opened(chromium, client) as page:
        page.clock.install()
        page.goto("/settings")
        page.focus("[name=time_zone]")
        ends_in(client, 100)
        page.clock.fast_forward((12 * HOUR - 110) * 1000)
        page.wait_for_selector("#session-end[open]")
        assert "about to end" in text_of_dialog(page)
        assert "It ends in 1 m" in text_of_dialog(page)
        assert page.evaluate("document.activeElement.id") == "session-end-stay"
        assert violations(page) == []
        page.keyboard.press("Enter")
        page.wait_for_selector("#session-end:not([open])", state="attached")
        assert page.evaluate("document.activeElement.name") == "time_zone", "focus is back where it was"
        assert left(client) == pytest.approx(12 * HOUR, abs=60)


@pytest.mark.browser
def test_another_tab_that_renewed_it_is_heard_first(chromium: Browser, client: Client) -> None:  # noqa: F811
    with opened(chromium, client) as page:
        page.clock.install()
        page.goto("/settings")
        with page.expect_response("**/accounts/session"):
            page.clock.fast_forward((12 * HOUR - 110) * 1000)
        assert page.is_hidden("#session-end")


@pytest.mark.browser
def test_after_the_end_it_says_so_and_the_form_can_still_be_sent_after_a_new_sign_in(chromium: Browser, operator: User) -> None:  # noqa: F811
    client = Client(enforce_csrf_checks=True)
    client.force_login(operator)
    with opened(chromium, client) as page:
        page.clock.install()
        page.goto("/settings")
        page.fill("[name=first_name]", "Olga")
        client.session.flush()
        page.clock.fast_forward((12 * HOUR - 110) * 1000)
        page.wait_for_selector("#session-end[open]")
        assert "has ended" in text_of_dialog(page)
        assert violations(page) == []
        assert page.evaluate("document.activeElement.id") == "session-end-again"
        assert page.get_attribute("#session-end-again", "href") == "/accounts/login/?next=/settings"
        page.keyboard.press("Escape")
        assert page.is_hidden("#session-end")
        assert page.input_value("[name=first_name]") == "Olga", "what was typed is still there"
        client.force_login(operator)  # as the other tab does, with a new CSRF token
        token = page.input_value("#session-end [name=csrfmiddlewaretoken]")
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        wait_until(page, f"document.querySelector('[name=csrfmiddlewaretoken]').value !== '{token}'")
        page.keyboard.press("Tab")
        page.click("main form button[type=submit] >> nth=0")
        page.wait_for_load_state()
        operator.refresh_from_db()
        assert operator.first_name == "Olga"


@pytest.mark.browser
def test_at_the_last_end_one_can_only_finish(chromium: Browser, client: Client) -> None:  # noqa: F811
    ends_in(client, 100, started_ago=24 * HOUR - 100)
    with opened(chromium, client) as page:
        page.goto("/settings")
        page.wait_for_selector("#session-end[open]")
        assert "at the latest" in text_of_dialog(page)
        assert page.is_hidden("#session-end-stay")


@pytest.mark.browser
def test_a_list_that_is_filtered_after_the_end_says_so(chromium: Browser, client: Client) -> None:  # noqa: F811
    make_site("PHX-1")
    with opened(chromium, client) as page:
        page.goto("/nodes")
        client.session.flush()
        page.fill("#quick", "x")
        page.wait_for_selector("#session-end[open]")
        assert "has ended" in text_of_dialog(page)
        assert page.input_value("#quick") == "x"
