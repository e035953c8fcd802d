"""API: traffic that a worker makes, and models that it fits. Started where small ones are made at once."""

from __future__ import annotations

import uuid
from typing import Any, Literal

from django.http import HttpRequest
from ninja import Field, Router, Schema
from ninja.responses import Status as Answer

from accounts import limits
from accounts.models import Project
from calibration.jobs import request_cancel
from config.errors import answers, conflict
from config.schemas import JobOut, found, job_fields
from planner import services, traffic_work
from planner.models import TrafficJob, TrafficSet
from planner.schemas import traffic_out

router = Router()


class JobProblemOut(Schema):
    field: str
    message: str


class TrafficJobOut(JobOut):
    """Traffic being made, or a model being fitted, by a worker."""

    kind: Literal["shape", "generate", "synthesise", "fit"]
    parent: uuid.UUID | None = Field(description="What is shaped or fitted.")
    traffic: uuid.UUID | None = Field(
        description="Once it is made. A fit makes none: GET traffic/{parent}/fit."
    )
    problems: list[JobProblemOut] = Field(description="What cannot be done, where that is why it failed.")


def traffic_job(row: TrafficJob) -> dict[str, Any]:
    return {
        **job_fields(row), "kind": row.kind, "parent": row.parent_id, "traffic": row.traffic_id,
        "problems": row.problems,
    }  # fmt: skip


def made_or_started(
    request: HttpRequest, kind: str, project: Project, form: Any, parent: TrafficSet | None = None
) -> Answer[Any]:
    """Of a valid form: 201 with the traffic, or 202 with the job that makes it."""
    name, default_named = form.cleaned_data["name"], form.cleaned_data["default_named"]
    if not form.deferred:
        row = services.create_traffic(
            project, request.user, name, form.traffic(), default_named=default_named
        )
        return Answer(201, traffic_out(row))
    limits.spend(limits.JOB_START, str(request.user.pk))
    options = {**form.options(), "default_named": default_named}
    job = traffic_work.start(kind, project, request.user, name, options, parent=parent)
    return Answer(202, traffic_job(job))


@router.get(
    "/traffic/jobs/{uuid:pk}", response=answers({200: TrafficJobOut}, 404), operation_id="get_traffic_job"
)
def get_traffic_job(request: HttpRequest, pk: uuid.UUID) -> dict[str, Any]:
    """How far a traffic is that is being made, or a fit; `traffic` once it is done."""
    return traffic_job(found(TrafficJob.objects.defer("result"), request, pk))


@router.post(
    "/traffic/jobs/{uuid:pk}/cancel",
    response=answers({202: TrafficJobOut}, 404, 409),
    operation_id="cancel_traffic_job",
)
def cancel_traffic_job(request: HttpRequest, pk: uuid.UUID) -> Answer[Any]:
    """Stops between two steps; nothing of it is stored. 409 when it had already ended."""
    row = found(TrafficJob.objects.defer("result"), request, pk, to_write=True)
    if not request_cancel(row):
        raise conflict(f"It has already ended: {row.status}.")
    return Answer(202, traffic_job(found(TrafficJob.objects.defer("result"), request, pk)))
