"""Every page in chromium, full and empty: axe finds nothing in the dark and in the light, and at 360 px nothing is too small to hit or too wide to see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, resolve
from django.utils import timezone
from playwright.sync_api import Browser, Page, ViewportSize

from console.models import User
from tests.builders import make_tenant, make_user
from tests.console import every_page
from tests.console.axe import violations
from tests.console.browser import chromium, opened, playwright, wait_until  # noqa: F401 (fixtures)
from tests.console.pages import signed_in

pytestmark = [pytest.mark.django_db, pytest.mark.browser]
WIDE, NARROW = ViewportSize(width=1280, height=900), ViewportSize(width=360, height=800)
EMPTY = ["/", "/map", "/wall/all", "/sites", "/sites?q=zzz", "/nodes", "/regions", "/guard-rails", "/jobs", "/search", "/search?q=zzz", "/settings", "/settings/sessions",
         "/settings/tokens", "/settings/agents", "/settings/senders", "/settings/tenants", "/accounts/password/", "/accounts/logout/", "/no-such-page"]  # fmt: skip


SIGNED_OUT = ["/accounts/login/", "/wall/sign-in"]
# Addresses that show no page of their own: acts, parts of a page, files, figures for programs. `account_inactive` is a sentence on the sign-in's frame.
NO_PAGES = {
    "healthz", "livez", "readyz", "metrics", "account_inactive", "account_session", "search_suggest", "list_view_save", "list_view_delete", "list_columns",
    "gpu_clock_range", "gpu_control_withdraw", "maintenance_plan", "maintenance_end", "maintenance_extend", "overview_panels", "wall", "wall_panels", "live_layout",
    "live_frames", "job_cancel", "job_log", "import_select", "import_apply", "import_undo", "import_result", "export", "settings_sessions_revoke",
    "settings_agents_decide", "node_agent_revoke", "settings_sender_rotate", "settings_sender_end_rotation", "settings_sender_revoke", "settings_tenant_member",
    "settings_tenant_member_remove", "settings_tenant_namespace", "settings_tenant_namespace_remove", "settings_tenant_suspend", "settings_token_rotate",
    "settings_token_revoke", "settings_user_grant", "settings_user_take_role", "settings_user_active", "settings_user_password", "settings_user_sessions",
    "gpu_chart", "site_chart", "audit_export", "audit_verify", "node_control_withdraw", "command_approve", "command_deny", "command_pause", "command_resume", "command_abort",
    "switch_release", "breaker_reset", "freeze_end",
}  # fmt: skip


@pytest.fixture
def administrator() -> User:
    return make_user("adam", role="administrator")


def patterns(found: Sequence[URLPattern | URLResolver]) -> Iterator[URLPattern]:
    """Those of the console, without the API's (its one page is the description, by swagger-ui)."""
    for one in found:
        if isinstance(one, URLPattern):
            yield one
        elif str(one.pattern) != "api/":
            yield from patterns(one.url_patterns)


def settled(page: Page, path: str) -> None:
    page.goto(path, wait_until="load")
    wait_until(page, "document.fonts.status === 'loaded'")
    # map and wall draw what they have heard
    wait_until(page, "!document.querySelector('#map-rows:not(:has(li)), #wall[data-state=connecting]')")


def problems_of(page: Page, path: str) -> list[str]:
    """All rules in the dark, contrast in the light, then as narrow as a telephone. One load."""
    page.set_viewport_size(WIDE)
    page.emulate_media(color_scheme="dark")
    settled(page, path)
    return problems_of_shown(page, path)


def problems_of_shown(page: Page, path: str) -> list[str]:
    found = [f"{path} dark: {text}" for text in violations(page)]
    page.emulate_media(color_scheme="light")
    found += [f"{path} light: {text}" for text in violations(page, rules=["color-contrast"])]
    page.set_viewport_size(NARROW)
    found += [f"{path} at 360 px: {text}" for text in violations(page, rules=["target-size", "scrollable-region-focusable"])]
    if (wide := page.evaluate("document.documentElement.scrollWidth")) > NARROW["width"]:
        found.append(f"{path} is {wide} px wide on a screen of {NARROW['width']}")
    return found


def check(chromium: Browser, client: Client, paths: list[str]) -> None:  # noqa: F811
    with opened(chromium, client) as page:
        problems = [text for path in paths for text in problems_of(page, path)]
    assert not problems, "\n".join(problems)


def test_axe_finds_nothing_on_a_full_console(chromium: Browser, administrator: User) -> None:  # noqa: F811
    paths = every_page.fill(administrator, now=timezone.now())
    looked_at = {resolve(path.partition("?")[0]).url_name for path in [*paths, *EMPTY, *SIGNED_OUT] if path != "/no-such-page"}
    known = {pattern.name for pattern in patterns(get_resolver().url_patterns) if pattern.name}
    assert known - NO_PAGES == looked_at, "a page that nobody looks at, or one that is gone"
    check(chromium, signed_in(administrator), paths)


def test_axe_finds_nothing_on_an_empty_console(chromium: Browser, administrator: User) -> None:  # noqa: F811
    check(chromium, signed_in(administrator), EMPTY)


def test_axe_finds_nothing_where_nobody_is_signed_in(chromium: Browser) -> None:  # noqa: F811
    check(chromium, Client(), SIGNED_OUT)


def test_axe_finds_nothing_on_a_tenants_page(chromium: Browser) -> None:  # noqa: F811
    check(chromium, signed_in(make_user("tina", tenant=make_tenant("acme"))), ["/"])


def test_axe_finds_nothing_on_forms_that_were_refused(chromium: Browser, administrator: User) -> None:  # noqa: F811
    wrong = (("/settings", "time_zone", "Mars/Olympus"), ("/settings/tokens", "name", ""), ("/accounts/password/", "oldpassword", "wrong"))
    problems = []
    with opened(chromium, signed_in(administrator)) as page:
        for path, field, value in wrong:
            settled(page, path)
            page.fill(f"[name={field}]", value)
            page.locator(f"form:has([name={field}]) button[type=submit]").click()
            page.wait_for_selector(".form-errors, .errors")
            problems += problems_of_shown(page, f"{path} refused")
            page.set_viewport_size(WIDE)
            page.emulate_media(color_scheme="dark")
    assert not problems, "\n".join(problems)


def test_a_theme_that_was_chosen_wins_over_the_browsers_from_the_first_paint(chromium: Browser, administrator: User) -> None:  # noqa: F811
    User.objects.filter(pk=administrator.pk).update(theme="light")
    with opened(chromium, signed_in(administrator), theme="dark") as page:
        assert 'data-theme="light"' in signed_in(administrator).get("/settings").content.decode(), "the server says so, no script is needed"
        settled(page, "/settings")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(244, 246, 248)"
