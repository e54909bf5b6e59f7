"""A GPU, its MIG slices, the placements protected for PHY, and the workloads on them.

The UUID is a GPU's identity; its index and its host name are not.
"""

from django.contrib.postgres.indexes import GinIndex, OpClass
from django.db import models
from django.db.models import Q
from django.db.models.functions import Upper

from fleet.models.history import tracked


@tracked(exclude=["last_seen_at", "sources"])
class Gpu(models.Model):
    class Presence(models.TextChoices):
        EXPECTED = "expected", "Expected, never seen"
        PRESENT = "present", "Present"
        MISSING = "missing", "Missing"
        RETIRED = "retired", "Retired"

    uuid = models.CharField(max_length=64, unique=True)
    node = models.ForeignKey("fleet.Node", on_delete=models.PROTECT, related_name="gpus")
    sku = models.CharField(max_length=40, help_text="Key of the SKU catalogue (fleet/catalogue/skus.yaml).")
    index = models.PositiveSmallIntegerField(null=True, blank=True, help_text="As last enumerated; not stable.")
    pci_bus_id = models.CharField(max_length=20, blank=True)
    serial = models.CharField(max_length=40, blank=True, db_index=True)
    mig_enabled = models.BooleanField(default=False)
    presence = models.CharField(max_length=8, choices=Presence, default=Presence.EXPECTED)
    power_limit_watts = models.FloatField(null=True, blank=True)
    first_seen_at = models.DateTimeField(null=True, blank=True)
    last_seen_at = models.DateTimeField(null=True, blank=True)
    missing_since = models.DateTimeField(null=True, blank=True)
    retired_at = models.DateTimeField(null=True, blank=True)
    replaced_by = models.ForeignKey("self", on_delete=models.SET_NULL, null=True, blank=True, related_name="replaces")
    sources = models.JSONField(
        default=dict,
        db_default=models.Value({}, models.JSONField()),
        blank=True,
        help_text="{field: Source} - who said what is held; written by fleet.inventory.seen.",
    )

    class Meta:
        ordering = ["node_id", "index", "uuid"]
        constraints = [models.CheckConstraint(condition=~Q(presence="retired") | Q(retired_at__isnull=False), name="gpu_retired_has_time")]
        indexes = [models.Index(fields=["node", "index"], name="gpu_node_idx")]

    def __str__(self) -> str:
        return self.uuid

    @property
    def carries_phy(self) -> bool:
        """True when any placement of this GPU is reserved for the radio (uses the prefetched `protected_placements`)."""
        return bool(self.protected_placements.all())


@tracked()
class ProtectedPlacement(models.Model):
    """Memory positions start..start+size-1 of a GPU that are kept for the radio (PHY). A whole GPU: start 0, size 8."""

    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="protected_placements")
    start = models.PositiveSmallIntegerField()
    size = models.PositiveSmallIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["gpu", "start"], name="protected_start_once"),
            models.CheckConstraint(condition=Q(size__gte=1) & Q(start__lte=7), name="protected_span_positive"),
        ]


@tracked()
class MigSlice(models.Model):
    """A GPU instance on memory positions start..start+size-1. Live while `ended_at` is null."""

    class Purpose(models.TextChoices):
        PHY = "phy", "PHY"
        AI = "ai", "AI"

    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="slices")
    gpu_instance_id = models.PositiveSmallIntegerField()
    compute_instance_id = models.PositiveSmallIntegerField(default=0)
    mig_uuid = models.CharField(max_length=64, blank=True)
    profile = models.CharField(max_length=20, help_text="e.g. 1g.10gb")
    start = models.PositiveSmallIntegerField(null=True, help_text="First memory position 0-7; null while only telemetry has seen the slice.")
    size = models.PositiveSmallIntegerField(null=True)
    purpose = models.CharField(max_length=3, choices=Purpose, default=Purpose.AI)
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["gpu_id", "start", "gpu_instance_id"]
        constraints = [
            models.UniqueConstraint(fields=["gpu", "gpu_instance_id"], condition=Q(ended_at__isnull=True), name="slice_instance_once"),
            models.CheckConstraint(condition=Q(start__isnull=True) | (Q(start__lte=7) & Q(size__gte=1)), name="slice_placement_range"),
        ]
        indexes = [models.Index(fields=["gpu", "ended_at"], name="slice_gpu_idx")]

    def __str__(self) -> str:
        return f"{self.profile}@{self.start}"


class WorkloadQuerySet(models.QuerySet["Workload"]):
    def running(self) -> "WorkloadQuerySet":
        return self.filter(ended_at__isnull=True)


class Workload(models.Model):
    """A pod's container on a GPU or a slice. Running while `ended_at` is null."""

    class Sharing(models.TextChoices):
        WHOLE = "whole", "Whole GPU"
        MIG = "mig", "MIG slice"
        MPS = "mps", "MPS"
        TIME_SLICED = "time_sliced", "Time-sliced"

    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="workloads")
    slice = models.ForeignKey(MigSlice, on_delete=models.CASCADE, null=True, blank=True, related_name="workloads")
    namespace = models.CharField(max_length=253)
    pod = models.CharField(max_length=253)
    container = models.CharField(max_length=253, blank=True)
    sharing = models.CharField(max_length=11, choices=Sharing)
    tenant_key = models.CharField(max_length=40, blank=True, db_index=True, help_text="Set by console from the namespace mapping; empty: nobody's.")
    started_at = models.DateTimeField(help_text="First sample time that names it.")
    last_seen_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)

    objects = WorkloadQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["gpu", "slice", "namespace", "pod", "container"], condition=Q(ended_at__isnull=True), nulls_distinct=False, name="workload_running_once"
            )
        ]
        indexes = [
            models.Index(fields=["gpu", "-started_at"], name="workload_gpu_idx"),
            models.Index(fields=["namespace", "pod"], name="workload_pod_idx"),
            models.Index(fields=["pod", "id"], condition=Q(ended_at__isnull=True), name="workload_running_pod_idx"),
            GinIndex(OpClass(Upper("pod"), "gin_trgm_ops"), condition=Q(ended_at__isnull=True), name="workload_pod_part_idx"),
        ]
