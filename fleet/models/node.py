"""A node: a server at a site that carries GPUs and runs one agent."""

from django.contrib.postgres.indexes import GinIndex, OpClass
from django.db import models
from django.db.models import Q
from django.db.models.functions import Upper

from fleet.models.history import tracked


@tracked(exclude=["last_seen_at", "sources"])
class Node(models.Model):
    class Role(models.TextChoices):
        DU = "du", "Distributed unit (DU)"
        CU = "cu", "Central unit (CU)"
        INFERENCE = "inference", "Inference"

    site = models.ForeignKey("fleet.Site", on_delete=models.PROTECT, related_name="nodes")
    host_name = models.CharField(max_length=253, help_text="Short or fully qualified; compared by its first label.")
    role = models.CharField(max_length=9, choices=Role)
    driver_version = models.CharField(max_length=40, blank=True)
    cuda_version = models.CharField(max_length=20, blank=True)
    kubelet_version = models.CharField(max_length=40, blank=True)
    agent_version = models.CharField(max_length=40, blank=True)
    boot_id = models.CharField(max_length=64, blank=True)
    numa_nodes = models.PositiveSmallIntegerField(null=True, blank=True)
    topology = models.JSONField(default=dict, blank=True, help_text="Parsed `nvidia-smi topo -m`: {devices, links: {a: {b: word}}, numa, cpus}.")
    expected_gpus = models.PositiveSmallIntegerField(null=True, blank=True)
    exporter_address = models.CharField(max_length=255, blank=True, help_text="host:port of dcgm-exporter, for service discovery.")
    triton_address = models.CharField(max_length=255, blank=True)
    vllm_address = models.CharField(max_length=255, blank=True)
    node_exporter_address = models.CharField(max_length=255, blank=True)
    last_seen_at = models.DateTimeField(null=True, blank=True)
    retired_at = models.DateTimeField(null=True, blank=True)
    sources = models.JSONField(
        default=dict,
        db_default=models.Value({}, models.JSONField()),
        blank=True,
        help_text="{field: Source} - who said what is held; written by fleet.inventory.seen.",
    )

    class Meta:
        ordering = ["host_name"]
        constraints = [models.UniqueConstraint(fields=["site", "host_name"], condition=Q(retired_at__isnull=True), name="node_host_once_per_site")]
        indexes = [models.Index(fields=["host_name"], name="node_host_idx"), GinIndex(OpClass(Upper("host_name"), "gin_trgm_ops"), name="node_host_part_idx")]

    def __str__(self) -> str:
        return self.host_name
