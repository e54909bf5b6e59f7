"""Wide switches (kill, automation off), what each node says of them, and what agents did on their own."""

import uuid
from datetime import datetime

from django.conf import settings
from django.db import models
from django.db.models import F, Q


class SwitchQuerySet(models.QuerySet["Switch"]):
    def in_force(self, now: datetime) -> "SwitchQuerySet":
        return self.filter(armed=True).filter(Q(ends_at__isnull=True) | Q(ends_at__gt=now))


class Switch(models.Model):
    """One switch on one scope. `body` is the newest signed version; releasing makes a new one. `tenant` and `model` narrow a kill."""

    class Kind(models.TextChoices):
        KILL = "kill", "Kill switch"
        AUTOMATION_OFF = "automation_off", "Automation off"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    kind = models.CharField(max_length=14, choices=Kind)
    scope_kind = models.CharField(max_length=8)
    scope_key = models.CharField(max_length=80, blank=True)
    tenant_key = models.CharField(max_length=40, blank=True)
    model_name = models.CharField(max_length=200, blank=True)
    version = models.PositiveBigIntegerField(default=1)
    armed = models.BooleanField(default=True)
    ends_at = models.DateTimeField(null=True)
    reason = models.CharField(max_length=300)
    preview = models.JSONField(default=dict)
    armed_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    armed_at = models.DateTimeField()
    released_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, related_name="+")
    released_at = models.DateTimeField(null=True)
    release_reason = models.CharField(max_length=300, blank=True)
    body = models.BinaryField()
    signature = models.BinaryField(max_length=64)
    key_id = models.CharField(max_length=16)

    objects = SwitchQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["kind", "scope_kind", "scope_key", "tenant_key", "model_name"], condition=Q(armed=True), name="switch_armed_once"),
            models.CheckConstraint(condition=Q(ends_at__isnull=True) | Q(ends_at__gt=F("armed_at")), name="switch_ends_later"),
        ]
        indexes = [models.Index(fields=["-armed_at"], name="switch_newest_idx")]


class SwitchAnswer(models.Model):
    """Where a switch stands on one node, by its agent's own reading back."""

    class State(models.TextChoices):
        APPLIED = "applied", "Applied"
        PENDING = "pending", "Pending"
        RELEASED = "released", "Released"
        REFUSED = "refused", "Refused"

    switch = models.ForeignKey(Switch, on_delete=models.CASCADE, related_name="answers")
    node = models.ForeignKey("fleet.Node", on_delete=models.CASCADE, related_name="switch_answers")
    version = models.PositiveBigIntegerField()
    state = models.CharField(max_length=8, choices=State)
    stopped = models.PositiveIntegerField(default=0)
    remaining = models.PositiveIntegerField(null=True, help_text="Empty where nobody can see what still runs.")
    detail = models.CharField(max_length=300, blank=True)
    at = models.DateTimeField(help_text="By the agent's clock.")
    sequence = models.PositiveBigIntegerField()
    received_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["switch", "node"], name="switch_answer_once")]


class LocalEvent(models.Model):
    """Something that an agent did or saw on its own, under the id that it gave it: told again, it is still one."""

    id = models.UUIDField(primary_key=True)
    node = models.ForeignKey("fleet.Node", on_delete=models.CASCADE, related_name="local_events")
    kind = models.CharField(max_length=40)
    at = models.DateTimeField(help_text="By the agent's clock.")
    subject = models.CharField(max_length=400, blank=True)
    detail = models.JSONField(default=dict)
    received_at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["node", "-at"], name="local_event_node_idx"), models.Index(fields=["-at"], name="local_event_at_idx")]
