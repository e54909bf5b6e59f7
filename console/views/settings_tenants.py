"""`/settings/tenants`: tenants, who belongs to them, which namespaces are theirs. For administrators of the whole fleet."""

from __future__ import annotations

from django.contrib import messages
from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import path
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from console import people
from console.access import Access
from console.guards import administrator_page
from console.models import User
from console.setting_forms import MembershipForm, NamespaceForm, TenantForm, try_act
from tenants.models import Membership, NamespaceMapping, Tenant

SHOWN = 500


def _actor(request: HttpRequest) -> User:
    return get_object_or_404(User, pk=request.user.pk)


@administrator_page
def tenants(request: HttpRequest, access: Access) -> HttpResponse:
    form = TenantForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        tenant = try_act(form, lambda: people.create_tenant(actor=_actor(request), now=timezone.now(), **form.cleaned_data), people.PeopleRefused)
        if tenant is not None:
            messages.success(request, _("%(name)s exists now. Say who belongs to it and which namespaces are its own.") % {"name": tenant.name})
            return redirect("settings_tenant", key=tenant.key)
    rows = Tenant.objects.annotate(members=Count("memberships", distinct=True), mapped=Count("namespaces", distinct=True)).order_by("key")[:SHOWN]
    return render(
        request, "settings/tenants.html", {"nav": "settings", "tab": "tenants", "tenants": list(rows), "form": form}, status=422 if form.errors else 200
    )


@administrator_page
def tenant_page(request: HttpRequest, access: Access, key: str) -> HttpResponse:
    return _page(request, get_object_or_404(Tenant, key=key), MembershipForm(), NamespaceForm())


def _page(request: HttpRequest, tenant: Tenant, member_form: MembershipForm, namespace_form: NamespaceForm) -> HttpResponse:
    context = {
        "nav": "settings",
        "tab": "tenants",
        "tenant": tenant,
        "members": list(Membership.objects.filter(tenant=tenant).select_related("user").order_by("user__username")[:SHOWN]),
        "namespaces": list(NamespaceMapping.objects.filter(tenant=tenant).select_related("site").order_by("namespace", "site__code")[:SHOWN]),
        "member_form": member_form,
        "namespace_form": namespace_form,
    }
    return render(request, "settings/tenant.html", context, status=422 if member_form.errors or namespace_form.errors else 200)


@require_POST
@administrator_page
def add_member(request: HttpRequest, access: Access, key: str) -> HttpResponse:
    tenant, form = get_object_or_404(Tenant, key=key), MembershipForm(request.POST)
    if not form.is_valid():
        return _page(request, tenant, form, NamespaceForm())
    people.add_member(tenant=tenant, user=form.cleaned_data["username"], role=form.cleaned_data["role"], actor=_actor(request), now=timezone.now())
    messages.success(request, _("Added."))
    return redirect("settings_tenant", key=key)


@require_POST
@administrator_page
def remove_member(request: HttpRequest, access: Access, key: str, pk: int) -> HttpResponse:
    row = get_object_or_404(Membership.objects.select_related("user", "tenant"), pk=pk, tenant__key=key)
    people.remove_member(membership=row, actor=_actor(request), now=timezone.now())
    messages.success(request, _("Removed."))
    return redirect("settings_tenant", key=key)


@require_POST
@administrator_page
def map_namespace(request: HttpRequest, access: Access, key: str) -> HttpResponse:
    tenant, form = get_object_or_404(Tenant, key=key), NamespaceForm(request.POST)
    if form.is_valid():
        try_act(form, lambda: people.map_namespace(tenant=tenant, actor=_actor(request), now=timezone.now(), **form.cleaned_data), people.PeopleRefused)
    if form.errors:
        return _page(request, tenant, MembershipForm(), form)
    messages.success(request, _("Mapped."))
    return redirect("settings_tenant", key=key)


@require_POST
@administrator_page
def unmap_namespace(request: HttpRequest, access: Access, key: str, pk: int) -> HttpResponse:
    row = get_object_or_404(NamespaceMapping.objects.select_related("tenant", "site"), pk=pk, tenant__key=key)
    people.unmap_namespace(mapping=row, actor=_actor(request), now=timezone.now())
    messages.success(request, _("No longer mapped."))
    return redirect("settings_tenant", key=key)


@require_POST
@administrator_page
def suspend(request: HttpRequest, access: Access, key: str) -> HttpResponse:
    tenant, suspended = get_object_or_404(Tenant, key=key), request.POST.get("suspended") == "yes"
    people.suspend_tenant(tenant=tenant, suspended=suspended, actor=_actor(request), now=timezone.now())
    messages.success(request, _("Suspended: its people see nothing of it.") if suspended else _("No longer suspended."))
    return redirect("settings_tenant", key=key)


urlpatterns = [
    path("settings/tenants", tenants, name="settings_tenants"),
    path("settings/tenants/<slug:key>", tenant_page, name="settings_tenant"),
    path("settings/tenants/<slug:key>/members", add_member, name="settings_tenant_member"),
    path("settings/tenants/<slug:key>/members/<int:pk>/remove", remove_member, name="settings_tenant_member_remove"),
    path("settings/tenants/<slug:key>/namespaces", map_namespace, name="settings_tenant_namespace"),
    path("settings/tenants/<slug:key>/namespaces/<int:pk>/remove", unmap_namespace, name="settings_tenant_namespace_remove"),
    path("settings/tenants/<slug:key>/suspend", suspend, name="settings_tenant_suspend"),
]
