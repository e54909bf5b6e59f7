"""Sessions in the database. There they end at their time; in the browser also when it is closed, unless the person asked to be kept signed in."""

from __future__ import annotations

from django.contrib.sessions.backends import db

from console.live.identity import DEVICE_TOKEN_KEY

KEPT = "kept_signed_in"


class SessionStore(db.SessionStore):
    def get_expire_at_browser_close(self) -> bool:
        return not self.get(KEPT, False) and DEVICE_TOKEN_KEY not in self
