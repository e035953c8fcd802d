"""API: traffic and plans. Payloads go through the pages' forms (planner/forms.py)."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpRequest
from ninja import File, Form, Query, Router, UploadedFile
from ninja.responses import Status as Answer

from accounts import limits
from calibration.jobs import request_cancel
from config.errors import answers, conflict, form_error
from config.schemas import (
    form_data,
    found,
    job_fields,
    refuse_reader,
    target_project,
    uploaded,
)  # fmt: skip
from planner import services
from planner.forms import PlanForm, SynthesiseForm, UploadTrafficForm
from planner.models import Plan, TrafficSet
from planner.result_schemas import CandidatePage
from planner.schemas import (
    CandidateFilters,
    PlanDetail,
    PlanFilters,
    PlanIn,
    PlanPage,
    SynthesiseIn,
    TrafficFilters,
    TrafficOut,
    TrafficPage,
    TrafficPresetOut,
    UploadTrafficIn,
)
from planner.traffic import PRESETS

router = Router()


def _traffic(row: TrafficSet) -> dict[str, Any]:
    return {
        "id": row.pk, "name": row.name, "project": row.project.slug, "owner": row.owner.get_username(),
        "created_at": row.created_at, "format": row.format, "source": row.source,
        "statistics": row.statistics, "warnings": row.warnings, "recipe": row.recipe,
    }  # fmt: skip


@router.get("/traffic", response=answers({200: TrafficPage}), operation_id="list_traffic", tags=["traffic"])
def list_traffic(request: HttpRequest, filters: Query[TrafficFilters]) -> dict[str, Any]:
    """The traffic of your projects, newest first."""
    rows = TrafficSet.objects.visible_to(request.user).select_related("project", "owner")
    if filters.project is not None:
        rows = rows.filter(project__slug=filters.project)
    return {"items": [_traffic(row) for row in filters.slice(rows)], "count": rows.count()}


@router.post(
    "/traffic", response=answers({201: TrafficOut}, 413, 415), operation_id="upload_traffic", tags=["traffic"]
)
def upload_traffic(
    request: HttpRequest, payload: Form[UploadTrafficIn], file: File[UploadedFile]
) -> Answer[Any]:
    """Reads a trace: Azure CSV, Mooncake JSONL or a CSV of lengths, also gzipped; recognised by its content.
    What is wrong with a file comes with its line numbers."""
    project = target_project(request, payload.project)
    limits.spend(limits.UPLOAD, str(request.user.pk))
    form = UploadTrafficForm(form_data(payload, "project"), uploaded(file))
    if not form.is_valid():
        raise form_error(form)
    row = services.create_traffic(project, request.user, form.cleaned_data["name"], form.traffic())
    return Answer(201, _traffic(row))


@router.post(
    "/traffic/synthesise", response=answers({201: TrafficOut}, 413, 415), operation_id="synthesise_traffic",
    tags=["traffic"],
)  # fmt: skip
def synthesise_traffic(request: HttpRequest, payload: SynthesiseIn) -> Answer[Any]:
    """Makes traffic up from a preset; the same seed gives the same traffic."""
    project = target_project(request, payload.project)
    limits.spend(limits.UPLOAD, str(request.user.pk))
    form = SynthesiseForm(form_data(payload, "project"))
    if not form.is_valid():
        raise form_error(form)
    row = services.create_traffic(project, request.user, form.cleaned_data["name"], form.traffic())
    return Answer(201, _traffic(row))


@router.get(
    "/traffic/presets", response=answers({200: list[TrafficPresetOut]}), operation_id="list_traffic_presets",
    tags=["traffic"],
)  # fmt: skip
def list_traffic_presets(request: HttpRequest) -> list[dict[str, Any]]:
    """The kinds of traffic that are built in, and the public figures they resemble."""
    return [
        {
            "key": key, "title": preset.title, "resembles": preset.resembles, "rate_per_s": preset.rate_per_s,
            "requests": preset.requests, "prompt_median_tokens": preset.prompt.median_tokens,
            "prompt_cut_tokens": preset.prompt.cut_tokens, "output_median_tokens": preset.output.median_tokens,
            "output_cut_tokens": preset.output.cut_tokens,
        }
        for key, preset in PRESETS.items()
    ]  # fmt: skip


@router.get(
    "/traffic/{uuid:pk}",
    response=answers({200: TrafficOut}, 404),
    operation_id="get_traffic",
    tags=["traffic"],
)
def get_traffic(request: HttpRequest, pk: uuid.UUID) -> dict[str, Any]:
    """Statistics, and what was odd about the file."""
    return _traffic(found(TrafficSet.objects.all(), request, pk))


# Plans -------------------------------------------------------------------------------------------------------


def _fields(row: Plan) -> dict[str, Any]:
    return {
        **job_fields(row), "calibration": row.calibration_id, "traffic": row.traffic_id,
        "objectives": row.objectives, "feasible": row.feasible, "sentence": row.sentence,
    }  # fmt: skip


def _detail(row: Plan) -> dict[str, Any]:
    return {**_fields(row), "space": row.space, "seed": row.seed, "result": row.result, "log": row.log}


@router.get("/plans", response=answers({200: PlanPage}), operation_id="list_plans")
def list_plans(request: HttpRequest, filters: Query[PlanFilters]) -> dict[str, Any]:
    """The plans of your projects, newest first."""
    rows = filters.select(Plan.objects.defer("result", "log", "traceback"), request.user)
    wanted = {"feasible": filters.feasible, "calibration": filters.calibration, "traffic": filters.traffic}
    rows = rows.filter(**{key: value for key, value in wanted.items() if value is not None})
    return {"items": [_fields(row) for row in filters.slice(rows)], "count": rows.count()}


@router.post("/plans", response=answers({202: PlanDetail}, 413, 415), operation_id="start_plan")
def start_plan(request: HttpRequest, payload: PlanIn) -> Answer[Any]:
    """Asks which configuration meets the objectives at least cost. It belongs to its calibration's project."""
    form = PlanForm(form_data(payload), user=request.user)
    if not form.is_valid():
        raise form_error(form)
    plan_request = form.request()
    project = plan_request.calibration.project
    refuse_reader(request, project)
    limits.spend(limits.JOB_START, str(request.user.pk))
    return Answer(202, _detail(services.start_plan(project, request.user, plan_request)))


