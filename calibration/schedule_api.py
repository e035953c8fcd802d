"""The API's way to schedules and drift checks. Payloads go through the pages' forms."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Annotated, Any, Literal

from django.http import HttpRequest
from ninja import Field, Query, Router, Schema
from ninja.responses import Status as Answer

from accounts import limits
from calibration import drift_checks, schedules
from calibration.drift_views import why_not
from calibration.jobs import request_cancel
from calibration.models import Calibration, DriftCheck, Schedule, ScheduleRun
from calibration.schedule_forms import DriftForm, ScheduleForm
from config.errors import answers, conflict, form_error
from config.schemas import (
    JobFilters,
    JobOut,
    Paging,
    Payload,
    Slug,
    form_data,
    found,
    job_fields,
    of,
    refuse_reader,
    refuse_unknown_project,
)

router = Router()
Action = Literal["check", "recalibrate"]


class ScheduleIn(Payload):
    name: str | None = of(ScheduleForm, "name")
    calibration: Annotated[uuid.UUID, Field(strict=False)]
    action: str = of(ScheduleForm, "action")
    recalibrate_on_drift: bool = of(ScheduleForm, "recalibrate_on_drift")
    every: int | None = of(ScheduleForm, "every")
    unit: str = of(ScheduleForm, "unit")
    cron: str | None = of(ScheduleForm, "cron")
    time_zone: str = of(ScheduleForm, "time_zone")
    window_start: str | None = of(ScheduleForm, "window_start")
    window_end: str | None = of(ScheduleForm, "window_end")
    enabled: bool = of(ScheduleForm, "enabled")


class ScheduleOut(Schema):
    id: uuid.UUID
    name: str
    project: str = Field(description="Slug.")
    owner: str
    created_at: datetime
    calibration: uuid.UUID
    action: Action
    recalibrate_on_drift: bool
    every_s: int | None = Field(description="Seconds; null where `cron` says when.")
    cron: str
    time_zone: str
    window_start: str | None = Field(description="HH:MM on the clock of `time_zone`.")
    window_end: str | None
    enabled: bool
    next_at: datetime | None = Field(description="When it comes due next; null while it is disabled.")


class SchedulePage(Schema):
    items: list[ScheduleOut]
    count: int


class ScheduleRunOut(Schema):
    """What came of one occasion."""

    at: datetime
    due_at: datetime | None = Field(description="Null: started by hand.")
    missed: int = Field(description="Further occasions that it stands for; counting ends at 999.")
    outcome: Literal["started", "skipped"]
    reason: str = Field(description="Why it was skipped, or stopped.")
    calibration: uuid.UUID | None
    drift_check: uuid.UUID | None
    status: str | None = Field(description="Of the job that was started.")


class ScheduleRunPage(Schema):
    items: list[ScheduleRunOut]
    count: int


class ScheduleFilters(Paging):
    project: Slug | None = Field(None, description="Slug; default: all your projects.")
    calibration: uuid.UUID | None = None


class DriftCheckIn(Payload):
    recalibrate: bool = of(DriftForm, "recalibrate", default=False)
    seed: int = of(DriftForm, "seed")


class DriftCheckOut(JobOut):
    calibration: uuid.UUID
    drifted: bool | None = Field(description="Whether it calls for measuring anew; null until it is done.")
    statistic: float | None = Field(
        description="Mean natural logarithm of the ratio of medians, now to then."
    )
    low: float | None = Field(description="95 % interval of `statistic`.")
    high: float | None
    report: dict[str, Any] | None = Field(
        description="reasons, by_kind, sentinels [s], changes, contended_share, "
        "confirmed (by a second timing; null: nothing to confirm)."
    )
    environment: dict[str, Any] | None
    recalibration: uuid.UUID | None


class DriftCheckPage(Schema):
    items: list[DriftCheckOut]
    count: int


def _schedule(row: Schedule) -> dict[str, Any]:
    ends = {
        name: getattr(row, name) and f"{getattr(row, name):%H:%M}" for name in ("window_start", "window_end")
    }
    return {
        "id": row.pk, "name": row.name, "project": row.project.slug, "owner": row.owner.get_username(),
        "created_at": row.created_at, "calibration": row.calibration_id, "action": row.action,
        "recalibrate_on_drift": row.recalibrate_on_drift, "every_s": row.every_s, "cron": row.cron,
        "time_zone": row.time_zone, **ends, "enabled": row.enabled, "next_at": row.due_at,
    }  # fmt: skip


def _run(row: ScheduleRun) -> dict[str, Any]:
    return {
        "at": row.at, "due_at": row.due_at, "missed": row.missed, "outcome": row.outcome, "reason": row.reason,
        "calibration": row.calibration_id, "drift_check": row.drift_check_id, "status": row.job and row.job.status,
    }  # fmt: skip


def _check(row: DriftCheck) -> dict[str, Any]:
    return {
        **job_fields(row), "calibration": row.calibration_id, "drifted": row.drifted, "statistic": row.statistic,
        "low": row.low, "high": row.high, "report": row.report, "environment": row.environment,
        "recalibration": row.recalibration_id,
    }  # fmt: skip


@router.get("/schedules", response=answers({200: SchedulePage}), operation_id="list_schedules")
def list_schedules(request: HttpRequest, filters: Query[ScheduleFilters]) -> dict[str, Any]:
    """The schedules of your projects, by name."""
    refuse_unknown_project(request.user, filters.project)
    rows = Schedule.objects.visible_to(request.user).select_related("project", "owner")
    wanted = {"project__slug": filters.project, "calibration": filters.calibration}
    rows = rows.filter(**{key: value for key, value in wanted.items() if value is not None})
    return {"items": [_schedule(row) for row in filters.slice(rows)], "count": rows.count()}


@router.post("/schedules", response=answers({201: ScheduleOut}, 413, 415), operation_id="create_schedule")
def create_schedule(request: HttpRequest, payload: ScheduleIn) -> Answer[Any]:
    """Checks a calibration for drift, or measures its subject anew, again and again. It belongs to the calibration's
    project. Give `every` with `unit`, or `cron`."""
    form = ScheduleForm(form_data(payload), user=request.user)
    if not form.is_valid():
        raise form_error(form)
    project = form.request().calibration.project
    refuse_reader(request, project)
    return Answer(201, _schedule(schedules.create(project, request.user, form.request())))


@router.get("/schedules/{uuid:pk}", response=answers({200: ScheduleOut}, 404), operation_id="get_schedule")
def get_schedule(request: HttpRequest, pk: uuid.UUID) -> dict[str, Any]:
    """What it does, and when it comes due next."""
    return _schedule(found(Schedule.objects.all(), request, pk))


@router.put(
    "/schedules/{uuid:pk}", response=answers({200: ScheduleOut}, 404, 413, 415), operation_id="edit_schedule"
)
def edit_schedule(request: HttpRequest, pk: uuid.UUID, payload: ScheduleIn) -> dict[str, Any]:
    """Replaces all of it; an interval counts from now on. It stays in its project."""
    row = found(Schedule.objects.all(), request, pk, to_write=True)
    form = ScheduleForm(form_data(payload), user=request.user, project=row.project)
    if not form.is_valid():
        raise form_error(form)
    return _schedule(schedules.edit(row, form.request()))


@router.delete("/schedules/{uuid:pk}", response=answers({204: None}, 404), operation_id="delete_schedule")
def delete_schedule(request: HttpRequest, pk: uuid.UUID) -> Answer[Any]:
    """With its history; what it measured stays."""
    schedules.delete(found(Schedule.objects.all(), request, pk, to_write=True))
    return Answer(204, None)


@router.post(
    "/schedules/{uuid:pk}/run", response=answers({202: ScheduleRunOut}, 404), operation_id="run_schedule"
)
def run_schedule(request: HttpRequest, pk: uuid.UUID) -> Answer[Any]:
    """Runs it now, whatever its window says. Skipped, with the reason, while one of the same is under way."""
    row = found(Schedule.objects.all(), request, pk, to_write=True)
    limits.spend(limits.JOB_START, str(request.user.pk))
    return Answer(202, _run(schedules.run_now(row, request.user)))


@router.get(
    "/schedules/{uuid:pk}/runs",
    response=answers({200: ScheduleRunPage}, 404),
    operation_id="list_schedule_runs",
)
def list_schedule_runs(request: HttpRequest, pk: uuid.UUID, paging: Query[Paging]) -> dict[str, Any]:
    """Its history, newest first."""
    rows = found(Schedule.objects.all(), request, pk).runs.select_related("calibration", "drift_check")
    return {"items": [_run(row) for row in paging.slice(rows)], "count": rows.count()}


@router.post(
    "/calibrations/{uuid:pk}/drift-checks", response=answers({202: DriftCheckOut}, 404, 409, 413, 415),
    operation_id="start_drift_check",
)  # fmt: skip
def start_drift_check(request: HttpRequest, pk: uuid.UUID, payload: DriftCheckIn) -> Answer[Any]:
    """Times about six of its steps again on its device; while the same check is at work, that one. 409
    for one that cannot be measured here."""
    row = found(Calibration.objects.all(), request, pk, to_write=True)
    form = DriftForm(form_data(payload))
    if not form.is_valid():
        raise form_error(form)
    if reason := why_not(row):
        raise conflict(reason)
    limits.spend(limits.JOB_START, str(request.user.pk))
    data = form.cleaned_data
    check = drift_checks.start(row, request.user, recalibrate=data["recalibrate"], seed=data["seed"] or 0)
    return Answer(202, _check(check))


@router.get(
    "/calibrations/{uuid:pk}/drift-checks", response=answers({200: DriftCheckPage}, 404),
    operation_id="list_drift_checks",
)  # fmt: skip
def list_drift_checks(request: HttpRequest, pk: uuid.UUID, filters: Query[JobFilters]) -> dict[str, Any]:
    """The checks of one calibration, newest first."""
    row = found(Calibration.objects.all(), request, pk)
    rows = filters.select(DriftCheck.objects.filter(calibration=row), request.user)
    return {"items": [_check(check) for check in filters.slice(rows)], "count": rows.count()}


@router.get(
    "/drift-checks/{uuid:pk}", response=answers({200: DriftCheckOut}, 404), operation_id="get_drift_check"
)
def get_drift_check(request: HttpRequest, pk: uuid.UUID) -> dict[str, Any]:
    """Progress and, once it is done, the statistic and why."""
    return _check(found(DriftCheck.objects.all(), request, pk))


@router.post(
    "/drift-checks/{uuid:pk}/cancel", response=answers({202: DriftCheckOut}, 404, 409),
    operation_id="cancel_drift_check",
)  # fmt: skip
def cancel_drift_check(request: HttpRequest, pk: uuid.UUID) -> Answer[Any]:
    """Stops between two steps. 409 when it had already ended."""
    row = found(DriftCheck.objects.all(), request, pk, to_write=True)
    if not request_cancel(row):
        raise conflict(f"It has already ended: {row.status}.")
    return Answer(202, _check(found(DriftCheck.objects.all(), request, pk)))
