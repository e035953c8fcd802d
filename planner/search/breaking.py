"""What breaks first: the load at which the first objective fails, and which one.

The chosen deployment is simulated with the same requests arriving faster and slower. Loads are relative to the
traffic's own (headroom not included). Where none of them fails, or all do, the load is doubled or halved until one
does, or does not. Beyond the last load that holds, the first that fails is found by bisection to 1 % of the load;
percentiles need not rise with the load without exception, so it is the first failure of the loads that were tried,
which are all listed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from planner.search.combinations import Candidate, Status
from planner.search.crew import LOAD, Crew
from planner.search.evaluate import Evaluation, judge
from planner.search.objectives import Objective

LOADS: Final = (0.5, 0.75, 1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0)
PRECISION: Final = 0.01
FURTHER: Final = 6  # times the load is doubled where nothing fails, or halved where everything does


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """At `load` times the traffic's own rate; values_s (seconds by `Objective.key`) are empty where saturated."""

    load: float
    status: Status
    values_s: Mapping[str, float]
    utilisation: float
    failing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Breaking:
    """`holds_up_to`: the largest load tried below `breaks_at`; that one fails `first` ("saturated" where the queue
    grows without end before a limit is exceeded). None: nothing broke up to the largest load, or nothing held."""

    points: tuple[LoadPoint, ...]
    holds_up_to: float | None
    breaks_at: float | None
    first: str | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def what_breaks(
    objectives: Sequence[Objective], crew: Crew, candidate: Candidate, planned_load: float, own_load: float
) -> Breaking:
    """`planned_load`: what the question's arrivals stand for, as a multiple of the traffic's own rate; `own_load`: the
    same without the headroom. Loads between and around them are tried."""
    loads = loads_tried(planned_load, own_load)

    def at(loads: Sequence[float]) -> list[LoadPoint]:
        evaluations = crew.under(candidate, LOAD, relative(loads, planned_load))
        return [_point(objectives, *pair) for pair in zip(loads, evaluations, strict=True)]

    points = at(loads)
    while not any(point.failing for point in points) and len(points) < len(loads) + FURTHER:
        points += at([2.0 * points[-1].load])
    while points[0].failing and len(points) < len(loads) + FURTHER:
        points = at([0.5 * points[0].load]) + points
    broken = next((i for i, point in enumerate(points) if point.failing), None)
    if broken is None:
        return Breaking(tuple(points), points[-1].load, None, None)
    if broken == 0:
        return Breaking(tuple(points), None, points[0].load, points[0].failing[0])
    low, high = points[broken - 1], points[broken]
    while high.load - low.load > PRECISION * high.load:
        [middle] = at([0.5 * (low.load + high.load)])
        points.append(middle)
        if middle.failing:
            high = middle
        else:
            low = middle
    points.sort(key=lambda point: point.load)
    return Breaking(tuple(points), low.load, high.load, high.failing[0])


def loads_tried(planned_load: float, own_load: float) -> list[float]:
    """Before the first that fails is sought."""
    return sorted({own_load, planned_load, *(own_load * load for load in LOADS)})


def relative(loads: Sequence[float], planned_load: float) -> list[float]:
    """To the arrivals of the question."""
    return [load / planned_load for load in loads]


def _point(objectives: Sequence[Objective], load: float, evaluation: Evaluation) -> LoadPoint:
    status, _ = judge(evaluation, objectives)
    if evaluation.saturated:
        return LoadPoint(load, status, {}, evaluation.utilisation, ("saturated",))
    values_s = {o.key: evaluation.values_s[o.key] for o in objectives if o.key in evaluation.values_s}
    return LoadPoint(load, status, values_s, evaluation.utilisation, failing_of(objectives, values_s))


def failing_of(objectives: Sequence[Objective], values_s: Mapping[str, float]) -> tuple[str, ...]:
    """Keys of the objectives that fail, the worst first."""
    failed = [o for o in objectives if values_s.get(o.key, 0.0) > o.limit_s]
    return tuple(o.key for o in sorted(failed, key=lambda o: o.margin(values_s[o.key])))
