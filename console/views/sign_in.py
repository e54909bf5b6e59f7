"""Sign-in, sign-out and password, by allauth. Only these of its pages exist: accounts are opened by an administrator."""

from allauth.account import views as account
from django.forms import Form
from django.http import HttpResponse
from django.urls import path
from django.utils import timezone

from console.sessions import revoke_sessions


class PasswordChangeView(account.PasswordChangeView):
    """A new password ends every other session of this person."""

    def form_valid(self, form: Form) -> HttpResponse:
        response: HttpResponse = super().form_valid(form)
        revoke_sessions(self.request.user, now=timezone.now(), except_key=self.request.session.session_key)
        return response


urlpatterns = [
    path("accounts/login/", account.login, name="account_login"),
    path("accounts/logout/", account.logout, name="account_logout"),
    path("accounts/inactive/", account.account_inactive, name="account_inactive"),
    path("accounts/password/", PasswordChangeView.as_view(), name="account_change_password"),
]
