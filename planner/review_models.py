"""Rows of plans looked at again because a newer calibration of what they rest on was published."""

from __future__ import annotations

from django.db import models

from calibration.jobs import Job, JobQuerySet


class PlanReview(Job):
    """One plan under one newer calibration. ``difference`` is planner.staleness.Difference."""

    plan = models.ForeignKey("planner.Plan", models.CASCADE, related_name="reviews")
    calibration = models.ForeignKey("calibration.Calibration", models.CASCADE, related_name="plan_reviews")
    outcome = models.CharField(max_length=24, blank=True)
    sentence = models.TextField(blank=True)
    difference = models.JSONField(null=True, blank=True)
    replan = models.ForeignKey("planner.Plan", models.SET_NULL, null=True, blank=True, related_name="+")

    objects: JobQuerySet[PlanReview] = JobQuerySet.as_manager()  # type: ignore[assignment]

    class Meta(Job.Meta):
        abstract = False
        constraints = [models.UniqueConstraint(fields=["plan", "calibration"], name="one_review_each")]
