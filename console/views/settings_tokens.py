"""`/settings/tokens`: one's own API tokens. A secret is shown once, on the page that made it."""

from __future__ import annotations

from datetime import timedelta

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import path
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from console.access import Access
from console.guards import signed_in_page
from console.models import ApiToken, User
from console.setting_forms import TokenForm
from console.tokens import issue_token, revoke_token, rotate_token


@never_cache
@signed_in_page
def tokens(request: HttpRequest, access: Access) -> HttpResponse:
    form = TokenForm(request.POST or None, regions=access.regions())
    if request.method == "POST" and form.is_valid():
        now, values = timezone.now(), form.cleaned_data
        token, secret = issue_token(
            user=_user(request),
            name=values["name"],
            scopes=values["scopes"],
            expires_at=now + timedelta(days=values["days"]),
            now=now,
            regions=values["regions"],
        )
        return _page(request, TokenForm(None, regions=access.regions()), token=token, secret=secret, status=201)
    return _page(request, form, status=422 if form.errors else 200)


@never_cache
@require_POST
@signed_in_page
def rotate(request: HttpRequest, access: Access, prefix: str) -> HttpResponse:
    """A new token in the place of a live one: same name, rights and length of life. The old one ends now."""
    now = timezone.now()
    old = get_object_or_404(ApiToken, prefix=prefix, user=_user(request), revoked_at__isnull=True, expires_at__gt=now)
    try:
        token, secret = rotate_token(token=old, now=now)
    except ValueError as over:  # ended in between
        raise Http404 from over
    return _page(request, TokenForm(None, regions=access.regions()), token=token, secret=secret, status=201)


@require_POST
@signed_in_page
def revoke(request: HttpRequest, access: Access, prefix: str) -> HttpResponse:
    revoke_token(token=get_object_or_404(ApiToken.objects.select_related("user"), prefix=prefix, user=_user(request)), now=timezone.now())
    messages.success(request, _("The token is revoked."))
    return redirect("settings_tokens")


def _user(request: HttpRequest) -> User:
    return get_object_or_404(User, pk=request.user.pk)


def _page(request: HttpRequest, form: TokenForm, *, token: ApiToken | None = None, secret: str = "", status: int = 200) -> HttpResponse:
    rows = ApiToken.objects.filter(user=_user(request)).prefetch_related("regions").order_by("-created_at")[:100]
    context = {"nav": "settings", "tab": "tokens", "tokens": list(rows), "form": form, "new_token": token, "secret": secret, "now": timezone.now()}
    return render(request, "settings/tokens.html", context, status=status)


urlpatterns = [
    path("settings/tokens", tokens, name="settings_tokens"),
    path("settings/tokens/<slug:prefix>/rotate", rotate, name="settings_token_rotate"),
    path("settings/tokens/<slug:prefix>/revoke", revoke, name="settings_token_revoke"),
]
