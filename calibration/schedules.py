"""What the pages, the API, beat and the sweep do with schedules.

A schedule's ``due_at`` says when it comes due next, and nothing else does. Three may knock (``run_due``): beat through
the PeriodicTask that is tied to the row, the sweep of each 10 s for what beat did not deliver, and both again after
they were killed. Whoever knocks first moves ``due_at`` on and writes the occasion's row and the job in one
transaction; everybody else then finds nothing due. So a message that is lost is made up for, one that comes twice
runs once, and what was missed while nothing ran is run once. The PeriodicTask is written with the row, and the sweep
repairs one that was changed or deleted behind our back.
"""

from __future__ import annotations

import json
import logging
import uuid
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from functools import reduce
from operator import or_
from typing import Any

from django.db import transaction
from django.db.models import Q
from django.utils import timezone
from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask

from accounts.access import may_write
from accounts.models import Project
from calibration import drift_checks, services
from calibration.jobs import Job, request_cancel
from calibration.lineage import same_subject
from calibration.models import Calibration, DriftCheck, Schedule, ScheduleRun
from calibration.occasions import BadRule, beat_fields
from calibration.starting import written_once

TASK = "calibration.tasks.run_schedule"
MESSAGE_EXPIRES_S = 60  # a knock that nobody heard for so long says nothing that the sweep does not
KEPT_RUNS = timedelta(days=400)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScheduleRequest:
    """What a schedule is to be; see Schedule. Either `every_s` or `cron`."""

    name: str
    calibration: Calibration
    action: str
    every_s: int | None
    cron: str
    time_zone: str
    window: tuple[time, time] | None
    enabled: bool
    recalibrate_on_drift: bool


# Writing -----------------------------------------------------------------------------------------------------


def create(project: Project, owner: Any, request: ScheduleRequest, pk: uuid.UUID | None = None) -> Schedule:
    """`pk`: of a form (config/once.py); where the schedule is there already, it is the answer."""
    if pk and (there := Schedule.objects.filter(pk=pk).first()) is not None:
        return there
    row = Schedule(pk=pk or uuid.uuid4(), project=project, owner=owner)
    found: Schedule = written_once(Schedule.objects.all(), pk, lambda: _write(row, request))
    return found


def edit(schedule: Schedule, request: ScheduleRequest) -> Schedule:
    """Intervals count from the edit on."""
    with transaction.atomic():
        return _write(Schedule.objects.select_for_update().get(pk=schedule.pk), request)


def _write(row: Schedule, request: ScheduleRequest) -> Schedule:
    now = timezone.now()
    row.name, row.calibration, row.action = request.name[:120], request.calibration, request.action
    row.every_s, row.cron, row.time_zone = request.every_s, request.cron, request.time_zone
    row.window_start, row.window_end = request.window or (None, None)
    row.enabled, row.recalibrate_on_drift, row.anchor = request.enabled, request.recalibrate_on_drift, now
    row.due_at = row.rule.next_after(now) if row.enabled else None
    with transaction.atomic():
        row.save()
        tie(row)
    return row


def delete(schedule: Schedule) -> None:
    """With its history and its PeriodicTask; what it measured stays."""
    with transaction.atomic():
        PeriodicTask.objects.filter(name=task_name(schedule)).delete()
        schedule.delete()


# Beat's row --------------------------------------------------------------------------------------------------


def task_name(schedule: Schedule) -> str:
    return f"schedule {schedule.pk}"


def tie(schedule: Schedule) -> bool:
    """Makes beat's row what ours says. Returns whether anything had to be written."""
    found = PeriodicTask.objects.filter(name=task_name(schedule)).first()
    task = found or PeriodicTask(name=task_name(schedule))
    wanted = _wanted(schedule)
    same = found is not None and all(getattr(task, name) == value for name, value in wanted.items())
    if not same:
        for name, value in wanted.items():
            setattr(task, name, value)
        if schedule.every_s and schedule.due_at:
            task.last_run_at = schedule.due_at - timedelta(seconds=schedule.every_s)
        task.save()
    if schedule.task_id != task.pk:
        schedule.task = task
        Schedule.objects.filter(pk=schedule.pk).update(task=task)
    return not same


def _wanted(schedule: Schedule) -> dict[str, Any]:
    interval = crontab = None
    if schedule.every_s:
        interval, _ = IntervalSchedule.objects.get_or_create(
            every=schedule.every_s, period=IntervalSchedule.SECONDS
        )
    else:
        names = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
        fields = dict(zip(names, beat_fields(schedule.cron), strict=True))
        crontab, _ = CrontabSchedule.objects.get_or_create(timezone=schedule.time_zone, **fields)
    return {
        "task": TASK, "args": json.dumps([str(schedule.pk)]), "enabled": schedule.enabled, "one_off": False,
        "interval_id": interval and interval.pk, "crontab_id": crontab and crontab.pk,
        "solar_id": None, "clocked_id": None, "expire_seconds": MESSAGE_EXPIRES_S,
    }  # fmt: skip


def keep_in_step() -> int:
    """Repairs what of beat's rows no longer says what ours say; removes those whose schedule is gone."""
    rows = list(Schedule.objects.select_related("task"))
    repaired = sum(tie(row) for row in rows)
    names = [task_name(row) for row in rows]
    orphans = PeriodicTask.objects.filter(task=TASK).exclude(name__in=names)
    if orphans.exists():
        repaired += orphans.delete()[0]
    if repaired:
        log.warning("%d periodic tasks were not what their schedules say; repaired", repaired)
    return repaired


