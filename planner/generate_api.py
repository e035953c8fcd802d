"""The API's way to make traffic from a model: the page's form, the model as JSON."""

from __future__ import annotations

from typing import Annotated, Any

from django.http import HttpRequest
from ninja import Field, Router
from ninja.responses import Status as Answer

from accounts import limits
from config.errors import answers, form_error
from config.schemas import Payload, Slug, form_data, of, target_project
from planner.described_inputs import json_schema
from planner.generate_forms import GenerateForm
from planner.models import TrafficJob
from planner.schemas import TrafficOut
from planner.traffic import PRESETS
from planner.traffic.generating import PARTS, Sessions
from planner.traffic_job_api import TrafficJobOut, made_or_started

router = Router()


def _model_schema() -> dict[str, Any]:
    """From what the parts say of their own fields."""
    parts: dict[str, Any] = {}
    for part, kinds in PARTS.items():
        parts[part] = {"oneOf": [
            {"type": "object", "title": name, "description": kind.ABOUT, "additionalProperties": False,
             "properties": {"kind": {"type": "string", "const": name}, **json_schema(kind)["properties"]},
             "required": ["kind", *json_schema(kind)["required"]]}
            for name, kind in kinds.items()
        ]}  # fmt: skip
    sessions = {
        "type": "object",
        "description": Sessions.ABOUT,
        "additionalProperties": False,
        **json_schema(Sessions),
    }
    return {
        "properties": {**parts, "sessions": sessions},
        "required": list(PARTS),
        "additionalProperties": False,
    }


class GenerateIn(Payload):
    project: Slug | None = None
    name: str | None = of(GenerateForm, "name")
    model: Annotated[
        dict[str, Any],
        Field(
            description="Arrivals, lengths and, if requests belong together, sessions. Errors name `model.PART.FIELD`.",
            json_schema_extra=_model_schema(),
            examples=[PRESETS["conversation"].model().to_dict()],
        ),
    ]
    requests: int | None = of(GenerateForm, "requests")
    duration_s: float | None = of(GenerateForm, "duration_s")
    seed: int = of(GenerateForm, "seed")


@router.post(
    "/traffic/generate", response=answers({201: TrafficOut, 202: TrafficJobOut}, 413, 415),
    operation_id="generate_traffic", tags=["traffic"],
)  # fmt: skip
def generate_traffic(request: HttpRequest, payload: GenerateIn) -> Answer[Any]:
    """Makes traffic up from a model; the same model with the same seed gives the same traffic. 202 with the job that
    makes it where that takes longer than a second: poll `/traffic/jobs/{id}`."""
    project = target_project(request, payload.project)
    limits.spend(limits.UPLOAD, str(request.user.pk))
    form = GenerateForm(form_data(payload, "project"), project=project, user=request.user, defer=True)
    if not form.is_valid():
        raise form_error(form)
    return made_or_started(request, TrafficJob.GENERATE, project, form)
