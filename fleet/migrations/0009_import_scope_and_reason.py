import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("fleet", "0008_reported_conditions_and_ended_windows"),
    ]

    operations = [
        migrations.AddField(
            model_name="inventoryimport",
            name="region_ids",
            field=models.JSONField(null=True, help_text="Regions whose inventory this import may change; null: the whole fleet."),
        ),
        migrations.AddField(
            model_name="inventoryimport",
            name="skip_errors",
            field=models.BooleanField(default=False, help_text="Apply the rows that are right although others are not."),
        ),
        migrations.AddField(
            model_name="inventoryimport",
            name="reason",
            field=models.CharField(blank=True, max_length=300),
        ),
        migrations.AddField(
            model_name="inventoryimport",
            name="decided_by",
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name="+", to=settings.AUTH_USER_MODEL),
        ),
        migrations.AlterField(
            model_name="importrow",
            name="key",
            field=models.CharField(blank=True, max_length=120),
        ),
    ]
