"""Sign-in policy on top of allauth: nobody signs up by themselves, and signing out ends the sockets too."""

from __future__ import annotations

from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.forms import LoginForm
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from console.models import User
from console.session_store import KEPT
from console.sessions import note_access_change


class Adapter(DefaultAccountAdapter):
    error_messages = {
        **DefaultAccountAdapter.error_messages,
        "too_many_login_attempts": _("Too many failed attempts. Sign-in is locked for a few minutes; wait, then try again."),
        "username_password_mismatch": _("The user name and/or password is wrong."),
        "account_inactive": _("This account is switched off. Ask an administrator."),
    }

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False

    def get_password_change_redirect_url(self, request: HttpRequest) -> str:
        return reverse("settings_sessions")

    def logout(self, request: HttpRequest) -> None:
        user = request.user
        super().logout(request)
        if isinstance(user, User):
            note_access_change(user, now=timezone.now())


class SignInForm(LoginForm):
    """User name and password, with labels of our own and no placeholders that repeat them."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.fields["login"].label = _("User name")
        self.fields["password"].help_text = ""
        for name, autocomplete in (("login", "username"), ("password", "current-password")):
            attributes = self.fields[name].widget.attrs
            attributes.pop("placeholder", None)
            attributes["autocomplete"] = autocomplete
        self.fields["login"].widget.attrs["autofocus"] = True

    def login(self, request: HttpRequest, redirect_url: str | None = None) -> HttpResponse:
        response: HttpResponse = super().login(request, redirect_url=redirect_url)
        if request.user.is_authenticated:
            request.session[KEPT] = self.cleaned_data["remember"]
        return response
