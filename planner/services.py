"""What the pages, the API and the commands do with plans, and with traffic (traffic_rows.py: a module of its own,
because a worker that only imports needs nothing of the search). Writes rows; computes nothing itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from accounts.models import Project
from calibration.models import Calibration
from calibration.starting import save_named, start_once
from planner.models import Plan, TrafficSet
from planner.search import Conditions, Objective, SearchSpace, parse_objectives
from planner.search.periods import Asked
from planner.traffic_rows import create_traffic as create_traffic
from planner.traffic_rows import parent_of as parent_of
from planner.traffic_rows import remade as remade
from planner.traffic_rows import traffic_of as traffic_of


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The question a plan answers. ``space`` None: the default space of the calibration's measured region."""

    name: str
    calibration: Calibration
    traffic: TrafficSet
    objectives: tuple[Objective, ...]
    space: SearchSpace | None = None
    max_replicas: int = 8
    seed: int = 0
    conditions: Conditions = field(default_factory=Conditions)
    schedule: Asked = field(default_factory=Asked)
    second: Calibration | None = None
    default_named: bool = False  # nobody chose the name


def objectives_of(plan: Plan) -> tuple[Objective, ...]:
    return parse_objectives(plan.objectives)


def create_plan(project: Project, owner: Any, request: PlanRequest, rerun_of: Plan | None = None) -> Plan:
    """The row alone, for whoever runs it without a queue."""
    plan = _row(project, owner, request, rerun_of)
    save_named(plan, default_named=request.default_named)
    return plan


def _row(project: Project, owner: Any, request: PlanRequest, rerun_of: Plan | None) -> Plan:
    space = {"max_replicas": request.max_replicas} if request.space is None else request.space.to_dict()
    return Plan(
        project=project, owner=owner, name=request.name[:120], calibration=request.calibration,
        traffic=request.traffic, objectives=[objective.spec for objective in request.objectives],
        space=space, seed=request.seed, rerun_of=rerun_of, conditions=request.conditions.to_dict(),
        schedule=request.schedule.to_dict(),
        second_calibration=request.second,
    )  # fmt: skip


def start_plan(project: Project, owner: Any, request: PlanRequest, rerun_of: Plan | None = None) -> Plan:
    """Writes the row and sends the job to queue ``default``; while the same question of the same owner is still being
    answered, that one instead."""
    return _started(_row(project, owner, request, rerun_of), default_named=request.default_named)


def rerun(
    plan: Plan,
    owner: Any,
    calibration: Calibration | None = None,
    conditions: Mapping[str, Any] | None = None,
    second: Calibration | None = None,
) -> Plan:
    """The same question again as a new row with a number behind its name, of other calibrations or under other
    conditions if they are given; while it is being answered, that one."""
    return _started(
        Plan(
            project=plan.project, owner=owner, name=plan.name, calibration=calibration or plan.calibration,
            traffic=plan.traffic, objectives=plan.objectives, space=plan.space, seed=plan.seed, rerun_of=plan,
            conditions=plan.conditions if conditions is None else dict(conditions), schedule=plan.schedule,
            replan_when_stale=plan.replan_when_stale,
            second_calibration=second or plan.second_calibration,
        ),
        default_named=True,
    )  # fmt: skip


#: What makes two plans the same question.
QUESTION = (
    "calibration_id", "second_calibration_id", "traffic_id", "name", "objectives", "space", "conditions", "schedule",
    "seed",
)  # fmt: skip


def _started(plan: Plan, *, default_named: bool) -> Plan:
    from planner import tasks

    return start_once(plan, QUESTION, tasks.run_plan, default_named=default_named)
