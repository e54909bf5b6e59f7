"""What the three sources of inventory (import, agent, telemetry) disagree on. Shown, never overwritten."""

from django.db import models
from django.db.models import Q

from fleet.models.health import ObjectKind


class Source(models.TextChoices):
    IMPORT = "import", "Import"
    AGENT = "agent", "Agent"
    TELEMETRY = "telemetry", "Telemetry"
    PERSON = "person", "Person"


class Disagreement(models.Model):
    kind = models.CharField(max_length=8, choices=ObjectKind)
    object_key = models.CharField(max_length=80)
    site = models.ForeignKey("fleet.Site", on_delete=models.CASCADE, null=True, related_name="disagreements")
    field = models.CharField(max_length=60)
    held_source = models.CharField(max_length=9, choices=Source)
    held_value = models.CharField(max_length=300, blank=True)
    seen_source = models.CharField(max_length=9, choices=Source)
    seen_value = models.CharField(max_length=300, blank=True)
    since = models.DateTimeField()
    last_at = models.DateTimeField()
    until = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["kind", "object_key", "field", "seen_source"], condition=Q(until__isnull=True), name="disagreement_one_open")
        ]
        indexes = [models.Index(fields=["site", "-since"], name="disagreement_site_idx")]
