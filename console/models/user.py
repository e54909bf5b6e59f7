"""People and programs that use the console: users, roles with scope, API tokens."""

from django.conf import settings
from django.contrib.auth.models import AbstractUser
from django.db import models

from fleet.models.history import tracked


@tracked(exclude=["password", "last_login"])
class User(AbstractUser):
    """A person, or a service account (no password, tokens only)."""

    is_service_account = models.BooleanField(default=False)
    time_zone = models.CharField(max_length=64, default="UTC")
    theme = models.CharField(max_length=6, default="system", choices=[("system", "System"), ("light", "Light"), ("dark", "Dark")])
    density = models.CharField(max_length=11, default="comfortable", choices=[("comfortable", "Comfortable"), ("compact", "Compact")])
    single_letter_keys = models.BooleanField(default=True)
    list_columns = models.JSONField(default=dict, blank=True, help_text="{list: [column key, …]}; a list that is missing shows its default columns.")
    access_changed_at = models.DateTimeField(null=True, blank=True, help_text="Bumped whenever roles, memberships or activity change: open sockets re-check.")


@tracked()
class RoleGrant(models.Model):
    """A role on the whole fleet (region null) or on one region."""

    class Role(models.TextChoices):
        VIEWER = "viewer", "Viewer"
        OPERATOR = "operator", "Operator"
        LEAD = "lead", "Lead"
        ADMINISTRATOR = "administrator", "Administrator"

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="role_grants")
    role = models.CharField(max_length=13, choices=Role)
    region = models.ForeignKey("fleet.Region", on_delete=models.CASCADE, null=True, blank=True, related_name="+")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "role", "region"], nulls_distinct=False, name="rolegrant_once")]


class ApiToken(models.Model):
    """A bearer token of a user or service account. Shown once; only its prefix and hash are kept."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_tokens")
    name = models.CharField(max_length=80)
    prefix = models.CharField(max_length=12, unique=True)
    token_hash = models.CharField(max_length=64, unique=True)
    scopes = models.JSONField(default=list, help_text='["read:sites", "write:controls", …]')
    regions = models.ManyToManyField("fleet.Region", blank=True, related_name="+", help_text="What a limited token reaches.")
    is_limited = models.BooleanField(default=False, help_text="Only `regions`, none when they are gone; otherwise as wide as the user.")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    last_used_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)


class SavedView(models.Model):
    """A named set of list parameters, own or shared; also the views of the wall."""

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="saved_views")
    page = models.CharField(max_length=20, help_text="sites, nodes, regions, wall")
    slug = models.SlugField(max_length=60)
    name = models.CharField(max_length=80)
    query = models.CharField(max_length=2000, blank=True)
    shared = models.BooleanField(default=False)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["owner", "page", "slug"], name="savedview_once")]
