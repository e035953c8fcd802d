"""What a plan's page shows of its verifications, and the forms that start one."""

from __future__ import annotations

from typing import Any

from planner.models import Plan
from planner.verification_forms import EndpointForm, MixedLoadForm, VerifyForm
from planner.verifications import why_not, why_not_endpoint, why_not_mixed_load

SHOWN, MOST_SHOWN = 5, 100  # of a plan's verifications: at once, and with those that a click unfolds


def plan_context(plan: Plan, **forms: Any) -> dict[str, Any]:
    """`forms`: those that were refused, with their errors; the others are empty."""
    rows = list(plan.verifications.defer("steps", "result", "log", "traceback")[:MOST_SHOWN])
    found: dict[str, Any] = {"verifications": rows[:SHOWN], "earlier_verifications": rows[SHOWN:]}
    found["why_not_verify"] = why_not(plan)
    found["why_not_endpoint"] = why_not_endpoint(plan)
    found["verify"] = VerifyForm(auto_id="verify-%s")
    found["endpoint"] = EndpointForm(plan=plan, auto_id="endpoint-%s")
    found["why_not_mixed"] = why_not_mixed_load(plan)
    found["mixed"] = MixedLoadForm(plan=plan, auto_id="mixed-%s")
    return found | forms
