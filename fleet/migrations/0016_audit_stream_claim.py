from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0015_audit_eras"),
    ]

    operations = [
        migrations.AddField(
            model_name="auditstream",
            name="claimed_until",
            field=models.DateTimeField(help_text="One sender at a time: whoever holds this has until then.", null=True),
        ),
    ]
