"""Long work with progress, and the import that stages, checks, applies and can be undone."""

import uuid

from django.conf import settings
from django.db import models


class Job(models.Model):
    class State(models.TextChoices):
        QUEUED = "queued", "Queued"
        RUNNING = "running", "Running"
        WAITING = "waiting", "Waits for a decision"
        DONE = "done", "Done"
        FAILED = "failed", "Failed"
        CANCELLED = "cancelled", "Cancelled"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    kind = models.CharField(max_length=40, help_text="inventory_import, inventory_undo, inventory_export")
    state = models.CharField(max_length=9, choices=State, default=State.QUEUED)
    title = models.CharField(max_length=200)
    total = models.PositiveIntegerField(null=True)
    done = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    phase = models.CharField(max_length=40, blank=True)
    error = models.TextField(blank=True)
    result = models.JSONField(default=dict)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="jobs")
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    heartbeat_at = models.DateTimeField(null=True)
    cancel_requested = models.BooleanField(default=False)

    class Meta:
        indexes = [models.Index(fields=["owner", "-created_at"], name="job_owner_idx"), models.Index(fields=["-created_at"], name="job_created_idx")]


class JobLogLine(models.Model):
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="log")
    at = models.DateTimeField(auto_now_add=True)
    level = models.CharField(max_length=7, default="info")
    text = models.TextField()

    class Meta:
        ordering = ["id"]


class InventoryImport(models.Model):
    """One uploaded file and what came of it: errors, difference, change set."""

    class OnDuplicate(models.TextChoices):
        SKIP = "skip", "Skip"
        UPDATE = "update", "Update"
        FAIL = "fail", "Fail"

    job = models.OneToOneField(Job, on_delete=models.CASCADE, primary_key=True, related_name="inventory_import")
    kind = models.CharField(max_length=8, help_text="sites, nodes or gpus")
    format = models.CharField(max_length=4, help_text="csv, xlsx, yaml, json")
    file_name = models.CharField(max_length=200)
    content = models.BinaryField()
    column_map = models.JSONField(default=dict)
    on_duplicate = models.CharField(max_length=6, choices=OnDuplicate, default=OnDuplicate.UPDATE)
    counts = models.JSONField(default=dict, help_text="{new, changed, same, conflict, error}")
    region_ids = models.JSONField(null=True, help_text="Regions whose inventory this import may change; null: the whole fleet.")
    skip_errors = models.BooleanField(default=False, help_text="Apply the rows that are right although others are not.")
    reason = models.CharField(max_length=300, blank=True)
    decided_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, related_name="+")
    applied_at = models.DateTimeField(null=True)
    undone_at = models.DateTimeField(null=True)


class ImportRow(models.Model):
    """A staged row: its number in the file, what it would do, its errors, and after apply what it replaced (for undo)."""

    class Outcome(models.TextChoices):
        NEW = "new", "New"
        CHANGED = "changed", "Changed"
        SAME = "same", "Same"
        CONFLICT = "conflict", "Conflict"
        ERROR = "error", "Error"

    inventory_import = models.ForeignKey(InventoryImport, on_delete=models.CASCADE, related_name="rows")
    number = models.PositiveIntegerField()
    key = models.CharField(max_length=120, blank=True)
    outcome = models.CharField(max_length=8, choices=Outcome)
    values = models.JSONField(default=dict)
    before = models.JSONField(null=True)
    errors = models.JSONField(default=list, help_text="[{field, message}]")
    selected = models.BooleanField(default=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["inventory_import", "number"], name="importrow_number_once")]
        indexes = [models.Index(fields=["inventory_import", "outcome", "number"], name="importrow_outcome_idx")]
