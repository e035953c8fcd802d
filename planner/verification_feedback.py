"""What the residuals of a replay lead to, when somebody asks for it: the plan again with wider intervals, or a
calibration that measures more where steps were mispriced, under which the plan is then looked at again (reviews.py).
Nothing is rescaled; what was done stands in the new plan's assumptions and in the calibration's provenance."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from calibration import services as calibrations
from calibration.models import Calibration
from calibration.steptime import StepShape
from planner import services
from planner.models import Plan, Verification
from planner.pool_models import chosen_calibrations
from planner.search.conditions import Conditions

LEAST_SPREAD = 0.005  # a wider interval than this nobody sees


def why_not_wider(row: Verification) -> str:
    """Why no plan with wider intervals can come of it; empty where one can."""
    if row.kind != Verification.REPLAY or not row.result or "step_spread" not in row.result:
        return "Only a replay that was finished says how far off steps were."
    if row.result["step_spread"] < LEAST_SPREAD:
        return "Steps took what was predicted: there is nothing to widen."
    return ""


def why_not_measure(row: Verification) -> str:
    """Why nothing can be measured anew for it; empty where something can."""
    if row.kind != Verification.REPLAY or not row.result or "points" not in row.result:
        return "Only a replay that was finished says where steps were mispriced."
    prefill, decode = chosen_calibrations(row.plan)
    if prefill != decode:
        return "Its pools rest on two calibrations: which of them a step was of, the points do not say."
    if not row.result["points"]:
        return (
            "No kind of step was mispriced by a notable share of the time: there is nothing to measure anew."
        )
    return ""


def wider(row: Verification, owner: Any) -> Plan:
    """The plan again, with what the replay found joined to its step times' uncertainty (as independent errors are)."""
    plan = row.plan
    before = Conditions.from_dict(plan.conditions)
    found: float = (row.result or {})["step_spread"]
    joined = math.expm1(math.hypot(math.log1p(before.step_uncertainty), found))
    wide = replace(before, step_uncertainty=min(1.0, joined))
    return services.rerun(plan, owner, conditions=wide.to_dict())


def measure_points(row: Verification, owner: Any) -> Calibration:
    """A calibration of the same model, device and region, with the mispriced steps among its points."""
    old = row.calibration
    shapes = tuple(StepShape.from_dict(shape) for shape in (row.result or {})["points"])
    request = replace(calibrations.request_of(old), also=shapes)
    return calibrations.start_calibration(old.project, owner, request, old)
