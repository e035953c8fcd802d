"""How many replicas at which time of day: the plan's configuration with its number of replicas varied by the hour.

The plan's answer holds for the whole traffic at once; at night fewer replicas would do. Each period is simulated by
itself on a rising number of replicas until the objectives hold **in that period**: the requests that arrive in it are
judged, those of the RUN_IN_S before it run in front of them on as many replicas, so that the period does not begin
idle. The first number that holds is the period's, and the one below it was tried and failed. Two pools vary both
counts, fewest replicas first. Everything but the counts stays as the plan has it; its headroom applies to each period.

A period is harder than the whole: percentiles of a busy hour stand alone, not beside those of a quiet night. So a
busy period may need more than the plan's own number, and what a schedule saves is told against as many replicas all
day as the busiest period needs.

Periods are hours of the day, or equal parts of the traffic. A traffic of several days is folded by the hour: an hour
needs what it needs on its worst day. What switching takes is not in it: replicas that go must finish their requests
first (drain), replicas that come need their start-up time before the period begins, and how eagerly to switch
(hysteresis) is the operator's choice. Times are seconds of the traffic's own clock (`periods`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from planner.search.class_gaps import gaps_by_group
from planner.search.combinations import Candidate, Status
from planner.search.evaluate import Bench, Evaluation, Stopped, evaluation_of, judge
from planner.search.periods import HOUR_S, Periods, Window, windows_of
from planner.search.requests import Requests
from planner.search.runs import Ran, hand_off_of
from planner.simulation.cluster.deployment import Aggregated, Deployment, Disaggregated, Network, pool
from planner.simulation.cluster.outcome import ClusterOutcome
from planner.simulation.kernel.cluster import simulate as simulate_cluster_compiled

RUN_IN_S: Final = 600.0
Simulate = Callable[..., ClusterOutcome]


@dataclass(frozen=True, slots=True)
class Need:
    """What one window needs: on `replicas` (of two pools `prefill_replicas` of them prefill) the objectives hold, on
    one fewer they do not. Both None where nothing up to the most that was tried does (`status`, `reason` of that).
    `claimed`: enough requests stand behind every percentile."""

    window: Window
    requests: int
    replicas: int | None
    prefill_replicas: int
    status: Status
    reason: str
    values_s: dict[str, float]
    claimed: bool


@dataclass(frozen=True, slots=True)
class PeriodNeed:
    """A period by its worst day. `start_s`, `end_s`: of the day for hours, of the traffic for parts. `worst`: the
    day (0: the first) that decides; `days`: every day's need."""

    start_s: float
    end_s: float
    requests: int
    rate_per_s: float
    worst: int
    need: Need
    days: tuple[Need, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """`constant_replicas`: what the busiest period needs, all day; None, as is `saved_share`, where some period has
    no number that holds. `saved_share`: of the replica-hours of that constant number."""

    periods: Periods
    needs: tuple[PeriodNeed, ...]
    planned_replicas: int
    constant_replicas: int | None
    replica_hours: float | None
    constant_replica_hours: float | None
    saved_share: float | None
    cost: float | None
    constant_cost: float | None
    most_replicas: int
    assumed: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"run_in_s": RUN_IN_S}


# How many ----------------------------------------------------------------------------------------------------------


def schedule(
    bench: Bench,
    at_own_rate: Requests,
    load: float,
    candidate: Candidate,
    periods: Periods,
    most_replicas: int,
    *,
    price_per_replica_hour: float | None = None,
    threads: int = 1,
    on_progress: Callable[[int, int, str], None] = lambda done, total, message: None,
    simulate: Simulate = simulate_cluster_compiled,
) -> Schedule:
    """`at_own_rate`: all requests on the traffic's own clock; `load`: what their arrivals are sped up by. `bench`:
    objectives, step times, link and `should_stop`. Raises Stopped when that says so."""
    windows = windows_of(float(at_own_rate.arrival_s[-1]), periods)
    found: list[Need] = []
    with ThreadPoolExecutor(max(1, threads)) as workers:
        jobs = [
            workers.submit(need_of, bench, at_own_rate, load, candidate, window, most_replicas, simulate)
            for window in windows
        ]
        try:
            for number, job in enumerate(jobs, 1):
                found.append(job.result())
                on_progress(number, len(jobs), f"Time of day: {number} of {len(jobs)} periods")
        except Stopped:
            for job in jobs:
                job.cancel()
            raise
    return _summary(found, periods, candidate, most_replicas, price_per_replica_hour)