# Running -----------------------------------------------------------------------------------------------------


def due_ids(now: datetime | None = None) -> list[str]:
    rows = Schedule.objects.filter(enabled=True, due_at__lte=now or timezone.now())
    return [str(pk) for pk in rows.values_list("pk", flat=True)]


def run_due(pk: str, now: datetime | None = None) -> ScheduleRun | None:
    """Runs the schedule's occasion if one is due. None when there is none: not yet, or somebody else has it."""
    now = now or timezone.now()
    with transaction.atomic():
        rows = Schedule.objects.select_for_update().filter(pk=pk, enabled=True, due_at__lte=now)
        schedule = rows.first()
        if schedule is None or schedule.due_at is None:
            return None
        due_at, rule = schedule.due_at, schedule.rule
        if not rule.is_open(now):  # nothing ran while its window was open: it waits for the next one
            Schedule.objects.filter(pk=pk).update(due_at=rule.opens_after(now))
            return None
        missed = rule.missed_between(due_at, now)
        try:
            following = rule.next_after(now)
        except BadRule:  # the time zone's rules have changed under it; its page says that nothing is due
            following = None
        moved = Schedule.objects.filter(pk=pk, due_at=due_at).update(due_at=following)
        return _run(schedule, due_at, missed, now) if moved else None


def run_now(schedule: Schedule, user: Any) -> ScheduleRun:
    """By hand, whatever the window says; skipped like any other where one is active."""
    with transaction.atomic():
        locked = Schedule.objects.select_for_update().get(pk=schedule.pk)
        return _run(locked, None, 0, timezone.now(), user)


def _run(
    schedule: Schedule, due_at: datetime | None, missed: int, now: datetime, user: Any = None
) -> ScheduleRun:
    owner = user or schedule.owner
    run = ScheduleRun(schedule=schedule, due_at=due_at, at=now, missed=missed, outcome=ScheduleRun.SKIPPED)
    run.reason = _why_not(schedule, owner)[:300]
    if not run.reason:
        run.outcome = ScheduleRun.STARTED
        latest = latest_of(schedule)
        if schedule.action == Schedule.CHECK:
            run.drift_check = drift_checks.start(latest, owner, recalibrate=schedule.recalibrate_on_drift)
        else:
            run.calibration = services.rerun(latest, owner)
    run.save()
    schedule.runs.filter(at__lt=now - KEPT_RUNS).delete()
    return run


def latest_of(schedule: Schedule) -> Calibration:
    """What is measured again: the newest published calibration of the schedule's subject, else its own."""
    usable = same_subject(schedule.calibration, Calibration.objects.usable())
    return Calibration.objects.get(pk=usable[-1].pk) if usable else schedule.calibration


def _why_not(schedule: Schedule, owner: Any) -> str:
    """Why nothing is started now; empty where something is."""
    if not may_write(owner, schedule.project):
        return f"{owner} may no longer write in project {schedule.project}"
    measuring = same_subject(schedule.calibration, Calibration.objects.active())
    if measuring:
        return f"a calibration of it is still {measuring[-1].status}"
    subject = [row.pk for row in same_subject(schedule.calibration, Calibration.objects.all())]
    checking = DriftCheck.objects.active().filter(calibration__in=subject).first()
    if checking:
        return f"a drift check of it is still {checking.status}"
    if schedule.action == Schedule.CHECK:
        return services.why_no_drift_check(latest_of(schedule))
    return why_not_measured_anew(schedule.calibration)


def why_not_measured_anew(calibration: Calibration) -> str:
    """Why it cannot be measured anew here; empty where it can."""
    if calibration.source != Calibration.MEASURED:
        return "it was imported: measure it anew where it was measured"
    return services.why_not_again(calibration)


def run_all_due() -> None:
    """What is due and nobody knocked for. One that fails keeps none of the others."""
    for pk in due_ids():
        try:
            run_due(pk)
        except Exception:
            log.exception("schedule %s could not be run", pk)


def stop_outside_windows(now: datetime | None = None) -> int:
    """Asks jobs to stop whose window has closed, and full calibrations that their checks started: the device is no
    longer theirs. Returns how many."""
    now, stopped = now or timezone.now(), 0
    kinds = ("calibration", "drift_check", "drift_check__recalibration")
    active = reduce(or_, (Q(**{f"{kind}__status__in": Job.ACTIVE}) for kind in kinds))
    rows = ScheduleRun.objects.filter(active, due_at__isnull=False, schedule__window_start__isnull=False)
    for run in rows.select_related("schedule", *kinds):
        if run.schedule.rule.is_open(now):
            continue
        follow_up = run.drift_check and run.drift_check.recalibration
        asked = [job for job in (run.calibration, run.drift_check, follow_up)
                 if job and job.is_active and not job.cancel_requested and request_cancel(job)]  # fmt: skip
        if asked:
            closed = (
                f"stopped: its window closed at {run.schedule.window_end:%H:%M} ({run.schedule.time_zone})"
            )
            ScheduleRun.objects.filter(pk=run.pk).update(reason=closed)
            stopped += len(asked)
    return stopped
