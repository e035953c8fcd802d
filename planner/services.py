"""What the pages, the API and the commands do with traffic and plans. Writes rows; computes nothing itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db import transaction

from accounts.models import Project
from calibration import jobs
from calibration.models import Calibration
from planner.models import Plan, TrafficArrays, TrafficSet
from planner.search import Objective, SearchSpace, parse_objectives
from planner.traffic import Traffic, from_npz_bytes, statistics, to_npz_bytes


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


def create_traffic(project: Project, owner: Any, name: str, traffic: Traffic) -> TrafficSet:
    """Stores the arrays and what a page shows of them. The file they came from is not kept."""
    figures = statistics(traffic)
    warnings = figures.pop("warnings")
    with transaction.atomic():
        row = TrafficSet.objects.create(
            project=project, owner=owner, name=name[:120], format=traffic.format, source=traffic.source[:255],
            statistics=figures, warnings=warnings, recipe=dict(traffic.recipe),
        )  # fmt: skip
        TrafficArrays.objects.create(traffic=row, npz=to_npz_bytes(traffic))
    return row


def objectives_of(plan: Plan) -> tuple[Objective, ...]:
    return parse_objectives(plan.objectives)


def traffic_of(row: TrafficSet) -> Traffic:
    return from_npz_bytes(bytes(row.arrays.npz))


def create_plan(project: Project, owner: Any, request: PlanRequest, rerun_of: Plan | None = None) -> Plan:
    space = {"max_replicas": request.max_replicas} if request.space is None else request.space.to_dict()
    return Plan.objects.create(
        project=project, owner=owner, name=request.name[:120], calibration=request.calibration,
        traffic=request.traffic, objectives=[objective.spec for objective in request.objectives],
        space=space, seed=request.seed, rerun_of=rerun_of,
    )  # fmt: skip


def start_plan(project: Project, owner: Any, request: PlanRequest, rerun_of: Plan | None = None) -> Plan:
    """Writes the row and sends the job to queue ``default``."""
    from planner import tasks

    with transaction.atomic():
        plan = create_plan(project, owner, request, rerun_of)
        jobs.send_after_commit(plan, tasks.run_plan)
    return plan


def rerun(plan: Plan, owner: Any) -> Plan:
    """The same question again as a new row."""
    from planner import tasks

    with transaction.atomic():
        copy = Plan.objects.create(
            project=plan.project, owner=owner, name=plan.name, calibration=plan.calibration,
            traffic=plan.traffic, objectives=plan.objectives, space=plan.space, seed=plan.seed, rerun_of=plan,
        )  # fmt: skip
        jobs.send_after_commit(copy, tasks.run_plan)
    return copy
