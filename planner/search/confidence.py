"""How sure a predicted percentile is, as far as the step-time model is concerned, and what one request alone sees.

The calibration is refitted on bootstrap resamples of its measurements; the finalists are simulated again with
each refit, on the same requests. The interval of a percentile is the central 90 % of those answers, widened to
hold the prediction itself; `holding` is the share of refits under which every objective holds. The traffic is
taken as given, so this says nothing about another day's requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np

from calibration.steptime import StepTimeArrays
from planner.search.evaluate import Bench, Evaluation, Requests, evaluate, judge
from planner.simulation.knobs import VllmKnobs

LEVEL: Final = 0.9
_ALONE_REQUESTS: Final = 2_000
_ALONE_SPACING_S: Final = 1e5


class Spread(Protocol):
    """`scale`: standard deviation of log(measured / predicted) of points that a refit had not seen."""

    @property
    def scale(self) -> float: ...


class StepTimes(Protocol):
    """The part of `StepTimeModel` that plans use."""

    @property
    def refits(self) -> Sized: ...

    @property
    def decode_spread(self) -> Spread: ...

    @property
    def chunk_spread(self) -> Spread: ...

    def arrays(self, refit: int | None = None) -> StepTimeArrays: ...

    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Confidence:
    """Intervals in seconds by `Objective.key`, from `refits` refits; `holding` of them meet every objective."""

    refits: int
    holding: int
    intervals_s: Mapping[str, tuple[float, float]]


def confidence(
    bench: Bench,
    model: StepTimes,
    knobs: VllmKnobs,
    replicas: int,
    predicted: Evaluation,
    chosen: Sequence[int],
    threads: int,
) -> Confidence:
    """Simulate one finalist with the refits `chosen`. Raises Stopped when the caller wants to stop."""

    def under(refit: int) -> Evaluation:
        other = replace(bench, step_time=model.arrays(refit=refit))
        return evaluate(other, knobs, replicas, complete=True)

    with ThreadPoolExecutor(max(1, threads)) as pool:
        answers = list(pool.map(under, chosen))
    tail = 50.0 * (1.0 - LEVEL)
    intervals: dict[str, tuple[float, float]] = {}
    for key, value in predicted.values_s.items():
        low, high = np.percentile([answer.values_s[key] for answer in answers], [tail, 100.0 - tail]).tolist()
        intervals[key] = (min(low, value), max(high, value))
    holding = sum(judge(answer, bench.objectives)[0] == "meets" for answer in answers)
    return Confidence(len(answers), holding, intervals)


def pick_refits(model: StepTimes, count: int, seed: int) -> list[int]:
    """`count` of the model's refits (all, if it has fewer), drawn with `seed`, in ascending order."""
    available = len(model.refits)
    drawn = np.random.default_rng(seed).choice(available, size=min(count, available), replace=False)
    return sorted(drawn.tolist())


def error_band(model: StepTimes) -> float:
    """The model's relative error where it is worse, decode or chunk steps: what it cannot tell apart."""
    return max(model.decode_spread.scale, model.chunk_spread.scale)


def alone(bench: Bench, knobs: VllmKnobs) -> Mapping[str, float]:
    """Percentiles (seconds by `Objective.key`) when every request has a replica to itself.

    No number of replicas can do better. Of more than 2,000 requests, 2,000 evenly spaced ones are taken.
    """
    every = -(-bench.requests.count // _ALONE_REQUESTS)
    some = bench.requests.share(0, every)
    apart = Requests(
        np.arange(some.count, dtype=np.float64) * _ALONE_SPACING_S, some.prompt_tokens, some.output_tokens
    )
    return evaluate(replace(bench, requests=apart), knobs, 1, complete=True).values_s
