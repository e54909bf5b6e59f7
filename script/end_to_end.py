"""The end-to-end check of a running stack: what an operator does and sees, in a browser, against real agents and a real Prometheus.

`script/demo --check` runs it, and so does a test. Faults are asked for at the simulator's control address; everything else goes through the product's own doors.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import httpx
import websockets
from playwright.sync_api import Page

from agent.simulator.config import GpuConfig
from script.stack.browser import Chromium, blend, picture, pixels_of, token_colour, wait, wait_for_text
from script.stack.session import Cell, Session
from script.stack.stack import Stack

STATES = ("ok", "degraded", "down", "unknown", "maintenance")
CLOCK_HOLDS_SECONDS = 60
MEMORY_MB = 4096  # of all processes of the demo; the browser is not one of them


class CheckFailed(Exception):
    """The first thing that did not hold."""


def require(holds: bool, what: str) -> None:
    if not holds:
        raise CheckFailed(what)


def check(stack: Stack, say: Callable[[str], None], *, live_within_seconds: float) -> dict[str, Any]:
    """The facts of a check in which everything held. `CheckFailed` names what did not."""
    run = _Run(stack, say, live_within_seconds)
    try:
        return run.all()
    except (AssertionError, httpx.HTTPError) as error:
        raise CheckFailed(str(error) or repr(error)) from error
    finally:
        run.close()


class _Run:
    def __init__(self, stack: Stack, say: Callable[[str], None], live_within_seconds: float) -> None:
        self.stack = stack
        self.say = say
        self.live_within_seconds = live_within_seconds
        self.passwords = stack.layout.account_passwords()
        self.operator = Session(stack.url)
        self.simulator = httpx.Client(base_url=stack.simulator_url, timeout=10)
        self.scrape = stack.options.scrape_interval_seconds
        cells = [site for site in stack.plan.sites if site.nodes[0].role == "du"]
        require(len(cells) >= 2, "The fleet is too small: two cell sites with a DU are needed.")
        self.cut_site, self.lost_site = cells[0], cells[1]
        self.lost_gpu, self.phy_gpu = self.lost_site.nodes[0].gpus[0], cells[-1].nodes[0].gpus[0]
        self.clock_node, self.clock_gpu = next((node, node.gpus[0]) for node in reversed(stack.plan.nodes) if not any(gpu.carries_phy for gpu in node.gpus))
        self.facts: dict[str, Any] = {}

    def close(self) -> None:
        self.operator.close()
        self.simulator.close()

    def all(self) -> dict[str, Any]:
        self._wait_until_live()
        self._refusals()
        with Chromium(self.stack.url) as chromium, chromium.person("operator", self.passwords["operator"]) as page:
            try:
                self._in_the_browser(page)
            except Exception:
                page.screenshot(path=self.stack.layout.logs / "check.png")
                raise
            memory_mb = round(self.stack.supervisor.memory_bytes() / 2**20)
            self.facts["memory_mb"] = memory_mb
            require(memory_mb <= MEMORY_MB, f"The demo's processes hold {memory_mb} MiB, more than {MEMORY_MB}.")
            require(not chromium.complaints, f"The browser complained: {chromium.complaints[:3]}")
        return {"ok": True, **self.facts}

    def _in_the_browser(self, page: Page) -> None:
        self._look_at_pages(page)
        cut_at = self._fault("link_cut", site=self.cut_site.code)
        self._fault("gpu_lost", gpu=self.lost_gpu.uuid, lead_seconds=2.5 * self.scrape)
        self._set_clock_range(page)
        self._see_gpu_lost(page)
        self._see_link_cut(page, cut_at)
        self._see_link_back(page)
        self._see_clock_range_end(page)
        self._see_phy_refused(page)

    # Live

    def _wait_until_live(self) -> None:
        require(self.operator.sign_in("operator", self.passwords["operator"]), "The operator could not sign in.")
        sites = len(self.stack.plan.sites)
        live: dict[str, Cell] = {}

        def complete() -> bool:
            nonlocal live
            try:
                live = {code: cell for code, cell in self.operator.cells().items() if cell.is_live}
            except httpx.HTTPError:
                return False
            return len(live) == sites

        done = wait(complete, within_seconds=self.live_within_seconds, every_seconds=0.5)
        require(done, f"{len(live)} of {sites} sites report after {self.live_within_seconds:.0f} s.")
        self.facts |= {"sites": sites, "reporting": len(live), "start_s": round(time.monotonic() - self.stack.started_at, 1)}
        gpus, slices = self._count_gpus()
        self.facts |= {"gpus": gpus, "slices": slices}
        expected = [gpu for node in self.stack.plan.nodes for gpu in node.gpus]
        require(gpus == len(expected), f"The API lists {gpus} GPUs, the fleet has {len(expected)}.")
        wanted = sum(len(gpu.mig or ()) for gpu in expected)
        require(
            wait(lambda: self._count_gpus()[1] == wanted, within_seconds=60, every_seconds=2), f"The API lists {self._count_gpus()[1]} slices, not {wanted}."
        )
        self.facts["slices"] = wanted
        self.say(f"live: {sites} sites in {self.facts['start_s']} s")

    def _count_gpus(self) -> tuple[int, int]:
        gpus = slices = 0
        path: str | None = "/api/v1/gpus/?expand=slices&page_size=1000"
        while path:
            page = self.operator.get_json(path)
            gpus += len(page["results"])
            slices += sum(len(gpu["slices"]) for gpu in page["results"])
            path = page.get("next")
        return gpus, slices

    # What is refused

    def _refusals(self) -> None:
        stranger, viewer = Session(self.stack.url), Session(self.stack.url)
        try:
            require(not stranger.sign_in("operator", "not the password"), "A wrong password was taken.")
            require(stranger.client.get("/api/v1/sites/").status_code == 401, "The API answers somebody who has not signed in.")
            require(viewer.sign_in("viewer", self.passwords["viewer"]), "The viewer could not sign in.")
            body = self._clock_body(self.clock_gpu, 120)
            path = f"/api/v1/gpus/{self.clock_gpu.uuid}/clock-range"
            answer = viewer.post_json(path, body, headers={"Idempotency-Key": "check-viewer"})
            require(answer.status_code == 403 and "operator" in answer.text.lower(), f"A viewer's POST was answered {answer.status_code}: {answer.text[:200]}")
            foreign = {"Origin": "https://evil.example", "Referer": "https://evil.example/"}
            answer = self.operator.post_json(path, body, headers={"Idempotency-Key": "check-foreign"} | foreign)
            require(answer.status_code == 403, f"A POST from a foreign origin was answered {answer.status_code}.")
            require(asyncio.run(self._socket_status("https://evil.example")) == 403, "The live socket opened for a foreign origin.")
            require(asyncio.run(self._socket_status(self.stack.url)) == 101, "The live socket did not open for our own origin.")
            answer = self._submit(self.phy_gpu, 120, "check-phy")
            require(answer.status_code == 409 and "PHY" in answer.text, f"A control on a PHY GPU was answered {answer.status_code}: {answer.text[:200]}")
        finally:
            stranger.close()
            viewer.close()
        self.say("refused: wrong password, no session, viewer's POST, foreign origin, PHY")

    async def _socket_status(self, origin: str) -> int:
        cookies = "; ".join(f"{name}={value}" for name, value in self.operator.client.cookies.items())
        url = self.stack.url.replace("http://", "ws://") + "/live/"
        try:
            async with websockets.connect(url, origin=websockets.Origin(origin), additional_headers={"Cookie": cookies}):
                return 101
        except websockets.InvalidStatus as refused:
            return refused.response.status_code

    def _clock_body(self, gpu: GpuConfig, seconds: float) -> dict[str, Any]:
        limits = self.operator.get_json(f"/api/v1/gpus/{gpu.uuid}/clock-range")["limits"]
        ends_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))
        return {"min_mhz": limits["min_mhz"], "max_mhz": self._low_clock(limits), "ends_at": ends_at, "reason": "end-to-end check"}

    @staticmethod
    def _low_clock(limits: dict[str, int]) -> int:
        """A clock well under what a busy GPU runs at."""
        return int(limits["min_mhz"] + (limits["max_mhz"] - limits["min_mhz"]) // 3)

    def _submit(self, gpu: GpuConfig, seconds: float, key: str) -> httpx.Response:
        return self.operator.post_json(f"/api/v1/gpus/{gpu.uuid}/clock-range", self._clock_body(gpu, seconds), headers={"Idempotency-Key": key})

    # Pages

    def _look_at_pages(self, page: Page) -> None:
        self._look_at_wall(page)
        self._look_at_site(page)
        page.goto(f"/gpus/{self.phy_gpu.uuid}")
        wait_for_text(page, "PHY", "1g.10gb", "MHz", within_seconds=15)
        require(page.get_attribute("[data-copy]", "data-copy") == self.phy_gpu.uuid, "The GPU's page does not carry its UUID.")
        require(pixels_of(picture(page), token_colour(page, "--phy")) > 200, "The strip of the GPU's page shows no PHY placement.")

    def _look_at_site(self, page: Page) -> None:
        """The site's page says and draws the state that the wall has, and each GPU with its state, its values and its PHY placements."""
        site = self.cut_site
        page.goto(f"/sites/{site.code}")
        wait_for_text(page, site.code, site.name, *(node.host_name for node in site.nodes), within_seconds=15)
        states = page.locator("#site-head .chip [data-state]")
        agrees = wait(lambda: states.get_attribute("data-state") == self.operator.cells()[site.code].state, within_seconds=15, every_seconds=1)
        state = states.get_attribute("data-state") or ""
        require(agrees, f"The page of {site.code} shows {state!r}, the wall {self.operator.cells()[site.code].state!r}.")
        require(state in states.inner_text().lower(), f"The state of {site.code} has no word: {states.inner_text()!r}.")
        require(pixels_of(picture(states), token_colour(page, f"--{state}")) > 20, f"The page of {site.code} draws no mark of {state}.")
        gpus = [gpu for node in site.nodes for gpu in node.gpus]
        rows = page.locator("#site-gpus tr[id^=row-]")
        require(rows.count() == len(gpus), f"The page of {site.code} has {rows.count()} rows of GPUs, not {len(gpus)}.")
        for gpu in gpus:
            row = page.locator(f"#row-{gpu.uuid}")
            require(row.locator("[data-state]").get_attribute("data-state") in STATES, f"The row of {gpu.uuid} has no state.")
            values = [row.locator(f'[data-field="{gpu.uuid}:{name}"]').inner_text() for name in ("utilization_ratio", "gpu_temperature_celsius", "power_watts")]
            require(all(any(sign.isdigit() for sign in value) for value in values), f"The row of {gpu.uuid} lacks values: {values}.")
            phy = sum(part.purpose == "phy" for part in gpu.mig or ())
            require(row.locator(".m-phy").count() == phy, f"The strip of {gpu.uuid} shows {row.locator('.m-phy').count()} PHY placements, not {phy}.")
            require(not phy or pixels_of(picture(row), token_colour(page, "--phy")) > 20, f"The row of {gpu.uuid} draws no PHY placement.")

    def _look_at_wall(self, page: Page) -> None:
        """The area of each state's colour on the wall follows the number of sites in it."""
        page.goto("/wall/all")
        page.wait_for_selector("#wall[data-state=live]", timeout=20_000)
        wait_for_text(page, str(len(self.stack.plan.sites)), within_seconds=10)
        counts = self._state_counts()
        require(wait(lambda: self._wall_agrees(page), within_seconds=15, every_seconds=1), f"The wall's pixels do not show {counts}: {self._wall_areas(page)}.")

    def _state_counts(self) -> dict[str, int]:
        states = [cell.state for cell in self.operator.cells().values()]
        return {state: states.count(state) for state in STATES}

    def _wall_agrees(self, page: Page) -> bool:
        counts, areas = self._state_counts(), self._wall_areas(page)
        per_cell = areas["ok"] / max(1, counts["ok"])
        return per_cell >= 4 and all((areas[state] >= 0.15 * per_cell * counts[state]) if counts[state] else areas[state] <= per_cell for state in STATES)

    def _wall_areas(self, page: Page) -> dict[str, int]:
        """Pixels of the grid in each state's colour. What is fine steps back: it is drawn half transparent, neighbouring regions a little differently."""
        image = picture(page.locator("#canvas-box"))
        ground, fine = token_colour(page, "--bg"), token_colour(page, "--ok")
        areas = {state: pixels_of(image, token_colour(page, f"--{state}"), tolerance=1) for state in STATES}
        areas["ok"] = sum(pixels_of(image, blend(fine, ground, share), tolerance=2) for share in (0.5, 0.62))
        return areas

    # Faults

    def _fault(self, name: str, **target: Any) -> float:
        answer = self.simulator.post("/scenario", json={"name": name, "duration_seconds": 900, **target})
        require(answer.status_code == 201, f"The simulator refused {name}: {answer.text}")
        return float(answer.json()["started_at"])

    def _end_fault(self, **target: str) -> None:
        self.simulator.delete("/scenario", params=target).raise_for_status()

    def _see_link_cut(self, page: Page, cut_at: float) -> None:
        code = self.cut_site.code
        seen = wait(lambda: self.operator.cells()[code].state == "unknown", within_seconds=6 * self.scrape)
        require(seen, f"{code} lost its link and is {self.operator.cells()[code].state}.")
        cell = self.operator.cells()[code]
        require(abs(cell.contact - cut_at) <= self.scrape + 3, f"{code}: last contact {cell.contact - cut_at:+.1f} s from the cut.")
        require(-self.scrape - 3 <= cell.since - cut_at <= 4 * self.scrape + 5, f"{code}: unknown since {cell.since - cut_at:+.1f} s from the cut.")
        self.facts["unknown_s"] = round(time.time() - cut_at, 1)
        page.goto(f"/sites/{code}")
        wait_for_text(page, "unknown", "out of contact", "link", "since", within_seconds=15)
        page.goto("/wall/all")
        page.wait_for_selector("#wall[data-state=live]", timeout=20_000)
        require(wait(lambda: self._wall_agrees(page), within_seconds=15, every_seconds=1), "The wall does not show the silent site.")
        self.say(f"{code} lost its link: unknown after {self.facts['unknown_s']} s, with since and cause")

    def _see_link_back(self, page: Page) -> None:
        code, began = self.cut_site.code, time.monotonic()
        self._end_fault(site=code)
        back = wait(lambda: self.operator.cells()[code].state not in ("unknown", "down"), within_seconds=10 * self.scrape)
        require(back, f"{code} has its link again and is still {self.operator.cells()[code].state}.")
        self.facts["back_s"] = round(time.monotonic() - began, 1)
        self.say(f"{code} is back after {self.facts['back_s']} s")

    def _see_gpu_lost(self, page: Page) -> None:
        page.goto(f"/gpus/{self.lost_gpu.uuid}")
        text = wait_for_text(page, "XID 79", "fallen off the bus", within_seconds=8 * self.scrape, reload=True)
        require("restart" in text.lower() or "reboot" in text.lower(), "The page of the lost GPU advises no restart.")
        self.say("a GPU fell off the bus: XID 79 with its advised action")
        self._end_fault(gpu=self.lost_gpu.uuid)

    # The control

    def _set_clock_range(self, page: Page) -> None:
        """Set on the page; `control_s` is from the click to the first scraped clock within the range."""
        uuid = self.clock_gpu.uuid
        limits = self.operator.get_json(f"/api/v1/gpus/{uuid}/clock-range")["limits"]
        low, high = limits["min_mhz"], self._low_clock(limits)
        before = self._measured_clock(uuid)
        require(before is not None and before > high, f"The SM clock is {before} MHz before the control, not above {high}.")
        page.goto(f"/gpus/{uuid}")
        began = self._fill_clock_form(page, low, high)
        require(wait(lambda: (self._measured_clock(uuid) or 1e9) <= high, within_seconds=3 * self.scrape + 5), "The measured SM clock did not follow.")
        self.facts["control_s"] = round(time.time() - began, 1)
        self.ends_at = began + CLOCK_HOLDS_SECONDS
        observed = self.operator.get_json(f"/api/v1/gpus/{uuid}/clock-range")["observed"]
        require(observed is not None and observed["state"] == "applied", f"The agent reports {observed}.")
        wait_for_text(page, "in force", "read back", within_seconds=15)
        acts = self.simulator.get("/acts", params={"node": self.clock_node.host_name, "kind": "act"}).json()
        require(any(uuid in str(act) for act in acts["acts"]), "The hardware saw no act.")
        bound = 2 * self.scrape + 2
        require(self.facts["control_s"] <= bound, f"From the click to the measured effect {self.facts['control_s']} s, more than {bound} s.")
        self.say(f"clock range set, read back and measured in {self.facts['control_s']} s")

    def _fill_clock_form(self, page: Page, low: int, high: int) -> float:
        """Fill and send the form; the time of the click (Unix seconds)."""
        page.click("#clock-button")
        dialog = page.locator("#clock-dialog")
        dialog.locator("[name=min_mhz]").fill(str(low))
        dialog.locator("[name=max_mhz]").fill(str(high))
        dialog.locator("[name=reason]").fill("end-to-end check")
        # The account's time zone is UTC.
        dialog.locator("[name=ends_at]").fill(time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + CLOCK_HOLDS_SECONDS)))
        began = time.time()
        dialog.locator("button[type=submit]").click()
        page.wait_for_selector("#control-state-clock_range", timeout=10_000)
        return began

    def _measured_clock(self, uuid: str) -> float | None:
        """MHz, as Prometheus last scraped it."""
        query = f'max(DCGM_FI_DEV_SM_CLOCK{{UUID="{uuid}"}})'
        answer = httpx.get(f"{self.stack.prometheus_url}/api/v1/query", params={"query": query}, timeout=5).json()
        result = answer["data"]["result"]
        return float(result[0]["value"][1]) if result else None

    def _see_clock_range_end(self, page: Page) -> None:
        uuid = self.clock_gpu.uuid
        limits = self.operator.get_json(f"/api/v1/gpus/{uuid}/clock-range")["limits"]
        high = self._low_clock(limits)
        rest = max(0.0, self.ends_at - time.time())
        require(wait(lambda: (self._measured_clock(uuid) or 0) > high, within_seconds=rest + 4 * self.scrape), "The clock range did not end by itself.")
        require(time.time() >= self.ends_at - 1, "The clock range ended before its time.")
        require(self.operator.get_json(f"/api/v1/gpus/{uuid}/clock-range")["in_force"] is None, "The control is still in force after its end.")
        self.say("the clock range ended by itself")

    def _see_phy_refused(self, page: Page) -> None:
        page.goto(f"/gpus/{self.phy_gpu.uuid}")
        wait_for_text(page, "carries PHY", "approvals", within_seconds=10)