def need_of(
    bench: Bench,
    at_own_rate: Requests,
    load: float,
    candidate: Candidate,
    window: Window,
    most_replicas: int,
    simulate: Simulate = simulate_cluster_compiled,
) -> Need:
    """The fewest replicas on which the objectives hold among the requests of `window`."""
    first, last = np.searchsorted(at_own_rate.arrival_s, (window.start_s, window.end_s)).tolist()
    if first == last:
        least = counts(candidate, 1) or counts(candidate, 2)
        fewest = least[0]
        return Need(window, 0, fewest.replicas, fewest.prefill_replicas, "meets", "no requests", {}, True)
    begun = int(np.searchsorted(at_own_rate.arrival_s, window.start_s - RUN_IN_S))
    part = at_own_rate.take(slice(begun, last))
    part = replace(part, arrival_s=(part.arrival_s - part.arrival_s[0]) / load)
    judged = part.take(slice(first - begun, None))
    tried: tuple[Candidate, Evaluation, Status, str] | None = None
    for replicas in range(1, most_replicas + 1):
        level = []
        for there in counts(candidate, replicas):
            if bench.should_stop():
                raise Stopped
            evaluation = evaluated(bench, there, part, first - begun, simulate)
            level.append((there, evaluation, *judge(evaluation, bench.objectives)))
        if not level:
            continue
        holding = [each for each in level if each[2] == "meets"]
        tried = max(holding or level, key=lambda each: each[1].worst_margin(bench.objectives))
        if holding:
            break
    if tried is None:
        raise ValueError("two pools need two replicas")
    there, evaluation, status, reason = tried
    met = status == "meets"
    claimed = all(o.claimable(judged.samples(o), judged.requests_behind(o)) for o in bench.objectives)
    values_s = {} if evaluation.saturated else {
        o.key: evaluation.values_s[o.key] for o in bench.objectives if o.key in evaluation.values_s
    }  # fmt: skip
    return Need(
        window, last - first, there.replicas if met else None, there.prefill_replicas, status, reason, values_s,
        claimed,
    )  # fmt: skip


def counts(candidate: Candidate, replicas: int) -> list[Candidate]:
    """The candidate on so many replicas: one way, or every split of two pools."""
    if candidate.pools is None:
        return [replace(candidate, replicas=replicas)]
    return [replace(candidate, replicas=replicas, prefill_replicas=p) for p in range(1, replicas)]


def evaluated(
    bench: Bench,
    candidate: Candidate,
    part: Requests,
    run_in: int,
    simulate: Simulate = simulate_cluster_compiled,
) -> Evaluation:
    """Simulate `part` and judge it without its first `run_in` requests; gaps count from the first judged arrival."""
    options: dict[str, Any] = {"warm_up_requests": run_in}
    if part.group is not None and bench.tells_gaps:
        options["record_steps"] = True
    if part.max_tokens is not None:
        options["max_tokens"] = part.max_tokens
    if part.prefix is not None:
        options["prefix"] = part.prefix
    if bench.hit_share:
        options["assumed_hit_share"] = bench.hit_share
    outcome = simulate(
        part.arrival_s,
        part.prompt_tokens,
        part.output_tokens,
        part.priority,
        _deployment(bench, candidate),
        **options,
    )
    judged = part.take(slice(run_in, None))
    told = replace(bench, requests=judged)
    gaps = None
    if told.tells_gaps and part.group is not None:
        count = 1 + len(part.classes)
        groups = part.group.copy()
        groups[:run_in] = count  # of the run-in: apart, and dropped
        records = [use.record for use in outcome.decode if use.record is not None]
        gaps = gaps_by_group(outcome.requests, records, groups, count + 1)[:count]
    return evaluation_of(told, Ran(outcome.measured(), judged.extra_s, group=judged.group, gaps=gaps))


