from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0006_transitions_outlive_sites")]

    operations = [
        migrations.AddField(
            model_name="agentconnection",
            name="refusal",
            field=models.CharField(blank=True, help_text="Why the agent did not take the newest document; empty when it did.", max_length=300),
        ),
    ]
