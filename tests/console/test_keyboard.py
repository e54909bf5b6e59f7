"""The pages by keyboard alone: lists, chords, the palette, a control with its undo; focus is seen and never hidden."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, Page
from pytest_django import Settings

from console.models import User
from fleet.control import signing
from fleet.models import Gpu, Node, Policy, Site
from tests.builders import make_user
from tests.console import every_page
from tests.console.browser import chromium, opened, playwright, wait_until  # noqa: F401 (fixtures)
from tests.console.pages import signed_in

pytestmark = [pytest.mark.django_db, pytest.mark.browser]


@pytest.fixture
def administrator() -> User:
    return make_user("adam", role="administrator")


@pytest.fixture
def fleet(administrator: User) -> list[str]:
    return every_page.fill(administrator, now=timezone.now())


def settled(page: Page, path: str) -> None:
    page.goto(path, wait_until="load")
    wait_until(page, "document.fonts.status === 'loaded'")


def focused_id(page: Page) -> str:
    return str(page.evaluate("document.activeElement.id"))


def test_filter_select_and_open_by_keyboard_alone(chromium: Browser, administrator: User, fleet: list[str]) -> None:  # noqa: F811
    with opened(chromium, signed_in(administrator)) as page:
        settled(page, "/sites")
        page.keyboard.press("/")
        assert focused_id(page) == "quick"
        page.keyboard.type("harbor")
        page.wait_for_url("**/sites?*q=harbor*")
        shown = "[...document.querySelectorAll('#list tbody tr')]"
        wait_until(page, f"{shown}.length && {shown}.every(r => r.textContent.includes('Harbor'))")
        assert focused_id(page) == "quick", "focus survives the swap"
        page.keyboard.press("x")
        assert page.input_value("#quick") == "harborx", "letters do nothing else while one types"
        page.keyboard.press("Backspace")
        wait_until(page, f"{shown}.length > 0")
        page.keyboard.press("Escape")
        wait_until(page, f"!{shown}.every(r => r.textContent.includes('Harbor'))")
        page.keyboard.press("j")
        page.keyboard.press("j")
        page.keyboard.press("x")
        page.wait_for_selector("#bulk:not([hidden])")
        assert page.inner_text("#bulk-count") == "1 selected"
        page.keyboard.press("Shift+X")
        assert page.inner_text("#bulk-count").startswith("All ")
        page.keyboard.press("Escape")
        assert page.is_hidden("#bulk")
        code = page.inner_text("tr.at td.main")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/sites/{code}")


def test_chords_palette_and_sheet(chromium: Browser, administrator: User, fleet: list[str]) -> None:  # noqa: F811
    gpu = Gpu.objects.order_by("pk")[0]
    with opened(chromium, signed_in(administrator)) as page:
        settled(page, "/regions")
        page.keyboard.press("g")
        page.keyboard.press("n")
        page.wait_for_url("**/nodes")
        page.keyboard.press("?")
        assert page.is_visible("#keys")
        assert "Select the row" in page.inner_text("#keys")
        page.keyboard.press("Escape")
        assert page.is_hidden("#keys")
        page.keyboard.press("Control+k")
        page.keyboard.type(gpu.uuid[4:16])
        page.wait_for_selector("#palette [role=option] >> text=" + gpu.uuid)
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/gpus/{gpu.uuid}")


def test_letters_can_be_switched_off(chromium: Browser, administrator: User) -> None:  # noqa: F811
    User.objects.filter(pk=administrator.pk).update(single_letter_keys=False)
    with opened(chromium, signed_in(administrator)) as page:
        settled(page, "/sites")
        page.keyboard.press("?")
        page.keyboard.press("/")
        assert page.is_hidden("#keys")
        assert focused_id(page) != "quick"
        page.keyboard.press("Control+k")
        assert page.is_visible("#palette")


def test_the_clock_range_with_undo(chromium: Browser, administrator: User, fleet: list[str], tmp_path: Path, settings: Settings) -> None:  # noqa: F811
    signing.create_key_file(tmp_path / "signing.pem")
    settings.SIGNING_KEY_FILE = str(tmp_path / "signing.pem")
    Policy.objects.all().delete()
    gpu = Gpu.objects.filter(mig_enabled=False).order_by("pk")[0]
    Node.objects.filter(pk=gpu.node_id).update(role=Node.Role.INFERENCE)  # on a DU node it would need an approval
    with opened(chromium, signed_in(administrator)) as page:
        settled(page, f"/gpus/{gpu.uuid}")
        page.keyboard.press("c")
        assert page.evaluate("document.activeElement.name") == "min_mhz"
        for text in ("900", "1200"):
            page.keyboard.press("Control+a")
            page.keyboard.type(text)
            page.keyboard.press("Tab")
        page.focus("[name=reason]")
        page.keyboard.type("heat")
        page.keyboard.press("Enter")
        page.wait_for_selector(".toast >> text=Clock range set.")
        policy = Policy.objects.get()
        assert policy.parameters == {"min_mhz": 900, "max_mhz": 1200}
        page.focus(".toast button:has-text('Undo')")
        page.keyboard.press("Enter")
        page.wait_for_selector(".toast >> text=Withdrawn")
        policy.refresh_from_db()
        assert policy.withdrawn_at is not None


def test_maintenance_is_planned_by_one_letter(chromium: Browser, administrator: User, fleet: list[str]) -> None:  # noqa: F811
    site = Site.objects.order_by("pk")[1]
    with opened(chromium, signed_in(administrator)) as page:
        settled(page, f"/sites/{site.code}")
        page.keyboard.press("m")
        assert page.evaluate("document.activeElement.name") == "starts_at"
        page.keyboard.press("m")
        assert page.locator("dialog[open]").count() == 1, "inside the dialog it is a letter"
        page.keyboard.press("Escape")
        assert page.evaluate("document.activeElement.dataset.openDialog") == "maintenance-dialog", "focus is back"


@pytest.mark.parametrize("where", ["site", "sites", "overview"])
def test_focus_is_seen_and_not_hidden_under_bars(chromium: Browser, administrator: User, fleet: list[str], where: str) -> None:  # noqa: F811
    path = {"site": f"/sites/{Site.objects.order_by('pk')[0].code}", "sites": "/sites?page_size=10", "overview": "/"}[where]
    with opened(chromium, signed_in(administrator), height=500) as page:
        settled(page, path)
        for _ in range(60):
            page.keyboard.press("Tab")
            seen = page.evaluate("""() => {
              const e = document.activeElement;
              if (e === document.body || e.closest('[hidden]')) return 'none';
              const style = getComputedStyle(e), box = e.getBoundingClientRect();
              if (style.outlineStyle === 'none' && !e.matches('.palette input')) return `no outline on ${e.outerHTML.slice(0, 80)}`;
              const x = Math.min(innerWidth - 1, Math.max(0, box.x + box.width / 2)), y = Math.min(innerHeight - 1, Math.max(0, box.y + box.height / 2));
              const top = document.elementFromPoint(x, y);
              return top && (e.contains(top) || top.contains(e) || top.closest('label')?.control === e) ? 'ok' : `${e.outerHTML.slice(0, 80)} hidden under ${top?.outerHTML.slice(0, 80)}`;
            }""")
            assert seen in ("ok", "none"), seen


def test_nodes_without_values_are_drawn(chromium: Browser, administrator: User, fleet: list[str]) -> None:  # noqa: F811
    node = Node.objects.order_by("pk")[0]
    with opened(chromium, signed_in(administrator)) as page:
        settled(page, f"/nodes/{node.pk}")
        assert page.locator(".mini").count() == every_page.GPUS_PER_NODE
        assert page.locator(".topology td.nv").count() == 2