def _deployment(bench: Bench, candidate: Candidate) -> Deployment:
    pools = candidate.pools
    if pools is None:
        steps = bench.steps_of(candidate.kind)
        return Aggregated(
            pool(candidate.replicas, candidate.knobs, steps, bench.host_gap_s), candidate.router
        )
    if bench.link is None:
        raise ValueError("two pools need a link")
    return Disaggregated(
        prefill=pool(
            candidate.prefill_replicas, pools.prefill, bench.steps_of(pools.prefill_kind), bench.host_gap_s
        ),
        decode=pool(
            candidate.decode_replicas, pools.decode, bench.steps_of(pools.decode_kind), bench.host_gap_s
        ),
        hand_off=hand_off_of(candidate, bench.moved_per_token(pools), bench.message_s),
        network=Network.cards(bench.link.table),
        prefill_router=pools.router,
        decode_router=pools.router,
        local_prefill_tokens=pools.local_prefill_tokens,
    )


# What it comes to --------------------------------------------------------------------------------------------------


def _summary(
    found: Sequence[Need], periods: Periods, candidate: Candidate, most: int, price: float | None
) -> Schedule:
    needs = tuple(_folded(found, periods))
    numbers = [each.need.replicas for each in needs if each.need.replicas is not None]
    whole = len(numbers) == len(needs)
    hours = [(each.end_s - each.start_s) / HOUR_S for each in needs]
    constant = max(numbers) if whole else None
    used = sum(n * h for n, h in zip(numbers, hours, strict=True)) if whole else None
    all_day = constant * sum(hours) if constant is not None else None
    return Schedule(
        periods=periods,
        needs=needs,
        planned_replicas=candidate.replicas,
        constant_replicas=constant,
        replica_hours=used,
        constant_replica_hours=all_day,
        saved_share=1.0 - used / all_day if used is not None and all_day else None,
        cost=None if price is None or used is None else price * used,
        constant_cost=None if price is None or all_day is None else price * all_day,
        most_replicas=most,
        assumed=_assumed(periods),
    )


def _folded(found: Sequence[Need], periods: Periods) -> Iterator[PeriodNeed]:
    """By period, the worst day first in line: no number that holds is worse than any, then the larger number."""
    for period in sorted({need.window.period for need in found}):
        days = tuple(need for need in found if need.window.period == period)
        worst = max(days, key=lambda n: (n.replicas is None, n.replicas or 0, n.requests, -n.window.day))
        if periods.by == "hours":
            start_s, end_s = period * HOUR_S, (period + 1) * HOUR_S
        else:
            start_s, end_s = worst.window.start_s, worst.window.end_s
        lasted_s = sum(need.window.end_s - need.window.start_s for need in days)
        requests = sum(need.requests for need in days)
        rate = requests / lasted_s if lasted_s > 0 else 0.0
        yield PeriodNeed(start_s, end_s, requests, rate, worst.window.day, worst, days)


def _assumed(periods: Periods) -> tuple[str, ...]:
    found = [
        "replicas that go finish their requests first (drain), and replicas that come are started in time: neither is "
        "in the numbers",
        f"each period begins as if its replicas had served the {RUN_IN_S:,.0f} s before it",
        "how eagerly to switch (hysteresis) is left to you",
    ]
    if periods.by == "hours" and not periods.first_request_s:
        found.append("the traffic's first request came at midnight, because none says when it came")
    return tuple(found)
