"""API: traffic and plans. Payloads go through the pages' forms (planner/forms.py, planner/plan_forms.py)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest
from ninja import Query, Router
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
)  # fmt: skip
from planner import services
from planner.filters import NOT_JUDGED
from planner.forms import SynthesiseForm
from planner.models import Plan, TrafficJob, TrafficSet
from planner.plan_basis import Fresh, freshness_fields, freshness_of_plans
from planner.plan_forms import PlanForm
from planner.result_schemas import CandidatePage
from planner.reviews import Staleness, staleness_by_id, staleness_of
from planner.schemas import (
    CandidateFilters,
    PlanDetail,
    PlanFilters,
    PlanIn,
    PlanPage,
    SynthesiseIn,
    TrafficOut,
    TrafficPresetOut,
    traffic_out,
)
from planner.traffic import PRESETS
from planner.traffic_job_api import TrafficJobOut, made_or_started

router = Router()


@router.post(
    "/traffic/synthesise", response=answers({201: TrafficOut, 202: TrafficJobOut}, 413, 415),
    operation_id="synthesise_traffic", tags=["traffic"],
)  # fmt: skip
def synthesise_traffic(request: HttpRequest, payload: SynthesiseIn) -> Answer[Any]:
    """Makes traffic up from a preset; the same seed gives the same traffic. 202 with the job that makes it
    where that takes longer than a second: poll `/traffic/jobs/{id}`."""
    project = target_project(request, payload.project)
    limits.spend(limits.UPLOAD, str(request.user.pk))
    form = SynthesiseForm(form_data(payload, "project"), defer=True)
    if not form.is_valid():
        raise form_error(form)
    return made_or_started(request, TrafficJob.SYNTHESISE, project, form)


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
    return traffic_out(found(TrafficSet.objects.all(), request, pk))


# Plans -------------------------------------------------------------------------------------------------------


def _fields(row: Plan, state: Staleness | None, fresh: Sequence[Fresh]) -> dict[str, Any]:
    return {
        **job_fields(row), "calibration": row.calibration_id, "second_calibration": row.second_calibration_id,
        "traffic": row.traffic_id,
        "objectives": row.objectives, "feasible": row.feasible, "unjudged": row.unjudged,
        "sentence": row.sentence,
        "staleness": state and state.to_dict(), "freshness": freshness_fields(fresh),
    }  # fmt: skip


def _detail(row: Plan) -> dict[str, Any]:
    return {
        **_fields(row, staleness_of(row), freshness_of_plans([row])[row.pk]),
        "space": row.space,
        "conditions": row.conditions,
        "seed": row.seed,
        "result": row.result,
        "log": row.log,
    }


@router.get("/plans", response=answers({200: PlanPage}), operation_id="list_plans")
def list_plans(request: HttpRequest, filters: Query[PlanFilters]) -> dict[str, Any]:
    """The plans of your projects, newest first."""
    heavy = ("result", "log", "traceback")
    both = ("calibration", "second_calibration")
    light = Plan.objects.defer(*heavy, *(f"{own}__{column}" for own in both for column in heavy))
    rows = filters.select(light, request.user).select_related(*both)
    wanted = {"feasible": filters.feasible, "calibration": filters.calibration, "traffic": filters.traffic}
    rows = rows.filter(**{key: value for key, value in wanted.items() if value is not None})
    if filters.unjudged is not None:
        rows = rows.filter(NOT_JUDGED) if filters.unjudged else rows.exclude(NOT_JUDGED)
    shown = list(filters.slice(rows))
    states, fresh = staleness_by_id(shown), freshness_of_plans(shown)
    return {
        "items": [_fields(row, states.get(row.pk), fresh[row.pk]) for row in shown],
        "count": rows.count(),
    }


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


@router.get(
    "/plans/{uuid:pk}", response=answers({200: PlanDetail}, 404), operation_id="get_plan", exclude_unset=True
)
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
    exclude_unset=True,
)
def list_candidates(request: HttpRequest, pk: uuid.UUID, filters: Query[CandidateFilters]) -> dict[str, Any]:
    """Every configuration that was considered, with its margins, or why it was not tried. 409 until there are any."""
    row = found(Plan.objects.all(), request, pk)
    if row.result is None:
        raise conflict(f"There are no candidates yet: {row.status}.")
    rows = [c for c in row.result["candidates"] if filters.status in (None, c["status"])]
    return {"items": rows[filters.offset : filters.offset + filters.limit], "count": len(rows)}
