"""Placements kept for PHY that exist were stated by imports; an empty cell states nothing from now on, so old rows say `none` where they meant it."""

from django.db import migrations

FORWARD = """
UPDATE fleet_gpu SET sources = sources || jsonb_build_object('protected_placements', 'import')
WHERE id IN (SELECT gpu_id FROM fleet_protectedplacement);
UPDATE fleet_importrow SET "values" = "values" || jsonb_build_object('protected_placements', 'none')
WHERE "values" -> 'protected_placements' = 'null'::jsonb;
UPDATE fleet_importrow SET before = before || jsonb_build_object('protected_placements', 'none')
WHERE before -> 'protected_placements' = 'null'::jsonb;
INSERT INTO fleet_staledocument (node_id) SELECT DISTINCT node_id FROM fleet_gpu WHERE id IN (SELECT gpu_id FROM fleet_protectedplacement);
"""


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0017_switches"),
    ]

    operations = [
        migrations.RunSQL(FORWARD, migrations.RunSQL.noop),
    ]
