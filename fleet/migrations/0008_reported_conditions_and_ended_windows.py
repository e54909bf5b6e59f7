import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0007_agent_refusal")]

    operations = [
        migrations.AddField(
            model_name="maintenancewindow",
            name="ended_at",
            field=models.DateTimeField(blank=True, help_text="Ended by hand before its time.", null=True),
        ),
        migrations.AddField(model_name="maintenancewindow", name="ended_by", field=models.CharField(blank=True, max_length=150)),
        migrations.AddConstraint(model_name="xidevent", constraint=models.UniqueConstraint(fields=("gpu", "xid", "first_at"), name="xid_burst_once")),
        migrations.CreateModel(
            name="ReportedCondition",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("gpu_uuid", models.CharField(blank=True, max_length=64)),
                (
                    "condition",
                    models.CharField(
                        choices=[
                            ("lost", "Lost"),
                            ("reset_required", "Reset required"),
                            ("unknown", "Cannot be asked"),
                            ("driver_mismatch", "Driver mismatch"),
                            ("driver_error", "Driver error"),
                        ],
                        max_length=15,
                    ),
                ),
                ("detail", models.CharField(blank=True, max_length=300)),
                ("since", models.DateTimeField()),
                ("last_at", models.DateTimeField()),
                ("node", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="reported_conditions", to="fleet.node")),
            ],
            options={"constraints": [models.UniqueConstraint(fields=("node", "gpu_uuid"), name="reported_once")]},
        ),
    ]
