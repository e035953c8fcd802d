"""Who met the objectives: each of them, and all of them at once.

An objective limits a percentile of a metric. It holds when that percentile, of pooled samples, is within the limit.
Its attainment is the share of the offered requests that are themselves within the limit; a request meets a limit on

  ttft, e2e   by its own time
  tpot        by the mean of its gaps
  itl         by the largest of its gaps: the strictest reading, no gap of the request is longer

A single output token has no gap, which meets every limit on gaps. A request that was turned away meets nothing and
still counts as offered. Goodput: requests per second that meet all of their objectives (DistServe, OSDI 2024), over
the time from the first arrival to the end of the run. Requests may come in classes with objectives of their own.
Seconds; shares of 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from planner.simulation.arrays import Bools, Floats, Ints
from planner.simulation.gaps import bin_middles_s
from planner.simulation.outcome import METRICS, Outcome


class Objective(Protocol):
    """`metric` (one of METRICS) at `percentile` (0..100) must be at most `limit_s`."""

    @property
    def metric(self) -> str: ...
    @property
    def percentile(self) -> float: ...
    @property
    def limit_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class ObjectiveAttainment:
    """`value_s` and `holds` are None where nothing was measured. Of one class of several no histogram of gaps is
    kept: `value_s` is None then, and `holds` follows from the requests' largest gaps, or is None where these leave it
    open. `share` of the offered requests; `gap_share` (itl of all requests only): of the gaps, those of the limit's
    own bin counted by its middle."""

    metric: str
    percentile: float
    limit_s: float
    value_s: float | None
    holds: bool | None
    share: float
    gap_share: float | None = None


@dataclass(frozen=True, slots=True)
class Attainment:
    """`share` of the `offered` requests met all of their objectives; `goodput_per_s` such requests per second."""

    offered: int
    objectives: tuple[ObjectiveAttainment, ...]
    share: float
    goodput_per_s: float


def values_s(outcome: Outcome, metric: str) -> Floats:
    """float64[N]: what each request's limit on the metric is compared with; NaN for requests not served."""
    served = np.where(outcome.served, 0.0, np.nan)
    if metric == "ttft":
        return outcome.first_token_s - outcome.arrival_s + served
    if metric == "e2e":
        return outcome.done_s - outcome.arrival_s + served
    if metric == "itl":
        return outcome.max_gap_s + served
    if metric == "tpot":
        gaps = np.maximum(outcome.output_tokens - 1, 1)
        means: Floats = (outcome.done_s - outcome.first_token_s) / gaps + served
        return np.where(outcome.output_tokens >= 2, means, served)
    raise ValueError(f"unknown metric {metric!r}: one of {', '.join(METRICS)}")


def meets(outcome: Outcome, objectives: Sequence[Objective]) -> Bools:
    """bool[N]: served, and within every limit."""
    mask: Bools = outcome.served.copy()
    for objective in objectives:
        mask &= values_s(outcome, objective.metric) <= objective.limit_s
    return mask


def attain(
    outcome: Outcome, objectives: Sequence[Objective], span_s: float, *, of_a_class: bool = False
) -> Attainment:
    """The attainment of requests that all have these objectives; `span_s`: the time that goodput is counted over.

    of_a_class: the outcome's requests are some of a run's (`selection.take`), so its gap histogram is not theirs.
    """
    offered = len(outcome.arrival_s)
    met = int(meets(outcome, objectives).sum())
    return Attainment(
        offered=offered,
        objectives=tuple(_one(outcome, objective, of_a_class) for objective in objectives),
        share=_share(met, offered),
        goodput_per_s=met / span_s if span_s > 0.0 else 0.0,
    )


def attain_by_class(
    outcome: Outcome,
    request_class: Ints,
    objectives: Mapping[int, Sequence[Objective]],
    span_s: float,
) -> Attainment:
    """Of all requests at once, each held to the objectives of its class (`request_class` int[N])."""
    met = np.zeros(len(request_class), dtype=np.bool_)
    for number, own in objectives.items():
        mine = request_class == number
        met[mine] = meets(outcome, own)[mine]
    count = int(met.sum())
    return Attainment(len(met), (), _share(count, len(met)), count / span_s if span_s > 0.0 else 0.0)


def _one(outcome: Outcome, objective: Objective, of_a_class: bool) -> ObjectiveAttainment:
    values = values_s(outcome, objective.metric)
    gaps = outcome.gap_counts if objective.metric == "itl" and not of_a_class else None
    value_s = None if objective.metric == "itl" and of_a_class else _percentile(outcome, objective)
    return ObjectiveAttainment(
        metric=objective.metric,
        percentile=objective.percentile,
        limit_s=objective.limit_s,
        value_s=value_s,
        holds=_by_largest_gaps(outcome, objective) if value_s is None else value_s <= objective.limit_s,
        share=_share(int((values <= objective.limit_s).sum()), len(values)),
        gap_share=None if gaps is None else _gap_share(gaps, objective.limit_s),
    )


def _percentile(outcome: Outcome, objective: Objective) -> float | None:
    try:
        return outcome.percentile(objective.metric, objective.percentile)
    except ValueError:
        return None


def _by_largest_gaps(outcome: Outcome, objective: Objective) -> bool | None:
    """Does a limit on a percentile of gaps hold? A request within the limit has no gap above it; one beyond has at
    least one, and at most all of its gaps."""
    gaps = np.where(outcome.served, outcome.output_tokens - 1, 0)
    total = int(gaps.sum())
    if objective.metric != "itl" or total == 0:
        return None
    beyond = (gaps > 0) & ~(values_s(outcome, "itl") <= objective.limit_s)
    wanted = objective.percentile / 100.0
    if 1.0 - int(gaps[beyond].sum()) / total >= wanted:
        return True
    return False if 1.0 - int(beyond.sum()) / total < wanted else None


def _gap_share(counts: Ints, limit_s: float) -> float | None:
    total = int(counts.sum())
    return int(counts[bin_middles_s() <= limit_s].sum()) / total if total else None


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
