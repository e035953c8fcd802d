"""Arrival processes. Independent gaps with a mean of 1/rate and a chosen coefficient of variation (CV).

A CV of 1 is Poisson traffic: the gaps are exponential and the next arrival owes nothing to the last. A
Gamma distribution with shape 1/CV^2 keeps the mean and changes the CV: above 1 requests come in bursts,
below 1 they come evenly, at 0 on a clock. Public traces of LLM services lie above 1 (Azure's code trace of
2023: a median of 3.2 inside its busy minutes).
"""

from __future__ import annotations

import numpy as np

from planner.traffic.errors import refuse
from planner.traffic.model import Floats, positive_number

MAX_REQUESTS = 5_000_000


def arrival_times_s(
    rate_per_s: float,
    *,
    requests: int | None = None,
    duration_s: float | None = None,
    interarrival_cv: float = 1.0,
    rng: np.random.Generator,
) -> Floats:
    """Times from 0, either so many or all within `duration_s`. float64[N], N >= 1, seconds."""
    rate = positive_number(rate_per_s, "rate_per_s", "requests per second")
    if not (np.isfinite(interarrival_cv) and 0 <= interarrival_cv <= 100):
        raise refuse("interarrival_cv must be 0 to 100.", code="option", field="interarrival_cv")
    if (requests is None) == (duration_s is None):
        raise refuse("Give either a number of requests or a duration.", code="option", field="requests")
    if requests is not None:
        if isinstance(requests, bool) or not 1 <= requests <= MAX_REQUESTS:
            raise refuse(f"requests must be 1 to {MAX_REQUESTS:,}.", code="option", field="requests")
        return _starting_at_zero(_gaps_s(requests - 1, rate, interarrival_cv, rng))
    limit_s = positive_number(duration_s or 0.0, "duration_s", "seconds")
    if limit_s * rate > MAX_REQUESTS:
        message = f"{limit_s:g} s at {rate:g}/s are more than {MAX_REQUESTS:,} requests."
        raise refuse(message, code="option", field="duration_s")
    times = np.zeros(1)
    while times[-1] <= limit_s:
        more = _gaps_s(max(64, int((limit_s - times[-1]) * rate * 1.1)), rate, interarrival_cv, rng)
        times = np.concatenate((times, times[-1] + np.cumsum(more)))
        if len(times) > 2 * MAX_REQUESTS:
            raise refuse(f"More than {MAX_REQUESTS:,} requests.", code="option", field="duration_s")
    return times[times <= limit_s]


#: Gaps that vary by less are all the same: the Gamma law's shape would leave the range of numbers.
REGULAR_CV = 1e-6


def _gaps_s(count: int, rate_per_s: float, cv: float, rng: np.random.Generator) -> Floats:
    if cv < REGULAR_CV:
        return np.full(count, 1 / rate_per_s)
    if cv == 1:
        return rng.exponential(1 / rate_per_s, count)
    return rng.gamma(1 / cv**2, cv**2 / rate_per_s, count)


def _starting_at_zero(gaps_s: Floats) -> Floats:
    return np.concatenate((np.zeros(1), np.cumsum(gaps_s)))
