"""The API's way to a model fitted to a traffic."""

from __future__ import annotations

import uuid
from typing import Annotated, Any, Literal

from django.http import HttpRequest
from ninja import Field, Query, Router, Schema
from ninja.responses import Status as Answer

from accounts import limits
from config.errors import answers, conflict, form_error
from config.schemas import Payload, found
from planner import traffic_work
from planner.compare_api import ComparisonOut
from planner.fit_forms import FitForm
from planner.models import TrafficJob, TrafficSet
from planner.traffic.fitting import FIT_PARTS
from planner.traffic_job_api import TrafficJobOut, traffic_job

router = Router()
ArrivalsKind = Literal["poisson", "gamma", "on_off", "diurnal", "replayed"]
LengthsKind = Literal["lognormal", "mixture", "empirical"]
SessionsKind = Literal["none", "growing"]


class FitCandidateOut(Schema):
    """A kind on the held-out half; a small score is good. `figures` are of what the model made."""

    kind: str
    title: str
    score: float
    figures: dict[str, float | None]


class ChosenOut(Schema):
    arrivals: ArrivalsKind
    lengths: LengthsKind
    sessions: SessionsKind


class FitOut(Schema):
    model: dict[str, Any] = Field(description="Fitted to all: what `traffic/generate` takes.")
    chosen: ChosenOut
    arrivals: list[FitCandidateOut]
    lengths: list[FitCandidateOut]
    sessions: list[FitCandidateOut] = Field(description="Empty where no prefix hashes show sessions.")
    heldout: ComparisonOut = Field(
        description="The held-out half (first) and the model of the other half (second)."
    )
    halves: ComparisonOut = Field(description="The held-out half and the half that was fitted.")
    requests: int = Field(description="Used: the first ones of a larger traffic.")
    seed: int
    remarks: list[str] = Field(description="What the traffic has that is not in the model.")


class FitQuery(Schema):
    arrivals: Annotated[ArrivalsKind | None, Field(description="Default: what holds best.")] = None
    lengths: Annotated[LengthsKind | None, Field(description="Default: what holds best.")] = None
    sessions: Annotated[SessionsKind | None, Field(description="Default: what holds best.")] = None


@router.get(
    "/traffic/{uuid:pk}/fit",
    response=answers({200: FitOut}, 404, 409),
    operation_id="fit_traffic",
    tags=["traffic"],
)
def fit_traffic(request: HttpRequest, pk: uuid.UUID, query: Query[FitQuery]) -> dict[str, Any]:
    """A model of this traffic, fitted to its first half and judged on its second; 422 for fewer than 200 requests. Of
    more than 20,000 requests a worker makes it (POST): 409 until it has."""
    row = found(TrafficSet.objects.all(), request, pk)
    limits.spend(limits.LOOK, str(request.user.pk))
    form = _form(row, query)
    if form.report is None:
        raise conflict(
            f"{row.statistics['requests']:,} requests are fitted by a worker: POST here starts it."
        )
    return form.report.to_dict()


class FitIn(Payload):
    arrivals: Annotated[ArrivalsKind | None, Field(description="Default: what holds best.")] = None
    lengths: Annotated[LengthsKind | None, Field(description="Default: what holds best.")] = None
    sessions: Annotated[SessionsKind | None, Field(description="Default: what holds best.")] = None


@router.post(
    "/traffic/{uuid:pk}/fit",
    response=answers({200: FitOut, 202: TrafficJobOut}, 404, 413, 415),
    operation_id="start_fit",
    tags=["traffic"],
)
def start_fit(request: HttpRequest, pk: uuid.UUID, payload: FitIn) -> Answer[Any]:
    """200 with the fit where it is there or quickly made, else 202 with the job: poll `/traffic/jobs/{id}`, then GET
    here with the same kinds."""
    row = found(TrafficSet.objects.all(), request, pk, to_write=True)
    limits.spend(limits.LOOK, str(request.user.pk))
    form = _form(row, payload)
    if form.report is not None:
        return Answer(200, form.report.to_dict())
    limits.spend(limits.JOB_START, str(request.user.pk))
    name = f"Model of {row.name}"
    job = traffic_work.start(TrafficJob.FIT, row.project, request.user, name, form.options(), parent=row)
    return Answer(202, traffic_job(job))


def _form(row: TrafficSet, kinds: FitQuery | FitIn) -> FitForm:
    form = FitForm({part: getattr(kinds, part) or "" for part in FIT_PARTS}, traffic=row, defer=True)
    if not form.is_valid():
        raise form_error(form)
    return form
