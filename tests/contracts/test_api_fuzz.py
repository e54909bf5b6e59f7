"""Garbage at every operation of the API's document: never a 5xx, always strict JSON, errors as problems, and a stranger changes nothing."""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
import yaml
from django.db import connection, transaction
from django.test import Client
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.builders import make_region, make_tenant, make_user
from tests.console.api_world import Keys, make_world

pytestmark = pytest.mark.django_db
DOCUMENT = yaml.safe_load((Path(__file__).parents[2] / "docs/openapi.yaml").read_text())
# Prometheus and the signing key are away in tests: that is an answer too.
AWAY = 503
# What everybody may do to itself is no change by a stranger.
OWN = ("/api/v1/profile", "/api/v1/sessions", "/api/v1/tokens", "/api/v1/views")

NAMES = [
    "north",
    "de",
    "N-1",
    "n-1",
    "GPU-north",
    "amber",
    "lena",
    "prom",
    "site",
    "gpu",
    "fleet",
    "sites",
    "wall",
    "read:*",
    "write:sites",
    "clock_range",
    "xid",
]
TIMES = ["2027-01-01T00:00:00Z", "2026-11-20T10:00:00+01:00", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "2026-02-30T00:00:00Z"]
ODD = [
    "",
    " ",
    "\x00",
    "a\x00b",
    "null",
    "-1",
    "1e400",
    "NaN",
    "2" * 40,
    "..",
    "%",
    "'",
    '"; DROP TABLE x',
    "\u202e",
    "\U0001f600",
    "x" * 400,
    "[]",
    "{}",
    "-" * 3,
    "GPU-",
]
TEXTS = st.sampled_from(NAMES) | st.sampled_from(TIMES) | st.sampled_from(ODD) | st.text(max_size=12)
NUMBERS = st.sampled_from([0, 1, -1, 2**31, 2**63, 2**70, -(2**70)]) | st.integers(0, 300) | st.floats()
SCALARS = st.none() | st.booleans() | NUMBERS | TEXTS
ANYTHING = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=6)


@dataclass(frozen=True)
class Operation:
    method: str
    path: str
    parameters: list[dict[str, Any]] = field(hash=False)
    body: dict[str, Any] | None = field(hash=False)
    is_form: bool = False


def operations() -> Iterator[Operation]:
    for path, methods in DOCUMENT["paths"].items():
        for method, said in methods.items():
            content = said.get("requestBody", {}).get("content", {})
            form = content.get("multipart/form-data")
            body = form or content.get("application/json")
            yield Operation(method.upper(), path, said.get("parameters", []), body and body["schema"], form is not None)


OPERATIONS = list(operations())


def shaped(schema: dict[str, Any], depth: int = 0) -> st.SearchStrategy[Any]:
    """Values of about this shape: mostly of the right type, seldom anything at all."""
    if "$ref" in schema:
        return shaped(DOCUMENT["components"]["schemas"][schema["$ref"].rsplit("/", 1)[-1]], depth)
    for word in ("oneOf", "anyOf", "allOf"):
        if word in schema:
            return st.one_of([shaped(one, depth) for one in schema[word]])
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    right: st.SearchStrategy[Any]
    if "enum" in schema:
        right = st.sampled_from(schema["enum"])
    elif kind == "object" and depth < 4:
        fields = {name: shaped(one, depth + 1) for name, one in schema.get("properties", {}).items() if not one.get("readOnly")}
        right = st.fixed_dictionaries({}, optional=fields) | st.fixed_dictionaries(fields)
    elif kind == "array":
        right = st.lists(shaped(schema.get("items", {}), depth + 1), max_size=3)
    elif kind == "boolean":
        right = st.booleans()
    elif kind in {"integer", "number"}:
        right = st.integers(0, 3000) | NUMBERS
    elif kind == "string" and schema.get("format") == "date-time":
        right = st.sampled_from(TIMES)
    else:
        right = TEXTS if kind == "string" else ANYTHING
    return st.integers(0, 9).flatmap(lambda dice: ANYTHING if dice == 0 else right)


HEADER_TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=10)


@st.composite
def requests(draw: st.DrawFn, operation: Operation, keys: Keys) -> tuple[str, str, dict[str, str], Any]:
    """(path with query, content type, headers, body) of one request."""
    known = keys.get(operation.path.split("/")[3], {})
    path, query, headers = operation.path, [], {}
    for parameter in operation.parameters:
        name, place = parameter["name"], parameter["in"]
        right = st.just(str(known.get("pk" if name == "id" else name, "1")))
        value = shaped(parameter.get("schema", {})).map(lambda found: found if isinstance(found, str) else json.dumps(found))
        if place == "path":
            word = draw(right | right | value)
            path = path.replace("{" + name + "}", quote(word, safe=""))
        elif place == "query" and draw(st.integers(0, 3)) == 0:
            query.append((name, draw(cursors(operation) if name == "cursor" else value)))
        elif place == "header":
            headers[name] = draw(HEADER_TEXTS)
    if draw(st.integers(0, 9)) == 0:
        query.append((draw(TEXTS), draw(TEXTS)))
    if draw(st.booleans()):
        headers["If-Match"] = draw(st.just("*") | HEADER_TEXTS)
    if draw(st.integers(0, 5)) == 0:
        headers["X-Reason"] = draw(HEADER_TEXTS)
    address = f"{path}?{urlencode(query)}" if query else path
    if operation.is_form:
        return address, "multipart/form-data; boundary=b", headers, draw(forms() | st.binary(max_size=40))
    if operation.body is None:
        return address, "application/json", headers, draw(st.just(b"") | st.just(b"{}") | ANYTHING.map(dumped))
    return address, draw(st.sampled_from(["application/json"] * 9 + ["text/plain"])), headers, draw(shaped(operation.body).map(dumped) | st.binary(max_size=20))


