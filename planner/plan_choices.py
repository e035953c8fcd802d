"""What a plan's form chooses beforehand: what the address says, and what there is no choice about."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.http import QueryDict

from accounts.access import OwnedQuerySet
from calibration.models import Calibration
from planner.models import Plan, TrafficSet
from planner.plan_again import initial_of


def chosen_beforehand(user: Any, said: QueryDict) -> dict[str, Any]:
    """`said`, and the calibration and the traffic where exactly one can be meant: both are of one project. Where it
    names a plan, that plan's question with what else is said; `objective` then stands for all of the plan's."""
    chosen: dict[str, Any] = said.dict()
    asked_for, objectives = chosen.pop("plan", None), said.getlist("objective")
    if asked_for and (plan := _plan(user, asked_for)) is not None:
        chosen = initial_of(plan, objectives) | chosen
    rows: dict[str, OwnedQuerySet[Any]] = {
        "calibration": Calibration.objects.visible_to(user).usable(),
        "traffic": TrafficSet.objects.visible_to(user),
    }
    for name, other in (("calibration", "traffic"), ("traffic", "calibration")):
        if name in chosen:
            continue
        usable = rows[name]
        if (project := _project(rows[other], chosen.get(other))) is not None:
            usable = usable.filter(project=project)
        found = list(usable.values_list("pk", flat=True)[:2])
        if len(found) == 1:
            chosen[name] = found[0]
    return chosen


def _plan(user: Any, pk: str) -> Plan | None:
    rows = Plan.objects.visible_to(user).select_related("calibration", "second_calibration")
    try:
        return rows.filter(pk=pk).defer("result", "log", "traceback").first()
    except (ValidationError, ValueError):
        return None


def _project(rows: OwnedQuerySet[Any], pk: Any) -> int | None:
    """Of the row with this id; None for what is no id, or nobody's that may be seen."""
    try:
        found: int | None = rows.filter(pk=pk).values_list("project", flat=True).first() if pk else None
    except (ValidationError, ValueError):
        return None
    return found
