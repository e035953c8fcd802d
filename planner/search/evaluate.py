"""One candidate against the whole trace: simulate, pool, compare with the objectives.

A candidate that cannot meet an objective need not be simulated to the end. With k of N samples seen, the value at
rank j of those is at most the value at rank j + (N - k) of all, because the unseen ones can at best all lie
below. If that bound is above the limit already, the rest cannot bring the percentile back: the answer is the
same as after the whole trace. N is known beforehand: requests for TTFT and E2E, requests with two output tokens
or more for TPOT, output tokens less one for ITL. `screening` does the same with the trace's beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from calibration.steptime import StepTimeArrays
from planner.search.class_gaps import gaps_by_group
from planner.search.combinations import Candidate, Pools, Status
from planner.search.conditions import Link
from planner.search.fleet import FIRST, ONE_KIND, Fleet
from planner.search.objectives import Objective
from planner.search.requests import Requests as Requests
from planner.search.runs import (
    PoolUse,
    Ran,
    Simulate,
    SimulateCluster,
    aggregated_use,
    run_behind_router,
    run_cluster,
    run_replica,
)
from planner.search.values import attained_share, value_of
from planner.simulation.cluster.deployment import ROUND_ROBIN
from planner.simulation.cluster.glance import Watch
from planner.simulation.kernel.cluster import simulate as simulate_cluster_compiled
from planner.simulation.knobs import Knobs
from planner.simulation.merge import merge
from planner.simulation.outcome import Outcome

Floats = NDArray[np.float64]

#: Share of busy time that may lie outside the calibrated region.
MAX_UNCOVERED_SHARE: Final = 0.005
#: How a reason goes on that says what fails outside the measured region.
BY_NEAREST: Final = "; by the nearest measured steps "


class Stopped(Exception):
    """The caller asked to stop."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What all candidates of a search share: requests, objectives, step times, link, simulators.

    `link` None: two pools cannot be evaluated. `bytes_per_token`: of the KV cache, of all ranks of a replica.
    `hit_share`: of all prompt tokens, assumed to be cached. `step_time` and `bytes_per_token` are of the first kind of
    hardware in the fleet, `second_step_time` and `second_bytes_per_token` of the second.
    """

    requests: Requests
    objectives: tuple[Objective, ...]
    trade: tuple[Objective, Objective]  # the TTFT and ITL percentiles of the trade plot
    step_time: StepTimeArrays
    host_gap_s: float
    simulate: Simulate
    should_stop: Callable[[], bool]
    link: Link | None = None
    bytes_per_token: float = 1.0
    message_s: float = 0.0
    hit_share: float = 0.0
    simulate_cluster: SimulateCluster = simulate_cluster_compiled
    second_step_time: StepTimeArrays | None = None
    second_bytes_per_token: float | None = None
    fleet: Fleet = ONE_KIND

    def moved_per_token(self, pools: Pools) -> float:
        """KV bytes that a prompt token brings from the one pool to the other: what the ranks of the decode pool's
        replica take, each the heads that it keeps, copies among them."""
        if pools.decode_kind == FIRST or self.second_bytes_per_token is None:
            return self.bytes_per_token
        return self.second_bytes_per_token

    def steps_of(self, kind: int) -> StepTimeArrays:
        """Step times of a kind of hardware."""
        if kind == FIRST:
            return self.step_time
        if self.second_step_time is None:
            raise ValueError("there is one kind of hardware")
        return self.second_step_time

    def of_kind(self, kind: int) -> Bench:
        """For replicas alike of that kind."""
        return self if kind == FIRST else replace(self, step_time=self.steps_of(kind))

    def with_steps(self, change: Callable[[StepTimeArrays], StepTimeArrays]) -> Bench:
        """The same change to the step times of every kind."""
        second = self.second_step_time
        return replace(
            self,
            step_time=change(self.step_time),
            second_step_time=None if second is None else change(second),
        )

    @property
    def tells_gaps(self) -> bool:
        """Does an objective ask for the gaps of some of the requests?"""
        asked = (*self.objectives, *self.trade)
        return self.requests.group is not None and any(o.metric == "itl" for o in asked)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a candidate did. `complete`: all of it ran; otherwise `values_s` are lower bounds.

    values_s: seconds by `Objective.key`, the trade plot's included; a metric without samples is absent.
    split_s: mean front end, queue, prefill, wait between chunks (part of prefill), transfer, first decode. Shares of 1.
    refused: requests that the engine can never serve. transfer_adds_s: to the TTFT percentile of the trade plot.
    attained: share of the requests that meet all limits, by key of the joint objectives, whose values are shares of
    those limits instead of seconds.
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
    refused: int = 0
    pools: tuple[PoolUse, ...] = ()
    link_share: float | None = None
    transfer_adds_s: float | None = None
    attained: Mapping[str, float] = field(default_factory=dict)

    def margins(self, objectives: Sequence[Objective]) -> list[float]:
        """Share of each limit that is left; an objective without samples cannot be exceeded."""
        return [o.margin(self.values_s[o.key]) if o.key in self.values_s else 1.0 for o in objectives]

    def worst_margin(self, objectives: Sequence[Objective]) -> float:
        return min(self.margins(objectives))


def run(bench: Bench, candidate: Candidate, watch: Watch | None = None) -> Ran:
    """The candidate's whole run. Raises Stopped when the caller wants to stop, and what `watch` raises, which is shown
    a run of two pools now and then."""
    if candidate.pools is None:
        there = bench.of_kind(candidate.kind)
        if candidate.router != ROUND_ROBIN and candidate.replicas > 1:
            return _behind_router(there, candidate.knobs, candidate.replicas, candidate.router)
        outcomes = _replicas(there, candidate.knobs, candidate.replicas)
        return _pooled(there, candidate.knobs, candidate.replicas, list(outcomes))
    if bench.link is None:
        raise ValueError("two pools need a link")
    if bench.should_stop():
        raise Stopped
    return run_cluster(
        bench.simulate_cluster,
        bench.requests,
        candidate,
        (bench.steps_of(candidate.pools.prefill_kind), bench.steps_of(candidate.pools.decode_kind)),
        bench.host_gap_s,
        bench.link,
        bench.moved_per_token(candidate.pools),
        bench.message_s,
        hit_share=bench.hit_share,
        tell_gaps=bench.tells_gaps,
        watch=watch,
    )


def _behind_router(bench: Bench, knobs: Knobs, replicas: int, router: str) -> Ran:
    """Replicas alike that hang together by a router that looks at them."""
    if bench.should_stop():
        raise Stopped
    return run_behind_router(
        bench.simulate_cluster,
        bench.requests,
        knobs,
        replicas,
        router,
        bench.step_time,
        bench.host_gap_s,
        bench.hit_share,
        tell_gaps=bench.tells_gaps,
    )


def evaluate_candidate(bench: Bench, candidate: Candidate) -> Evaluation:
    """`run` and what it means. Raises Stopped when the caller wants to stop."""
    if candidate.pools is None:
        return evaluate(
            bench.of_kind(candidate.kind),
            candidate.knobs,
            candidate.replicas,
            complete=True,
            router=candidate.router,
        )
    return evaluation_of(bench, run(bench, candidate))


def evaluation_of(bench: Bench, ran: Ran) -> Evaluation:
    return _evaluation(bench, ran, _values(bench, ran), complete=True)


def evaluate(
    bench: Bench, knobs: Knobs, replicas: int, *, complete: bool, router: str = ROUND_ROBIN
) -> Evaluation:
    """Simulate `replicas` replicas with `knobs` behind a router; unless `complete`, stop once the candidate cannot
    meet. One that deals requests in turn makes replicas independent, any other has them simulated together.

    Raises Stopped between two replicas when the caller wants to stop.
    """
    if router != ROUND_ROBIN and replicas > 1:
        return evaluation_of(bench, _behind_router(bench, knobs, replicas, router))
    outcomes: list[Outcome] = []
    for outcome in _replicas(bench, knobs, replicas):
        outcomes.append(outcome)
        seen = len(outcomes)
        if not complete and _worth_a_look(seen, replicas):
            ran = _pooled(bench, knobs, replicas, outcomes)
            bounds = _lower_bounds(bench, ran)
            failed = any(bounds.get(o.key, 0.0) > o.limit_s for o in bench.objectives)
            if ran.pooled.saturated or failed:
                return _evaluation(bench, ran, bounds, complete=False)
    return evaluation_of(bench, _pooled(bench, knobs, replicas, outcomes))


def _replicas(bench: Bench, knobs: Knobs, replicas: int) -> Iterator[Outcome]:
    for replica in range(replicas):
        if bench.should_stop():
            raise Stopped
        part = bench.requests.share(replica, replicas)
        yield run_replica(
            bench.simulate, part, knobs, bench.step_time, bench.host_gap_s, bench.hit_share,
            record_steps=bench.tells_gaps,
        )  # fmt: skip


def _pooled(bench: Bench, knobs: Knobs, replicas: int, outcomes: Sequence[Outcome]) -> Ran:
    """`outcomes`: of the first so many of the replicas."""
    pooled = merge(outcomes)
    extra, group, gaps = bench.requests.extra_s, bench.requests.group, None
    if extra is not None:
        extra = np.concatenate([extra[replica::replicas] for replica in range(len(outcomes))])
    if group is not None:
        parts = [group[replica::replicas] for replica in range(len(outcomes))]
        group = np.concatenate(parts)
        if bench.tells_gaps:
            count = 1 + len(bench.requests.classes)
            gaps = np.sum(
                [
                    gaps_by_group(outcome, [outcome.record] if outcome.record else [], part, count)
                    for outcome, part in zip(outcomes, parts, strict=True)
                ],
                axis=0,
            )
    return Ran(pooled, extra, (aggregated_use(knobs, len(outcomes), pooled),), group=group, gaps=gaps)


def _worth_a_look(seen: int, replicas: int) -> bool:
    """Pooling takes time too: bounds are computed after 1, 2, 4, 8, ... replicas."""
    return seen < replicas and seen & (seen - 1) == 0


def _values(bench: Bench, ran: Ran) -> dict[str, float]:
    found: dict[str, float] = {}
    for o in (*bench.objectives, *bench.trade):
        value = value_of(ran, o, bench.requests.group_of(o))
        if value is not None:
            found[o.key] = value
    return found


def _lower_bounds(bench: Bench, seen: Ran) -> dict[str, float]:
    """For each objective, what its pooled percentile will at least be (absent: nothing can be said yet)."""
    bounds: dict[str, float] = {}
    pooled = seen.pooled
    part = Requests(
        pooled.arrival_s, pooled.prompt_tokens, pooled.output_tokens, group=seen.group,
        classes=bench.requests.classes,
    )  # fmt: skip
    for o in bench.objectives:
        count = part.samples(o)
        unseen = bench.requests.samples(o) - count
        # One rank below the wanted one: safe for nearest-rank and for interpolated percentiles.
        rank = o.percentile / 100.0 * (count + unseen - 1) - unseen - 1.0
        if rank >= 0.0 and len(pooled.rejected) == 0:
            at = replace(o, percentile=max(100.0 * rank / count, 1e-9))
            bound = value_of(seen, at, part.group_of(o))
            if bound is not None:
                bounds[o.key] = bound
    return bounds


def _evaluation(bench: Bench, ran: Ran, values_s: dict[str, float], *, complete: bool) -> Evaluation:
    pooled = ran.pooled
    queue_s, prefill_s = pooled.queue_s(), pooled.prefill_s()
    nobody = len(queue_s) == 0
    split_s = {
        "queue": 0.0 if nobody else float(queue_s.mean()),
        "prefill": 0.0 if nobody else float(prefill_s.mean()),
        "wait_between_chunks": 0.0 if nobody else float(pooled.prefill_wait_s[pooled.served].mean()),
        "first_decode": 0.0,
    }
    adds_s = None
    if ran.transfer_s is not None and ran.first_decode_s is not None and not nobody:
        split_s["transfer"] = float(ran.transfer_s.mean())
        split_s["first_decode"] = float(ran.first_decode_s.mean())
        ttft_s, p = pooled.ttft_s(), bench.trade[0].percentile
        without_s = ttft_s - np.minimum(ran.transfer_s, ttft_s)
        adds_s = float(np.percentile(ttft_s, p) - np.percentile(without_s, p))
    if ran.extra_s is not None:
        split_s["front_end"] = float(ran.extra_s.mean())
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
        split_s=split_s,
        refused=len(pooled.rejected),
        pools=ran.pools,
        link_share=ran.link_share,
        transfer_adds_s=adds_s,
        attained={
            o.key: attained_share(ran, o, bench.requests.group_of(o))
            for o in bench.objectives
            if o.is_joint and complete
        },
    )


def judge(evaluation: Evaluation, objectives: Sequence[Objective]) -> tuple[Status, str]:
    """What the evaluation means for the candidate, and the reason in words unless it meets everything."""
    if evaluation.refused:
        return (
            "fails",
            f"{evaluation.refused:,} requests can never be admitted beside what the engine reserves",
        )
    if evaluation.saturated:
        share = f"{100.0 * evaluation.unserved_share:.3g} % of the offered load is never served"
        return "saturated", f"a replica is offered more than it serves: {share}, so latency grows without end"
    failed = "; ".join(
        o.exceeded(evaluation.values_s[o.key], at_least=not evaluation.complete)
        for o in objectives
        if evaluation.values_s.get(o.key, 0.0) > o.limit_s
    )
    if evaluation.complete and evaluation.uncovered_share > MAX_UNCOVERED_SHARE:
        share = f"{100.0 * evaluation.uncovered_share:.3g} % of busy time lies outside the calibrated region"
        also = f"{BY_NEAREST}{failed}" if failed else ""
        return "not covered", f"{share} (at most {100.0 * MAX_UNCOVERED_SHARE:g} %){also}"
    return ("fails", failed) if failed else ("meets", "")
