"""Cursors of the lists: whatever somebody puts into one is answered, and a page after another visits each row once, in every order."""

import base64
import json
from typing import Any

import pytest

from tests.builders import make_site, make_user
from tests.console.api_support import call, strict

pytestmark = pytest.mark.django_db


def encoded(content: Any) -> str:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


HOSTILE = {
    "a number": 5,
    "null": None,
    "a text": "code",
    "an object": {"a": 1},
    "too short": ["code"],
    "values are no list": ["code", "A", 1, 0],
    "a value too many": ["code", ["A", "B"], 1, 0],
    "no value": ["code", [], 1, 0],
    "a NUL in the value": ["code", ["A\x00B"], 1, 0],
    "half a surrogate pair": ["code", ["\ud800"], 1, 0],
    "a list as value": ["code", [["A"]], 1, 0],
    "an object as value": ["code", [{"a": 1}], 1, 0],
    "an oversized key": ["code", ["A"], 2**70, 0],
    "a far oversized key": ["code", ["A"], 10**300, 0],
    "a NUL in the key": ["code", ["A"], "\x00", 0],
    "a text as key": ["code", ["A"], "x", 0],
    "a fraction as key": ["code", ["A"], 1.5, 0],
    "no key": ["code", ["A"], None, 0],
    "an object as key": ["code", ["A"], {}, 0],
    "an object as direction": ["code", ["A"], 1, {}],
    "another order": ["name", ["A"], 1, 0],
    "not a number": b'["code", [NaN], 1, 0]',
    "an infinity": b'["code", [1e999], 1, 0]',
    "an endless number": b'["code", ["A"], ' + b"9" * 6000 + b", 0]",
    "deep nesting": b"[" * 5000,
    "no text at all": b"\xff\xfe",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_cursor_is_refused_by_name(content: Any) -> None:
    make_site()
    answer = call(make_user(role="viewer"), "GET", f"sites/?cursor={encoded(content)}")
    assert (answer.status_code, answer["Content-Type"]) == (400, "application/problem+json")
    assert strict(answer)["errors"][0]["pointer"] == "/cursor"


@pytest.mark.parametrize("text", ["NQ", "bnVsbA", "%FF", "a" * 5000, "****"])
def test_a_cursor_that_is_no_list_is_refused_by_name(text: str) -> None:
    make_site()
    answer = call(make_user(role="viewer"), "GET", f"sites/?cursor={text}")
    assert (answer.status_code, strict(answer)["errors"][0]["pointer"]) == (400, "/cursor")


@pytest.mark.parametrize("value", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "x", 5, True, "2026-13-01T00:00:00Z", "2026-11-20T10:00:00", None])
@pytest.mark.parametrize("path", ["findings/", "jobs/", "workloads/"])
def test_an_odd_time_is_answered(path: str, value: Any) -> None:
    order = {"findings/": "-since", "jobs/": "-created_at", "workloads/": "-started_at"}[path]
    key: Any = "00000000-0000-0000-0000-000000000000" if path == "jobs/" else 1
    answer = call(make_user(role="administrator"), "GET", f"{path}?cursor={encoded([order, [value], key, 0])}")
    if answer.status_code != 200:
        assert (answer.status_code, strict(answer)["errors"][0]["pointer"]) == (400, "/cursor")
