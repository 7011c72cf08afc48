"""The permissions of dead tasks. Makes no table."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = []
    operations = [
        migrations.CreateModel(
            name="DeadTask",
            fields=[
                ("id", models.CharField(max_length=200, primary_key=True, serialize=False)),
            ],
            options={
                "verbose_name": "dead task",
                "verbose_name_plural": "dead tasks",
                "permissions": [("retry_deadtask", "Can retry dead task")],
                "managed": False,
                "base_manager_name": "objects",
                "default_permissions": ("view", "delete"),
            },
        ),
    ]
