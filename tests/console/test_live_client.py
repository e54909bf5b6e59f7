"""The browser's half of live pages, in chromium: frames are read as they were written, gaps heal (case C41), the wall works by polling."""

import asyncio
import base64
import functools
import http.server
import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import websockets.sync.server
from playwright.sync_api import Page, sync_playwright

from fleet import frames
from script.stack.browser import ARGUMENTS

pytestmark = pytest.mark.browser
CHECKOUT = Path(__file__).parents[2]
CASE = Path(__file__).parents[1] / "cases/C41-dropped-group-messages"
NOW = 1_763_632_800.0
STATE = {"ok": 0, "warn": 1, "lost": 2}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The checkout's static files on a port of their own, and an empty page."""
    handler = functools.partial(QuietHandler, directory=str(CHECKOUT))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/":
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>empty</title>")
        else:
            super().do_GET()

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def page(address: str) -> Iterator[Page]:
    # Playwright's synchronous interface holds a running loop in this thread; afterwards other tests need none to be set.
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        page = browser.new_page()
        page.goto(address)
        yield page
        browser.close()
    asyncio.set_event_loop(None)


def cells(states: dict[int, int], age: float = 0.0) -> frames.SiteColumns:
    n = len(states)
    return frames.columns(
        site_id=list(states),
        state=list(states.values()),
        flags=[0] * n,
        gpus_reporting=range(n),
        gpus_expected=[8] * n,
        utilization_ratio=[0.25] * n,
        power_watts=[float("nan")] + [512.5] * (n - 1),
        since=[NOW - 5] * n,
        contact=[NOW - age] * n,
    )


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 40])
def test_the_browser_reads_what_was_written(page: Page, count: int) -> None:
    random = np.random.default_rng(count)
    written = frames.columns(
        site_id=np.arange(1, count + 1) * 7,
        state=random.integers(0, 5, count),
        flags=random.integers(0, 4, count),
        gpus_reporting=random.integers(0, 9, count),
        gpus_expected=random.integers(0, 9, count),
        utilization_ratio=random.random(count),
        power_watts=random.random(count) * 3000,
        since=NOW - random.integers(0, 1000, count),
        contact=NOW - random.random(count) * 1000,
    )
    data = frames.encode(frames.Frame(frames.DELTA, 3, NOW, 2**52 + 3, written)) * 2  # two, back to back
    read = page.evaluate(
        """async (text) => {
          const { readFrame } = await import("/static/js/lib/fleet_store.js");
          const buffer = Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer;
          const first = readFrame(buffer), second = readFrame(buffer, first.length);
          return [first, second].map((one) => Object.fromEntries(Object.entries(one).map(([key, value]) => [key, ArrayBuffer.isView(value) ? [...value] : value])));
        }""",
        base64.b64encode(data).decode(),
    )
    for frame in read:
        assert (frame["kind"], frame["area"], frame["seq"], frame["madeAt"], frame["length"]) == (frames.DELTA, 3, 2**52 + 3, NOW, frames.frame_length(count))
        assert frame["id"] == written.site_id.tolist()
        assert frame["power"] == written.power_watts.tolist()
        assert frame["age"] == (NOW - written.contact).tolist()
        for mine, theirs in (("state", "state"), ("flags", "flags"), ("reporting", "gpus_reporting"), ("expected", "gpus_expected"), ("since", "since")):
            assert frame[mine] == getattr(written, theirs).tolist()


def test_garbage_is_refused_by_the_browser_too(page: Page) -> None:
    refused = page.evaluate(
        """async () => {
          const { readFrame } = await import("/static/js/lib/fleet_store.js");
          return [0, 5, 31, 32, 64].map((n) => { try { readFrame(new ArrayBuffer(n)); return false; } catch (error) { return error instanceof RangeError; } });
        }"""
    )
    assert refused == [True] * 5


