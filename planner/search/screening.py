"""What need not be simulated to its end: bounds that no run can beat, and the trace's beginning.

Both only reject what the whole trace would reject too; what passes is simulated whole.

*Work.* With an objective "the p-th percentile of TTFT (or E2E) at most L", all but (1 - p) of the requests have their
prompts computed by the last arrival + L. The cheapest such set are the shortest prompts, and a prompt token costs at
least the least seconds per token of any step that the budget allows. If that is more than the prefilling replicas
have time for, the candidate fails. The bound is taken with `SLACK` to spare, because the step-time law is a fit.

*The beginning.* A simulation is causal: what happened up to the arrival T of request k does not depend on requests k,
k + 1, ... So the first k requests are simulated, and those that have missed a limit by T will have missed it in the
whole trace. Once more of them have than the percentile allows among all N, the candidate fails. For gaps between
tokens, those that may have come after T are taken off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from calibration.steptime import StepTimeArrays
from calibration.steptime.scalar import step_seconds
from planner.search.combinations import Candidate
from planner.search.engines import budget_of
from planner.search.evaluate import Bench, Evaluation, run
from planner.search.objectives import Objective
from planner.search.runs import Ran
from planner.search.seconds import seconds_text
from planner.simulation.attainment import values_s as attainment_values_s
from planner.simulation.gaps import RELATIVE_ERROR, bin_middles_s

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
SLACK: Final = 0.1
BEGINNING: Final = 6  # one of so many requests
LEAST_REQUESTS: Final = 600  # of a trace that is worth cutting


@dataclass(frozen=True, slots=True)
class Floors:
    """least_s float64[B + 1]: least seconds per prompt token in steps of up to so many tokens; prompts float64[N]:
    their lengths, sorted."""

    least_s: Floats
    prompts: Floats

    @classmethod
    def of(cls, bench: Bench, most_tokens: int) -> Floors:
        return cls(
            least_seconds_per_token(bench.step_time, most_tokens),
            np.sort(bench.requests.prompt_tokens).astype(np.float64),
        )


@dataclass(frozen=True, slots=True)
class Screen:
    """What a bench's candidates are held against before they run: bounds, and the trace's beginning (None: short)."""

    floors: tuple[Floors, ...]  # by kind of hardware
    opening: tuple[Bench, float] | None


def screen_of(bench: Bench, most_tokens: int) -> Screen:
    """`most_tokens`: the largest budget of a prefilling replica."""
    floors = tuple(Floors.of(bench.of_kind(kind), most_tokens) for kind in bench.fleet.kinds)
    return Screen(floors, beginning(bench))


def least_seconds_per_token(model: StepTimeArrays, most_tokens: int) -> Floats:
    """float64[most_tokens + 1]: the least of seconds / n over steps of n = 1.. prompt tokens; entry 0 is infinite."""
    each = np.full(most_tokens + 1, np.inf)
    for n in range(1, most_tokens + 1):
        seconds, _ = step_seconds(model, float(n), 0.0, 1.0, 0.0, 0.0, 1.0, 1.0)
        each[n] = seconds / n
    return np.minimum.accumulate(each)


def too_much_work(bench: Bench, floors: Floors, candidate: Candidate) -> str:
    """Why the prompts alone are too much for the candidate; "" when they need not be."""
    if bench.requests.prefix is not None or bench.hit_share or bench.requests.count == 0:
        return ""
    pools = candidate.pools
    replicas = candidate.prefill_replicas if pools else candidate.replicas
    knobs = pools.prefill if pools else candidate.knobs
    local = pools.local_prefill_tokens if pools else 0
    least_s = floors.least_s[min(budget_of(knobs), len(floors.least_s) - 1)] * (1.0 - SLACK)
    last_s = float(bench.requests.arrival_s[-1])
    for o in (part for asked in bench.objectives for part in asked.parts()):
        if o.metric not in ("ttft", "e2e") or bench.requests.group is not None:
            continue
        must = math.floor(o.percentile / 100.0 * (bench.requests.count - 1))
        shortest = floors.prompts[:must]
        work_s = float(shortest[shortest > local].sum()) * least_s
        have_s = replicas * (last_s + o.limit_s)
        if work_s > have_s:
            who = f"{replicas} prefill replica{'s' if replicas > 1 else ''}" if pools else "they"
            return f"{o.label}: the prompts take at least {seconds_text(work_s)}, {who} have {seconds_text(have_s)}"
    return ""


def beginning(bench: Bench) -> tuple[Bench, float] | None:
    """The bench with the first requests only, and the arrival of the next one; None for a short trace."""
    count = bench.requests.count
    if count < LEAST_REQUESTS:
        return None
    first = count // BEGINNING
    return replace(bench, requests=bench.requests.first(first)), float(bench.requests.arrival_s[first])


def fails_early(bench: Bench, opening: tuple[Bench, float], candidate: Candidate) -> str:
    """Why the beginning of the trace settles it that the candidate fails; "" when it does not."""
    short, until_s = opening
    ran = run(short, candidate)
    for o in bench.objectives:
        total = bench.requests.samples(o)
        allowed = total - math.floor(o.percentile / 100.0 * (total - 1))
        missed = _missed(ran, o, bench.requests.group_of(o), until_s)
        if missed > allowed:
            return (
                f"{o.goal} fails: missed {missed:,} times in the first "
                f"{short.requests.count:,} requests, {allowed:,} are allowed in all"
            )
    return ""


def _missed(ran: Ran, o: Objective, group: int | None, until_s: float) -> int:
    """How many samples are known at `until_s` to exceed the limit, whatever comes later."""
    pooled = ran.pooled
    if o.metric == "itl":
        counts = pooled.gap_counts if group is None else ran.gaps_of(group)
        beyond = bin_middles_s() * (1.0 - 2.0 * RELATIVE_ERROR) > o.limit_s
        late = pooled.served & ~(pooled.done_s <= until_s) & _of(ran, group)
        return int(counts[beyond].sum()) - int((pooled.output_tokens[late] - 1).sum())
    limits = o.limits if o.is_joint else ((o.metric, o.limit_s),)
    missed = np.zeros(len(pooled.arrival_s), dtype=np.bool_)
    for metric, limit_s in limits:
        missed |= _requests_missed(ran, metric, limit_s, until_s)
    return int((missed & _of(ran, group)).sum())


def _requests_missed(ran: Ran, metric: str, limit_s: float, until_s: float) -> Bools:
    """bool[N]: the served requests that are known at `until_s` to exceed the limit."""
    pooled = ran.pooled
    if metric in ("ttft", "e2e"):
        end_s = pooled.first_token_s if metric == "ttft" else pooled.done_s
        extra_s = 0.0 if ran.extra_s is None else ran.extra_s
        waited_s = np.minimum(end_s, until_s) - pooled.arrival_s + np.where(end_s <= until_s, extra_s, 0.0)
        missed = waited_s > limit_s
    else:
        missed = (pooled.done_s <= until_s) & (attainment_values_s(pooled, metric) > limit_s)
    late: Bools = pooled.served & missed
    return late


def _of(ran: Ran, group: int | None) -> Bools:
    if group is None or ran.group is None:
        return np.ones(len(ran.pooled.arrival_s), dtype=np.bool_)
    members: Bools = ran.group == group
    return members


def unseen() -> Evaluation:
    """Of a candidate that was rejected before it ran."""
    return Evaluation(
        complete=False,
        values_s={},
        saturated=False,
        unserved_share=0.0,
        uncovered_share=0.0,
        utilisation=0.0,
        mean_batch=0.0,
        peak_running=0,
        preemptions=0,
        steps=0,
        prompt_tokens_per_s=0.0,
        generated_tokens_per_s=0.0,
        split_s={},
    )
