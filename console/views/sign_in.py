"""Sign-in, sign-out and password, by allauth. Only these of its pages exist: accounts are opened by an administrator."""

import time

from allauth.account import views as account
from django.forms import Form
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.middleware.csrf import get_token
from django.urls import path
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from console.session_end import is_last, seconds_left
from console.sessions import revoke_sessions


class PasswordChangeView(account.PasswordChangeView):
    """A new password ends every other session of this person."""

    def form_valid(self, form: Form) -> HttpResponse:
        response: HttpResponse = super().form_valid(form)
        revoke_sessions(self.request.user, now=timezone.now(), except_key=self.request.session.session_key)
        return response


@require_http_methods(["GET", "POST"])
def session(request: HttpRequest) -> JsonResponse:
    """Seconds until the sign-in ends; a POST is an act and so renews it, a GET does not. `last`: it cannot be renewed any more. `csrf`: for the
    forms of a page that stayed open while the person signed in again."""
    if not request.user.is_authenticated:
        return JsonResponse({"detail": "Not signed in."}, status=401)
    answer = {"left": seconds_left(request, now=time.time()), "last": is_last(request), "csrf": get_token(request)}
    return JsonResponse(answer, headers={"Cache-Control": "no-store"})


urlpatterns = [
    path("accounts/login/", account.login, name="account_login"),
    path("accounts/logout/", account.logout, name="account_logout"),
    path("accounts/inactive/", account.account_inactive, name="account_inactive"),
    path("accounts/reauthenticate/", account.reauthenticate, name="account_reauthenticate"),
    path("accounts/session", session, name="account_session"),
    path("accounts/password/", PasswordChangeView.as_view(), name="account_change_password"),
]
