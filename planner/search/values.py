"""What an objective's percentile is in a run, and which share of the requests is within a joint objective.

Percentiles of requests interpolate between pooled values, those of gaps come from the pooled histogram
(simulation/gaps.py). Goodput is counted: its percentile is the smallest value that the share asked for does not
exceed, so that it is at most 1 exactly where that share of the requests meets every limit.
"""

from __future__ import annotations

import math

import numpy as np

from planner.search.objectives import Objective
from planner.search.requests import Bools, Floats
from planner.search.runs import Ran
from planner.simulation import attainment
from planner.simulation.gaps import gap_percentile


def value_of(ran: Ran, o: Objective, group: int | None) -> float | None:
    """The objective's percentile over the served requests of `group` (None: all): seconds, of goodput a share of its
    limits. None where nothing was measured."""
    if o.metric == "itl":
        counts = ran.pooled.gap_counts if group is None else ran.gaps_of(group)
        return gap_percentile(counts, o.percentile) if counts.any() else None
    values = request_values(ran, o, group)
    if len(values) == 0:
        return None
    if o.is_joint:
        rank = max(1, math.ceil(len(values) * o.percentile / 100.0 - 1e-9))
        return float(np.partition(values, rank - 1)[rank - 1])
    return float(np.percentile(values, o.percentile))


def request_values(ran: Ran, o: Objective, group: int | None) -> Floats:
    """float64: of each served request of the group that has a value; not for itl, whose values are gaps."""
    pooled = ran.pooled
    if o.is_joint:
        return worst_shares(ran, o)[_of_group(ran, group) & pooled.served]
    mask = pooled.served
    if o.metric == "tpot":
        mask = mask & (pooled.output_tokens >= 2)
    values = pooled.values_s(o.metric)
    if ran.extra_s is not None and o.metric in ("ttft", "e2e"):
        values = values + ran.extra_s[mask]
    return values if group is None else values[_of_group(ran, group)[mask]]


def worst_shares(ran: Ran, o: Objective) -> Floats:
    """float64[N]: each request's largest share of one of the joint objective's limits; infinite where not served."""
    worst: Floats = np.where(ran.pooled.served, 0.0, np.inf)
    for metric, limit_s in o.limits:
        values = attainment.values_s(ran.pooled, metric)
        if ran.extra_s is not None and metric in ("ttft", "e2e"):
            values = values + ran.extra_s
        np.maximum(worst, values / limit_s, out=worst, where=ran.pooled.served)
    return worst


def attained_share(ran: Ran, o: Objective, group: int | None) -> float:
    """Share of the offered requests of the group that meet all limits of a joint objective; one that was turned away
    meets none."""
    within = (worst_shares(ran, o) <= 1.0)[_of_group(ran, group)]
    return float(within.mean()) if len(within) else 0.0


def _of_group(ran: Ran, group: int | None) -> Bools:
    if group is None or ran.group is None:
        return np.ones(len(ran.pooled.arrival_s), dtype=np.bool_)
    found: Bools = ran.group == group
    return found
