"""The API's comparison of two to four plans."""

from __future__ import annotations

import uuid
from dataclasses import asdict
from typing import Any

from django.http import HttpRequest
from ninja import Field, Query, Router, Schema

from config.errors import ApiError, answers, conflict
from planner.plan_compare import Compared, Line, NotComparable, compared
from planner.plan_compare_views import BadChoice, chosen

router = Router()


class ComparePlansQuery(Schema):
    other: list[uuid.UUID] = Field([], description="One to three more plans: `other=ID&other=ID`.")


class ComparedPlanOut(Schema):
    id: uuid.UUID
    name: str
    status: str
    sentence: str
    content_hash: str


class ComparedLineOut(Schema):
    """`values`: one for each plan, in their order; null: does not apply, or is not known. Seconds, shares of 1."""

    key: str
    label: str
    differs: bool
    values: list[Any]


class ComparedPercentileOut(Schema):
    limit_s: float = Field(description="Of a joint objective 1, and the values are shares of its limits.")
    limits: str = Field(description="Of a joint objective, in words.")
    predicted_s: float | None
    low_s: float | None = Field(description="90 % interval.")
    high_s: float | None
    margin: float | None
    probability: float | None
    claimed: bool


class ComparedPercentileLineOut(Schema):
    key: str = Field(description="[class=]metric:percentile.")
    label: str
    joint: bool
    differs: bool
    values: list[ComparedPercentileOut | None] = Field(description="null: it has no such objective.")


class ComparedCurvesOut(Schema):
    percentiles: list[float]
    curves_s: dict[str, list[float]] = Field(
        description="Seconds by metric; empty where there is no latency."
    )


class ComparedPlansOut(Schema):
    plans: list[ComparedPlanOut]
    inputs: list[ComparedLineOut]
    answers: list[ComparedLineOut]
    percentiles: list[ComparedPercentileLineOut] = Field(description="Of the choice, or the closest.")
    distributions: list[ComparedCurvesOut]


@router.get(
    "/plans/{uuid:pk}/compare", response=answers({200: ComparedPlansOut}, 404, 409), operation_id="compare_plans",
    tags=["plans"],
)  # fmt: skip
def compare_plans(request: HttpRequest, pk: uuid.UUID, query: Query[ComparePlansQuery]) -> dict[str, Any]:
    """This plan beside one to three others: inputs and answers line by line, percentiles with their intervals,
    distributions. 409 until all of them have an answer."""
    try:
        found = compared(chosen(request.user, [str(one) for one in (pk, *query.other)]))
    except BadChoice as error:
        raise ApiError(422, "The request is not valid.", [("other", str(error))]) from error
    except NotComparable as error:
        raise conflict(str(error)) from error
    return _out(found)


def _out(found: Compared) -> dict[str, Any]:
    results = [plan.result or {} for plan in found.plans]
    whys = [result.get("why") or {} for result in results]
    return {
        "plans": [
            {"id": plan.pk, "name": plan.name, "status": plan.status, "sentence": plan.sentence,
             "content_hash": result["content_hash"]}
            for plan, result in zip(found.plans, results, strict=True)
        ],
        "inputs": [_line(line) for line in found.inputs],
        "answers": [_line(line) for line in found.answers],
        "percentiles": [
            {"key": line.key, "label": line.label, "joint": line.joint, "differs": line.differs,
             "values": [asdict(value) if value else None for value in line.values]}
            for line in found.percentiles
        ],
        "distributions": [
            {"percentiles": why.get("curve_percentiles", []), "curves_s": why.get("curves_s", {})} for why in whys
        ],
    }  # fmt: skip


def _line(line: Line) -> dict[str, Any]:
    return {"key": line.key, "label": line.label, "differs": line.differs, "values": list(line.values)}
