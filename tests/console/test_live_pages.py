"""Wall, overview and map in chromium against a server that has no sockets: they work by polling, say so, and show what was published."""

import os
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.conf import settings
from django.test import Client
from django.utils import timezone
from playwright.sync_api import Browser, Page, sync_playwright

from fleet import frames, stream
from fleet.models import Finding, Site, SiteHealth
from script.stack.browser import ARGUMENTS
from tests.builders import T0, make_area, make_region, make_site, make_user

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
OK, DEGRADED, DOWN, UNKNOWN = 0, 1, 2, 3
AXE_RULES = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}}
AXE = (Path(__file__).parents[1] / "vendor/axe-core/axe-4.14.1.min.js").read_text()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # Playwright's loop runs in this thread; Django would take its own statements for asynchronous ones.
    before = os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        yield browser
        browser.close()
    if before is None:
        del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


@pytest.fixture
def published() -> Iterator[Any]:
    client = stream.connect()
    client.flushdb()
    publisher = stream.FramePublisher(client)

    def publish(states: dict[int, int]) -> None:
        now, n, ids = timezone.now().timestamp(), len(states), sorted(states)
        areas = dict(Site.objects.values_list("pk", "region__area_id"))
        state = np.array([states[one] for one in ids])
        cells = frames.columns(
            site_id=ids,
            state=state,
            flags=np.where(state == UNKNOWN, frames.FLAG_SILENT, 0),
            gpus_reporting=[2] * n,
            gpus_expected=[2] * n,
            utilization_ratio=[0.4] * n,
            power_watts=[1200.0] * n,
            since=[now - 60] * n,
            contact=[now - 1] * n,
        )
        publisher.publish(cells, np.array([areas[one] for one in ids]), now=now, newest_arrival=now)

    yield publish
    client.flushdb()
    client.close()


@pytest.fixture
def fleet() -> list[Site]:
    """Two areas with two regions each, eight sites a region."""
    sites = []
    for number in range(4):
        region = make_region(f"region-{number}", name=f"Region {number}", area=make_area("north" if number < 2 else "south"))
        sites += [
            make_site(f"R{number}-{n:02d}", region=region, latitude=40.0 + n / 10, longitude=-100.0 + 5 * number, power_feed_watts=1800) for n in range(8)
        ]
    return sites


def open_page(browser: Browser, live_server: Any, path: str, wrong: list[str], *, width: int = 1280, scheme: Any = "dark") -> Page:
    client = Client()
    client.force_login(make_user(role="viewer"))
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": client.cookies[settings.SESSION_COOKIE_NAME].value, "url": live_server.url}])
    page = context.new_page()
    page.on("pageerror", lambda error: wrong.append(str(error)))
    # The missing socket is what these tests are about; anything else that the console complains of is a fault (a content policy breach, a 404).
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" and "/live/" not in message.text else None)
    page.goto(f"{live_server.url}{path}")
    return page


def test_wall_by_polling(browser: Browser, live_server: Any, fleet: list[Site], published: Any) -> None:
    wrong: list[str] = []
    states = {site.pk: OK for site in fleet} | {fleet[0].pk: DOWN, fleet[1].pk: UNKNOWN, fleet[9].pk: DEGRADED}
    published(states)
    page = open_page(browser, live_server, "/wall/all", wrong)
    page.wait_for_function(
        "() => document.getElementById('wall').dataset.state === 'polling' && document.querySelector('#counts [data-state=down] b').textContent === '1'"
    )
    assert page.inner_text("#counts [data-state=ok] b") == "29"
    assert page.inner_text("#link") == "polling"
    page.wait_for_selector("#wall-banner:not([hidden])", timeout=5000)
    assert "No live connection" in page.inner_text("#wall-banner")
    page.wait_for_function("() => document.getElementById('reporting').textContent.includes('31 of 32 reporting')")
    assert page.inner_text("#worst-rows li:not([hidden]) .name >> nth=0") == "Region 0"
    colours = page.evaluate(
        """(ids) => ids.map((id) => { const { pixels, size, state } = document.getElementById("grid").probe(id); const middle = 4 * (Math.floor(size * 0.75) * size + Math.floor(size * 0.42)); return [state, ...pixels.slice(middle, middle + 3)]; })""",
        [fleet[0].pk, fleet[9].pk, fleet[5].pk],
    )
    assert [one[0] for one in colours] == [DOWN, DEGRADED, OK]
    assert colours[0][1:] == [0xEE, 0x6A, 0x4E]
    assert colours[1][1:] == [0xFF, 0xD9, 0x42]
    assert colours[2][1:] not in (colours[0][1:], colours[1][1:])
    published(states | {fleet[0].pk: OK})
    page.wait_for_function("() => document.querySelector('#counts [data-state=down] b').textContent === '0'", timeout=8000)
    assert wrong == []
    page.context.close()


