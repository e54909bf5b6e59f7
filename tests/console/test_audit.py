"""The page `/audit`: who sees it and what of it, filters as in the API, one entry, export, and the banner of a broken chain."""

import json
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from playwright.sync_api import Browser

from console.tokens import issue_token
from fleet.control.audit import record
from fleet.models import AuditCheck, AuditEntry, AuditSeal, AuditStream
from tests.builders import T0, make_gpu, make_node, make_site, make_user
from tests.console.api_support import call, strict
from tests.console.axe import violations
from tests.console.browser import chromium, opened, playwright, wait_until  # noqa: F401 (fixtures)
from tests.console.pages import Cast, signed_in, text_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def cast() -> Cast:
    """And entries on a site in the west, on one in the east, and on the console itself."""
    found = Cast()
    gpu = make_gpu("GPU-11111111-2222-4333-8444-555555555555", node=make_node("n-1", site=make_site("W-1", region=found.west)))
    make_site("E-1", region=found.east)
    acts: list[dict[str, Any]] = [
        {"actor": "olga", "action": "maintenance.create", "kind": "site", "key": "W-1", "reason": "CHG-7"},
        {"actor": "olga", "action": "control.set", "kind": "gpu", "key": gpu.uuid, "outcome": "refused", "detail": {"control": "clock_range"}},
        {"actor": "agent:9", "action": "local.evict", "kind": "node", "key": str(gpu.node_id), "through": "agent:9"},
        {"actor": "stan", "action": "site.change", "kind": "site", "key": "E-1", "before": {"name": "Old <b>"}, "after": {"name": "New"}},
        {"actor": "adam", "action": "user.create", "key": "carl", "source_address": "192.0.2.7", "request_id": "r-1", "through": "token:mh_1"},
    ]
    for minute, one in enumerate(acts):
        record(now=T0 + timedelta(minutes=minute), **one)
    return found


def listed(client: Client, query: str = "") -> list[str]:
    answer = client.get(f"/audit{query}")
    assert answer.status_code == 200
    return [row.action for row in answer.context["list"].rows]


def test_each_sees_the_acts_of_its_scope(cast: Cast) -> None:
    assert len(listed(cast.client("administrator"))) == 5
    assert listed(signed_in(make_user("lena", role="lead"))) == ["site.change", "local.evict", "control.set", "maintenance.create"]
    assert listed(cast.client("stranger")) == ["site.change"]
    assert listed(signed_in(make_user(role="lead", region=cast.west))) == ["local.evict", "control.set", "maintenance.create"]


def test_strangers(cast: Cast) -> None:
    """Without the right the page says so, for tenants' people it does not exist, and a foreign entry reads like one that is missing."""
    west, east = AuditEntry.objects.get(object_key="W-1"), AuditEntry.objects.get(object_key="E-1")
    for name in ("operator", "viewer"):
        for path in ("/audit", f"/audit/{west.pk}", "/exports/audit"):
            answer = cast.client(name).get(path)
            assert answer.status_code == 403
            assert "role lead" in text_of(answer)
            assert "CHG-7" not in text_of(answer)
        assert 'href="/audit"' not in cast.client(name).get("/sites").content.decode()
    for path in ("/audit", f"/audit/{west.pk}", "/exports/audit"):
        assert cast.client("tenant_user").get(path).status_code == 404
        assert Client().get(path).status_code == 302
    stranger = cast.client("stranger")
    assert stranger.get(f"/audit/{east.pk}").status_code == 200
    hidden, absent = stranger.get(f"/audit/{west.pk}"), stranger.get("/audit/999999999")
    assert (hidden.status_code, absent.status_code) == (404, 404)
    assert b"CHG-7" not in b"".join(stranger.get("/exports/audit"))
    assert b"W-1" not in b"".join(stranger.get("/exports/audit"))
    assert 'href="/audit"' in stranger.get("/sites").content.decode()


@pytest.mark.parametrize(
    ("query", "actions"),
    [
        ("actor=olga", ["control.set", "maintenance.create"]),
        ("through=token:mh_1", ["user.create"]),
        ("action=user.create,site.change", ["user.create", "site.change"]),
        ("kind=site&kind=node", ["site.change", "local.evict", "maintenance.create"]),
        ("key=W-1", ["maintenance.create"]),
        ("outcome=refused", ["control.set"]),
        ("request_id=r-1", ["user.create"]),
        ("source=192.0.2.7,2001:DB8:0::1", ["user.create"]),
        ("since=2026-11-20T10:03:00Z", ["user.create", "site.change"]),
        ("until=2026-11-20T10:01:00Z", ["maintenance.create"]),
        ("since=2026-11-20+10:01&until=2026-11-20+10:02", ["control.set"]),
        ("since=0001-01-01T00:00:00%2B14:00&until=9999-12-31T23:59:59-14:00&id=1&q=nobody", []),
        ("q=chg-7", ["maintenance.create"]),
        ("ordering=actor", ["user.create", "local.evict", "maintenance.create", "control.set", "site.change"]),
    ],
)
def test_page_api_and_export_take_the_same_filters(cast: Cast, query: str, actions: list[str]) -> None:
    client = cast.client("administrator")
    assert listed(client, f"?{query}") == actions
    exported = [json.loads(line)["action"] for line in b"".join(client.get(f"/exports/audit?{query}&format=jsonl")).splitlines()]
    assert sorted(exported) == sorted(actions)
    if "ordering" not in query:
        assert [one["action"] for one in strict(call(cast.administrator, "GET", f"audit/?{query}"))["results"]] == actions
        lines = b"".join(call(cast.administrator, "GET", f"audit/export/?{query}")).splitlines()
        assert [json.loads(line)["action"] for line in lines] == actions[::-1]


