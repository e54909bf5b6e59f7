"""The history on an object's page goes on to what is older until nothing is left, versions and acts together."""

import html
import re
from datetime import timedelta

import pytest
from django.utils import timezone

from fleet.control import audit
from tests.builders import make_site, make_user
from tests.console.pages import signed_in

pytestmark = pytest.mark.django_db(transaction=True)  # each change its own transaction, and so its own time


def test_older_leads_to_every_change_and_act_once() -> None:
    site = make_site("PHX-1")
    for n in range(70):
        site.name = f"Renamed {n}"
        site.save(update_fields=["name"])
    now = timezone.now()
    for n in range(60):
        audit.record(actor="olga", action=f"act {n}.", now=now - timedelta(days=1, minutes=n), kind="site", key="PHX-1")
    client, path, texts = signed_in(make_user(role="viewer")), "/sites/PHX-1", []
    for _ in range(10):
        text = client.get(path).content.decode()
        texts.append(text[text.index('id="history"') :])
        older = re.search(r'rel="next" href="([^"]+)"', texts[-1])
        if older is None:
            break
        path = "/sites/PHX-1" + html.unescape(older[1]).removesuffix("#history")
    whole = "".join(texts)
    assert [whole.count(f"<ins>Renamed {n}</ins>") for n in range(70)] == [1] * 70
    assert [whole.count(f"act {n}.") for n in range(60)] == [1] * 60
    assert len(texts) == 3
    assert "Newest" not in texts[0]
    assert "Newest" in texts[1]
    assert client.get("/sites/PHX-1?history_before=2001-01-01T00:00:00Z").content.decode().count("Nothing older.") == 1
