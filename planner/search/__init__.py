"""Which knobs, on how many replicas? The candidate space, the search over it and the verdict. Nothing here knows
of Django.

objectives.py what is asked · conditions.py under which conditions · space.py what is tried · plan.py the way from
question to answer.
"""

from planner.search.combinations import Candidate
from planner.search.conditions import DEFAULT_HEADROOM, ConditionError, Conditions, Link
from planner.search.engines import ENGINES, TITLES, Engine
from planner.search.objective_text import parse_objective, parse_objectives
from planner.search.objectives import (
    GOODPUT,
    MAX_OBJECTIVES,
    METRICS,
    Objective,
    ObjectiveError,
    check_objectives,
    label_of,
    label_of_key,
)
from planner.search.plan import plan, processors, search
from planner.search.prepare import PlanError, Prepared, prepare
from planner.search.result import CandidateResult, Finalist, PlanResult, Prediction, Verdict
from planner.search.space import (
    DEFAULT_MAX_REPLICAS,
    Bounds,
    SearchSpace,
    SpaceError,
    default_space,
    default_space_of,
)

__all__ = [
    "DEFAULT_HEADROOM",
    "DEFAULT_MAX_REPLICAS",
    "ENGINES",
    "GOODPUT",
    "MAX_OBJECTIVES",
    "METRICS",
    "TITLES",
    "Bounds",
    "Candidate",
    "CandidateResult",
    "ConditionError",
    "Conditions",
    "Engine",
    "Finalist",
    "Link",
    "Objective",
    "ObjectiveError",
    "PlanError",
    "PlanResult",
    "Prediction",
    "Prepared",
    "SearchSpace",
    "SpaceError",
    "Verdict",
    "check_objectives",
    "default_space",
    "default_space_of",
    "label_of",
    "label_of_key",
    "parse_objective",
    "parse_objectives",
    "plan",
    "prepare",
    "processors",
    "search",
]
