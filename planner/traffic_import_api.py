"""API: the list of traffic, and bringing a file. Small ones become traffic at once, large ones by a job; a look
stores nothing."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpRequest
from ninja import File, Form, Query, Router, UploadedFile
from ninja.responses import Status as Answer

from accounts import limits
from calibration.form_parts import stream
from calibration.jobs import request_cancel
from config.errors import answers, conflict, form_error
from config.schemas import (
    form_data,
    found,
    job_fields,
    refuse_unknown_project,
    target_project,
    uploaded,
)  # fmt: skip
from planner import import_work, services, uploads
from planner.forms import UploadTrafficForm
from planner.models import TrafficImport, TrafficSet
from planner.schemas import TrafficFilters, TrafficOut, TrafficPage, traffic_out
from planner.traffic import preview
from planner.traffic_import_forms import LookForm
from planner.traffic_import_schemas import ImportOut, InspectOut, UploadTrafficIn

router = Router()


def _job(row: TrafficImport) -> dict[str, Any]:
    return {
        **job_fields(row), "file_name": row.file_name, "size_bytes": row.size_bytes, "traffic": row.traffic_id,
        "problems": row.problems,
    }  # fmt: skip


@router.get("/traffic", response=answers({200: TrafficPage}), operation_id="list_traffic")
def list_traffic(request: HttpRequest, filters: Query[TrafficFilters]) -> dict[str, Any]:
    """The traffic of your projects, newest first."""
    refuse_unknown_project(request.user, filters.project)
    rows = TrafficSet.objects.visible_to(request.user).select_related("project", "owner")
    if filters.project is not None:
        rows = rows.filter(project__slug=filters.project)
    return {"items": [traffic_out(row) for row in filters.slice(rows)], "count": rows.count()}


@router.post(
    "/traffic", response=answers({201: TrafficOut, 202: ImportOut}, 413, 415), operation_id="upload_traffic"
)
def upload_traffic(
    request: HttpRequest, payload: Form[UploadTrafficIn], file: File[UploadedFile]
) -> Answer[Any]:
    """Reads a trace, a list of lengths or a distribution, recognised by its content; `mapping` says which column is
    what where the names do not. 201 with the traffic, or, for a large file, 202 with the job that reads it: poll
    `/traffic/imports/{id}`. What is wrong with a file comes with its line numbers; a benchmark's result is refused
    with what its own figures say."""
    project = target_project(request, payload.project)
    limits.spend(limits.UPLOAD, str(request.user.pk))
    form = UploadTrafficForm(form_data(payload, "project"), uploaded(file), defer=True)
    if not form.is_valid():
        raise form_error(form)
    keep, name = bool(form.cleaned_data["keep_file"]), form.cleaned_data["name"]
    default_named = form.cleaned_data["default_named"]
    if form.deferred:
        limits.spend(limits.JOB_START, str(request.user.pk))
        held = uploads.hold(project, request.user, file, file.name or "upload")
        job = import_work.start_import(
            held, request.user, name, form.chosen(), keep=keep, default_named=default_named
        )
        return Answer(202, _job(job))
    row = services.create_traffic(project, request.user, name, form.traffic(), default_named=default_named)
    if keep:
        uploads.keep(uploads.hold(project, request.user, file, file.name or "upload"), row)
    return Answer(201, traffic_out(row))


@router.post(
    "/traffic/inspect", response=answers({200: InspectOut}, 413, 415), operation_id="inspect_traffic"
)
def inspect_traffic(
    request: HttpRequest, payload: Form[UploadTrafficIn], file: File[UploadedFile]
) -> dict[str, Any]:
    """What this file would become, read so: dialect, columns, duration, mean rate, peak minute, first requests; of a
    benchmark's result, whether its figures can be true together. Nothing is stored."""
    target_project(request, payload.project)
    limits.spend(limits.UPLOAD, str(request.user.pk))
    form = LookForm(form_data(payload, "project"), uploaded(file))
    if not form.is_valid():
        raise form_error(form)
    looked = preview(
        stream(form.cleaned_data["file"]), form.options(), import_work.limits(), file.name or "upload"
    )
    return looked.to_dict()


@router.get("/traffic/imports/{uuid:pk}", response=answers({200: ImportOut}, 404), operation_id="get_import")
def get_import(request: HttpRequest, pk: uuid.UUID) -> dict[str, Any]:
    """How far the reading of a large file is; `traffic` once it is done."""
    return _job(found(TrafficImport.objects.all(), request, pk))


@router.post(
    "/traffic/imports/{uuid:pk}/cancel",
    response=answers({202: ImportOut}, 404, 409),
    operation_id="cancel_import",
)
def cancel_import(request: HttpRequest, pk: uuid.UUID) -> Answer[Any]:
    """Stops reading; nothing of it is stored. 409 when it had already ended."""
    row = found(TrafficImport.objects.all(), request, pk, to_write=True)
    if not request_cancel(row):
        raise conflict(f"It has already ended: {row.status}.")
    return Answer(202, _job(found(TrafficImport.objects.all(), request, pk)))
