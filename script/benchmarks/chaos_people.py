"""People who work the console while it is being killed: each asks again, with the same idempotency key, until the console has answered."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import httpx

RETRY_SECONDS = 0.5
PATIENCE_SECONDS = 90.0
_AGAIN = (429, 500, 502, 503, 504)


class GaveUp(Exception):
    """The console gave no answer for so long that somebody would have called for help."""


class Person:
    """One signed-in person. `troubles` counts the answers that were no answers, by status."""

    def __init__(self, url: str, name: str, password: str) -> None:
        self._name, self._password = name, password
        self._client = httpx.AsyncClient(base_url=url, timeout=15, headers={"Origin": url})
        self._signing_in = asyncio.Lock()
        self._signed_in_at = 0.0
        self.troubles: Counter[str] = Counter()

    async def close(self) -> None:
        await self._client.aclose()

    async def post(self, path: str, body: dict[str, Any], *, key: str = "") -> httpx.Response:
        """The console's answer. Raises GaveUp."""
        return await self._ask("POST", path, body, key)

    async def get(self, path: str) -> httpx.Response:
        return await self._ask("GET", path, None, "")

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None, key: str) -> httpx.Response:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            began = time.monotonic()
            try:
                if self._signed_in_at == 0:
                    await self._sign_in()
                headers = {"X-CSRFToken": self._client.cookies.get("csrftoken") or ""} | ({"Idempotency-Key": key} if key else {})
                answer = await self._client.request(method, path, json=body, headers=headers)
            except (httpx.HTTPError, OSError) as error:
                self.troubles[type(error).__name__] += 1
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if answer.status_code in _AGAIN:
                self.troubles[str(answer.status_code)] += 1
                await asyncio.sleep(RETRY_SECONDS)
                continue
            stale = answer.status_code == 401 or (answer.status_code == 403 and ("reauthentication" in answer.text or "CSRF" in answer.text))
            if not stale:
                return answer
            self.troubles[f"signed in again ({answer.status_code})"] += 1
            if self._signed_in_at < began:
                self._signed_in_at = 0
            await asyncio.sleep(RETRY_SECONDS)
        raise GaveUp(f"{self._name}: {method} {path} was not answered for {PATIENCE_SECONDS:.0f} s: {dict(self.troubles)}")

    async def _sign_in(self) -> None:
        async with self._signing_in:
            if self._signed_in_at:
                return
            self._client.cookies.clear()
            await self._client.get("/accounts/login/")
            form = {"login": self._name, "password": self._password, "csrfmiddlewaretoken": self._client.cookies.get("csrftoken") or ""}
            answer = await self._client.post("/accounts/login/", data=form)
            if answer.status_code != 302 or "sessionid" not in self._client.cookies:
                raise httpx.HTTPError(f"the sign-in was answered {answer.status_code}")
            self._signed_in_at = time.monotonic()
