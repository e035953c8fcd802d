"""The part of the plan job that comes after the search: how many replicas at which time of day."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from calibration.architecture import Architecture
from calibration.capacity import KVCapacity
from calibration.services import step_time_model
from calibration.steptime import StepTimeArrays, StepTimeModel
from planner.models import Plan
from planner.search import PlanResult
from planner.search.combinations import Candidate
from planner.search.conditions import Conditions
from planner.search.fleet import FIRST
from planner.search.periods import Asked
from planner.search.schedule import schedule
from planner.search.space import SearchSpace
from planner.search.what_if import bench_at, reopen
from planner.traffic import Traffic


def schedule_of(
    plan: Plan,
    result: PlanResult,
    traffic: Traffic,
    model: StepTimeModel,
    should_stop: Callable[[], bool],
    say: Callable[[str], None],
    begin: Callable[[], None],
) -> dict[str, Any] | None:
    """None where none was asked for, the traffic is short, or nothing meets the objectives; else `begin` is called
    first. Raises Stopped."""
    choice, inputs = result.verdict.choice, result.inputs
    asked = Asked(**(plan.schedule or {}))
    if choice is None or asked.kind == "none" or result.stopped:
        return None
    conditions = Conditions.from_dict(inputs["conditions"])
    subject = reopen(
        traffic,
        model.arrays(),
        KVCapacity.from_dict(inputs["kv_capacity"]),
        Architecture.from_dict(inputs["architecture"]),
        result.objectives,
        SearchSpace.from_dict(inputs["space"]),
        conditions,
        choice.candidate,
        max_model_len=inputs["max_model_len"],
        host_gap_s=inputs["host_gap_s"],
        most_requests=None,
        second=_second(plan, inputs),
    )
    periods = asked.periods_of(float(subject.at_own_rate.arrival_s[-1]))
    if periods is None:
        return None
    begin()
    return schedule(
        bench_at(subject, subject.start, should_stop),
        subject.at_own_rate,
        conditions.load,
        choice.candidate,
        periods,
        max(subject.space.max_replicas, choice.candidate.replicas),
        price_per_replica_hour=_price(conditions, choice.candidate),
        threads=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        on_progress=lambda done, total, message: say(message),
    ).to_dict()


def _second(plan: Plan, inputs: Mapping[str, Any]) -> tuple[StepTimeArrays, KVCapacity] | None:
    """Step times and pool of the plan's second kind of hardware."""
    if plan.second_calibration is None:
        return None
    pool = KVCapacity.from_dict(inputs["hardware"][1]["kv_capacity"])
    return step_time_model(plan.second_calibration).arrays(), pool


def _price(conditions: Conditions, candidate: Candidate) -> float | None:
    """Of a replica by the hour; None where none was given, or where the pools' replicas do not cost the same."""
    each = {
        (conditions.price_per_gpu_hour, conditions.gpus_per_replica)
        if kind == FIRST
        else (conditions.second_price_per_gpu_hour, conditions.second_gpus_per_replica)
        for kind in candidate.kinds
    }
    prices = {None if price is None else price * gpus for price, gpus in each}
    return prices.pop() if len(prices) == 1 else None
