"""Area → region → site: where things stand."""

from django.contrib.postgres.indexes import GinIndex, OpClass
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import Q
from django.db.models.functions import Upper
from timezone_field import TimeZoneField

from fleet.models.history import tracked

CODE = RegexValidator(r"^[A-Za-z0-9][A-Za-z0-9._-]*$", "Use letters, digits, dot, dash and underscore; start with a letter or digit.")


@tracked()
class Area(models.Model):
    """A market: it holds regions."""

    slug = models.SlugField(max_length=40, unique=True)
    name = models.CharField(max_length=80)

    class Meta:
        ordering = ["slug"]

    def __str__(self) -> str:
        return self.name


@tracked()
class Region(models.Model):
    """A regional edge with its 10-50 cell sites, or the central cloud."""

    class Kind(models.TextChoices):
        EDGE = "edge", "Regional edge"
        CENTRAL = "central", "Central cloud"

    area = models.ForeignKey(Area, on_delete=models.PROTECT, related_name="regions")
    slug = models.SlugField(max_length=40, unique=True)
    name = models.CharField(max_length=80)
    kind = models.CharField(max_length=8, choices=Kind, default=Kind.EDGE)

    class Meta:
        ordering = ["slug"]

    def __str__(self) -> str:
        return self.name


class SiteQuerySet(models.QuerySet["Site"]):
    def in_regions(self, region_ids: "list[int] | None") -> "SiteQuerySet":
        """Sites of these regions; `None` is the whole fleet."""
        return self if region_ids is None else self.filter(region_id__in=region_ids)


@tracked()
class Site(models.Model):
    class Kind(models.TextChoices):
        CELL = "cell", "Cell site"
        EDGE = "edge", "Regional edge"
        CENTRAL = "central", "Central cloud"

    region = models.ForeignKey(Region, on_delete=models.PROTECT, related_name="sites")
    code = models.CharField(max_length=40, unique=True, validators=[CODE])
    name = models.CharField(max_length=120)
    kind = models.CharField(max_length=8, choices=Kind, default=Kind.CELL)
    latitude = models.FloatField(null=True, blank=True, validators=[MinValueValidator(-90), MaxValueValidator(90)])
    longitude = models.FloatField(null=True, blank=True, validators=[MinValueValidator(-180), MaxValueValidator(180)])
    time_zone = TimeZoneField(default="UTC", use_pytz=False)
    power_feed = models.CharField(max_length=60, blank=True, help_text="Name of the feed, e.g. 'A+B 2N'.")
    power_feed_watts = models.PositiveIntegerField(null=True, blank=True)
    expected_nodes = models.PositiveIntegerField(null=True, blank=True)

    objects = SiteQuerySet.as_manager()

    class Meta:
        ordering = ["code"]
        constraints = [
            models.CheckConstraint(condition=Q(latitude__isnull=True) | (Q(latitude__gte=-90) & Q(latitude__lte=90)), name="site_latitude_range"),
            models.CheckConstraint(condition=Q(longitude__isnull=True) | (Q(longitude__gte=-180) & Q(longitude__lte=180)), name="site_longitude_range"),
        ]
        indexes = [
            models.Index(fields=["region", "code"], name="site_region_idx"),
            GinIndex(OpClass(Upper("code"), "gin_trgm_ops"), name="site_code_part_idx"),
            GinIndex(OpClass(Upper("name"), "gin_trgm_ops"), name="site_name_part_idx"),
        ]

    def __str__(self) -> str:
        return self.code
