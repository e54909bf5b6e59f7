"""Tenants, who belongs to them, and which namespaces are theirs."""

from django.conf import settings
from django.db import models

from fleet.models.history import tracked


@tracked()
class Tenant(models.Model):
    key = models.SlugField(max_length=40, unique=True, help_text="What `fleet` knows a tenant by.")
    name = models.CharField(max_length=120)
    suspended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["key"]

    def __str__(self) -> str:
        return self.name


@tracked()
class Membership(models.Model):
    class Role(models.TextChoices):
        ADMIN = "admin", "Tenant administrator"
        MEMBER = "member", "Member"

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=6, choices=Role)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant", "user"], name="membership_once")]


@tracked()
class NamespaceMapping(models.Model):
    """A Kubernetes namespace belongs to one tenant, at one site or (site null) everywhere. The narrower mapping wins."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="namespaces")
    namespace = models.CharField(max_length=253)
    site = models.ForeignKey("fleet.Site", on_delete=models.CASCADE, null=True, blank=True, related_name="+")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["namespace", "site"], nulls_distinct=False, name="namespace_once")]
