"""Calibrations and their samples. What the JSON columns hold is written and read by dataclasses only:
``architecture`` (calibration.architecture.Architecture), ``envelope`` (calibration.experiment.Envelope),
``facts`` (calibration.facts.Facts), ``result`` (see calibration/services.py)."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

from calibration.describe import device_label
from calibration.disturbance import disturbances
from calibration.jobs import Job, JobQuerySet
from calibration.notification_models import Channel as Channel
from calibration.notification_models import Delivery as Delivery
from calibration.schedule_models import DriftCheck as DriftCheck
from calibration.schedule_models import Schedule as Schedule
from calibration.schedule_models import ScheduleRun as ScheduleRun

MAX_DEVICE_LABEL = 160  # characters, as a device that was announced


class CalibrationQuerySet(JobQuerySet["Calibration"]):
    def usable(self) -> CalibrationQuerySet:
        """Those a plan may rest on: finished, and past the gate."""
        return self.filter(status=Job.DONE, published=True)


class Calibration(Job):
    """How long a step of one model takes on one device: measured here, or imported with its provenance."""

    MEASURED, IMPORTED = "measured", "imported"
    SOURCES = [(MEASURED, "measured here"), (IMPORTED, "imported")]

    source = models.CharField(max_length=10, choices=SOURCES, default=MEASURED)
    architecture = models.JSONField()
    device = models.CharField(max_length=120, help_text="cpu, cuda:0, or the name an import gives")
    envelope = models.JSONField(null=True, blank=True)
    seed = models.PositiveIntegerField(default=0)
    kv_tokens = models.PositiveBigIntegerField(null=True, blank=True, help_text="KV cache size [tokens]")
    tensor_parallel = models.PositiveSmallIntegerField(default=1, help_text="Ranks that share the model")
    environment = models.JSONField(null=True, blank=True)
    provenance = models.JSONField(default=dict)
    facts = models.JSONField(null=True, blank=True, help_text="Engine, KV pool by budget, transfers")
    result = models.JSONField(null=True, blank=True)
    published = models.BooleanField(null=True, blank=True, help_text="null until the gate has spoken")
    reason = models.TextField(blank=True, help_text="The gate's words")

    objects = CalibrationQuerySet.as_manager()

    @property
    def model_name(self) -> str:
        return str(self.architecture.get("name") or self.architecture.get("model_type") or "?")

    @property
    def device_label(self) -> str:
        """What a reader calls the device; `device` is what a worker does."""
        return device_label(self.device, self.environment, self.tensor_parallel)[:MAX_DEVICE_LABEL]

    @property
    def remarks(self) -> tuple[str, ...]:
        """What whoever plans with it should know, though the gate passed it; empty until it is done."""
        return disturbances(self.environment, self.device) if self.status == self.DONE else ()


class Sample(models.Model):
    """One measured step shape, stored as it comes: a cancelled or crashed run loses nothing measured."""

    calibration = models.ForeignKey(Calibration, models.CASCADE, related_name="samples")
    ordinal = models.PositiveIntegerField()
    role = models.CharField(max_length=16)
    kind = models.CharField(max_length=8)
    shape = models.JSONField()
    seconds = models.JSONField(help_text="repeats [s]")
    contended_share = models.FloatField(default=0.0)
    host_gap_s = models.FloatField(default=0.0)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["ordinal"]
        constraints = [models.UniqueConstraint(fields=["calibration", "ordinal"], name="one_sample_each")]

    def __str__(self) -> str:
        return f"{self.kind} {self.role} #{self.ordinal}"


class Device(models.Model):
    """What a device worker said it can measure on, and how much memory was free when it said so."""

    name = models.CharField(max_length=40, unique=True, help_text="cpu, cuda:0, …")
    label = models.CharField(max_length=160)
    hostname = models.CharField(max_length=120)
    total_bytes = models.PositiveBigIntegerField()
    free_bytes = models.PositiveBigIntegerField()
    seen_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return f"{self.name} ({self.label})"
