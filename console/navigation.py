"""The pages that exist, in the order of the side bar, with the second key of their `g` chord."""

from __future__ import annotations

from dataclasses import dataclass

from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from console.access import Access
from console.audit import may_read_audit


@dataclass(frozen=True)
class NavItem:
    key: str  # what a view passes as `nav`
    url_name: str
    label: str | Promise
    chord: str = ""

    @property
    def url(self) -> str:
        return reverse(self.url_name)


OPERATOR_PAGES = (
    NavItem("overview", "overview", _("Overview"), "o"),
    NavItem("wall", "wall", _("Wall"), "w"),
    NavItem("map", "map", _("Map"), "m"),
    NavItem("regions", "regions", _("Regions")),
    NavItem("sites", "sites", _("Sites"), "s"),
    NavItem("nodes", "nodes", _("Nodes"), "n"),
    NavItem("commands", "commands", _("Commands"), "c"),
    NavItem("approvals", "approvals", _("Approvals")),
    NavItem("switches", "switches", _("Kill switch")),
    NavItem("search", "search", _("Search")),
    NavItem("jobs", "jobs", _("Jobs")),
    NavItem("audit", "audit", _("Audit")),
    NavItem("settings", "settings", _("Settings")),
)
TENANT_PAGES = (
    NavItem("overview", "overview", _("My workloads"), "o"),
    NavItem("settings", "settings", _("Settings")),
)


def pages_for(access: Access) -> list[NavItem]:
    if not access.is_operator_side:
        return list(TENANT_PAGES)
    return [page for page in OPERATOR_PAGES if page.key != "audit" or may_read_audit(access)]
