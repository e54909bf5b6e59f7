"""A real browser on pages that Django's test client answers: no server, no port, the test's own transaction.

Each request of the browser is handed to the test client, so cookies, CSRF and content policy are the product's own.
"""

from __future__ import annotations

import contextvars
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.contrib.staticfiles import finders
from django.test import Client
from playwright.sync_api import Browser, Page, Playwright, Request, Route, sync_playwright

from script.stack.browser import ARGUMENTS

ORIGIN = "http://testserver"
TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".woff2": "font/woff2", ".json": "application/json"}


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    """The driver runs an event loop in this thread; Django, which is only called between its turns, is told not to mind."""
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    with sync_playwright() as running:
        yield running
    del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


@pytest.fixture(scope="module")
def chromium(playwright: Playwright) -> Iterator[Browser]:
    browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
    yield browser
    browser.close()


@contextmanager
def opened(chromium: Browser, client: Client, *, theme: str = "dark", width: int = 1280, height: int = 900) -> Iterator[Page]:
    """A page whose requests `client` answers. What the browser complains about (errors, content policy) fails the test at the end."""
    context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme="dark" if theme == "dark" else "light", base_url=ORIGIN)
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if "Content Security Policy" in message.text else None)
    here = contextvars.copy_context()  # the database connection of the test lives in it
    page.route("**/*", lambda route: _answer(route, lambda path: here.run(_ask, client, route.request, path)))
    try:
        yield page
    finally:
        page.unroute_all(behavior="ignoreErrors")
        context.close()
    assert not complaints, complaints


def _answer(route: Route, ask: Callable[[str], Any]) -> None:
    request = route.request
    parts = urlsplit(request.url)
    if parts.path.startswith("/static/"):
        found = finders.find(parts.path.removeprefix("/static/"))
        if not isinstance(found, str):
            route.fulfill(status=404, body=parts.path)
            return
        route.fulfill(status=200, body=Path(found).read_bytes(), content_type=TYPES.get(Path(found).suffix, "application/octet-stream"))
        return
    answer = ask(parts.path + (f"?{parts.query}" if parts.query else ""))
    body = answer.getvalue()
    if answer.status_code in (301, 302):  # a route cannot answer with a redirect: the browser is told to go there
        target = answer.headers["Location"]
        route.fulfill(status=200, body=f'<meta http-equiv="refresh" content="0;url={target}">', content_type="text/html")
        return
    route.fulfill(status=answer.status_code, body=body, headers={name: value for name, value in answer.headers.items() if name.lower() != "content-length"})


def _ask(client: Client, request: Request, path: str) -> Any:
    kept = {name: value for name, value in request.headers.items() if name not in ("cookie", "content-length", "content-type")}
    return client.generic(request.method, path, request.post_data_buffer or b"", content_type=request.headers.get("content-type", ""), headers=kept)


def wait_until(page: Page, holds: str, *, timeout_seconds: float = 20) -> None:
    """Poll a JavaScript expression until it is true. (Playwright's own polling needs `eval`, which the content policy forbids.)"""
    deadline = time.monotonic() + timeout_seconds
    while not page.evaluate(holds):
        assert time.monotonic() < deadline, f"never true: {holds}"
        page.wait_for_timeout(20)
