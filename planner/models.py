"""Traffic and plans. The arrays of a traffic stand in a table of their own, so that lists do not load them."""

from __future__ import annotations

import uuid
from typing import Any, Self

from django.conf import settings
from django.db import models
from django.utils import timezone

from accounts.access import OwnedQuerySet
from calibration.jobs import Job, JobQuerySet
from calibration.models import Calibration
from planner.answer_models import ServerAnswers as ServerAnswers
from planner.review_models import PlanReview as PlanReview
from planner.unjudged import UNJUDGED

FORMAT_NAMES = {
    "azure": "Azure", "mooncake": "Mooncake", "burstgpt": "BurstGPT", "splitwise": "Splitwise", "vidur": "Vidur",
    "llmservingsim": "LLMServingSim", "lengths": "lengths only", "columns": "CSV", "json_lines": "JSON lines",
    "mooncake_sessions": "Mooncake sessions", "mooncake_agentic": "agentic Mooncake", "dynamo": "Dynamo",
    "applied_compute": "Applied Compute", "histogram": "histogram", "percentiles": "percentiles",
    "synthetic": "synthetic", "shaped": "shaped",
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


class HeldUploadQuerySet(OwnedQuerySet["HeldUpload"]):
    def of(self, user: Any) -> Self:
        """A held file may hold texts: its owner sees it, and nobody else, whatever their role."""
        return self.filter(owner_id=user.pk)


class HeldUpload(models.Model):
    """An uploaded file that waits to be imported, or that its owner keeps (planner/uploads.py has the file)."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    project = models.ForeignKey("accounts.Project", models.CASCADE, related_name="held_uploads")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    name = models.CharField(max_length=255)
    size_bytes = models.BigIntegerField()
    created_at = models.DateTimeField(default=timezone.now, db_index=True)
    expires_at = models.DateTimeField(null=True, blank=True, help_text="null: kept")
    traffic = models.ForeignKey(TrafficSet, models.CASCADE, null=True, blank=True, related_name="originals")

    objects: HeldUploadQuerySet = HeldUploadQuerySet.as_manager()  # type: ignore[assignment]

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return self.name


class TrafficImport(Job):
    """A file being read into a traffic by a worker."""

    upload = models.ForeignKey(HeldUpload, models.SET_NULL, null=True, blank=True, related_name="imports")
    file_name = models.CharField(max_length=255)
    size_bytes = models.BigIntegerField(default=0)
    options = models.JSONField(default=dict)
    keep_file = models.BooleanField(default=False)
    problems = models.JSONField(
        default=list, help_text="What is wrong with the file, when that is why it failed."
    )
    traffic = models.ForeignKey(TrafficSet, models.SET_NULL, null=True, blank=True, related_name="imports")

    objects: JobQuerySet[TrafficImport] = JobQuerySet.as_manager()  # type: ignore[assignment]


class TrafficJob(Job):
    """Traffic made by a worker, or a model fitted to one: what would take too long while somebody waits."""

    SHAPE, GENERATE, SYNTHESISE, FIT = "shape", "generate", "synthesise", "fit"
    KINDS = [(kind, kind) for kind in (SHAPE, GENERATE, SYNTHESISE, FIT)]

    kind = models.CharField(max_length=12, choices=KINDS)
    parent = models.ForeignKey(TrafficSet, models.CASCADE, null=True, blank=True, related_name="work")
    options = models.JSONField(default=dict, help_text="What its form was sent")
    problems = models.JSONField(default=list, help_text="What of it cannot be done, by field")
    traffic = models.ForeignKey(TrafficSet, models.SET_NULL, null=True, blank=True, related_name="made_by")
    result = models.JSONField(null=True, blank=True, help_text="Of a fit: its report and figures")

    objects: JobQuerySet[TrafficJob] = JobQuerySet.as_manager()  # type: ignore[assignment]


class Plan(Job):
    """One question (calibrations, traffic, objectives, space) and its answer."""

    calibration = models.ForeignKey("calibration.Calibration", models.PROTECT, related_name="plans")
    second_calibration = models.ForeignKey(
        "calibration.Calibration", models.PROTECT, null=True, blank=True, related_name="second_plans",
        help_text="Of other hardware that pools or replicas may be on",
    )  # fmt: skip
    traffic = models.ForeignKey(TrafficSet, models.PROTECT, related_name="plans")
    objectives = models.JSONField()
    space = models.JSONField(default=dict)
    conditions = models.JSONField(default=dict, help_text="Engine, load, link, prices, assumptions")
    schedule = models.JSONField(default=dict, help_text="Replicas by time of day: search/periods.Asked")
    seed = models.PositiveIntegerField(default=0)
    result = models.JSONField(null=True, blank=True)
    feasible = models.BooleanField(null=True, blank=True)
    sentence = models.TextField(blank=True)
    replan_when_stale = models.BooleanField(
        default=False, help_text="Make it again where newer step times change it"
    )

    @property
    def unjudged(self) -> bool:
        """Whether it ended without knowing if anything meets: the closest candidate left the measured region."""
        return self.feasible is False and self.sentence.startswith(UNJUDGED)

    objects: JobQuerySet[Plan] = JobQuerySet.as_manager()  # type: ignore[assignment]


class PlanPart(models.Model):
    """A part of a running plan's search that any worker may do (planner/sharing.py); gone when the plan has ended."""

    QUEUED, OWN, RUNNING, DONE = "queued", "own", "running", "done"

    plan = models.ForeignKey(Plan, models.CASCADE, related_name="parts")
    number = models.PositiveIntegerField()
    asked = models.TextField(help_text="JSON: what planner/search/parts.py is to do")
    answer = models.TextField(blank=True, help_text="JSON")
    status = models.CharField(max_length=8, default=QUEUED, help_text="own: done by the plan's own process")
    worker = models.CharField(max_length=120, blank=True)
    heartbeat_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["plan", "number"], name="plan_part_number")]

    def __str__(self) -> str:
        return f"part {self.number} of {self.plan_id}"


