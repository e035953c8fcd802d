"""The API's comparison of two traffics."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpRequest
from ninja import Field, Query, Router, Schema

from accounts import limits
from config.errors import answers
from config.schemas import found
from planner import services
from planner.models import TrafficSet
from planner.traffic.comparison import compare

router = Router()


class RowOut(Schema):
    """`ratio` is second / first; `low` to `high` its 95 % interval. null: does not exist, or too little data."""

    name: str
    unit: str
    first: float | None
    second: float | None
    ratio: float | None
    low: float | None
    high: float | None
    differs: bool | None = Field(
        description="The interval leaves out 1, and the ratio is off it by 0.005 or more."
    )


class DistanceOut(Schema):
    name: str
    distance: float = Field(description="Kolmogorov-Smirnov, 0 to 1.")
    chance: float = Field(description="Two samples of one law exceed this in 5 % of cases.")


class ComparisonOut(Schema):
    rows: list[RowOut]
    distances: list[DistanceOut]
    rank_correlations: list[float | None] = Field(description="Spearman's of prompt and output, of each.")
    requests: list[int]
    seed: int = Field(description="Of the resampling.")


class ComparisonQuery(Schema):
    seed: int = Field(0, ge=0, le=2**31 - 1)


@router.get(
    "/traffic/{uuid:pk}/compare/{uuid:other}", response=answers({200: ComparisonOut}, 404),
    operation_id="compare_traffic", tags=["traffic"],
)  # fmt: skip
def compare_traffic(
    request: HttpRequest, pk: uuid.UUID, other: uuid.UUID, query: Query[ComparisonQuery]
) -> dict[str, Any]:
    """The second (`other`) against the first: rate, burstiness, lengths with bootstrap intervals, distances."""
    limits.spend(limits.LOOK, str(request.user.pk))
    first, second = (
        services.traffic_of(found(TrafficSet.objects.all(), request, one)) for one in (pk, other)
    )
    return compare(first, second, seed=query.seed).to_dict()
