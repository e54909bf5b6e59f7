"""Desired state: policies that people set, the signed documents made of them, and what agents observed."""

from datetime import datetime

from django.conf import settings
from django.db import models
from django.db.models import Q

from fleet.models.health import ObjectKind


class PolicyQuerySet(models.QuerySet["Policy"]):
    def in_force(self, now: datetime) -> "PolicyQuerySet":
        return self.filter(withdrawn_at__isnull=True, starts_at__lte=now).filter(Q(ends_at__isnull=True) | Q(ends_at__gt=now))


class Policy(models.Model):
    """One control that somebody asked for on one scope, with an end when it is temporary."""

    control = models.CharField(max_length=40, help_text="Name of an `agent.actions` control, e.g. clock_range.")
    scope_kind = models.CharField(max_length=8, choices=ObjectKind)
    scope_key = models.CharField(max_length=80)
    parameters = models.JSONField()
    reason = models.CharField(max_length=300)
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField(null=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField()
    withdrawn_at = models.DateTimeField(null=True)
    withdrawn_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, related_name="+")
    idempotency_key = models.CharField(max_length=80, null=True, blank=True)

    objects = PolicyQuerySet.as_manager()

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(ends_at__isnull=True) | Q(ends_at__gt=models.F("starts_at")), name="policy_ends_after_start"),
            models.UniqueConstraint(fields=["created_by", "idempotency_key"], name="policy_idempotency"),
        ]
        indexes = [models.Index(fields=["scope_kind", "scope_key", "-created_at"], name="policy_scope_idx")]


class DesiredDocument(models.Model):
    """A signed, versioned desired-state document of one node. `body` is the exact signed bytes."""

    node = models.ForeignKey("fleet.Node", on_delete=models.CASCADE, related_name="desired_documents")
    version = models.PositiveBigIntegerField()
    body = models.BinaryField()
    signature = models.BinaryField(max_length=64)
    key_id = models.CharField(max_length=16, help_text="First 8 bytes of SHA-256 of the signing public key, hex.")
    created_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["node", "version"], name="document_version_once")]


class StaleDocument(models.Model):
    """A node whose placements kept for PHY changed since its newest document. Rows are only added, until the worker issues the document and deletes them."""

    # Neither unique nor a constraint in the database: who adds one waits for nobody.
    node = models.ForeignKey("fleet.Node", on_delete=models.CASCADE, related_name="+", db_constraint=False)


class ObservedControl(models.Model):
    """What a node's agent last read back for one control on one GPU."""

    class State(models.TextChoices):
        APPLIED = "applied", "Applied"
        FAILED = "failed", "Failed"
        REFUSED = "refused", "Refused"
        ENDED = "ended", "Ended"
        DRIFTED = "drifted", "Drifted"

    node = models.ForeignKey("fleet.Node", on_delete=models.CASCADE, related_name="observed_controls")
    gpu_uuid = models.CharField(max_length=64)
    control = models.CharField(max_length=40)
    version = models.PositiveBigIntegerField()
    state = models.CharField(max_length=8, choices=State)
    observed = models.JSONField(default=dict)
    detail = models.CharField(max_length=300, blank=True)
    at = models.DateTimeField(help_text="By the agent's clock.")
    sequence = models.PositiveBigIntegerField(default=0, help_text="Rises with every observation of the node's agent: an older one changes nothing.")
    received_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["node", "gpu_uuid", "control"], name="observed_once")]
