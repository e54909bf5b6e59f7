"""`/wall/<view>`: the NOC's wall, its panels, and the sign-in of a wall screen."""

from __future__ import annotations

from allauth.core import ratelimit
from django import forms
from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import path, reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_safe

from console.access import Access
from console.guards import operator_page
from console.summary import Scope, data_quality, finding_groups, incomplete, maintenance_now
from console.wall_session import is_device, sign_in_device
from console.wall_views import ALL, WallView, wall_views

FINDING_GROUPS = 6
THEMES = ("dark", "light")


@operator_page
def wall(request: HttpRequest, access: Access) -> HttpResponse:
    return HttpResponseRedirect(reverse("wall_view", args=[ALL]))


@require_safe
@operator_page
def wall_view(request: HttpRequest, access: Access, view: str) -> HttpResponse:
    views = wall_views(access)
    current = _find(views, view)
    at = views.index(current)
    theme = request.GET.get("theme")
    rotate = request.GET.get("rotate", "")
    return render(
        request,
        "wall/page.html",
        {
            "nav": "wall",
            "theme": theme if theme in THEMES else "dark",
            "views": views,
            "view": current,
            "next_view": views[(at + 1) % len(views)],
            "previous_view": views[at - 1],
            "rotate_seconds": min(max(int(rotate), 10), 3600) if rotate.isascii() and rotate.isdigit() and len(rotate) < 6 else 0,
            "version": settings.VERSION,
            "is_device": is_device(request),
            **_panels(access, current),
        },
    )


@require_safe
@operator_page
def wall_panels(request: HttpRequest, access: Access, view: str) -> HttpResponse:
    current = _find(wall_views(access), view)
    return render(request, "wall/_panels.html", {"view": current, "is_device": is_device(request), **_panels(access, current)})


def _find(views: list[WallView], slug: str) -> WallView:
    found = next((one for one in views if one.slug == slug), None)
    if found is None:
        raise Http404
    return found


def _panels(access: Access, view: WallView) -> dict[str, object]:
    scope = Scope(access, view.region_ids)
    now = timezone.now()
    groups, total = finding_groups(scope, FINDING_GROUPS)
    return {
        "groups": groups,
        "findings_total": total,
        "quality": data_quality(scope, now=now),
        "incomplete": incomplete(scope, now=now),
        "windows": maintenance_now(scope, now=now, limit=3),
        "now": now,
    }


class DeviceSignInForm(forms.Form):
    token = forms.CharField(
        label=lazy("Device token"),
        max_length=200,
        widget=forms.PasswordInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
        help_text=lazy("Made in the settings with the scope read:wall. It starts with mh_."),
    )


@never_cache
@sensitive_post_parameters("token")
def wall_sign_in(request: HttpRequest) -> HttpResponse:
    form = DeviceSignInForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        limited = ratelimit.consume_or_429(request, action="login")
        if limited:
            return limited
        if sign_in_device(request, form.cleaned_data["token"].strip(), now=timezone.now()):
            return HttpResponseRedirect(reverse("wall"))
        form.add_error("token", _("This token is unknown, expired, revoked, or not a wall's."))
    return render(request, "wall/sign_in.html", {"form": form, "theme": "dark"}, status=200 if not form.errors else 422)


urlpatterns = [
    path("wall", wall, name="wall"),
    path("wall/sign-in", wall_sign_in, name="wall_sign_in"),
    path("wall/<slug:view>", wall_view, name="wall_view"),
    path("wall/<slug:view>/panels", wall_panels, name="wall_panels"),
]
