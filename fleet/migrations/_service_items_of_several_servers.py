from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0019_audit_seal_begin"),
    ]

    operations = [
        migrations.AlterField(
            model_name="servicereading",
            name="item",
            field=models.CharField(
                blank=True,
                help_text="Model, device or file system; empty for the node itself. 'name [engine, server, GPU]' is one part where a node has several.",
                max_length=400,
            ),
        ),
    ]