def test_wall_by_keyboard(browser: Browser, live_server: Any, fleet: list[Site], published: Any) -> None:
    wrong: list[str] = []
    published({site.pk: OK for site in fleet})
    page = open_page(browser, live_server, "/wall/all", wrong)
    page.wait_for_function("() => document.querySelector('#counts [data-state=ok] b').textContent === '32'")
    page.keyboard.press("v")
    assert page.inner_text("#region-rows tr >> nth=0").split("\t")[1:] == ["8", "8", "8", "0", "0", "0", "0"]
    page.keyboard.press("v")
    page.keyboard.press("+")
    page.wait_for_function("() => document.getElementById('grid').wall.grid.z > 1.3")
    page.keyboard.press("0")
    page.wait_for_function("() => document.getElementById('grid').wall.grid.z === 1")
    page.keyboard.press(" ")
    assert page.is_visible("#hold-note")
    page.evaluate("() => document.querySelector('.wall-keys button').focus()")
    page.focus("#grid")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert "R0-0" in page.inner_text("#tip b")
    assert "OK" in page.inner_text("#focus-text")
    code = page.inner_text("#tip b")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/sites/{code}")
    page.go_back()
    page.wait_for_function("() => document.getElementById('grid')?.wall")
    page.keyboard.press("n")
    page.wait_for_url("**/wall/north")
    assert [text for text in wrong if "503" not in text] == []  # the site page has no Prometheus here
    page.context.close()


def test_wall_that_lost_the_console_greys_and_says_since_when(browser: Browser, live_server: Any, fleet: list[Site], published: Any) -> None:
    wrong: list[str] = []
    published({site.pk: OK for site in fleet})
    page = open_page(browser, live_server, "/wall/all", wrong)
    page.wait_for_function("() => document.querySelector('#counts [data-state=ok] b').textContent === '32'")
    page.context.set_offline(True)
    page.wait_for_function("() => document.getElementById('wall').dataset.state === 'lost'", timeout=5000)
    page.wait_for_selector(".wall-page[data-faded]", timeout=2000)
    assert "The console does not answer" in page.inner_text("#wall-banner")
    page.context.set_offline(False)
    page.wait_for_function("() => document.getElementById('wall').dataset.state === 'polling'", timeout=8000)
    page.context.close()


def test_an_empty_wall_says_so(browser: Browser, live_server: Any, published: Any) -> None:
    wrong: list[str] = []
    page = open_page(browser, live_server, "/wall/all", wrong)
    page.wait_for_selector("#wall-empty:not([hidden])")
    assert page.inner_text("#counts [data-state=ok] b") == "–"
    assert wrong == []
    page.context.close()


@pytest.mark.parametrize("width", [1280, 360])
def test_map_and_its_list_show_the_same(browser: Browser, live_server: Any, fleet: list[Site], published: Any, width: int) -> None:
    wrong: list[str] = []
    published({site.pk: OK for site in fleet} | {fleet[31].pk: DOWN})
    page = open_page(browser, live_server, "/map", wrong, width=width)
    page.wait_for_function("() => document.querySelector('[data-filter=down] .count')?.textContent === '1'")
    assert "32 sites" in page.inner_text("#map-total")
    assert page.evaluate("() => document.documentElement.scrollWidth") == width
    first = page.locator("#map-rows li >> nth=0")
    assert "1 down" in first.inner_text()
    page.keyboard.press("l")
    assert page.evaluate("() => document.activeElement.closest('#map-rows') !== null")
    page.click("[data-filter=ok]")
    page.wait_for_function("() => document.querySelectorAll('#map-rows li').length === 1")
    assert fleet[31].code in page.inner_text("#map-rows li a .name")
    assert wrong == []
    page.context.close()


def test_marks_of_the_map_lie_apart(browser: Browser, live_server: Any, fleet: list[Site], published: Any) -> None:
    wrong: list[str] = []
    published({site.pk: (OK, DEGRADED, DOWN)[n % 3] for n, site in enumerate(fleet)})
    page = open_page(browser, live_server, "/map", wrong)
    page.wait_for_function("() => document.querySelector('[data-filter=down] .count')?.textContent === '10'")
    for key in ("0", "-", "-", "+", "+", "+", "+"):
        page.keyboard.press(key)
        page.wait_for_timeout(50)
        overlaps, sites = page.evaluate("""() => {
          const { clusters } = document.getElementById("map-canvas").map.view;
          const touch = (a, b) => a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h;
          return [clusters.filter((one, i) => clusters.slice(i + 1).some((other) => touch(one.box, other.box))).length, clusters.reduce((n, one) => n + one.rows.length, 0)];
        }""")
        assert overlaps == 0
        assert sites <= len(fleet)
    assert wrong == []
    page.context.close()


