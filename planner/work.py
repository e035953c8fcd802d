"""The work behind the plan job: what runs between a row's claim and its end."""

from __future__ import annotations

from calibration.architecture import Architecture
from calibration.jobs import JobCancelled, JobRefused, JobRun
from calibration.models import Calibration
from calibration.patience import patiently
from calibration.services import step_time_model
from planner import search, services
from planner.models import Plan
from planner.search import PlanError, SearchSpace, parse_objectives


def plan(plan: Plan, run: JobRun) -> None:
    """Searches the plan's space on its traffic; writes the verdict and every candidate with its reason."""
    calibration = Calibration.objects.get(pk=plan.calibration_id)
    if not calibration.published:
        raise JobRefused(f"The calibration {calibration.name!r} is not published: {calibration.reason}")
    space = SearchSpace.from_dict(plan.space) if "budgets_tokens" in plan.space else None
    try:
        result = search.plan(
            services.traffic_of(plan.traffic),
            step_time_model(calibration),
            int(calibration.kv_tokens or 0),
            Architecture.from_dict(calibration.architecture),
            parse_objectives(plan.objectives),
            space,
            max_replicas=plan.space.get("max_replicas", search.DEFAULT_MAX_REPLICAS),
            device=calibration.device,
            seed=plan.seed,
            on_progress=run.progress,
            should_stop=run.should_stop,
        )
    except PlanError as error:
        raise JobRefused(error.message) from error
    verdict = result.verdict
    values = {"result": result.to_dict(), "feasible": verdict.feasible, "sentence": verdict.sentence}
    rows = Plan.objects.filter(pk=plan.pk, status=Plan.RUNNING)
    patiently(lambda: rows.update(**values))
    if result.stopped:
        raise JobCancelled
    run.write_log(verdict.sentence)
