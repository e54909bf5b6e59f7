"""Readings are refilled by telemetry within one scrape cycle: no write-ahead log for them (docs/architecture.md §2)."""

from django.db import migrations

TABLES = ("fleet_gpu_reading", "fleet_slice_reading", "fleet_service_reading")


class Migration(migrations.Migration):
    dependencies = [("fleet", "0001_initial")]

    operations = [
        migrations.RunSQL(
            sql=[f"ALTER TABLE {table} SET UNLOGGED" for table in TABLES] + [f"ALTER TABLE {table} SET (fillfactor = 50)" for table in TABLES],
            reverse_sql=[f"ALTER TABLE {table} SET LOGGED" for table in TABLES],
        )
    ]
