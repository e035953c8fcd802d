"""The API's way to a plan's recipes."""

from __future__ import annotations

import uuid
from typing import Annotated, Any

from django.http import HttpRequest
from ninja import Field, Query, Router, Schema

from config.errors import ApiError, answers, conflict, form_error, not_found
from config.schemas import found
from planner.models import Plan
from planner.plan_recipes import recipe_of, service_of
from planner.recipe_forms import RecipeForm
from planner.recipes import TARGETS, RecipeError, targets_of

router = Router()


class RecipeQuery(Schema):
    model: Annotated[
        str, Field(max_length=200, description="What the engine loads; default: the calibration's model.")
    ] = ""
    node_label: Annotated[
        str, Field(max_length=300, description="`key=value` of the nodes to run on; of a plan on two kinds of hardware "
                                               "the first's.")
    ] = ""  # fmt: skip
    second_node_label: Annotated[
        str,
        Field(max_length=300, description="Of the second kind's nodes; default: `ridgeline/hardware=NAME`."),
    ] = ""


class RecipeFileOut(Schema):
    name: str
    text: str
    about: str


class RecipeOut(Schema):
    """Files to start the recommended deployment with; `benchmark.sh` replays the plan's traffic against it."""

    target: str = Field(description=f"One of {', '.join(TARGETS)}.")
    title: str
    files: list[RecipeFileOut]
    remarks: list[str]


@router.get(
    "/plans/{uuid:pk}/recipes/{slug:target}",
    response=answers({200: RecipeOut}, 404, 409),
    operation_id="get_recipe",
    tags=["plans"],
)
def get_recipe(request: HttpRequest, pk: uuid.UUID, target: str, query: Query[RecipeQuery]) -> Any:
    """409 until the plan recommends something, and for a target that does not run its engine."""
    rows = Plan.objects.select_related("calibration", "second_calibration", "traffic")
    plan: Plan = found(rows, request, pk)
    form = RecipeForm(query.dict(), plan=plan)
    if target not in TARGETS:
        raise not_found()
    if not form.is_valid():
        raise form_error(form)
    service = service_of(plan, form.cleaned_data["model"], form.node_labels())
    if service is None:
        raise conflict(f"The plan recommends nothing: {plan.sentence or plan.status}")
    if target not in targets_of(service):
        raise conflict(
            f"{TARGETS[target]} does not run this plan: one of {', '.join(targets_of(service))} does."
        )
    try:
        return recipe_of(plan, service, target)
    except RecipeError as error:
        raise ApiError(409, str(error)) from error
