"""Addresses of objects, made fast: a list of 200 rows names a thousand, and `reverse` would take a third of the page's time."""

from __future__ import annotations

from functools import cache
from urllib.parse import quote

from django.urls import NoReverseMatch, reverse

_MARK, _UUID = "0", "00000000-0000-0000-0000-000000000000"


@cache
def _around(name: str) -> tuple[str, str]:
    mark = _MARK
    try:
        url = reverse(name, args=[mark])
    except NoReverseMatch:
        mark = _UUID
        url = reverse(name, args=[mark])
    before, _, after = url.rpartition(mark)
    return before, after


def object_url(name: str, key: object) -> str:
    """The same as `reverse(name, args=[key])` for a URL with one argument."""
    before, after = _around(name)
    return f"{before}{quote(str(key), safe=':@!$&*+,;=~')}{after}"
