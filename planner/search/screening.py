"""What need not be simulated to its end: bounds that no run can beat (`floors`), and the trace's beginning.

Both only reject what the whole trace would reject too; what passes is simulated whole.

*The beginning.* A simulation is causal: what happened up to the arrival T of request k does not depend on requests k,
k + 1, ... Those that have missed a limit by T will have missed it in the whole trace. Once more of them have than the
percentile allows among all N, the candidate fails. So a run is looked at as the first requests come (`LOOKS`), and
abandoned when that is so; else the same run goes on to its end. Where the gaps of some of the requests are asked for,
they are known at the end only: then the first requests are simulated by themselves, to their end, and gaps that may
have come after T are taken off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.search.combinations import Candidate
from planner.search.evaluate import Bench, Evaluation, run
from planner.search.floors import Floors, allowed_misses
from planner.search.objectives import Objective
from planner.search.requests import Requests
from planner.search.runs import Ran
from planner.simulation.attainment import values_s as attainment_values_s
from planner.simulation.cluster.glance import Glance, Told
from planner.simulation.gaps import RELATIVE_ERROR, bin_middles_s

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
BEGINNING: Final = 6  # one of so many requests
LOOKS: Final = (24, 16, 12, 8, BEGINNING)  # when one of so many requests have come
LEAST_REQUESTS: Final = 600  # of a trace that is worth cutting


@dataclass(frozen=True, slots=True)
class Screen:
    """What a bench's candidates are held against: bounds, and the trace's beginning. `looks`: with how many requests
    there a run is looked at; `opening`: instead of that, see `beginning`. A short trace has neither."""

    floors: tuple[Floors, ...]  # by kind of hardware
    looks: tuple[int, ...] = ()
    opening: tuple[Bench, float] | None = None


def screen_of(bench: Bench, most_tokens: int) -> Screen:
    """`most_tokens`: the largest budget of a prefilling replica."""
    floors = tuple(Floors.of(bench.of_kind(kind), most_tokens) for kind in bench.fleet.kinds)
    if bench.requests.count < LEAST_REQUESTS:
        return Screen(floors)
    if bench.tells_gaps:
        return Screen(floors, opening=beginning(bench))
    return Screen(floors, tuple(bench.requests.count // one_of for one_of in LOOKS))


class Hopeless(Exception):
    """A run was abandoned: the objectives are out of reach. peak_running: of the decode pool, up to then."""

    def __init__(self, reason: str, peak_running: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.peak_running = peak_running


def watch(bench: Bench, looks: Sequence[int]) -> Callable[[Glance], None]:
    """Looks at a run as so many requests have come. Raises Hopeless."""
    left = list(looks)

    def look(glance: Glance) -> None:
        if not left or glance.arrived < left[0]:
            return
        while left and glance.arrived >= left[0]:
            left.pop(0)
        reason = missed_by_now(bench, glance)
        if reason:
            raise Hopeless(reason, glance.peak_running)

    return look


def missed_by_now(bench: Bench, glance: Glance) -> str:
    """Why what has happened so far settles it that the candidate fails; "" when it does not."""
    requests = bench.requests
    so_far: Requests | None = None
    for o in bench.objectives:
        allowed = allowed_misses(requests, o)
        if o.metric == "itl":
            if requests.group is not None:
                continue
            missed = int(glance.gap_counts()[_beyond(o.limit_s)].sum())
        else:
            so_far = so_far or requests.first(glance.arrived)
            group = requests.group_of(o)
            known = _known_misses(so_far, glance.told(), o)
            missed = int((known if group is None else known & (so_far.group == group)).sum())
        if missed > allowed:
            return _said(o, missed, glance.arrived, allowed)
    return ""


def _known_misses(requests: Requests, told: Told, o: Objective) -> Bools:
    """bool[k]: which of the requests that have come are known to exceed the limit, or one of the limits."""
    extra_s = 0.0 if requests.extra_s is None else requests.extra_s
    first_s = told.first_token_s - requests.arrival_s + np.where(told.begun, extra_s, 0.0)
    done_s = told.done_s - requests.arrival_s + np.where(told.ended, extra_s, 0.0)
    gaps = requests.output_tokens - 1
    values_s = {
        "ttft": first_s,
        "e2e": done_s,
        "tpot": np.where(
            told.ended & (gaps > 0), (told.done_s - told.first_token_s) / np.maximum(gaps, 1), 0.0
        ),
        "itl": np.where(told.ended & (gaps > 0), told.max_gap_s, 0.0),
    }
    missed = np.zeros(requests.count, dtype=np.bool_)
    for metric, limit_s in o.limits if o.is_joint else ((o.metric, o.limit_s),):
        missed |= values_s[metric] > limit_s
    return missed & told.served


def _beyond(limit_s: float) -> Bools:
    """bool[bins]: of the gaps' histogram, the bins that lie above the limit."""
    beyond: Bools = bin_middles_s() * (1.0 - 2.0 * RELATIVE_ERROR) > limit_s
    return beyond


def _said(o: Objective, missed: int, count: int, allowed: int) -> str:
    return f"{o.goal} fails: missed {missed:,} times in the first {count:,} requests, {allowed:,} are allowed in all"


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
        allowed = allowed_misses(bench.requests, o)
        missed = _missed(ran, o, bench.requests.group_of(o), until_s)
        if missed > allowed:
            return _said(o, missed, short.requests.count, allowed)
    return ""


def _missed(ran: Ran, o: Objective, group: int | None, until_s: float) -> int:
    """How many samples are known at `until_s` to exceed the limit, whatever comes later."""
    pooled = ran.pooled
    if o.metric == "itl":
        counts = pooled.gap_counts if group is None else ran.gaps_of(group)
        beyond = _beyond(o.limit_s)
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
