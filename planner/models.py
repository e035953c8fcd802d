"""Traffic and plans. The arrays of a traffic stand in a table of their own, so that lists do not load them."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.utils import timezone

from accounts.access import OwnedQuerySet
from calibration.jobs import Job, JobQuerySet

FORMAT_NAMES = {
    "azure": "Azure", "mooncake": "Mooncake", "burstgpt": "BurstGPT", "splitwise": "Splitwise", "vidur": "Vidur",
    "llmservingsim": "LLMServingSim", "lengths": "lengths only", "columns": "CSV", "json_lines": "JSON lines",
    "synthetic": "synthetic",
}  # fmt: skip


class TrafficSet(models.Model):
    """Requests over time: when they arrive, how long their prompts and outputs are."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    project = models.ForeignKey("accounts.Project", models.CASCADE, related_name="traffic_sets")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    name = models.CharField(max_length=120)
    created_at = models.DateTimeField(default=timezone.now, db_index=True)
    format = models.CharField(max_length=40)
    source = models.CharField(max_length=255, help_text="file name or preset")
    statistics = models.JSONField()
    warnings = models.JSONField(default=list)
    recipe = models.JSONField(default=dict)

    objects: OwnedQuerySet[TrafficSet] = OwnedQuerySet.as_manager()  # type: ignore[assignment]

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return self.name

    @property
    def format_name(self) -> str:
        return FORMAT_NAMES.get(self.format, self.format)


class TrafficArrays(models.Model):
    """The arrays as compressed npz, read with allow_pickle off."""

    traffic = models.OneToOneField(TrafficSet, models.CASCADE, related_name="arrays", primary_key=True)
    npz = models.BinaryField()

    def __str__(self) -> str:
        return f"arrays of {self.traffic_id}"


class Plan(Job):
    """One question (calibration, traffic, objectives, space) and its answer."""

    calibration = models.ForeignKey("calibration.Calibration", models.PROTECT, related_name="plans")
    traffic = models.ForeignKey(TrafficSet, models.PROTECT, related_name="plans")
    objectives = models.JSONField()
    space = models.JSONField(default=dict)
    seed = models.PositiveIntegerField(default=0)
    result = models.JSONField(null=True, blank=True)
    feasible = models.BooleanField(null=True, blank=True)
    sentence = models.TextField(blank=True)

    objects: JobQuerySet[Plan] = JobQuerySet.as_manager()  # type: ignore[assignment]