@pytest.mark.parametrize("query", ["since=yesterday", "kind=planet", "outcome=splendid", "id=x", "source=everywhere", "until=2026-13-01T00:00:00Z"])
def test_wrong_filters_are_named(cast: Cast, query: str) -> None:
    client, name = cast.client("administrator"), query.split("=")[0]
    assert client.get(f"/audit?{query}").context["list"].errors
    exported = client.get(f"/exports/audit?{query}")
    assert exported.status_code == 400
    assert name in exported.content.decode()
    for path in ("audit/", "audit/export/"):
        answer = call(cast.administrator, "GET", f"{path}?{query}")
        assert answer.status_code == 400
        assert name in strict(answer)["detail"] + str(strict(answer))
    assert client.get("/exports/audit?format=csv").status_code == 400
    assert call(cast.administrator, "GET", "audit/export/?page_size=5").status_code == 400


def test_an_entry_says_before_and_after_and_escapes_them(cast: Cast) -> None:
    client = cast.client("administrator")
    changed = text_of(client.get(f"/audit/{AuditEntry.objects.get(action='site.change').pk}"))
    assert "<del>Old &lt;b&gt;</del>" in changed
    assert "<ins>New</ins>" in changed
    assert 'href="/sites/E-1"' in changed
    created = text_of(client.get(f"/audit/{AuditEntry.objects.get(action='user.create').pk}"))
    for word in ("192.0.2.7", "token:mh_1", "r-1", "no reason was given", "none yet"):
        assert word in created
    assert "Old &lt;b&gt;" in text_of(client.get("/audit"))


def test_entries_on_commands_and_switches_lead_to_their_pages(cast: Cast) -> None:
    keys = {"command": uuid4(), "switch": uuid4()}
    for kind, key in keys.items():
        record(actor="olga", action=f"{kind}.made", kind=kind, key=str(key), now=T0)
    text = text_of(cast.client("administrator").get("/audit"))
    assert f'href="/commands/{keys["command"]}"' in text
    assert f'href="/switches/{keys["switch"]}"' in text


def test_an_entry_names_its_seal(cast: Cast) -> None:
    entry = AuditEntry.objects.get(action="user.create")
    made = {"sealed_at": T0, "after_id": 0, "fingerprints": b"", "previous": b""}
    AuditSeal.objects.create(number=7, from_transaction=0, until_transaction=entry.transaction, entry_ids=[], digest=b"\x01", **made)
    AuditSeal.objects.create(
        number=8, from_transaction=entry.transaction, until_transaction=entry.transaction + 1, entry_ids=[entry.pk], digest=b"\xab\xcd", **made
    )
    page = text_of(cast.client("administrator").get(f"/audit/{entry.pk}"))
    assert "abcd" in page


def test_a_broken_chain_stands_on_top_of_the_page(cast: Cast) -> None:
    client = cast.client("stranger")
    assert "tampered" not in text_of(client.get("/audit"))
    AuditCheck.objects.create(pk=1, checked_at=T0, head_number=4)
    assert "it holds" in text_of(client.get("/audit"))
    AuditCheck.objects.update(broken_at=T0, broken_seal=3, broken_entry=41, broken_why="it was changed after it was sealed.")
    page = text_of(client.get("/audit"))
    assert "The audit was tampered with" in page
    assert "Entry 41 (seal 3): " in page
    assert "it holds" not in page
    AuditCheck.objects.update(broken_entry=None, broken_why="it is gone.")
    assert "Seal 3: it is gone." in text_of(client.get("/audit"))


def test_administrators_have_it_verified(cast: Cast) -> None:
    assert cast.client("stranger").post("/audit/verify").status_code == 403
    assert cast.client("tenant_user").post("/audit/verify").status_code == 404
    assert not AuditCheck.objects.filter(asked_at__isnull=False).exists()
    client = cast.client("administrator")
    assert client.post("/audit/verify")["Location"] == "/audit"
    assert AuditCheck.objects.get().asked_at
    assert "Verification asked for" in text_of(client.get("/audit"))


