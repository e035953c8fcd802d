"""What a plan's form amounts to while it is filled in: what is known of the calibration and the traffic chosen,
and what would be tried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calibration.models import Calibration
from calibration.services import step_time_model
from planner.models import TrafficSet
from planner.search import Bounds


def question_context(cleaned: Mapping[str, Any]) -> dict[str, Any]:
    """``cleaned``: the cleaned data of a PlanForm, also of one that is not complete yet."""
    calibration: Calibration | None = cleaned.get("calibration")
    traffic: TrafficSet | None = cleaned.get("traffic")
    request = cleaned.get("request")
    space = request.space if request else cleaned.get("space")
    context: dict[str, Any] = {"calibration": calibration, "traffic": traffic, "space": space}
    if calibration is not None:
        context["bounds"] = Bounds.of(step_time_model(calibration).arrays())
        context["heldout"] = (calibration.result or {}).get("heldout") or {}
    if calibration is not None and traffic is not None:
        longest, pool = traffic.statistics["max_context_tokens"], calibration.kv_tokens or 0
        context["too_long"] = longest > pool
    if space is not None:
        combinations = len(space.budgets_tokens) * len(space.chunk_caps_tokens) * len(space.max_num_seqs)
        context["combinations"] = combinations
        context["objectives"] = [o.label for o in request.objectives] if request else []
    return context
