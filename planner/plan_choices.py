"""What a plan's form chooses beforehand: what the address says, and what there is no choice about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ValidationError

from accounts.access import OwnedQuerySet
from calibration.models import Calibration
from planner.models import TrafficSet


def chosen_beforehand(user: Any, said: Mapping[str, Any]) -> dict[str, Any]:
    """`said`, and the calibration and the traffic where exactly one can be meant: both are of one project."""
    chosen = dict(said)
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


def _project(rows: OwnedQuerySet[Any], pk: Any) -> int | None:
    """Of the row with this id; None for what is no id, or nobody's that may be seen."""
    try:
        found: int | None = rows.filter(pk=pk).values_list("project", flat=True).first() if pk else None
    except (ValidationError, ValueError):
        return None
    return found
