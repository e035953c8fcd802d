"""One candidate against the whole trace: deal the requests to the replicas, simulate each, pool, compare.

Replicas stand behind a round-robin router, so replica r of R gets requests r, r + R, r + 2R, ... Their samples
are pooled before any percentile is taken.

A candidate that cannot meet an objective need not be simulated to the end. With k of N samples seen, the value at
rank j of those is at most the value at rank j + (N - k) of all, because the unseen ones can at best all lie
below. If that bound is above the limit already, the rest cannot bring the percentile back: the answer is the
same as after the whole trace. N is known beforehand: requests for TTFT and E2E, requests with two output tokens
or more for TPOT, output tokens less one for ITL.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from calibration.steptime import StepTimeArrays
from planner.search.objectives import Metric, Objective
from planner.search.space import Status
from planner.simulation.knobs import VllmKnobs
from planner.simulation.merge import merge
from planner.simulation.outcome import Outcome

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Share of busy time that may lie outside the calibrated region.
MAX_UNCOVERED_SHARE: Final = 0.005


class Stopped(Exception):
    """The caller asked to stop."""


class Simulate(Protocol):
    """`planner.simulation.kernel.simulate`, or the reference."""

    def __call__(
        self,
        arrival_s: Floats,
        prompt_tokens: Ints,
        output_tokens: Ints,
        priority: Ints | None,
        knobs: VllmKnobs,
        step_time: StepTimeArrays,
        *,
        host_gap_s: float,
    ) -> Outcome: ...


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests that are served: arrival_s float64[N] sorted, prompt_tokens and output_tokens int64[N]."""

    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints

    @property
    def count(self) -> int:
        return len(self.arrival_s)

    def share(self, replica: int, replicas: int) -> Requests:
        """What the round-robin router sends to one replica."""
        part = slice(replica, None, replicas)
        return Requests(
            np.ascontiguousarray(self.arrival_s[part]),
            np.ascontiguousarray(self.prompt_tokens[part]),
            np.ascontiguousarray(self.output_tokens[part]),
        )

    def samples(self, metric: Metric) -> int:
        """How many values of a metric these requests yield."""
        if metric == "itl":
            return int((self.output_tokens - 1).sum())
        return self.requests_behind(metric)

    def requests_behind(self, metric: Metric) -> int:
        """How many requests contribute to a metric: those with two output tokens or more have gaps."""
        if metric in ("itl", "tpot"):
            return int((self.output_tokens >= 2).sum())
        return self.count


