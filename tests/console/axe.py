"""axe-core on a page, by the rules of WCAG 2.2 A and AA."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

SOURCE = (Path(__file__).parents[1] / "vendor/axe-core/axe-4.14.1.min.js").read_text()
TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa")


def violations(page: Page, *, rules: Sequence[str] = ()) -> list[str]:
    """What axe finds on the page as it stands, up to three places a rule; only these `rules` when some are given."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(SOURCE)
    only = {"type": "rule", "values": list(rules)} if rules else {"type": "tag", "values": list(TAGS)}
    found: Any = page.evaluate("options => axe.run(document, options)", {"runOnly": only, "resultTypes": ["violations"]})
    return [
        f"{row['id']} ({row['impact']}): {node['html'][:160]} {json.dumps([check['message'] for check in node['any']])[:200]}"
        for row in found["violations"]
        for node in row["nodes"][:3]
    ]