class Verification(Job):
    """A plan held against what really happened: a window of its traffic served on the device that it rests on, or by a
    running server, or a long prompt beside short answers on that device."""

    REPLAY, ENDPOINT, MIXED_LOAD = "replay", "endpoint", "mixed_load"
    KINDS = [(REPLAY, "replay"), (ENDPOINT, "running server"), (MIXED_LOAD, "mixed load")]

    kind = models.CharField(max_length=12, choices=KINDS, default=REPLAY)
    options = models.JSONField(default=dict, help_text="what else was asked for, by kind; no secrets")
    plan = models.ForeignKey(Plan, models.CASCADE, related_name="verifications")
    requests = models.PositiveIntegerField()
    replays = models.PositiveSmallIntegerField(default=1)
    seed = models.PositiveIntegerField(default=0)
    steps = models.BinaryField(
        default=bytes, help_text="float64 seconds of the steps so far, replay by replay"
    )
    steps_of = models.JSONField(default=list, help_text="how many of them belong to each replay")
    result = models.JSONField(null=True, blank=True)
    holds = models.BooleanField(null=True, blank=True)
    sentence = models.TextField(blank=True)

    @property
    def told(self) -> dict[str, Any] | None:
        """Its report. While it runs there is none: what is stored then is what would be left if its worker vanished."""
        return None if self.is_active else self.result

    @property
    def calibration(self) -> Calibration:
        """Of the hardware that it is about; of two kinds, each with a pool, the decode pool's."""
        second = self.plan.second_calibration
        return second if second is not None and self.options.get("hardware") == 1 else self.plan.calibration

    objects: JobQuerySet[Verification] = JobQuerySet.as_manager()  # type: ignore[assignment]
