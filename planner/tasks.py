"""Celery tasks. Thin: each claims its row and calls the work.

The work is imported when it is asked for: a process that imports files holds none of the search and its kernels.
"""

from __future__ import annotations

import logging
import threading
from functools import cache
from typing import TYPE_CHECKING, Any

from celery import group, shared_task
from celery.signals import worker_ready
from django.conf import settings

from calibration import jobs
from planner import endpoint_keys, uploads
from planner.models import Plan, PlanPart, PlanReview, TrafficImport, TrafficJob, Verification

if TYPE_CHECKING:
    from planner.helpers import ReadyHands

log = logging.getLogger(__name__)


@shared_task(name="planner.tasks.run_plan")
def run_plan(pk: str) -> None:
    """Queue ``default``: search the space, with whoever helps, and write the verdict."""
    from planner import work

    def call() -> None:
        try:
            group(help_plan.s(pk) for _ in range(settings.PLAN_HELPERS)).apply_async(retry=False)
        except Exception:  # a broker that is down must not fail the plan: it is done without help
            log.exception("could not send for helpers of plan %s", pk)

    ended = jobs.run(
        Plan,
        pk,
        lambda plan, run: work.shared_plan(
            plan, run, threads=settings.PLAN_THREADS, helpers=settings.PLAN_HELPERS, call=call
        ),
        at_once=settings.PLANS_AT_ONCE,
    )
    if ended is not None:
        jobs.send_next(Plan, run_plan)


@cache
def ready_hands() -> ReadyHands:
    """Of this process."""
    from planner import helpers, work

    return helpers.ReadyHands(work.hand_of)


@shared_task(name="planner.tasks.help_plan", ignore_result=True)
def help_plan(pk: str) -> None:
    """Queue ``default``: do parts of a plan's search for a while, then once more if it still runs."""
    from planner import helpers

    if helpers.help_with(pk, ready_hands(), settings.PLAN_THREADS):
        help_plan.apply_async(args=(pk,), retry=False)


@shared_task(name="planner.tasks.sweep_plans", ignore_result=True)
def sweep_plans() -> None:
    jobs.sweep(Plan.objects.all(), run_plan)
    PlanPart.objects.exclude(plan__status=Plan.RUNNING).delete()


@shared_task(name="planner.tasks.run_review")
def run_review(pk: str) -> None:
    """Queue ``default``: does a plan's answer stand under newer step times?"""
    from planner import reviews

    jobs.run(PlanReview, pk, reviews.work)


@shared_task(name="planner.tasks.sweep_reviews", ignore_result=True)
def sweep_reviews() -> None:
    from planner import reviews

    reviews.start_reviews()
    reviews.tell_stale()
    jobs.sweep(PlanReview.objects.all(), run_review)


@shared_task(name="planner.tasks.run_verification")
def run_verification(pk: str) -> None:
    """Queue ``device``: serve a window of a plan's traffic, or long prompts beside short answers, and compare."""
    jobs.run(Verification, pk, work_of)


def work_of(row: Verification, run: jobs.JobRun) -> None:
    """What is done on the device for this kind of verification."""
    from planner import mixed_load_work, verification_work

    on_device = {Verification.MIXED_LOAD: mixed_load_work.run_mixed_load}
    on_device.get(row.kind, verification_work.verify)(row, run)


@shared_task(name="planner.tasks.run_endpoint")
def run_endpoint(pk: str) -> None:
    """Queue ``default``: send a window of a plan's traffic to a running server and compare."""
    from planner import endpoint_work

    jobs.run(Verification, pk, endpoint_work.verify_endpoint)


def task_of(row: Verification) -> Any:
    """The task that does this kind of verification."""
    return run_endpoint if row.kind == Verification.ENDPOINT else run_verification


@shared_task(name="planner.tasks.sweep_verifications", ignore_result=True)
def sweep_verifications() -> None:
    on_device = Verification.objects.exclude(kind=Verification.ENDPOINT)
    jobs.sweep(on_device, run_verification)
    jobs.sweep(Verification.objects.filter(kind=Verification.ENDPOINT), run_endpoint)
    endpoint_keys.sweep()


@shared_task(name="planner.tasks.run_import")
def run_import(pk: str) -> None:
    """Queue ``default``: read a held file into a traffic."""
    from planner import import_work

    jobs.run(TrafficImport, pk, import_work.import_traffic)


@shared_task(name="planner.tasks.sweep_imports", ignore_result=True)
def sweep_imports() -> None:
    jobs.sweep(TrafficImport.objects.all(), run_import)
    uploads.sweep()


@worker_ready.connect
def _compile_simulator(sender: object = None, **_: object) -> None:
    """A worker that plans compiles the simulator as it comes up, beside its work."""
    queues = getattr(getattr(sender, "task_consumer", None), "queues", [])
    if not any(queue.name == settings.CELERY_TASK_DEFAULT_QUEUE for queue in queues):
        return
    from planner.simulation import ready

    if not ready.is_ready():
        threading.Thread(target=ready.start().wait, daemon=True).start()


@shared_task(name="planner.tasks.run_traffic")
def run_traffic(pk: str) -> None:
    """Queue ``default``: make a traffic, or fit a model to one."""
    from planner import traffic_work

    jobs.run(TrafficJob, pk, traffic_work.work)


@shared_task(name="planner.tasks.sweep_traffic", ignore_result=True)
def sweep_traffic() -> None:
    jobs.sweep(TrafficJob.objects.all(), run_traffic)