def test_a_small_fleet_fills_the_wall(browser: Browser, live_server: Any, published: Any) -> None:
    sites = [make_site(f"A{n:02d}-{k}", region=make_region(f"r-{n}-{k}", area=make_area(f"area-of-{n}"))) for n in range(8) for k in range(2)]
    published({site.pk: OK for site in sites})
    page = open_page(browser, live_server, "/wall/all", [])
    page.wait_for_function("() => document.getElementById('grid')?.wall?.grid.cell > 0")
    assert page.evaluate("() => document.getElementById('grid').wall.grid.cell") >= 24, "areas stand side by side"
    page.context.close()


def test_without_contact_all_is_grey_and_nothing_is_sent(browser: Browser, live_server: Any, fleet: list[Site]) -> None:
    page = open_page(browser, live_server, "/", [])
    page.wait_for_selector("#live-state[data-state=polling]")
    page.context.set_offline(True)
    page.wait_for_selector("html[data-disconnected]", state="attached", timeout=10_000)
    assert "No contact with the console" in page.inner_text("#banners")
    grey = page.evaluate("() => getComputedStyle(document.documentElement).getPropertyValue('--text-3').trim()")
    shown = page.evaluate("() => getComputedStyle(document.querySelector('.health-tiles b')).color")
    assert shown == f"rgb({int(grey[1:3], 16)}, {int(grey[3:5], 16)}, {int(grey[5:7], 16)})"
    page.click("[aria-label='Sign out']")
    page.wait_for_selector(".toast.error >> text=The console does not answer")
    assert page.url == f"{live_server.url}/"
    page.context.close()


def test_a_row_whose_state_changed_no_longer_gives_the_old_reason(browser: Browser, live_server: Any, fleet: list[Site], published: Any) -> None:
    SiteHealth.objects.bulk_create([SiteHealth(site=site, state="down", since=T0, why="Lost in a flood.", last_contact_at=T0) for site in fleet])
    published({site.pk: DOWN for site in fleet})
    page = open_page(browser, live_server, "/sites", [])
    page.wait_for_selector("#live-state[data-state=polling]")
    assert page.locator("#list tbody >> text=Lost in a flood.").count() == len(fleet)
    published({site.pk: DOWN for site in fleet} | {fleet[3].pk: OK})
    row = page.locator(f"#list tr:has([data-field='{fleet[3].pk}:state'])")
    row.locator("text=OK").wait_for(timeout=8000)
    assert "Lost in a flood." not in row.inner_text()
    assert page.locator("#list tbody >> text=Lost in a flood.").count() == len(fleet) - 1
    assert page.inner_text("#list-changes span") == "1 changes"
    page.context.close()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (360, "light")])
def test_overview_follows_what_happens(browser: Browser, live_server: Any, fleet: list[Site], width: int, scheme: str) -> None:
    wrong: list[str] = []
    SiteHealth.objects.bulk_create([SiteHealth(site=site, state="ok", since=T0, last_contact_at=T0) for site in fleet])
    page = open_page(browser, live_server, "/", wrong, width=width, scheme=scheme)
    assert page.inner_text(".health-tiles [data-state=ok] b") == "32"
    assert page.evaluate("() => document.documentElement.scrollWidth") == width
    SiteHealth.objects.filter(site=fleet[3]).update(state="down")
    values: dict[str, Any] = {"since": timezone.now() - timedelta(seconds=5), "last_at": timezone.now()}
    Finding.objects.create(kind="site", object_key=fleet[3].code, site=fleet[3], code="node_down", severity="major", summary="Node down", **values)
    page.wait_for_function("() => document.querySelector('.health-tiles [data-state=down] b').textContent === '1'", timeout=15_000)
    assert fleet[3].code in page.inner_text("#panel-2")
    page.keyboard.press("3")
    assert page.evaluate("() => document.activeElement.id") == "panel-3"
    assert wrong == []
    page.context.close()


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_axe_finds_nothing(browser: Browser, live_server: Any, fleet: list[Site], published: Any, scheme: str) -> None:
    wrong: list[str] = []
    published({site.pk: OK for site in fleet} | {fleet[0].pk: DOWN, fleet[1].pk: UNKNOWN})
    SiteHealth.objects.bulk_create([SiteHealth(site=site, state="ok", since=T0, last_contact_at=T0) for site in fleet])
    Finding.objects.create(kind="site", object_key=fleet[0].code, site=fleet[0], code="node_down", severity="major", summary="Node down", since=T0, last_at=T0)
    page = open_page(browser, live_server, "/", wrong, scheme=scheme)
    found: list[str] = []
    for path, ready in (("/", "#panel-5"), ("/map", "#map-rows li"), (f"/wall/all?theme={scheme}", "#power-rows .num")):
        page.goto(f"{live_server.url}{path}")
        page.wait_for_selector(ready)
        page.evaluate(AXE)
        result: Any = page.evaluate("(rules) => axe.run(document, rules)", AXE_RULES)
        found += [f"{path} {row['id']}: {node['html'][:160]}" for row in result["violations"] for node in row["nodes"][:3]]
    assert found == []
    page.context.close()
