"""Pages in chromium: the chosen theme from the first paint, keys that can be switched off, and a content policy that nothing breaks."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page

from console.models import User
from tests.builders import make_user
from tests.console.browser import chromium, opened, playwright, wait_until  # noqa: F401 (fixtures)
from tests.console.pages import signed_in

pytestmark = [pytest.mark.django_db, pytest.mark.browser]


@pytest.fixture
def administrator() -> User:
    return make_user("adam", role="administrator")


def settled(page: Page, path: str) -> None:
    page.goto(path, wait_until="load")
    wait_until(page, "document.fonts.status === 'loaded'")


def test_a_theme_that_was_chosen_wins_over_the_browsers_from_the_first_paint(chromium: Browser, administrator: User) -> None:  # noqa: F811
    User.objects.filter(pk=administrator.pk).update(theme="light")
    with opened(chromium, signed_in(administrator), theme="dark") as page:
        assert 'data-theme="light"' in signed_in(administrator).get("/settings").content.decode(), "the server says so, no script is needed"
        settled(page, "/settings")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(244, 246, 248)"


def test_letters_can_be_switched_off(chromium: Browser, administrator: User) -> None:  # noqa: F811
    User.objects.filter(pk=administrator.pk).update(single_letter_keys=False)
    with opened(chromium, signed_in(administrator)) as page:
        settled(page, "/sites")
        page.keyboard.press("?")
        page.keyboard.press("/")
        assert page.is_hidden("#keys")
        assert page.evaluate("document.activeElement.id") != "quick"
        page.keyboard.press("Control+k")
        assert page.is_visible("#palette")
