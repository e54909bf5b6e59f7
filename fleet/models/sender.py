"""Who may send telemetry, and how good what they send is."""

from django.db import models


class Sender(models.Model):
    """A Prometheus that writes to us (or reads service discovery). Two tokens are valid while rotating."""

    name = models.SlugField(max_length=60, unique=True)
    regions = models.ManyToManyField("fleet.Region", related_name="senders")
    token_hash = models.CharField(max_length=64, unique=True, help_text="SHA-256 of the token (256 random bits), hex.")
    previous_token_hash = models.CharField(max_length=64, null=True, blank=True, unique=True)
    previous_valid_until = models.DateTimeField(null=True, blank=True)
    may_write = models.BooleanField(default=True)
    may_discover = models.BooleanField(default=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    honor_labels = models.BooleanField(default=False, help_text="True when pod/namespace/container on this sender's series are the workload's.")


class DataQuality(models.Model):
    """Per sender and site: samples refused by reason since the counter began. Site null: the site is not known or not the sender's."""

    sender = models.ForeignKey(Sender, on_delete=models.CASCADE, null=True, related_name="quality")
    site = models.ForeignKey("fleet.Site", on_delete=models.CASCADE, null=True, related_name="quality")
    reason = models.CharField(max_length=40, help_text="blank, out_of_range, foreign_site, unknown_site, too_old, future, duplicate, …")
    count = models.BigIntegerField(default=0)
    first_at = models.DateTimeField()
    last_at = models.DateTimeField()
    example = models.CharField(max_length=300, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["sender", "site", "reason"], nulls_distinct=False, name="dataquality_once")]
        indexes = [models.Index(fields=["site", "-last_at"], name="dataquality_site_idx")]
