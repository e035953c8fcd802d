"""Celery tasks. Thin: each claims its row and calls the work."""

from __future__ import annotations

from celery import shared_task
from celery.signals import worker_ready
from django.conf import settings

from calibration import jobs, work
from calibration.models import Calibration


@shared_task(name="calibration.tasks.run_calibration")
def run_calibration(pk: str) -> None:
    """Queue ``device``: measure and fit."""
    jobs.run(Calibration, pk, work.measure)


@shared_task(name="calibration.tasks.fit_calibration")
def fit_calibration(pk: str) -> None:
    """Queue ``default``: fit imported samples."""
    jobs.run(Calibration, pk, work.fit_imported)


@shared_task(name="calibration.tasks.announce_devices")
def announce_devices() -> None:
    """Queue ``device``: tell the web process what can be measured here."""
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