def cursors(operation: Operation) -> st.SearchStrategy[str]:
    """Cursors are JSON in base64: anything, and what is shaped as one of this list's orders."""
    said = [one["schema"] for one in operation.parameters if one["name"] == "ordering"]
    orders = st.sampled_from(said[0].get("enum", [""]) if said else [""])
    values = st.lists(SCALARS, min_size=1, max_size=2)
    shapes = st.tuples(orders, values, SCALARS, st.integers(0, 1)) | ANYTHING
    return shapes.map(dumped).map(lambda raw: base64.urlsafe_b64encode(raw).decode().rstrip("=")) | TEXTS


@st.composite
def forms(draw: st.DrawFn) -> bytes:
    """A form with a file, about as an upload is."""
    content = draw(st.sampled_from([b"code,region\nA,north\n", b"code\n", b"[{", b"PK\x03\x04", b"- code: A\n"]) | st.binary(max_size=20))
    ending = draw(st.sampled_from(["csv", "xlsx", "yaml", "json", "exe"]))
    fields = draw(
        st.dictionaries(
            st.sampled_from(["kind", "format", "on_duplicate", "column_map", "x"]), st.sampled_from(["sites", "csv", "skip", "{}"]) | TEXTS, max_size=4
        )
    )
    parts = [f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode() for name, value in fields.items()]
    parts.append(f'Content-Disposition: form-data; name="file"; filename="f.{ending}"\r\n\r\n'.encode() + content)
    return b"".join(b"--b\r\n" + part + b"\r\n" for part in parts) + b"--b--\r\n"


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


def send(client: Client, operation: Operation, request: tuple[str, str, dict[str, str], Any]) -> int:
    """The status of the answer, after all that must hold of any answer was checked. An exception of the server comes through."""
    address, content_type, headers, body = request
    answer: Any = client.generic(operation.method, address, body, content_type=content_type, headers=headers)
    if answer.status_code >= 500 and answer.status_code != AWAY:
        raise answer.exc_info[1]
    content = b"".join(answer.streaming_content) if answer.streaming else answer.content
    media_type = answer.get("Content-Type", "")
    if answer.status_code >= 400:
        assert media_type == "application/problem+json", (answer.status_code, media_type, request)
        problem = json.loads(content, parse_constant=pytest.fail)
        assert (problem["status"], bool(problem["title"]), bool(problem["detail"])) == (answer.status_code, True, True), problem
    elif media_type.startswith("application/json"):
        json.loads(content, parse_constant=pytest.fail)
    return int(answer.status_code)


def fuzz(client: Client, operation: Operation, keys: Keys, *, examples: int, undo: bool) -> set[int]:
    """The statuses seen. With `undo` each example starts from the same state."""
    seen: set[int] = set()

    @settings(max_examples=examples, deadline=None, database=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(request=requests(operation, keys))
    def try_one(request: tuple[str, str, dict[str, str], Any]) -> None:
        with transaction.atomic():
            seen.add(send(client, operation, request))
            transaction.set_rollback(undo)

    try_one()
    return seen


def digests() -> dict[str, str]:
    """Content of every table but the sessions'."""
    found = {}
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            if "session" in table:
                continue
            cursor.execute(f"SELECT md5(coalesce(string_agg(t::text, '|' ORDER BY t::text), '')) FROM \"{table}\" t")
            found[table] = cursor.fetchone()[0]
    return found


@pytest.fixture
def keys(settings: Any) -> Keys:
    settings.API_REQUESTS_PER_MINUTE = 10**6
    return make_world()


def test_an_administrators_garbage_is_answered(keys: Keys) -> None:
    client = Client(raise_request_exception=False)
    client.force_login(make_user(role="administrator"))
    statuses = {f"{one.method} {one.path}": fuzz(client, one, keys, examples=3, undo=True) for one in OPERATIONS if not one.path.startswith("/api/v1/sd/")}
    reached = [name for name, seen in statuses.items() if any(status < 400 for status in seen)]
    assert len(reached) > len(statuses) / 6, sorted(set(statuses) - set(reached))


@pytest.mark.parametrize("who", ["tenant", "region"])
def test_a_strangers_garbage_changes_nothing(keys: Keys, who: str) -> None:
    client = Client(raise_request_exception=False)
    client.force_login(make_user(tenant=make_tenant("birch")) if who == "tenant" else make_user(role="viewer", region=make_region("south")))
    before = digests()
    for operation in OPERATIONS:
        if not operation.path.startswith((*OWN, "/api/v1/sd/")):
            fuzz(client, operation, keys, examples=1, undo=False)
    assert digests() == before
