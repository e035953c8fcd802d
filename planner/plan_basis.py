"""What a plan rests on: each of its calibrations, how old it is, and whether it may still be believed."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from calibration.freshness import Freshness, freshness_by_id
from calibration.models import Calibration
from planner.models import Plan
from planner.pool_models import calibrations_of

Fresh = tuple[Calibration, Freshness | None]


@dataclass(frozen=True, slots=True)
class Basis:
    """One calibration under a plan. `version`: SHA-256 of the law that the plan used; empty where there is no answer.
    Held-out errors are shares of 1."""

    calibration: Calibration
    fresh: Freshness | None
    version: str
    heldout_median: float | None
    heldout_p90: float | None


def freshness_of_plans(plans: Sequence[Plan]) -> dict[uuid.UUID, list[Fresh]]:
    """In two queries however many plans there are. Their calibrations should be there already."""
    rows = {row.pk: row for plan in plans for row in calibrations_of(plan)}
    found = freshness_by_id(list(rows.values()))
    return {plan.pk: [(row, found.get(row.pk)) for row in calibrations_of(plan)] for plan in plans}


def freshness_fields(fresh: Sequence[Fresh]) -> list[dict[str, Any]]:
    """As the API has it: one entry for each calibration that is done."""
    return [{"calibration": row.pk, **state.to_dict()} for row, state in fresh if state is not None]


def basis_of(plan: Plan) -> list[Basis]:
    """What a plan's page shows, in one query more than its freshness takes."""
    inputs: dict[str, Any] = (plan.result or {}).get("inputs") or {}
    versions = [kind["step_time_sha256"] for kind in inputs.get("hardware") or [inputs] if kind]
    rows = calibrations_of(plan)
    errors = dict(
        Calibration.objects.filter(pk__in=[row.pk for row in rows]).values_list("pk", "result__heldout")
    )
    found = []
    for number, (row, fresh) in enumerate(freshness_of_plans([plan])[plan.pk]):
        heldout = errors.get(row.pk) or {}
        version = versions[number] if number < len(versions) else ""
        found.append(Basis(row, fresh, version, heldout.get("median"), heldout.get("p90")))
    return found
