"""Drift checks as jobs: started by hand or by a schedule, run on queue ``device``, kept as rows.

A check that finds drift may start a full calibration; it never changes the one it checked. What was found is told to
whoever wants to know (calibration/notifications.py).
"""

from __future__ import annotations

from typing import Any

from django.db import transaction

from calibration import services
from calibration.engine.client import EngineError
from calibration.experiment import DoesNotFit
from calibration.jobs import JobBroken, JobCancelled, JobRefused, JobRun
from calibration.lineage import same_subject
from calibration.models import Calibration, DriftCheck
from calibration.patience import patiently
from calibration.pipeline import Stopped
from calibration.starting import start_once


def start(
    calibration: Calibration,
    owner: Any,
    *,
    recalibrate: bool = False,
    seed: int = 0,
    rerun_of: DriftCheck | None = None,
) -> DriftCheck:
    """Writes the row and sends the job to queue ``device``; while the same check of the same owner is at work, that one
    instead."""
    from calibration import tasks

    row = DriftCheck(
        project=calibration.project, owner=owner, name=f"Drift check of {calibration.name}"[:120],
        calibration=calibration, recalibrate=recalibrate, seed=seed, rerun_of=rerun_of,
    )  # fmt: skip
    return start_once(row, ("calibration_id", "recalibrate", "seed"), tasks.run_drift_check)


def check(row: DriftCheck, run: JobRun) -> None:
    """Times the sentinels again and writes what was found."""
    calibration = row.calibration

    def at(words: str) -> None:
        run.progress(0, 1, words)

    try:
        report = services.drift_of(calibration, row.seed, run.write_log, run.should_stop, at)
    except Stopped as stop:
        raise JobCancelled from stop
    except (ValueError, DoesNotFit) as refusal:
        raise JobRefused(str(refusal)) from refusal
    except EngineError as ended:
        raise JobBroken(str(ended)) from ended
    found = report.to_dict()
    values: dict[str, Any] = {
        "report": found, "environment": found.pop("environment"), "drifted": report.drifted,
        "statistic": report.mean.log_ratio, "low": report.mean.low, "high": report.mean.high,
    }  # fmt: skip
    rows = DriftCheck.objects.filter(pk=row.pk, status=DriftCheck.RUNNING)
    patiently(lambda: rows.update(**values))
    for reason in report.reasons or ("Nothing that would call for measuring anew",):
        run.write_log(reason)
    if report.drifted:
        follow_up(row, run)
    run.progress(1, 1, "Drifted: measure it anew" if report.drifted else "No drift")


def follow_up(row: DriftCheck, run: JobRun) -> None:
    """Starts the full calibration that drift calls for, if that was asked, once."""
    if not row.recalibrate or row.recalibration_id or row.calibration.source != Calibration.MEASURED:
        return
    if same_subject(row.calibration, Calibration.objects.active()):
        run.write_log("A calibration of it is already under way")
        return
    with transaction.atomic():
        anew = services.rerun(row.calibration, row.owner)
        DriftCheck.objects.filter(pk=row.pk).update(recalibration=anew)
    run.write_log("A full calibration was started")


def rerun(row: DriftCheck, owner: Any) -> DriftCheck:
    """The same again as a new row."""
    return start(row.calibration, owner, recalibrate=row.recalibrate, seed=row.seed, rerun_of=row)
