"""`/settings/users`: people, service accounts, their roles and sessions. For administrators of the whole fleet."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import path
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from console import people
from console.access import Access
from console.guards import administrator_page
from console.models import ApiToken, RoleGrant, User
from console.sessions import live_sessions
from console.setting_forms import NewUserForm, PasswordForm, RoleForm, try_act
from tenants.models import Membership

PAGE = 50


def _actor(request: HttpRequest) -> User:
    return get_object_or_404(User, pk=request.user.pk)


@administrator_page
def users(request: HttpRequest, access: Access) -> HttpResponse:
    form = NewUserForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        values = {**form.cleaned_data, "password": form.cleaned_data["password"] or None}
        user = try_act(form, lambda: people.create_user(actor=_actor(request), now=timezone.now(), **values), people.PeopleRefused)
        if user is not None:
            messages.success(request, _("%(name)s can sign in. Give a role or a tenant next.") % {"name": user.username})
            return redirect("settings_user", pk=user.pk)
    text = request.GET.get("q", "").strip()[:100].replace("\x00", "")
    rows = User.objects.prefetch_related("role_grants__region", "memberships__tenant").order_by("username")
    if text:
        rows = rows.filter(Q(username__icontains=text) | Q(first_name__icontains=text) | Q(last_name__icontains=text) | Q(email__icontains=text))
    number = request.GET.get("page", "1")
    page = int(number) if number.isdecimal() and 0 < len(number) < 6 else 1
    found = list(rows[(page - 1) * PAGE : page * PAGE + 1])
    context = {"nav": "settings", "tab": "users", "users": found[:PAGE], "more": len(found) > PAGE, "page": page, "text": text, "form": form}
    return render(request, "settings/users.html", context, status=422 if form.errors else 200)


@administrator_page
def user_page(request: HttpRequest, access: Access, pk: int) -> HttpResponse:
    return _page(request, access, get_object_or_404(User, pk=pk))


def _page(request: HttpRequest, access: Access, user: User, *, role_form: RoleForm | None = None, password_form: PasswordForm | None = None) -> HttpResponse:
    failed = bool((role_form and role_form.errors) or (password_form and password_form.errors))
    now = timezone.now()
    context: dict[str, Any] = {
        "nav": "settings",
        "tab": "users",
        "person": user,
        "grants": list(RoleGrant.objects.filter(user=user).select_related("region").order_by("region__slug", "role")),
        "memberships": list(Membership.objects.filter(user=user).select_related("tenant").order_by("tenant__key")),
        "sessions": live_sessions(user, now=now),
        "tokens": list(ApiToken.objects.filter(user=user, revoked_at__isnull=True, expires_at__gt=now).order_by("-created_at")[:100]),
        "role_form": role_form or RoleForm(None, regions=access.regions()),
        "password_form": password_form or PasswordForm(),
        "now": now,
    }
    return render(request, "settings/user.html", context, status=422 if failed else 200)


@require_POST
@administrator_page
def grant(request: HttpRequest, access: Access, pk: int) -> HttpResponse:
    user, form = get_object_or_404(User, pk=pk), RoleForm(request.POST, regions=access.regions())
    if not form.is_valid():
        return _page(request, access, user, role_form=form)
    for region in form.cleaned_data["regions"] or [None]:
        people.grant_role(user=user, role=form.cleaned_data["role"], region=region, actor=_actor(request), now=timezone.now())
    messages.success(request, _("The role is given."))
    return redirect("settings_user", pk=pk)


@require_POST
@administrator_page
def take_role(request: HttpRequest, access: Access, pk: int, grant_pk: int) -> HttpResponse:
    row = get_object_or_404(RoleGrant.objects.select_related("user", "region"), pk=grant_pk, user_id=pk)
    try:
        people.revoke_role(grant=row, actor=_actor(request), now=timezone.now())
    except people.PeopleRefused as refused:
        messages.error(request, str(refused))
    else:
        messages.success(request, _("The role is taken away."))
    return redirect("settings_user", pk=pk)


@require_POST
@administrator_page
def set_active(request: HttpRequest, access: Access, pk: int) -> HttpResponse:
    user, active = get_object_or_404(User, pk=pk), request.POST.get("active") == "yes"
    try:
        people.set_active(user=user, active=active, actor=_actor(request), now=timezone.now())
    except people.PeopleRefused as refused:
        messages.error(request, str(refused))
    else:
        messages.success(request, _("Switched on.") if active else _("Locked out: sessions, sockets and tokens have ended."))
    return redirect("settings_user", pk=pk)


@require_POST
@administrator_page
def set_password(request: HttpRequest, access: Access, pk: int) -> HttpResponse:
    user, form = get_object_or_404(User, pk=pk), PasswordForm(request.POST)
    if not form.is_valid():
        return _page(request, access, user, password_form=form)
    try_act(
        form, lambda: people.set_password(user=user, password=form.cleaned_data["password"], actor=_actor(request), now=timezone.now()), people.PeopleRefused
    )
    if form.errors:
        return _page(request, access, user, password_form=form)
    messages.success(request, _("The new password is set; the sessions have ended."))
    return redirect("settings_user", pk=pk)


@require_POST
@administrator_page
def end_sessions(request: HttpRequest, access: Access, pk: int) -> HttpResponse:
    count = people.end_sessions(user=get_object_or_404(User, pk=pk), actor=_actor(request), now=timezone.now())
    messages.success(request, _("%(n)d session(s) ended.") % {"n": count})
    return redirect("settings_user", pk=pk)


urlpatterns = [
    path("settings/users", users, name="settings_users"),
    path("settings/users/<int:pk>", user_page, name="settings_user"),
    path("settings/users/<int:pk>/roles", grant, name="settings_user_grant"),
    path("settings/users/<int:pk>/roles/<int:grant_pk>/take", take_role, name="settings_user_take_role"),
    path("settings/users/<int:pk>/active", set_active, name="settings_user_active"),
    path("settings/users/<int:pk>/password", set_password, name="settings_user_password"),
    path("settings/users/<int:pk>/sessions", end_sessions, name="settings_user_sessions"),
]
