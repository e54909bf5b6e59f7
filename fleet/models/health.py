"""Health of things: current state, transitions, findings, and planned maintenance.

States and words are those of `docs/architecture.md` (five states, exactly one at a time, always with since and why).
"""

from datetime import datetime

from django.db import models
from django.db.models import Q


class HealthState(models.TextChoices):
    OK = "ok", "OK"
    DEGRADED = "degraded", "Degraded"
    DOWN = "down", "Down"
    UNKNOWN = "unknown", "Unknown"
    MAINTENANCE = "maintenance", "Maintenance"


class ObjectKind(models.TextChoices):
    """What a finding, transition or window is about. `object_key` beside it is the stable key named here."""

    FLEET = "fleet", "Fleet"  # key ""
    AREA = "area", "Area"  # slug
    REGION = "region", "Region"  # slug
    SITE = "site", "Site"  # code
    NODE = "node", "Node"  # primary key as text
    GPU = "gpu", "GPU"  # UUID
    SLICE = "slice", "MIG slice"  # "<gpu uuid>/<gpu instance id>"
    SENDER = "sender", "Sender"  # name


class Health(models.Model):
    """The current state of one object. Written only by `fleet.health.store` when it changes."""

    state = models.CharField(max_length=12, choices=HealthState, default=HealthState.UNKNOWN)
    since = models.DateTimeField(help_text="When the object entered this state.")
    cause = models.CharField(max_length=40, default="never_reported", help_text="Machine word, e.g. link_down, gpu_lost.")
    why = models.CharField(max_length=300, default="Has never reported.", help_text="One sentence for people.")

    class Meta:
        abstract = True


class SiteHealth(Health):
    """State of a site, with the roll-up that lists and the overview show. Counts come with their n of m."""

    site = models.OneToOneField("fleet.Site", on_delete=models.CASCADE, primary_key=True, related_name="health")
    last_contact_at = models.DateTimeField(null=True, help_text="Newest sample time or heartbeat from any sender of the site.")
    out_of_contact_since = models.DateTimeField(null=True)
    nodes_reporting = models.PositiveIntegerField(default=0)
    gpus_reporting = models.PositiveIntegerField(default=0)
    gpus_expected = models.PositiveIntegerField(default=0)
    power_watts = models.FloatField(null=True)
    gpu_utilization_ratio = models.FloatField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["state", "site"], name="sitehealth_state_idx"),
            models.Index(fields=["out_of_contact_since"], name="sitehealth_contact_idx", condition=Q(out_of_contact_since__isnull=False)),
        ]


class NodeHealth(Health):
    node = models.OneToOneField("fleet.Node", on_delete=models.CASCADE, primary_key=True, related_name="health")
    heartbeat_at = models.DateTimeField(null=True, help_text="Last heartbeat of the node's agent, by the gateway's clock.")
    exporter_up = models.BooleanField(null=True, help_text="Prometheus' `up` of the node's dcgm-exporter; null when not scraped.")
    exporter_up_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [models.Index(fields=["state", "node"], name="nodehealth_state_idx")]


class GpuHealth(Health):
    gpu = models.OneToOneField("fleet.Gpu", on_delete=models.CASCADE, primary_key=True, related_name="health")
    last_xid = models.PositiveIntegerField(null=True)
    last_xid_at = models.DateTimeField(null=True, help_text="Null with a last_xid: seen on first sight, time unknown.")

    class Meta:
        indexes = [models.Index(fields=["state", "gpu"], name="gpuhealth_state_idx")]


class HealthTransition(models.Model):
    """One change of state of one object. Append-only."""

    kind = models.CharField(max_length=8, choices=ObjectKind)
    object_key = models.CharField(max_length=80)
    site = models.ForeignKey("fleet.Site", on_delete=models.DO_NOTHING, db_constraint=False, null=True, related_name="transitions")
    from_state = models.CharField(max_length=12, choices=HealthState)
    to_state = models.CharField(max_length=12, choices=HealthState)
    cause = models.CharField(max_length=40)
    why = models.CharField(max_length=300)
    at = models.DateTimeField()

    class Meta:
        indexes = [
            models.Index(fields=["kind", "object_key", "-at"], name="transition_object_idx"),
            models.Index(fields=["site", "-at"], name="transition_site_idx"),
        ]


class FindingQuerySet(models.QuerySet["Finding"]):
    def open(self) -> "FindingQuerySet":
        return self.filter(until__isnull=True)

    def about(self, kind: str, object_key: str) -> "FindingQuerySet":
        return self.filter(kind=kind, object_key=object_key)


