"""What a plan's page shows of its verifications, and the forms that start one."""

from __future__ import annotations

from typing import Any

from planner.models import Plan
from planner.verification_forms import EndpointForm, MixedLoadForm, VerifyForm
from planner.verifications import why_not, why_not_endpoint, why_not_mixed_load


def plan_context(plan: Plan, **forms: Any) -> dict[str, Any]:
    """`forms`: those that were refused, with their errors; the others are empty."""
    rows = plan.verifications.defer("steps", "result", "log", "traceback")[:5]
    found: dict[str, Any] = {"verifications": rows, "why_not_verify": why_not(plan)}
    found["why_not_endpoint"] = why_not_endpoint(plan)
    found["verify"] = VerifyForm(auto_id="verify-%s")
    found["endpoint"] = EndpointForm(plan=plan, auto_id="endpoint-%s")
    found["why_not_mixed"] = why_not_mixed_load(plan)
    found["mixed"] = MixedLoadForm(plan=plan, auto_id="mixed-%s")
    return found | forms