@dataclass(frozen=True, slots=True)
class Bench:
    """What all candidates of a search share: requests, objectives, step times, the simulator."""

    requests: Requests
    objectives: tuple[Objective, ...]
    trade: tuple[Objective, Objective]  # the TTFT and ITL percentiles of the trade plot
    step_time: StepTimeArrays
    host_gap_s: float
    simulate: Simulate
    should_stop: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a candidate did. `complete`: all replicas ran; otherwise `values_s` are lower bounds.

    values_s: seconds by `Objective.key`, the trade plot's included; a metric without samples is absent.
    split_s: mean queue, prefill, wait between chunks (part of prefill), first decode. Shares of 1.
    """

    complete: bool
    values_s: Mapping[str, float]
    saturated: bool
    unserved_share: float
    uncovered_share: float
    utilisation: float
    mean_batch: float
    peak_running: int
    preemptions: int
    steps: int
    prompt_tokens_per_s: float
    generated_tokens_per_s: float
    split_s: Mapping[str, float]

    def margins(self, objectives: Sequence[Objective]) -> list[float]:
        """Share of each limit that is left; an objective without samples cannot be exceeded."""
        return [o.margin(self.values_s[o.key]) if o.key in self.values_s else 1.0 for o in objectives]

    def worst_margin(self, objectives: Sequence[Objective]) -> float:
        return min(self.margins(objectives))


def evaluate(bench: Bench, knobs: VllmKnobs, replicas: int, *, complete: bool) -> Evaluation:
    """Simulate `replicas` replicas with `knobs`; unless `complete`, stop once the candidate cannot meet.

    Raises Stopped between two replicas when the caller wants to stop.
    """
    outcomes: list[Outcome] = []
    for replica in range(replicas):
        if bench.should_stop():
            raise Stopped
        part = bench.requests.share(replica, replicas)
        outcomes.append(
            bench.simulate(
                part.arrival_s,
                part.prompt_tokens,
                part.output_tokens,
                None,
                knobs,
                bench.step_time,
                host_gap_s=bench.host_gap_s,
            )
        )
        if not complete and _worth_a_look(replica + 1, replicas):
            pooled = merge(outcomes)
            bounds = _lower_bounds(bench, pooled)
            failed = any(bounds.get(o.key, 0.0) > o.limit_s for o in bench.objectives)
            if pooled.saturated or failed:
                return _evaluation(pooled, bounds, complete=False)
    pooled = merge(outcomes)
    return _evaluation(pooled, _values(bench, pooled), complete=True)


def _worth_a_look(seen: int, replicas: int) -> bool:
    """Pooling takes time too: bounds are computed after 1, 2, 4, 8, ... replicas."""
    return seen < replicas and seen & (seen - 1) == 0


def _values(bench: Bench, pooled: Outcome) -> dict[str, float]:
    return {
        o.key: pooled.percentile(o.metric, o.percentile)
        for o in (*bench.objectives, *bench.trade)
        if bench.requests.samples(o.metric)
    }


def _lower_bounds(bench: Bench, seen: Outcome) -> dict[str, float]:
    """For each objective, what its pooled percentile will at least be (absent: nothing can be said yet)."""
    bounds: dict[str, float] = {}
    part = Requests(seen.arrival_s, seen.prompt_tokens, seen.output_tokens)
    for objective in bench.objectives:
        count = part.samples(objective.metric)
        unseen = bench.requests.samples(objective.metric) - count
        # One rank below the wanted one: safe for nearest-rank and for interpolated percentiles.
        rank = objective.percentile / 100.0 * (count + unseen - 1) - unseen - 1.0
        if rank >= 0.0:
            bounds[objective.key] = seen.percentile(objective.metric, 100.0 * rank / count)
    return bounds


def _evaluation(pooled: Outcome, values_s: dict[str, float], *, complete: bool) -> Evaluation:
    queue_s, prefill_s = pooled.queue_s(), pooled.prefill_s()
    return Evaluation(
        complete=complete,
        values_s=values_s,
        saturated=pooled.saturated,
        unserved_share=pooled.load.unserved_share,
        uncovered_share=pooled.uncovered_share,
        utilisation=pooled.utilisation,
        mean_batch=pooled.mean_batch,
        peak_running=pooled.peak_running,
        preemptions=int(pooled.preemptions.sum()),
        steps=pooled.steps,
        prompt_tokens_per_s=pooled.prompt_tokens_per_s,
        generated_tokens_per_s=pooled.generated_tokens_per_s,
        split_s={
            "queue": float(queue_s.mean()),
            "prefill": float(prefill_s.mean()),
            "wait_between_chunks": float(pooled.prefill_wait_s[pooled.served].mean()),
            "first_decode": 0.0,
        },
    )


def judge(evaluation: Evaluation, objectives: Sequence[Objective]) -> tuple[Status, str]:
    """What the evaluation means for the candidate, and the reason in words unless it meets everything."""
    if evaluation.saturated:
        share = f"{100.0 * evaluation.unserved_share:.3g} % of the offered load is never served"
        return "saturated", f"a replica is offered more than it serves: {share}, so latency grows without end"
    if evaluation.complete and evaluation.uncovered_share > MAX_UNCOVERED_SHARE:
        share = f"{100.0 * evaluation.uncovered_share:.3g} % of busy time lies outside the calibrated region"
        return "not covered", f"{share} (at most {100.0 * MAX_UNCOVERED_SHARE:g} %)"
    failed = [
        f"{o.label} {'' if evaluation.complete else 'at least '}{seconds_text(evaluation.values_s[o.key])}"
        f" > {seconds_text(o.limit_s)}"
        for o in objectives
        if evaluation.values_s.get(o.key, 0.0) > o.limit_s
    ]
    return ("fails", "; ".join(failed)) if failed else ("meets", "")


def seconds_text(seconds: float) -> str:
    """`1.61 s`, `71 ms`, `450 µs`: three digits, the unit people use at that size."""
    if seconds >= 1.0 or seconds == 0.0:
        return f"{_three_digits(seconds)} s"
    if seconds >= 1e-3:
        return f"{_three_digits(seconds * 1e3)} ms"
    return f"{_three_digits(seconds * 1e6)} µs"


def _three_digits(value: float) -> str:
    if value == 0.0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