class Finding(models.Model):
    """Something found about an object, with its evidence. Alarms build on findings. Open while `until` is null."""

    class Severity(models.TextChoices):
        CRITICAL = "critical", "Critical"
        MAJOR = "major", "Major"
        MINOR = "minor", "Minor"
        WARNING = "warning", "Warning"
        INDETERMINATE = "indeterminate", "Indeterminate"

    kind = models.CharField(max_length=8, choices=ObjectKind)
    object_key = models.CharField(max_length=80)
    site = models.ForeignKey("fleet.Site", on_delete=models.CASCADE, null=True, related_name="findings")
    code = models.CharField(max_length=40, help_text="What was found: xid, gpu_lost, hw_thermal_slowdown, row_remap_failure, profiling_suspect, …")
    severity = models.CharField(max_length=13, choices=Severity)
    summary = models.CharField(max_length=300)
    advised_action = models.CharField(max_length=300, blank=True, help_text="Empty: nothing advised.")
    evidence = models.JSONField(default=dict)
    since = models.DateTimeField()
    last_at = models.DateTimeField()
    count = models.PositiveIntegerField(default=1)
    until = models.DateTimeField(null=True)
    ended_because = models.CharField(max_length=120, blank=True)

    objects = FindingQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["kind", "object_key", "code"], condition=Q(until__isnull=True), name="finding_one_open"),
            models.CheckConstraint(condition=Q(until__isnull=True) | Q(until__gte=models.F("since")), name="finding_until_after_since"),
        ]
        indexes = [
            models.Index(fields=["site", "-since"], name="finding_site_idx"),
            models.Index(fields=["kind", "object_key", "-since"], name="finding_object_idx"),
            models.Index(fields=["severity", "-since"], name="finding_open_idx", condition=Q(until__isnull=True)),
            models.Index(fields=["until"], name="finding_ended_idx", condition=Q(until__isnull=False)),
        ]


class XidEvent(models.Model):
    """One XID of one GPU, burst-folded: repeats inside the burst window raise `count` and `last_at`."""

    gpu = models.ForeignKey("fleet.Gpu", on_delete=models.CASCADE, related_name="xid_events")
    gpu_instance_id = models.PositiveIntegerField(null=True)
    xid = models.PositiveIntegerField()
    first_at = models.DateTimeField()
    last_at = models.DateTimeField()
    count = models.PositiveIntegerField(default=1)
    source = models.CharField(max_length=16, help_text="gauge, exp_count, agent")
    message = models.CharField(max_length=300, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["gpu", "xid", "first_at"], name="xid_burst_once")]
        indexes = [models.Index(fields=["gpu", "-last_at"], name="xid_gpu_idx")]


class ReportedCondition(models.Model):
    """What a node's agent says is not right: of one GPU, or (GPU UUID empty) of the driver as a whole. No row: it says that all is well."""

    class Condition(models.TextChoices):
        LOST = "lost", "Lost"
        RESET_REQUIRED = "reset_required", "Reset required"
        UNKNOWN = "unknown", "Cannot be asked"
        DRIVER_MISMATCH = "driver_mismatch", "Driver mismatch"
        DRIVER_ERROR = "driver_error", "Driver error"

    node = models.ForeignKey("fleet.Node", on_delete=models.CASCADE, related_name="reported_conditions")
    gpu_uuid = models.CharField(max_length=64, blank=True)
    condition = models.CharField(max_length=15, choices=Condition)
    detail = models.CharField(max_length=300, blank=True)
    since = models.DateTimeField()
    last_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["node", "gpu_uuid"], name="reported_once")]


class MaintenanceWindowQuerySet(models.QuerySet["MaintenanceWindow"]):
    def active(self, now: datetime) -> "MaintenanceWindowQuerySet":
        return self.not_over(now).filter(starts_at__lte=now)

    def not_over(self, now: datetime) -> "MaintenanceWindowQuerySet":
        """Active or still to come."""
        return self.filter(ends_at__gt=now, ended_at__isnull=True)


class MaintenanceWindow(models.Model):
    """Planned maintenance on any scope. What lies inside is `maintenance`, not `down`."""

    scope_kind = models.CharField(max_length=8, choices=ObjectKind)
    scope_key = models.CharField(max_length=80, blank=True)
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    reason = models.CharField(max_length=300)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True, help_text="Ended by hand before its time.")
    ended_by = models.CharField(max_length=150, blank=True)

    objects = MaintenanceWindowQuerySet.as_manager()

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(ends_at__gt=models.F("starts_at")), name="maintenance_ends_after_start")]
        indexes = [models.Index(fields=["ends_at", "starts_at"], name="maintenance_active_idx")]
