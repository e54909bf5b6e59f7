"""Last values. The `*Reading` tables are UNLOGGED: empty after a database crash, rewritten whole by the telemetry process.

Every column but the key is nullable: null is "not reported", never 0. Names and units as in `fleet.telemetry.fields.FIELDS`.
"""

from django.db import models


class GpuReading(models.Model):
    gpu = models.OneToOneField("fleet.Gpu", on_delete=models.DO_NOTHING, primary_key=True, db_constraint=False, related_name="reading")
    sampled_at = models.DateTimeField(null=True, help_text="Newest sample time of the row.")
    sm_clock_hertz = models.FloatField(null=True)
    memory_clock_hertz = models.FloatField(null=True)
    gpu_temperature_celsius = models.FloatField(null=True)
    memory_temperature_celsius = models.FloatField(null=True)
    temperature_margin_celsius = models.FloatField(null=True)
    power_watts = models.FloatField(null=True)
    power_limit_watts = models.FloatField(null=True)
    energy_joules = models.FloatField(null=True)
    utilization_ratio = models.FloatField(null=True, help_text="GPU_UTIL of a whole GPU; of a sliced one GR_ENGINE_ACTIVE weighted by compute slices of 7.")
    memory_copy_ratio = models.FloatField(null=True)
    engine_active_ratio = models.FloatField(null=True)
    sm_active_ratio = models.FloatField(null=True)
    tensor_active_ratio = models.FloatField(null=True)
    dram_active_ratio = models.FloatField(null=True)
    memory_used_bytes = models.FloatField(null=True)
    memory_free_bytes = models.FloatField(null=True)
    memory_reserved_bytes = models.FloatField(null=True)
    pcie_tx_bytes_per_second = models.FloatField(null=True)
    pcie_rx_bytes_per_second = models.FloatField(null=True)
    pcie_replay_total = models.FloatField(null=True)
    nvlink_bandwidth_total = models.FloatField(null=True)
    nvlink_errors_total = models.FloatField(null=True)
    xid = models.FloatField(null=True)
    clock_event_reasons = models.FloatField(null=True)
    ecc_sbe_total = models.FloatField(null=True)
    ecc_dbe_total = models.FloatField(null=True)
    remapped_rows_correctable = models.FloatField(null=True)
    remapped_rows_uncorrectable = models.FloatField(null=True)
    row_remap_pending = models.FloatField(null=True)
    row_remap_failure = models.FloatField(null=True)
    refused_samples = models.FloatField(null=True, help_text="Samples out of range since the telemetry process began to count.")

    class Meta:
        db_table = "fleet_gpu_reading"


class SliceReading(models.Model):
    """Keyed by GPU and GPU instance id, since slices come and go faster than inventory learns of them."""

    id = models.BigAutoField(primary_key=True)
    gpu = models.ForeignKey("fleet.Gpu", on_delete=models.DO_NOTHING, db_constraint=False, related_name="slice_readings")
    gpu_instance_id = models.PositiveSmallIntegerField()
    sampled_at = models.DateTimeField(null=True)
    engine_active_ratio = models.FloatField(null=True)
    sm_active_ratio = models.FloatField(null=True)
    tensor_active_ratio = models.FloatField(null=True)
    dram_active_ratio = models.FloatField(null=True)
    memory_used_bytes = models.FloatField(null=True)
    memory_free_bytes = models.FloatField(null=True)
    memory_reserved_bytes = models.FloatField(null=True)

    class Meta:
        db_table = "fleet_slice_reading"
        constraints = [models.UniqueConstraint(fields=["gpu", "gpu_instance_id"], name="slicereading_once")]


class ServiceReading(models.Model):
    """Last values of a non-GPU exporter of a node: node-exporter, Triton, vLLM, and `up` of each job."""

    node = models.ForeignKey("fleet.Node", on_delete=models.DO_NOTHING, db_constraint=False, related_name="service_readings")
    job = models.CharField(max_length=20, help_text="node, triton, vllm, dcgm")
    item = models.CharField(
        max_length=400,
        blank=True,
        help_text="Model, device or file system; empty for the node itself. 'name [engine, server, GPU]' is one part where a node has several.",
    )
    sampled_at = models.DateTimeField(null=True)
    values = models.JSONField(default=dict, help_text="{field: number or null}; names and units in fleet.telemetry.service_metrics.SERVICE_FIELDS.")

    class Meta:
        db_table = "fleet_service_reading"
        constraints = [models.UniqueConstraint(fields=["node", "job", "item"], name="servicereading_once")]


class LastKnownReading(models.Model):
    """Logged copy of a GPU's last values, written when its site falls silent, so that they outlive a crash."""

    gpu = models.OneToOneField("fleet.Gpu", on_delete=models.CASCADE, primary_key=True, related_name="last_known")
    sampled_at = models.DateTimeField()
    values = models.JSONField(default=dict)
    slices = models.JSONField(default=dict)
    written_at = models.DateTimeField()
