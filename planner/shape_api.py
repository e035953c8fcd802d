"""The API's way to shape a traffic: the page's operations as JSON, through the page's form."""

from __future__ import annotations

import uuid
from typing import Annotated, Any

from django.http import HttpRequest
from ninja import Field, Router
from ninja.responses import Status as Answer

from accounts import limits
from config.errors import answers, form_error
from config.schemas import Payload, form_data, found, of
from planner.described_inputs import json_schema
from planner.models import TrafficJob, TrafficSet
from planner.schemas import TrafficOut
from planner.shape_forms import ShapeForm
from planner.traffic.shaping import MAX_OPERATIONS, OPERATIONS
from planner.traffic_job_api import TrafficJobOut, made_or_started

router = Router()


def _operations_schema() -> dict[str, Any]:
    """One alternative per operation, from what the operations say of their own fields."""
    kinds = []
    for name, kind in OPERATIONS.items():
        described = json_schema(kind)
        kinds.append({
            "type": "object", "title": name, "description": kind.ABOUT, "additionalProperties": False,
            "properties": {"op": {"type": "string", "const": name}, **described["properties"]},
            "required": ["op", *described["required"]],
        })  # fmt: skip
    return {"items": {"oneOf": kinds}, "minItems": 1, "maxItems": MAX_OPERATIONS}


class ShapeIn(Payload):
    name: str | None = of(ShapeForm, "name")
    seed: int = of(ShapeForm, "seed")
    operations: Annotated[
        list[dict[str, Any]],
        Field(
            description="Done in order, each on what the one before made. Errors name `operations.INDEX.FIELD`.",
            json_schema_extra=_operations_schema(),
            examples=[[{"op": "window", "to_s": 600}, {"op": "thin", "share": 0.5}]],
        ),
    ]


@router.post(
    "/traffic/{uuid:pk}/shape", response=answers({201: TrafficOut, 202: TrafficJobOut}, 404, 413, 415),
    operation_id="shape_traffic", tags=["traffic"],
)  # fmt: skip
def shape_traffic(request: HttpRequest, pk: uuid.UUID, payload: ShapeIn) -> Answer[Any]:
    """Makes a new traffic of this one, in its project; its recipe (`recipe.shape`) makes it again bit for bit. 202 with
    the job that makes it where that takes longer than a second: poll `/traffic/jobs/{id}`."""
    row = found(TrafficSet.objects.all(), request, pk, to_write=True)
    limits.spend(limits.UPLOAD, str(request.user.pk))
    form = ShapeForm(form_data(payload), traffic=row, user=request.user, defer=True)
    if not form.is_valid():
        raise form_error(form)
    return made_or_started(request, TrafficJob.SHAPE, row.project, form, parent=row)
