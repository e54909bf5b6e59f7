"""Forms of the settings pages. What they hand on was checked for shape only; the acts behind them check the rest and name the field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django import forms
from django.core.validators import RegexValidator
from django.db.models import QuerySet
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from console.api.scopes import SCOPE_AREAS
from console.filters import TextsField
from console.models import RoleGrant, User
from fleet.models import Region, Site
from tenants.models import Membership

SCOPES = [f"{verb}:{area}" for area in ("*", *(area for area in SCOPE_AREAS if area != "*")) for verb in ("read", "write")]


class ScopedForm(forms.Form):
    """A form whose named regions must lie in the scope of who sends it: a foreign one is as unknown as one that does not exist."""

    def __init__(self, *args: Any, regions: QuerySet[Region], **kwargs: Any) -> None:
        self.scope = regions
        super().__init__(*args, **kwargs)

    def clean_regions(self) -> list[Region]:
        slugs = self.cleaned_data["regions"]
        found = list(self.scope.filter(slug__in=slugs)) if slugs else []
        if missing := sorted(set(slugs) - {region.slug for region in found}):
            raise forms.ValidationError(_("There is no region %(names)s.") % {"names": ", ".join(missing)})
        return found


def _regions_field(**kwargs: Any) -> TextsField:
    field = TextsField(label=lazy("Regions"), **kwargs)
    field.widget.attrs.update({"data-suggest": "region", "autocomplete": "off"})
    return field


class TokenForm(ScopedForm):
    name = forms.CharField(label=lazy("Name"), max_length=80, help_text=lazy("What uses it."))
    scopes = forms.MultipleChoiceField(label=lazy("May"), choices=[(scope, scope) for scope in SCOPES], widget=forms.CheckboxSelectMultiple)
    regions = _regions_field(required=False, help_text=lazy("Slugs, with commas. Empty: as wide as your account."))
    days = forms.IntegerField(label=lazy("Valid for, days"), min_value=1, max_value=365, initial=90)


class NewUserForm(forms.Form):
    username = forms.CharField(label=lazy("User name"), max_length=150, widget=forms.TextInput(attrs={"autocomplete": "off"}))
    first_name = forms.CharField(label=lazy("First name"), max_length=150, required=False)
    last_name = forms.CharField(label=lazy("Last name"), max_length=150, required=False)
    email = forms.EmailField(label=lazy("Email"), required=False)
    is_service_account = forms.BooleanField(label=lazy("Service account"), required=False, help_text=lazy("A program: no password, tokens only."))
    password = forms.CharField(
        label=lazy("First password"), required=False, strip=False, max_length=200, widget=forms.PasswordInput(attrs={"autocomplete": "new-password"})
    )


class PasswordForm(forms.Form):
    password = forms.CharField(label=lazy("New password"), strip=False, max_length=200, widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}))


class RoleForm(ScopedForm):
    role = forms.ChoiceField(label=lazy("Role"), choices=RoleGrant.Role.choices)
    regions = _regions_field(required=False, help_text=lazy("Empty: the whole fleet."))


class MembershipForm(forms.Form):
    """A user in a tenant; on a user's page the tenant is asked for, on a tenant's page the user."""

    username = forms.CharField(label=lazy("User name"), max_length=150)
    role = forms.ChoiceField(label=lazy("Role"), choices=Membership.Role.choices, initial=Membership.Role.MEMBER)

    def clean_username(self) -> User:
        user = User.objects.filter(username=self.cleaned_data["username"]).first()
        if user is None:
            raise forms.ValidationError(_("There is no such user."))
        return user


class TenantForm(forms.Form):
    key = forms.CharField(label=lazy("Key"), max_length=40, help_text=lazy("Short and lasting: letters, digits and dashes."))
    name = forms.CharField(label=lazy("Name"), max_length=120)


class NamespaceForm(forms.Form):
    namespace = forms.CharField(label=lazy("Kubernetes namespace"), max_length=253)
    site = forms.CharField(
        label=lazy("Only at site"), max_length=40, required=False, widget=forms.TextInput(attrs={"data-suggest": "site", "autocomplete": "off"})
    )

    def clean_site(self) -> Site | None:
        code = self.cleaned_data["site"]
        if not code:
            return None
        site = Site.objects.filter(code=code).first()
        if site is None:
            raise forms.ValidationError(_("There is no such site."))
        return site


class SenderForm(ScopedForm):
    name = forms.CharField(
        label=lazy("Name"), max_length=60, validators=[RegexValidator(r"^[-a-zA-Z0-9_]+\Z", lazy("Letters, digits, dash and underscore only."))]
    )
    regions = _regions_field(help_text=lazy("It may write and discover for these only. Slugs, with commas."))
    may_write = forms.BooleanField(label=lazy("May write telemetry"), required=False, initial=True)
    may_discover = forms.BooleanField(label=lazy("May read service discovery"), required=False, initial=True)
    honor_labels = forms.BooleanField(
        label=lazy("It keeps the workload's own pod and namespace labels"), required=False, help_text=lazy("honor_labels: true in its scrape jobs.")
    )


class EnrolmentForm(forms.Form):
    sites = TextsField(label=lazy("Sites"), required=False, help_text=lazy("Codes, with commas: all their nodes that are not enrolled yet."))
    hosts = TextsField(label=lazy("Host names"), required=False, help_text=lazy("Or single nodes, with commas."))
    valid_days = forms.IntegerField(label=lazy("Valid for, days"), min_value=1, max_value=90, initial=7)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["sites"].widget.attrs.update({"data-suggest": "site", "autocomplete": "off"})
        self.fields["hosts"].widget.attrs.update({"data-suggest": "node", "autocomplete": "off"})

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or {}
        if not cleaned.get("sites") and not cleaned.get("hosts") and not self.errors:
            self.add_error("sites", _("Name at least one site or host."))
        return cleaned


def add_errors(form: forms.Form, errors: Mapping[str, str]) -> None:
    """Put an act's refusal on the fields that it names; what names no field of the form stands above it."""
    for name, text in errors.items():
        form.add_error(name if name in form.fields else None, text)


def try_act(form: forms.Form, act: Callable[[], Any], refusal: type[Exception]) -> Any:
    """The act's answer, or None with its refusal (which has `errors`) written into the form."""
    try:
        return act()
    except refusal as refused:
        add_errors(form, refused.errors)  # type: ignore[attr-defined]
        return None
