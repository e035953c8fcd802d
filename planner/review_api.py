"""The API's way to plans under newer step times."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpRequest
from ninja import Field, Router, Schema
from ninja.responses import Status as Answer

from accounts import limits
from config.errors import answers, conflict
from config.schemas import Payload, found
from planner import reviews
from planner.models import Plan
from planner.review_schemas import StalenessOut
from planner.review_views import latest_review

router = Router()


class FollowIn(Payload):
    replan_when_stale: bool = Field(description="Make it again by itself where newer step times change it.")


class PlanStalenessOut(Schema):
    plan: uuid.UUID
    replan_when_stale: bool
    staleness: StalenessOut | None = Field(description="Null of a plan that is not done.")


def _fields(plan: Plan) -> dict[str, Any]:
    state = reviews.staleness_of(plan)
    return {
        "plan": plan.pk, "replan_when_stale": plan.replan_when_stale, "staleness": state and state.to_dict(),
    }  # fmt: skip


@router.get(
    "/plans/{uuid:pk}/staleness", response=answers({200: PlanStalenessOut}, 404), operation_id="get_staleness"
)
def get_staleness(request: HttpRequest, pk: uuid.UUID) -> dict[str, Any]:
    """Whether its answer still stands, and the difference of the recommendation where it does not."""
    return _fields(found(Plan.objects.defer("result", "log", "traceback"), request, pk))


@router.put(
    "/plans/{uuid:pk}/staleness", response=answers({200: PlanStalenessOut}, 404, 413, 415),
    operation_id="follow_plan",
)  # fmt: skip
def follow_plan(request: HttpRequest, pk: uuid.UUID, payload: FollowIn) -> dict[str, Any]:
    """Whether it is made again by itself where newer step times change its answer."""
    plan = found(Plan.objects.defer("result", "log", "traceback"), request, pk, to_write=True)
    Plan.objects.filter(pk=plan.pk).update(replan_when_stale=payload.replan_when_stale)
    plan.replan_when_stale = payload.replan_when_stale
    return _fields(plan)


@router.post(
    "/plans/{uuid:pk}/replan", response=answers({202: PlanStalenessOut}, 404, 409), operation_id="replan"
)
def replan(request: HttpRequest, pk: uuid.UUID) -> Answer[Any]:
    """Makes a stale plan again with the newer step times; once, however often it is asked. 409 where it is not
    stale."""
    plan = found(Plan.objects.all(), request, pk, to_write=True)
    row = latest_review(plan)
    if row is None:
        raise conflict("Nothing newer changed its answer.")
    limits.spend(limits.JOB_START, str(request.user.pk))
    reviews.replan(row, request.user)
    return Answer(202, _fields(plan))
