"""One-shot commands: what was asked for, who agreed, and what became of each target. States and codes: `docs/control.md`."""

import uuid
from datetime import datetime

from django.conf import settings
from django.db import models
from django.db.models import Q


class CommandQuerySet(models.QuerySet["Command"]):
    def open(self) -> "CommandQuerySet":
        """Something may still happen."""
        return self.filter(state__in=Command.OPEN)

    def awaiting(self, now: datetime) -> "CommandQuerySet":
        return self.filter(state=Command.State.AWAITING, approve_by__gt=now)


class Command(models.Model):
    """One act on a frozen set of targets, in waves. `preview` is what was shown and approved; `preview_hash` names it."""

    class State(models.TextChoices):
        AWAITING = "awaiting", "Awaiting approval"
        RUNNING = "running", "Running"
        PAUSED = "paused", "Paused"
        DONE = "done", "Done"
        ABORTED = "aborted", "Aborted"
        DENIED = "denied", "Denied"
        EXPIRED = "expired", "Expired"

    OPEN = (State.AWAITING, State.RUNNING, State.PAUSED)

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    kind = models.CharField(max_length=40)
    parameters = models.JSONField(default=dict)
    selection = models.JSONField(default=dict, help_text="How the targets were chosen: a list of keys, or a filter with its count.")
    reason = models.CharField(max_length=300)
    risk = models.PositiveSmallIntegerField(help_text="Class 0-4 of the guard rails.")
    break_glass = models.BooleanField(default=False)
    state = models.CharField(max_length=9, choices=State)
    paused_because = models.CharField(max_length=300, blank=True)
    preview = models.JSONField()
    preview_hash = models.CharField(max_length=64)
    waves = models.JSONField(help_text="Sizes of the waves; the first is the canary where there is one.")
    wave = models.SmallIntegerField(default=-1, help_text="The wave that has begun last; -1 before the first.")
    wave_began_at = models.DateTimeField(null=True)
    pause_seconds = models.PositiveIntegerField(default=0, help_text="Between one wave's end and the next.")
    failure_share = models.FloatField(help_text="Above it a run pauses by itself.")
    approvals_needed = models.PositiveSmallIntegerField(default=0)
    approve_by = models.DateTimeField(null=True)
    not_after = models.DateTimeField(help_text="No target begins after it.")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)
    retry_of = models.ForeignKey("self", on_delete=models.PROTECT, null=True, related_name="retries")
    idempotency_key = models.CharField(max_length=80, null=True, blank=True)

    objects = CommandQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["created_by", "idempotency_key"], name="command_idempotency"),
            models.CheckConstraint(condition=Q(risk__lte=4), name="command_risk_known"),
            models.CheckConstraint(condition=Q(not_after__gt=models.F("created_at")), name="command_expires_later"),
        ]
        indexes = [models.Index(fields=["-created_at"], name="command_newest_idx"), models.Index(fields=["state"], name="command_state_idx")]

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


class CommandTargetQuerySet(models.QuerySet["CommandTarget"]):
    def open(self) -> "CommandTargetQuerySet":
        return self.exclude(state__in=CommandTarget.TERMINAL)

    def in_flight(self) -> "CommandTargetQuerySet":
        """Released to the agent and not over, as far as we know."""
        return self.filter(released_at__isnull=False).exclude(state__in=CommandTarget.TERMINAL)