def test_delta_on_snapshot_equals_the_next_snapshot_in_the_browser(page: Page) -> None:
    before, after = cells({1: 0, 2: 0, 3: 3}), cells({1: 0, 2: 2, 3: 3, 4: 4})
    messages = [
        frames.Frame(frames.SNAPSHOT, 1, NOW, 10, before),
        frames.Frame(frames.DELTA, 1, NOW + 1, 11, frames.diff(before, after)),
    ]
    read = page.evaluate(
        """async (texts) => {
          const { FleetStore } = await import("/static/js/lib/fleet_store.js");
          const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer;
          const make = () => { const store = new FleetStore(); store.setLayout({ areas: [{ id: 1 }], regions: [{ id: 1, area: 0 }], sites: { id: [1, 2, 3, 4, 5], region: [0, 0, 0, 0, 0], code: [], name: [], lat: [], lon: [], feed: [] } }); return store; };
          const show = (store) => [...store.state, ...store.reporting, ...store.power, ...store.contact, ...store.seen];
          const one = make(), other = make();
          one.apply(bytes(texts[0])); one.apply(bytes(texts[1]));
          other.apply(bytes(texts[2]));
          return [show(one).map(String), show(other).map(String), one.summary().total];
        }""",
        [base64.b64encode(frames.encode(one)).decode() for one in (*messages, frames.Frame(frames.SNAPSHOT, 1, NOW + 1, 11, after))],
    )
    assert read[0] == read[1]
    assert read[2]["counts"] == [1, 0, 1, 2, 1]  # the site that no frame names is unknown
    assert read[2]["reporting"] == 4


class Server:
    """Plays one side of case C41: what was delivered, then a snapshot to whoever asks."""

    def __init__(self, *, last_is_a_beat: bool) -> None:
        burst = json.loads((CASE / "burst.json").read_text())
        self.initial, self.burst = burst["initial"], {one["seq"]: one for one in burst["sent"]}
        self.delivered = [seq for seq in burst["delivered_seq"] if not (last_is_a_beat and seq == 622)]
        self.last_is_a_beat = last_is_a_beat
        self.asked: list[int] = []
        self.server = websockets.sync.server.serve(self.handle, "127.0.0.1", 0, compression=None)
        self.port = self.server.socket.getsockname()[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def handle(self, socket: Any) -> None:
        socket.send(json.dumps({"op": "hello", "areas": [1], "scope": "fleet", "version": "1"}))
        site = {"g1": 1, "g2": 2}
        for text in socket:
            message = json.loads(text)
            if message["op"] == "subscribe":
                start = cells({site[name]: STATE[word] for name, word in self.initial["gpus"].items()})
                socket.send(frames.encode(frames.Frame(frames.SNAPSHOT, 1, NOW, self.initial["seq"], start)))
                for seq in self.delivered:
                    one = self.burst[seq]
                    socket.send(frames.encode(frames.Frame(frames.DELTA, 1, NOW + 1, seq, cells({site[one["gpu"]]: STATE[one["state"]]}))))
                if self.last_is_a_beat:
                    socket.send(json.dumps({"op": "beat", "seq": {"1": 622}, "at": NOW}))
            elif message["op"] == "resync":
                self.asked.append(message["area"])
                socket.send(frames.encode(frames.Frame(frames.SNAPSHOT, 1, NOW + 2, 622, cells({1: STATE["ok"], 2: STATE["lost"]}))))


@pytest.mark.parametrize("last_is_a_beat", [False, True], ids=["gap", "beat alone"])
def test_c41_a_gap_is_noticed_and_heals(page: Page, last_is_a_beat: bool) -> None:
    expect = json.loads((CASE / "expect.json").read_text())
    server = Server(last_is_a_beat=last_is_a_beat)
    started = time.monotonic()
    view = page.evaluate(
        """async (port) => {
          const { FleetStore } = await import("/static/js/lib/fleet_store.js");
          const { Live } = await import("/static/js/lib/live.js");
          const store = new FleetStore();
          store.setLayout({ areas: [{ id: 1 }], regions: [{ id: 1, area: 0 }], sites: { id: [1, 2], region: [0, 0], code: [], name: [], lat: [], lon: [], feed: [] } });
          return new Promise((done) => {
            const live = new Live({ store, neverPause: true, urls: { socket: `ws://127.0.0.1:${port}/live/`, frames: "/live/frames" },
              onFrames: () => { if (store.areas.get(1)?.seq === 622 && !store.areas.get(1).waiting) { live.ended = true; live.socket.close(); clearInterval(live.watchdog); done([...store.state]); } } });
            setTimeout(() => done([...store.state, "too late"]), 8000);
          });
        }""",
        server.port,
    )
    server.server.shutdown()
    assert view == [STATE[expect["final_view"]["g1"]], STATE[expect["final_view"]["g2"]]]
    assert time.monotonic() - started < expect["resync_within_s"]
    assert server.asked == [1]
