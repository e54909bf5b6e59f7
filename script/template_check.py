"""`python -m script.template_check`: no template may carry inline script or style, or name another host (the content policy would refuse both)."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

_TEMPLATE_TAG = re.compile(r"\{%.*?%\}|\{#.*?#\}|\{\{.*?\}\}", re.DOTALL)
_OUTSIDE = re.compile(r"(?:https?:|wss?:)?//[a-z0-9]", re.IGNORECASE)
_DATA_TYPES = {"application/json", "importmap"}


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.problems: list[tuple[int, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        line = self.getpos()[0]
        given = dict(attrs)
        if tag == "script" and not given.get("src") and given.get("type") not in _DATA_TYPES:
            self.problems.append((line, "inline <script>: put it in a file under static/js/"))
        if tag == "style":
            self.problems.append((line, "inline <style>: put it in a file under static/css/"))
        for name, value in attrs:
            if name == "style":
                self.problems.append((line, f"style attribute on <{tag}>: use a class"))
            elif re.fullmatch(r"on[a-z]+", name) or name.startswith("hx-on"):
                self.problems.append((line, f"{name} on <{tag}>: add the listener in a script file"))
            elif value and not name.startswith("xmlns") and _OUTSIDE.match(value.strip()):
                self.problems.append((line, f"{name}={value!r} on <{tag}> names another host"))

    handle_startendtag = handle_starttag


def problems_of(text: str) -> list[tuple[int, str]]:
    """Line numbers and problems of one template's text."""
    reader = _Reader()
    # A tag becomes a harmless value, its line breaks kept, so that attributes made by tags still read as attributes.
    reader.feed(_TEMPLATE_TAG.sub(lambda match: "x" + "\n" * match.group().count("\n"), text))
    reader.close()
    return reader.problems


def _all_problems(root: Path) -> Iterator[str]:
    for folder in (root / "templates", *sorted(root.glob("*/templates"))):
        for path in sorted(folder.glob("**/*.html")):
            for line, problem in problems_of(path.read_text()):
                yield f"{path.relative_to(root)}:{line}: {problem}"


def main() -> int:
    found = list(_all_problems(Path(__file__).resolve().parent.parent))
    print("\n".join(found) or "templates: no inline script or style, no other host")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