class CommandTarget(models.Model):
    """What became of one target. A terminal state changes no more, but for `unreachable` and `expired`, which the agent's own word may correct."""

    class State(models.TextChoices):
        PENDING = "pending", "Pending"
        SENT = "sent", "Sent"
        ACCEPTED = "accepted", "Accepted"
        RUNNING = "running", "Running"
        DONE = "done", "Done"
        FAILED = "failed", "Failed"
        SKIPPED = "skipped", "Skipped"
        UNREACHABLE = "unreachable", "Unreachable"
        EXPIRED = "expired", "Expired"
        CANCELLED = "cancelled", "Cancelled"

    TERMINAL = (State.DONE, State.FAILED, State.SKIPPED, State.UNREACHABLE, State.EXPIRED, State.CANCELLED)
    # Ours, not the agent's: what it says afterwards about what it did is the truth.
    CORRECTABLE = (State.UNREACHABLE, State.EXPIRED)

    command = models.ForeignKey(Command, on_delete=models.CASCADE, related_name="targets")
    node = models.ForeignKey("fleet.Node", on_delete=models.PROTECT, related_name="command_targets")
    gpu_uuid = models.CharField(max_length=64, blank=True)
    wave = models.PositiveSmallIntegerField()
    state = models.CharField(max_length=11, choices=State, default=State.PENDING)
    code = models.CharField(max_length=40, blank=True)
    detail = models.CharField(max_length=300, blank=True)
    waits_for = models.CharField(max_length=300, blank=True, help_text="What keeps a pending target from beginning.")
    progress = models.JSONField(default=dict)
    blocked = models.JSONField(default=list)
    output = models.TextField(blank=True)
    preconditions = models.JSONField(default=dict)
    order = models.PositiveBigIntegerField(null=True, help_text="Rises with every body that is signed.")
    body = models.BinaryField(null=True)
    signature = models.BinaryField(max_length=64, null=True)
    key_id = models.CharField(max_length=16, blank=True)
    cancel_body = models.BinaryField(null=True)
    cancel_signature = models.BinaryField(max_length=64, null=True)
    released_at = models.DateTimeField(null=True)
    sent_at = models.DateTimeField(null=True)
    accepted_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    sequence = models.PositiveBigIntegerField(default=0, help_text="Of the agent's newest update.")

    objects = CommandTargetQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["command", "node", "gpu_uuid"], name="command_target_once")]
        indexes = [
            models.Index(fields=["command", "wave", "state"], name="command_target_wave_idx"),
            models.Index(fields=["node", "-released_at"], name="command_target_node_idx"),
            models.Index(fields=["node"], condition=Q(state__in=("pending", "sent"), body__isnull=False), name="command_target_due_idx"),
        ]


class CommandDecision(models.Model):
    """One person's word on a command that awaited it. Approvals count only for the preview that they were given to; a denial is final."""

    class Verdict(models.TextChoices):
        APPROVED = "approved", "Approved"
        DENIED = "denied", "Denied"

    command = models.ForeignKey(Command, on_delete=models.CASCADE, related_name="decisions")
    person = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    verdict = models.CharField(max_length=8, choices=Verdict)
    reason = models.CharField(max_length=300)
    preview_hash = models.CharField(max_length=64)
    at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["command", "person"], name="decision_once")]


class Freeze(models.Model):
    """A time in which nobody acts on a scope, but by break-glass."""

    scope_kind = models.CharField(max_length=8)
    scope_key = models.CharField(max_length=80, blank=True)
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    reason = models.CharField(max_length=300)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(ends_at__gt=models.F("starts_at")), name="freeze_ends_after_start")]


class Breaker(models.Model):
    """A guard that tripped: acts of its scope wait until a person resets it, who says whether what waited is skipped or goes on."""

    rule = models.CharField(max_length=20, help_text="fleet, region, cause, observer.")
    scope_kind = models.CharField(max_length=8)
    scope_key = models.CharField(max_length=80, blank=True)
    why = models.CharField(max_length=300)
    evidence = models.JSONField(default=dict)
    tripped_at = models.DateTimeField()
    reset_at = models.DateTimeField(null=True)
    reset_by = models.CharField(max_length=150, blank=True)
    reset_reason = models.CharField(max_length=300, blank=True)
    backlog = models.CharField(max_length=6, blank=True, choices=[("skip", "Skip"), ("replay", "Replay")])

    class Meta:
        constraints = [models.UniqueConstraint(fields=["rule", "scope_kind", "scope_key"], condition=Q(reset_at__isnull=True), name="breaker_open_once")]
