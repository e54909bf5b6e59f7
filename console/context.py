"""What the frame of every page needs: navigation, appearance, access."""

import time
from typing import Any

from django.http import HttpRequest
from django.utils import timezone

from console.access import Right
from console.guards import request_access
from console.models import User
from console.navigation import pages_for
from console.session_end import seconds_left
from console.switch_scope import visible_switches


def frame(request: HttpRequest) -> dict[str, Any]:
    user = getattr(request, "user", None)
    if not isinstance(user, User):
        return {"theme": "system", "density": "comfortable", "nav_items": []}
    access = request_access(request)
    return {
        "theme": user.theme,
        "density": user.density,
        "single_letter_keys": user.single_letter_keys,
        "access": access,
        "nav_items": pages_for(access),
        "session_left": seconds_left(request, now=time.time()),
        "may_import": access.may_anywhere(Right.IMPORT),
        "switches_in_force": list(visible_switches(access).in_force(timezone.now()).select_related("armed_by").order_by("-armed_at")[:5]),
    }
