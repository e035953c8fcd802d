"""What the commands that plan share: which calibration may be used, the work done here, and how the answer is told."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from accounts.models import Project
from calibration import jobs
from calibration.models import Calibration
from config import commandline as cli
from planner import work
from planner.commands import calibration_of
from planner.models import Plan
from planner.plan_text import lines_of


def published(named: str, owner: Any, project: Project) -> Calibration:
    """The calibration that is meant. CommandError (exit 3) for one that the gate refused."""
    calibration = calibration_of(named, owner, project)
    if not calibration.published:
        state = calibration.reason or f"it is {calibration.status}"
        raise CommandError(f"not published: {state}", returncode=cli.REFUSED)
    return calibration


def answer_here(plan: Plan) -> None:
    """Does the plan's work in this process. CommandError (exit 1) unless it comes to an answer."""
    with cli.telling() as teller:
        status = jobs.run(Plan, str(plan.pk), work.plan, teller)
    plan.refresh_from_db()
    if status != Plan.DONE or plan.result is None:
        raise CommandError(f"{status}: {plan.error or plan.message}", returncode=cli.BELOW)


def told(command: BaseCommand, plan: Plan) -> None:
    """The answer in words."""
    for line in lines_of(plan):
        command.stdout.write(line)


def as_json(plan: Plan) -> dict[str, Any]:
    result = plan.result or {}
    return {"plan": str(plan.pk), **result["summary"], "schedule": result.get("schedule")}