@router.get("/plans/{uuid:pk}", response=answers({200: PlanDetail}, 404), operation_id="get_plan")
def get_plan(request: HttpRequest, pk: uuid.UUID) -> dict[str, Any]:
    """Status, progress and, once it is done, the verdict; every candidate has its row under /candidates."""
    return _detail(found(Plan.objects.all(), request, pk))


@router.post(
    "/plans/{uuid:pk}/cancel", response=answers({202: PlanDetail}, 404, 409), operation_id="cancel_plan"
)
def cancel_plan(request: HttpRequest, pk: uuid.UUID) -> Answer[Any]:
    """Stops between two simulations. 409 when it had already ended."""
    row = found(Plan.objects.all(), request, pk, to_write=True)
    if not request_cancel(row):
        raise conflict(f"It has already ended: {row.status}.")
    return Answer(202, _detail(found(Plan.objects.all(), request, pk)))


@router.post(
    "/plans/{uuid:pk}/rerun", response=answers({202: PlanDetail}, 404, 409), operation_id="rerun_plan"
)
def rerun_plan(request: HttpRequest, pk: uuid.UUID) -> Answer[Any]:
    """The same question again as a new plan. 409 while this one is still at it."""
    row = found(Plan.objects.all(), request, pk, to_write=True)
    if row.is_active:
        raise conflict(f"It is still {row.status}.")
    limits.spend(limits.JOB_START, str(request.user.pk))
    return Answer(202, _detail(services.rerun(row, request.user)))


@router.get(
    "/plans/{uuid:pk}/candidates",
    response=answers({200: CandidatePage}, 404, 409),
    operation_id="list_candidates",
)
def list_candidates(request: HttpRequest, pk: uuid.UUID, filters: Query[CandidateFilters]) -> dict[str, Any]:
    """Every configuration that was considered, with its margins, or why it was not tried. 409 until there are any."""
    row = found(Plan.objects.all(), request, pk)
    if row.result is None:
        raise conflict(f"There are no candidates yet: {row.status}.")
    rows = [c for c in row.result["candidates"] if filters.status in (None, c["status"])]
    return {"items": rows[filters.offset : filters.offset + filters.limit], "count": len(rows)}
