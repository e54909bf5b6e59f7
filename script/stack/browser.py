"""Debian's chromium, driven by Playwright: what a person sees, as pixels and text."""

from __future__ import annotations

import io
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from PIL import Image
from playwright.sync_api import Browser, Error, Locator, Page, sync_playwright

from script.servers import ServerError

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
Colour = tuple[int, int, int]


class Chromium:
    """One browser. `person` gives a page that nobody else shares cookies with; complaints of all pages gather in `complaints`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.complaints: list[str] = []

    def __enter__(self) -> Chromium:
        path = shutil.which("chromium")
        if path is None:
            raise ServerError("chromium is not installed. On Debian: apt-get install --no-install-recommends chromium")
        self._playwright = sync_playwright().start()
        self._browser: Browser = self._playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._browser.close()
        self._playwright.stop()

    @contextmanager
    def person(self, username: str, password: str, *, width: int = 1440, height: int = 900) -> Iterator[Page]:
        """A page of somebody who has signed in through the form."""
        context = self._browser.new_context(base_url=self.url, viewport={"width": width, "height": height}, color_scheme="dark", locale="en-GB")
        page = context.new_page()
        page.on("console", lambda message: self.complaints.append(f"{page.url}: {message.text}") if message.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(f"{page.url}: {error}"))
        try:
            page.goto("/accounts/login/")
            page.fill("input[name=login]", username)
            page.fill("input[name=password]", password)
            page.click("button[type=submit]")
            page.wait_for_url(lambda url: "/accounts/login" not in url, timeout=15_000)
            yield page
        finally:
            context.close()


def picture(target: Page | Locator) -> Image.Image:
    return Image.open(io.BytesIO(target.screenshot())).convert("RGB")


def token_colour(page: Page, name: str) -> Colour:
    """The value of a colour token of the page's style, e.g. `--ok`."""
    text = page.evaluate("name => getComputedStyle(document.documentElement).getPropertyValue(name).trim()", name)
    return (int(text[1:3], 16), int(text[3:5], 16), int(text[5:7], 16))


def blend(colour: Colour, ground: Colour, share: float) -> Colour:
    """`colour` at this opacity over `ground`."""
    red, green, blue = (round(share * above + (1 - share) * below) for above, below in zip(colour, ground, strict=True))
    return (red, green, blue)


def pixels_of(image: Image.Image, colour: Colour, *, tolerance: int = 6) -> int:
    """How many pixels have this colour, each channel within `tolerance`."""
    counts = image.getcolors(maxcolors=image.width * image.height) or []
    near = (count for count, found in counts if all(abs(a - b) <= tolerance for a, b in zip(found, colour, strict=True)))  # type: ignore[arg-type]
    return sum(near)


def wait_for_text(page: Page, *words: str, within_seconds: float, reload: bool = False) -> str:
    """The page's text once it holds every word (case does not matter). With `reload` the page is fetched again each time, as for a page that is not live."""
    text = ""

    def holds() -> bool:
        nonlocal text
        try:
            if reload:
                page.reload(wait_until="domcontentloaded")
            text = page.inner_text("body")
        except Error:  # the page is changing under us
            return False
        return all(word.lower() in text.lower() for word in words)

    if not wait(holds, within_seconds=within_seconds, every_seconds=1.0 if reload else 0.2):
        missing = [word for word in words if word.lower() not in text.lower()]
        raise AssertionError(f"{page.url} does not show {missing} within {within_seconds:.0f} s")
    return text


def wait(ready: Callable[[], bool], *, within_seconds: float, every_seconds: float = 0.2) -> bool:
    """Whether `ready` came true in time."""
    deadline = time.monotonic() + within_seconds
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(every_seconds)
    return True
