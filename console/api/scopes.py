"""What a token may do: `read:<area>` and `write:<area>`, or `read:*`, `write:*`."""

from typing import Any

from rest_framework.exceptions import PermissionDenied
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from console.models import ApiToken

SCOPE_AREAS = (
    "about",
    "agents",
    "audit",
    "commands",
    "controls",
    "gpus",
    "health",
    "imports",
    "jobs",
    "live",
    "maintenance",
    "metrics",
    "nodes",
    "people",
    "profile",
    "senders",
    "sites",
    "switches",
    "views",
    "wall",
    "workloads",
    "*",
)
# Every scope that a token may have.
SCOPES = tuple(f"{verb}:{area}" for verb in ("read", "write") for area in SCOPE_AREAS)


def token_may(auth: object, verb: str, area: str) -> bool:
    """Whether a request with this authentication may `verb` (read, write) the area. Sessions have no scopes: they may."""
    return not isinstance(auth, ApiToken) or bool({f"{verb}:{area}", f"{verb}:*"} & set(auth.scopes))


class TokenScope(BasePermission):
    """A token does only what its scopes name: `read:<area>` and `write:<area>`, or `read:*`, `write:*`. Sessions have no scopes."""

    def has_permission(self, request: Request, view: Any) -> bool:
        verb = "read" if request.method in SAFE_METHODS else "write"
        area = getattr(view, "scope_area", "*")
        if token_may(request.auth, verb, area):
            return True
        raise PermissionDenied(f"The token lacks the scope {verb}:{area}.")
