"""Node agents: enrolment, identity, what they observe."""

from django.conf import settings
from django.db import models
from django.db.models import Q


class EnrolmentToken(models.Model):
    """One-time token bound to a node. Only its hash is kept."""

    node = models.ForeignKey("fleet.Node", on_delete=models.CASCADE, related_name="enrolment_tokens")
    token_hash = models.CharField(max_length=64, unique=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True)


class AgentIdentity(models.Model):
    """The Ed25519 public key that speaks for a node. At most one live key per node."""

    node = models.ForeignKey("fleet.Node", on_delete=models.CASCADE, related_name="agent_identities")
    public_key = models.BinaryField(max_length=32)
    enrolled_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True)
    revoked_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, related_name="+")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["node"], condition=Q(revoked_at__isnull=True), name="agent_one_live_key"),
            models.UniqueConstraint(fields=["public_key"], condition=Q(revoked_at__isnull=True), name="agent_key_one_node"),
        ]


class KeyChangeRequest(models.Model):
    """An enrolled node asked for another key: an operator decides."""

    node = models.ForeignKey("fleet.Node", on_delete=models.CASCADE, related_name="key_change_requests")
    public_key = models.BinaryField(max_length=32)
    requested_at = models.DateTimeField()
    decided_at = models.DateTimeField(null=True)
    approved = models.BooleanField(null=True)
    decided_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, related_name="+")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["node"], condition=Q(decided_at__isnull=True), name="keychange_one_open")]


class AgentConnection(models.Model):
    """Current contact of a node's agent, as the gateways saw it."""

    node = models.OneToOneField("fleet.Node", on_delete=models.CASCADE, primary_key=True, related_name="agent_connection")
    gateway = models.CharField(max_length=80, blank=True)
    connected = models.BooleanField(default=False)
    connected_at = models.DateTimeField(null=True)
    disconnected_at = models.DateTimeField(null=True)
    heartbeat_at = models.DateTimeField(null=True, help_text="By the gateway's clock.")
    clock_offset_seconds = models.FloatField(null=True, help_text="The node's clock minus the gateway's, at the last heartbeat.")
    applied_version = models.PositiveBigIntegerField(null=True, help_text="Newest document that the agent has converged to.")
    refusal = models.CharField(max_length=300, blank=True, help_text="Why the agent did not take the newest document; empty when it did.")
    report = models.JSONField(default=dict, help_text="Last inventory and health report, as sent.")
    reported_at = models.DateTimeField(null=True)
