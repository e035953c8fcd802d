"""The API's way to verifications."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpRequest
from ninja import Query, Router
from ninja.responses import Status as Answer

from accounts import limits
from config.errors import answers, conflict, form_error
from config.schemas import Paging, form_data, found
from planner import verification_feedback as feedback
from planner import verifications
from planner.models import Plan, ServerAnswers, Verification
from planner.verification.answer_rows import COLUMNS, unpacked
from planner.verification_forms import EndpointForm, MixedLoadForm, VerifyForm
from planner.verification_schemas import (
    EndpointIn,
    MixedLoadIn,
    SentPage,
    StartedOut,
    VerificationFilters,
    VerificationOut,
    VerificationPage,
    VerifyIn,
    verification_fields,
)
from planner.verifications import (
    start_verification,
    why_no_rerun,
    why_not,
    why_not_endpoint,
    why_not_mixed_load,
)

router = Router()
REPLAYED = Verification.objects.select_related(
    "plan", "plan__project", "plan__calibration", "plan__second_calibration"
).defer("steps")


@router.post(
    "/plans/{uuid:pk}/verifications",
    response=answers({202: VerificationOut}, 404, 409, 413, 415),
    operation_id="start_verification",
)
def start(request: HttpRequest, pk: uuid.UUID, payload: VerifyIn) -> Answer[Any]:
    """Serves a window of the plan's traffic on its device and compares. While the same is at
    work, that one. 409 for a plan that cannot be replayed."""
    plan = found(Plan.objects.select_related("calibration"), request, pk, to_write=True)
    form = VerifyForm(form_data(payload))
    if not form.is_valid():
        raise form_error(form)
    if reason := why_not(plan):
        raise conflict(reason)
    limits.spend(limits.JOB_START, str(request.user.pk))
    return Answer(202, verification_fields(start_verification(plan, request.user, form.asked())))


@router.post(
    "/plans/{uuid:pk}/verifications/endpoint",
    response=answers({202: VerificationOut}, 404, 409, 413, 415),
    operation_id="verify_endpoint",
)
def start_endpoint(request: HttpRequest, pk: uuid.UUID, payload: EndpointIn) -> Answer[Any]:
    """Sends a window of the plan's traffic to a running OpenAI-compatible server, on schedule however late the answers
    are, and compares. The API key is kept for this run only and shown nowhere. While the
    same is at work, that one. 409 for a plan without an answer."""
    plan = found(Plan.objects.select_related("calibration"), request, pk, to_write=True)
    if reason := why_not_endpoint(plan):
        raise conflict(reason)
    form = EndpointForm(form_data(payload), plan=plan)
    if not form.is_valid():
        raise form_error(form)
    limits.spend(limits.JOB_START, str(request.user.pk))
    return Answer(202, verification_fields(start_verification(plan, request.user, form.asked())))


@router.post(
    "/plans/{uuid:pk}/verifications/mixed-load",
    response=answers({202: VerificationOut}, 404, 409, 413, 415),
    operation_id="start_mixed_load",
)
def start_mixed_load(request: HttpRequest, pk: uuid.UUID, payload: MixedLoadIn) -> Answer[Any]:
    """Runs long prompts beside short answers on the plan's device: whole, in chunks of three sizes, in separate pools;
    gaps of the answers, predicted and measured. While the same is at work, that one. 409 for a plan
    that recommends nothing or whose step times were imported."""
    plan = found(Plan.objects.select_related("calibration"), request, pk, to_write=True)
    if reason := why_not_mixed_load(plan):
        raise conflict(reason)
    form = MixedLoadForm(form_data(payload), plan=plan)
    if not form.is_valid():
        raise form_error(form)
    limits.spend(limits.JOB_START, str(request.user.pk))
    return Answer(202, verification_fields(start_verification(plan, request.user, form.asked())))


@router.get("/verifications", response=answers({200: VerificationPage}), operation_id="list_verifications")
def list_verifications(request: HttpRequest, filters: Query[VerificationFilters]) -> dict[str, Any]:
    """The verifications of your projects, newest first."""
    rows = filters.select(Verification.objects.defer("steps", "log", "traceback"), request.user)
    if filters.plan is not None:
        rows = rows.filter(plan=filters.plan)
    return {"items": [verification_fields(row) for row in filters.slice(rows)], "count": rows.count()}


@router.get(
    "/verifications/{uuid:pk}", response=answers({200: VerificationOut}, 404), operation_id="get_verification"
)
def get_verification(request: HttpRequest, pk: uuid.UUID) -> dict[str, Any]:
    """Progress and, once it is done, the report."""
    return verification_fields(found(Verification.objects.defer("steps"), request, pk))


@router.get(
    "/verifications/{uuid:pk}/requests",
    response=answers({200: SentPage}, 404),
    operation_id="list_verification_requests",
)
def list_requests(request: HttpRequest, pk: uuid.UUID, paging: Query[Paging]) -> dict[str, Any]:
    """What each request to a running server saw, in the order of the window; none of other kinds, or before the end."""
    row = found(Verification.objects.defer("steps", "result"), request, pk)
    kept = ServerAnswers.objects.filter(verification=row).first()
    rows = unpacked(bytes(kept.rows)) if kept else []
    items = [
        dict(zip(COLUMNS, each, strict=True)) for each in rows[paging.offset : paging.offset + paging.limit]
    ]
    return {"items": items, "count": len(rows)}


@router.post(
    "/verifications/{uuid:pk}/cancel",
    response=answers({202: VerificationOut}, 404, 409),
    operation_id="cancel_verification",
)
def cancel(request: HttpRequest, pk: uuid.UUID) -> Answer[Any]:
    """Stops after the step it is at. 409 when it had already ended."""
    row = found(Verification.objects.defer("steps"), request, pk, to_write=True)
    if not verifications.cancel(row):
        raise conflict(f"It has already ended: {row.status}.")
    return Answer(202, verification_fields(found(Verification.objects.defer("steps"), request, pk)))


@router.post(
    "/verifications/{uuid:pk}/rerun",
    response=answers({202: VerificationOut}, 404, 409),
    operation_id="rerun_verification",
)
def rerun(request: HttpRequest, pk: uuid.UUID) -> Answer[Any]:
    """Again, as a new row; one that was cut short goes on where it was. 409 while this one is still at it, and where it
    was asked with an API key."""
    row = found(Verification.objects.select_related("plan", "plan__project"), request, pk, to_write=True)
    if reason := why_no_rerun(row):
        raise conflict(reason)
    limits.spend(limits.JOB_START, str(request.user.pk))
    return Answer(202, verification_fields(verifications.rerun(row, request.user)))


@router.post(
    "/verifications/{uuid:pk}/widen", response=answers({202: StartedOut}, 404, 409), operation_id="widen_plan"
)
def widen(request: HttpRequest, pk: uuid.UUID) -> Answer[Any]:
    """The plan again with wider intervals: what the replay found steps to be off by joins their uncertainty, and the
    new plan says so. 409 where nothing was off."""
    row = found(REPLAYED, request, pk, to_write=True)
    if reason := feedback.why_not_wider(row):
        raise conflict(reason)
    limits.spend(limits.JOB_START, str(request.user.pk))
    plan = feedback.wider(row, request.user)
    return Answer(202, {"plan": plan.pk, "step_uncertainty": plan.conditions["step_uncertainty"]})


@router.post(
    "/verifications/{uuid:pk}/measure",
    response=answers({202: StartedOut}, 404, 409),
    operation_id="measure_points",
)
def measure(request: HttpRequest, pk: uuid.UUID) -> Answer[Any]:
    """A calibration with the mispriced steps among its points. Plans that rest on the old one are looked at again when
    it is published. 409 where no kind of step was mispriced."""
    row = found(REPLAYED, request, pk, to_write=True)
    if reason := feedback.why_not_measure(row):
        raise conflict(reason)
    limits.spend(limits.JOB_START, str(request.user.pk))
    calibration = feedback.measure_points(row, request.user)
    return Answer(202, {"calibration": calibration.pk, "points": len(calibration.provenance["also"])})
