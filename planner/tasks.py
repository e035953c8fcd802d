"""Celery tasks. Thin: each claims its row and calls the work."""

from __future__ import annotations

from celery import shared_task

from calibration import jobs
from planner import work
from planner.models import Plan


@shared_task(name="planner.tasks.run_plan")
def run_plan(pk: str) -> None:
    """Queue ``default``: search the space and write the verdict."""
    jobs.run(Plan, pk, work.plan)


@shared_task(name="planner.tasks.sweep_plans", ignore_result=True)
def sweep_plans() -> None:
    jobs.sweep(Plan.objects.all(), run_plan)