def test_the_api_says_how_far_it_is_sealed_verified_and_sent(cast: Cast) -> None:
    empty = strict(call(cast.administrator, "GET", "audit/verification/"))
    assert (empty["seals"], empty["newest_seal"], empty["unsealed_since"], empty["checked_at"], empty["broken"]) == (0, "", "2026-11-20T10:00:00Z", None, None)
    assert call(cast.stranger, "GET", "audit/verification/").status_code == 403
    assert call(make_user(role="lead"), "POST", "audit/verification/").status_code == 403
    asked = call(cast.administrator, "POST", "audit/verification/")
    assert (asked.status_code, strict(asked)["asked_at"] is not None) == (202, True)
    AuditCheck.objects.update(broken_at=T0, broken_seal=3, broken_why="it is gone.")
    AuditStream.objects.create(address="tcp://siem:601", seal_number=2, failing_since=T0, failure="refused")
    found = strict(call(make_user(role="lead"), "GET", "audit/verification/"))
    assert found["broken"] == {"seal": 3, "entry": None, "why": "it is gone.", "found_at": "2026-11-20T10:00:00Z"}
    assert found["streams"][0]["failure"] == "refused"
    assert "tcp://siem:601 is away" in text_of(cast.client("administrator").get("/audit"))
    assert "siem" not in text_of(cast.client("stranger").get("/audit"))


def test_acts_of_requests_say_where_they_came_from(cast: Cast) -> None:
    client = cast.client("administrator")
    client.post("/settings/tenants", {"key": "amber", "name": "Amber"}, REMOTE_ADDR="2001:db8::9", HTTP_X_FORWARDED_FOR="203.0.113.1")
    entry = AuditEntry.objects.get(action="tenant.create")
    assert (entry.source_address, entry.through) == ("2001:db8::9", "")


def test_the_same_statements_at_3_and_at_60_rows(cast: Cast) -> None:
    for minute in range(60):
        record(actor="olga", action="site.note", kind="site", key="W-1", now=T0 + timedelta(minutes=minute), before={"a": 1}, after={"a": 2})
    client = cast.client("administrator")
    client.get("/audit")
    counts = []
    for size in (3, 60):
        with CaptureQueriesContext(connection) as captured:
            assert len(client.get(f"/audit?page_size={size}").context["list"].rows) == size
        counts.append(len(captured))
    assert counts[0] == counts[1]


def test_columns_and_views_are_kept(cast: Cast) -> None:
    client = cast.client("administrator")
    assert client.post("/lists/audit/columns", {"column": ["at"]})["Location"] == "/audit"
    assert [header.column.key for header in client.get("/audit").context["list"].headers] == ["action", "at"]
    assert client.post("/lists/audit/views", {"name": "Refused", "query": "?outcome=refused"})["Location"].startswith("/audit")


def test_metrics_say_how_long_entries_wait_for_their_seal_and_whether_the_chain_broke(cast: Cast) -> None:
    now = timezone.now()
    _, secret = issue_token(user=cast.administrator, name="m", scopes=["read:metrics"], expires_at=now + timedelta(days=1), now=now)
    headers = {"Authorization": f"Bearer {secret}"}
    text = Client().get("/metrics", headers=headers).content.decode()
    waiting = next(line for line in text.splitlines() if line.startswith("masthead_audit_unsealed_seconds "))
    assert float(waiting.split()[1]) >= (now - T0).total_seconds()
    assert "masthead_audit_broken" not in text  # never verified: absent, not 0
    AuditCheck.objects.create(pk=1, checked_at=T0)
    assert "masthead_audit_broken 0.0" in Client().get("/metrics", headers=headers).content.decode()
    AuditCheck.objects.update(broken_at=T0)
    assert "masthead_audit_broken 1.0" in Client().get("/metrics", headers=headers).content.decode()


@pytest.mark.browser
def test_by_keyboard_filter_select_and_open(cast: Cast, chromium: Browser) -> None:  # noqa: F811
    for width in (1280, 360):
        with opened(chromium, cast.client("administrator"), width=width) as page:
            page.goto("/audit", wait_until="load")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            page.keyboard.press("f")
            assert page.evaluate("document.activeElement.name") == "actor"
            page.keyboard.type("olga")
            page.keyboard.press("Enter")
            page.wait_for_url("**/audit?*actor=olga*")
            wait_until(page, "document.querySelectorAll('#list tbody tr').length === 2")
            page.keyboard.press("j")
            page.keyboard.press("x")
            wait_until(page, "document.getElementById('bulk-export').href.includes('format=jsonl')")
            page.keyboard.press("Enter")
            page.wait_for_url("**/audit/*", wait_until="load")
            assert page.text_content("h1") == "control.set"
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert not violations(page)
