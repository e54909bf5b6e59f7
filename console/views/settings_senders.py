"""`/settings/senders`: which Prometheus may write and discover, for which regions, and its tokens. For administrators of the whole fleet."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import path
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from console.access import Access
from console.errors import problem_id
from console.guards import administrator_page
from console.setting_forms import SenderForm, add_errors
from fleet.models import Sender
from fleet.telemetry import senders

SHOWN = 1000


@never_cache
@administrator_page
def sender_list(request: HttpRequest, access: Access) -> HttpResponse:
    form = SenderForm(request.POST or None, regions=access.regions())
    if request.method == "POST" and form.is_valid():
        try:
            sender, token = senders.create_sender(**form.cleaned_data, **_act(request))
        except senders.SenderError as refused:
            name, _sep, text = str(refused).partition(": ")
            add_errors(form, {name: text} if text else {"": name})
        else:
            return _page(request, SenderForm(None, regions=access.regions()), made=sender, token=token, status=201)
    return _page(request, form, status=422 if form.errors else 200)


@never_cache
@require_POST
@administrator_page
def rotate(request: HttpRequest, access: Access, name: str) -> HttpResponse:
    """A new token; the one so far stays valid for a week, so that the sender can be changed without a gap."""
    sender = get_object_or_404(Sender, name=name)
    try:
        token = senders.rotate_token(sender, **_act(request))
    except senders.SenderError as refused:
        messages.error(request, str(refused))
        return redirect("settings_senders")
    return _page(request, SenderForm(None, regions=access.regions()), made=sender, token=token, status=201)


@require_POST
@administrator_page
def end_rotation(request: HttpRequest, access: Access, name: str) -> HttpResponse:
    senders.end_previous_token(get_object_or_404(Sender, name=name), **_act(request))
    messages.success(request, _("Only the newest token is valid now."))
    return redirect("settings_senders")


@require_POST
@administrator_page
def revoke(request: HttpRequest, access: Access, name: str) -> HttpResponse:
    senders.revoke_sender(get_object_or_404(Sender, name=name), **_act(request))
    messages.success(request, _("Revoked: what it sends is refused from now on."))
    return redirect("settings_senders")


def _act(request: HttpRequest) -> dict[str, Any]:
    """Who does it and when, for the audit."""
    return {"now": timezone.now(), "actor": request.user.get_username(), "request_id": problem_id(request)[:64]}


def _page(request: HttpRequest, form: SenderForm, *, made: Sender | None = None, token: str = "", status: int = 200) -> HttpResponse:
    rows = list(Sender.objects.prefetch_related("regions").order_by("name")[:SHOWN])
    context = {"nav": "settings", "tab": "senders", "senders": rows, "form": form, "made": made, "token": token, "now": timezone.now()}
    return render(request, "settings/senders.html", context, status=status)


urlpatterns = [
    path("settings/senders", sender_list, name="settings_senders"),
    path("settings/senders/<slug:name>/rotate", rotate, name="settings_sender_rotate"),
    path("settings/senders/<slug:name>/end-rotation", end_rotation, name="settings_sender_end_rotation"),
    path("settings/senders/<slug:name>/revoke", revoke, name="settings_sender_revoke"),
]
