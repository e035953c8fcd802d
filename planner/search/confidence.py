"""How sure a predicted percentile is, and what one request alone sees.

A finalist is simulated in draws (`draws`): other traffic like this one, step times and links that might as well be.
The interval of a percentile is the central 90 % of the answers, widened to hold the prediction itself; the probability
that an objective holds is the share of the draws in which it does. A saturated draw has no latency: it holds nothing,
and counts as infinite, so the interval's upper end may be unknown. Where the step times are another engine's, the
interval holds both ends of what that may do to decode attention.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from calibration.engines import Foreign
from planner.search.combinations import Candidate
from planner.search.crew import DRAW, MIXED, Asked, Crew
from planner.search.draws import Draws, StepTimes
from planner.search.evaluate import Bench, Evaluation
from planner.search.objectives import Objective

LEVEL: Final = 0.9
_ALONE_REQUESTS: Final = 2_000
_ALONE_SPACING_S: Final = 1e5


@dataclass(frozen=True, slots=True)
class Confidence:
    """From `draws` draws: intervals in seconds by `Objective.key` (None: saturated, no upper end), how often each
    objective holds, and in how many draws (`holding`) all do."""

    draws: int
    holding: int
    intervals_s: Mapping[str, tuple[float, float | None]]
    probability: Mapping[str, float]


def confidence(
    crew: Crew,
    objectives: Sequence[Objective],
    candidate: Candidate,
    predicted: Evaluation,
    draws: Draws,
    foreign: Foreign | None = None,
) -> Confidence:
    """Simulate one finalist in all draws. Raises Stopped when the caller wants to stop."""
    answers = crew.under(candidate, DRAW, range(len(draws)))
    ends = _ends(foreign)
    return confidence_of(objectives, predicted, answers, crew.under(candidate, MIXED, ends) if ends else ())


def in_draws(candidate: Candidate, draws: Draws, foreign: Foreign | None = None) -> list[Asked]:
    """All that `confidence` asks for."""
    return [
        *((candidate, DRAW, number) for number in range(len(draws))),
        *((candidate, MIXED, factor) for factor in _ends(foreign)),
    ]


def _ends(foreign: Foreign | None) -> list[float]:
    """Of what another engine may do to decode attention."""
    return [factor for factor in (foreign.mixed_attention if foreign else ()) if factor != 1.0]


def confidence_of(
    objectives: Sequence[Objective],
    predicted: Evaluation,
    answers: Sequence[Evaluation],
    extremes: Sequence[Evaluation] = (),
) -> Confidence:
    """`answers`: of the draws; `extremes`: what the interval must hold as well."""
    tail = (1.0 - LEVEL) / 2.0
    intervals: dict[str, tuple[float, float | None]] = {}
    for key, value in predicted.values_s.items():
        values = np.array([np.inf if a.saturated else a.values_s.get(key, np.nan) for a in answers])
        values = np.sort(values[~np.isnan(values)])
        if len(values) == 0:
            continue
        low = float(values[int(tail * (len(values) - 1))])
        high = float(values[-1 - int(tail * (len(values) - 1))])
        beside = [value, *(math.inf if a.saturated else a.values_s.get(key, value) for a in extremes)]
        most = max(high, *beside)
        intervals[key] = (min(low, *beside), most if math.isfinite(most) else None)
    holds = {o.key: sum(_holds(answer, o) for answer in answers) for o in objectives}
    holding = sum(all(_holds(answer, o) for o in objectives) for answer in answers)
    return Confidence(
        len(answers), holding, intervals, {key: count / len(answers) for key, count in holds.items()}
    )


def _holds(answer: Evaluation, o: Objective) -> bool:
    return not answer.saturated and not answer.refused and answer.values_s.get(o.key, 0.0) <= o.limit_s


def pick_refits(model: StepTimes, count: int, seed: int) -> list[int]:
    """`count` of the model's refits (all, if it has fewer), drawn with `seed`, in ascending order."""
    available = len(model.refits)
    drawn = np.random.default_rng(seed).choice(available, size=min(count, available), replace=False)
    return sorted(drawn.tolist())


def apart(bench: Bench) -> Bench:
    """Every request has a replica to itself: no number of replicas can do better.

    Of more than 2,000 requests, 2,000 evenly spaced ones are taken.
    """
    every = -(-bench.requests.count // _ALONE_REQUESTS)
    some = bench.requests.share(0, every)
    lonely = replace(some, arrival_s=np.arange(some.count, dtype=np.float64) * _ALONE_SPACING_S)
    return replace(bench, requests=lonely)
