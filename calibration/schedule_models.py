"""Rows of what keeps calibrations true over time: schedules, what came of each occasion, and drift checks.

A schedule's row is the truth about when it comes due (``due_at``); django-celery-beat's PeriodicTask is tied to it
and only knocks (calibration/schedules.py). JSON: ``DriftCheck.report`` is experiment.drift.DriftReport.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db import models
from django.utils import timezone

from accounts.access import OwnedQuerySet
from calibration.jobs import Job, JobQuerySet
from calibration.occasions import Rule


class Schedule(models.Model):
    """Measures a calibration's subject anew, or checks it for drift, again and again."""

    RECALIBRATE, CHECK = "recalibrate", "check"
    ACTIONS = [(CHECK, "check for drift"), (RECALIBRATE, "measure anew")]

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    project = models.ForeignKey("accounts.Project", models.CASCADE, related_name="schedules")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    name = models.CharField(max_length=120)
    created_at = models.DateTimeField(default=timezone.now, db_index=True)
    calibration = models.ForeignKey("calibration.Calibration", models.CASCADE, related_name="schedules")
    action = models.CharField(max_length=12, choices=ACTIONS, default=CHECK)
    recalibrate_on_drift = models.BooleanField(default=True, help_text="Of a check that finds drift")

    every_s = models.PositiveIntegerField(null=True, blank=True, help_text="Interval [s]; null: cron")
    cron = models.CharField(max_length=100, blank=True)
    time_zone = models.CharField(max_length=64, default="UTC")
    window_start = models.TimeField(null=True, blank=True)
    window_end = models.TimeField(null=True, blank=True)
    enabled = models.BooleanField(default=True)
    anchor = models.DateTimeField(default=timezone.now, help_text="From where an interval counts")
    due_at = models.DateTimeField(null=True, blank=True, db_index=True, help_text="null: disabled")
    task = models.OneToOneField(
        "django_celery_beat.PeriodicTask", models.SET_NULL, null=True, blank=True, related_name="+"
    )

    objects: OwnedQuerySet[Schedule] = OwnedQuerySet.as_manager()  # type: ignore[assignment]

    class Meta:
        ordering = ["name", "created_at"]

    def __str__(self) -> str:
        return self.name

    @property
    def rule(self) -> Rule:
        window = (self.window_start, self.window_end) if self.window_start and self.window_end else None
        return Rule(ZoneInfo(self.time_zone), self.anchor, self.every_s, self.cron, window)

    @property
    def every_text(self) -> str:
        """`10 minutes`, `day`, `2 weeks`: what it says after "every"; empty where `cron` says when."""
        units = ((604_800, "week"), (86_400, "day"), (3_600, "hour"), (60, "minute"))
        size_s, name = next((unit for unit in units if (self.every_s or 0) % unit[0] == 0), (1, "second"))
        count = (self.every_s or 0) // size_s
        return "" if not count else name if count == 1 else f"{count:,} {name}s"

    @property
    def due_local(self) -> datetime | None:
        """When it comes due, on its own wall clock."""
        return self.due_at and self.due_at.astimezone(ZoneInfo(self.time_zone))


class ScheduleRun(models.Model):
    """What came of one occasion: a job that was started, or why none was."""

    STARTED, SKIPPED = "started", "skipped"
    OUTCOMES = [(STARTED, "started"), (SKIPPED, "skipped")]

    schedule = models.ForeignKey(Schedule, models.CASCADE, related_name="runs")
    due_at = models.DateTimeField(null=True, blank=True, help_text="The occasion; null: started by hand")
    at = models.DateTimeField(default=timezone.now)
    missed = models.PositiveIntegerField(default=0, help_text="Further occasions that this run stands for")
    outcome = models.CharField(max_length=8, choices=OUTCOMES)
    reason = models.CharField(max_length=300, blank=True)
    calibration = models.ForeignKey(
        "calibration.Calibration", models.SET_NULL, null=True, blank=True, related_name="+"
    )
    drift_check = models.ForeignKey(
        "calibration.DriftCheck", models.SET_NULL, null=True, blank=True, related_name="+"
    )

    class Meta:
        ordering = ["-at", "-pk"]
        constraints = [models.UniqueConstraint(fields=["schedule", "due_at"], name="one_run_an_occasion")]

    def __str__(self) -> str:
        return f"{self.schedule_id} at {self.at:%Y-%m-%d %H:%M} {self.outcome}"

    @property
    def job(self) -> Job | None:
        return self.calibration or self.drift_check


class DriftCheck(Job):
    """A few steps of a calibration timed again on its device."""

    calibration = models.ForeignKey("calibration.Calibration", models.CASCADE, related_name="drift_checks")
    seed = models.PositiveIntegerField(default=0)
    recalibrate = models.BooleanField(default=False, help_text="Measure anew where it finds drift")
    report = models.JSONField(null=True, blank=True)
    environment = models.JSONField(null=True, blank=True)
    drifted = models.BooleanField(null=True, blank=True)
    statistic = models.FloatField(null=True, blank=True, help_text="Mean log ratio of now to then")
    low = models.FloatField(null=True, blank=True)
    high = models.FloatField(null=True, blank=True)
    recalibration = models.ForeignKey(
        "calibration.Calibration", models.SET_NULL, null=True, blank=True, related_name="+"
    )

    objects: JobQuerySet[DriftCheck] = JobQuerySet.as_manager()  # type: ignore[assignment]
