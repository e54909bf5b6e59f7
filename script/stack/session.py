"""A signed-in person or program, as plain HTTP: what the browser would send, without the browser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx

from fleet import frames


@dataclass(frozen=True)
class Cell:
    """A site as the wall draws it. Times are Unix seconds; `contact` NaN for never."""

    code: str
    state: str
    gpus_reporting: int
    gpus_expected: int
    since: float
    contact: float

    @property
    def is_live(self) -> bool:
        """Known, with every GPU reporting."""
        return self.state != "unknown" and self.gpus_reporting == self.gpus_expected > 0


class Session:
    """Cookies of one person. Pages and API of the console at `url`."""

    def __init__(self, url: str) -> None:
        self.client = httpx.Client(base_url=url, timeout=20, headers={"Origin": url})
        self._codes: dict[int, str] = {}

    def close(self) -> None:
        self.client.close()

    def sign_in(self, username: str, password: str) -> bool:
        """Whether the console took it."""
        self.client.get("/accounts/login/").raise_for_status()
        answer = self.client.post("/accounts/login/", data={"login": username, "password": password, "csrfmiddlewaretoken": self.csrf})
        return answer.status_code == 302 and "sessionid" in self.client.cookies

    @property
    def csrf(self) -> str:
        return self.client.cookies.get("csrftoken") or ""

    def post_json(self, path: str, body: dict[str, Any], *, headers: dict[str, str] | None = None) -> httpx.Response:
        return self.client.post(path, json=body, headers={"X-CSRFToken": self.csrf} | (headers or {}))

    def get_json(self, path: str, **query: Any) -> Any:
        answer = self.client.get(path, params=query or None)
        answer.raise_for_status()
        return answer.json()

    def cells(self) -> dict[str, Cell]:
        """Every cell of the wall by site code; sites that no frame holds yet are missing."""
        return self.wall()[1]

    def wall(self) -> tuple[float, dict[str, Cell]]:
        """When the oldest of the wall's frames was made (Unix seconds), and its cells."""
        if not self._codes:
            sites = self.get_json("/live/layout")["sites"]
            self._codes = dict(zip(sites["id"], sites["code"], strict=True))
        answer = self.client.get("/live/frames")
        answer.raise_for_status()
        found: dict[str, Cell] = {}
        all_frames = frames.decode_all(answer.content)
        for frame in all_frames:
            columns = frame.columns
            for row, site_id in enumerate(columns.site_id.tolist()):
                code = self._codes.get(site_id)
                if code is not None:
                    found[code] = Cell(
                        code=code,
                        state=frames.STATE_NAMES[int(columns.state[row])],
                        gpus_reporting=int(columns.gpus_reporting[row]),
                        gpus_expected=int(columns.gpus_expected[row]),
                        since=float(columns.since[row]),
                        contact=float(columns.contact[row]),
                    )
        return min((frame.made_at for frame in all_frames), default=0.0), found
