"""Which knobs, on how many replicas? The candidate space, the search over it and the verdict. Nothing here knows
of Django.

objectives.py what is asked · space.py what is tried · plan.py the way from question to answer.
"""

from planner.search.objectives import (
    METRICS,
    Objective,
    ObjectiveError,
    check_objectives,
    parse_objective,
    parse_objectives,
)
from planner.search.plan import PlanError, plan
from planner.search.result import CandidateResult, Finalist, PlanResult, Prediction, Verdict
from planner.search.space import (
    DEFAULT_MAX_REPLICAS,
    Bounds,
    Candidate,
    SearchSpace,
    SpaceError,
    default_space,
    default_space_of,
)

__all__ = [
    "DEFAULT_MAX_REPLICAS",
    "METRICS",
    "Bounds",
    "Candidate",
    "CandidateResult",
    "Finalist",
    "Objective",
    "ObjectiveError",
    "PlanError",
    "PlanResult",
    "Prediction",
    "SearchSpace",
    "SpaceError",
    "Verdict",
    "check_objectives",
    "default_space",
    "default_space_of",
    "parse_objective",
    "parse_objectives",
    "plan",
]
