"""Celery tasks. Thin: each claims its row and calls the work, which is imported when it is asked for."""

from __future__ import annotations

from celery import shared_task
from celery.signals import worker_ready
from django.conf import settings

from calibration import drift_checks, jobs, notifications, schedules
from calibration.models import Calibration, DriftCheck


@shared_task(name="calibration.tasks.run_calibration")
def run_calibration(pk: str) -> None:
    """Queue ``device``: measure and fit."""
    from calibration import work

    jobs.run(Calibration, pk, work.measure)


@shared_task(name="calibration.tasks.fit_calibration")
def fit_calibration(pk: str) -> None:
    """Queue ``default``: fit imported samples."""
    from calibration import work

    jobs.run(Calibration, pk, work.fit_imported)


@shared_task(name="calibration.tasks.run_drift_check")
def run_drift_check(pk: str) -> None:
    """Queue ``device``: time a few steps again."""
    jobs.run(DriftCheck, pk, drift_checks.check)


@shared_task(name="calibration.tasks.run_schedule", ignore_result=True)
def run_schedule(pk: str) -> None:
    """Queue ``default``: beat knocks. The row says whether anything is due."""
    schedules.run_due(pk)


@shared_task(name="calibration.tasks.sweep_schedules", ignore_result=True)
def sweep_schedules() -> None:
    """What is due and was not knocked for, jobs outside their windows, beat's rows, drift checks that never started."""
    schedules.run_all_due()
    schedules.stop_outside_windows()
    schedules.keep_in_step()
    jobs.sweep(DriftCheck.objects.all(), run_drift_check)


@shared_task(name="calibration.tasks.sweep_notifications", ignore_result=True)
def sweep_notifications() -> None:
    """Writes what is to be told, and sends what is due."""
    notifications.look()
    notifications.send_due()


@shared_task(name="calibration.tasks.announce_devices")
def announce_devices() -> None:
    """Queue ``device``: tell the web process what can be measured here."""
    from calibration import work

    work.announce()


@shared_task(name="calibration.tasks.sweep_calibrations", ignore_result=True)
def sweep_calibrations() -> None:
    for source, task in ((Calibration.MEASURED, run_calibration), (Calibration.IMPORTED, fit_calibration)):
        jobs.sweep(Calibration.objects.filter(source=source), task)


@worker_ready.connect
def _announce(sender: object = None, **_: object) -> None:
    """A device worker that comes up announces its devices, through its own queue."""
    queues = getattr(getattr(sender, "task_consumer", None), "queues", [])
    if any(queue.name == settings.DEVICE_QUEUE for queue in queues):
        announce_devices.apply_async(retry=False)
