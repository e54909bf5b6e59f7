"""`/settings`: the signed-in person's own profile and sessions."""

from __future__ import annotations

import zoneinfo

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import path
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy
from django.views.decorators.http import require_POST

from console.access import Access
from console.guards import signed_in_page
from console.models import User
from console.sessions import live_sessions, revoke_sessions


class ProfileForm(forms.ModelForm):
    """Name, appearance and keys of one's own account."""

    class Meta:
        model = User
        fields = ["first_name", "last_name", "email", "time_zone", "theme", "density", "single_letter_keys"]
        widgets = {"theme": forms.RadioSelect, "density": forms.RadioSelect, "time_zone": forms.TextInput(attrs={"list": "zones", "autocomplete": "off"})}
        labels = {
            "first_name": lazy("First name"),
            "last_name": lazy("Last name"),
            "email": lazy("Email"),
            "time_zone": lazy("Time zone"),
            "theme": lazy("Theme"),
            "density": lazy("Density of lists"),
            "single_letter_keys": lazy("Single-letter keys"),
        }
        help_texts = {
            "time_zone": lazy("Times on all pages are shown in it, for example Europe/Berlin."),
            "single_letter_keys": lazy("j, k, x, g s and the others on the sheet that ? opens."),
        }

    def clean_time_zone(self) -> str:
        name: str = self.cleaned_data["time_zone"]
        if name not in zoneinfo.available_timezones():
            raise forms.ValidationError(_("“%(name)s” is not a time zone. Choose one of the list, for example Europe/Berlin."), params={"name": name})
        return name


def _user(request: HttpRequest) -> User:
    return get_object_or_404(User, pk=request.user.pk)


@signed_in_page
def profile(request: HttpRequest, access: Access) -> HttpResponse:
    form = ProfileForm(request.POST or None, instance=_user(request))
    if request.method == "POST" and form.is_valid():
        form.save()
        messages.success(request, _("Saved."))
        return redirect("settings")
    zones = sorted(zoneinfo.available_timezones())
    return render(request, "settings/profile.html", {"nav": "settings", "tab": "profile", "form": form, "zones": zones}, status=422 if form.errors else 200)


@signed_in_page
def sessions(request: HttpRequest, access: Access) -> HttpResponse:
    rows = live_sessions(_user(request), now=timezone.now())
    return render(request, "settings/sessions.html", {"nav": "settings", "tab": "sessions", "sessions": rows, "current_key": request.session.session_key})


@require_POST
@signed_in_page
def revoke(request: HttpRequest, access: Access) -> HttpResponse:
    """One session (`session`), or with `others` all but this one. A foreign id ends nothing, as an unknown one."""
    user, now = _user(request), timezone.now()
    if "others" in request.POST:
        count = revoke_sessions(user, now=now, except_key=request.session.session_key)
    else:
        wanted = request.POST.get("session", "")
        count = revoke_sessions(user, now=now, only=[int(wanted)]) if wanted.isdecimal() and len(wanted) < 19 else 0
    messages.success(request, _("%(n)d session(s) ended.") % {"n": count})
    return redirect("settings_sessions")


urlpatterns = [
    path("settings", profile, name="settings"),
    path("settings/sessions", sessions, name="settings_sessions"),
    path("settings/sessions/revoke", revoke, name="settings_sessions_revoke"),
]
