from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("calibration", "0004_calibration_facts"),
    ]

    operations = [
        migrations.AddField(
            model_name="calibration",
            name="tensor_parallel",
            field=models.PositiveSmallIntegerField(default=1, help_text="Ranks that share the model"),
        ),
    ]
