"""A cluster of replicas in plain Python: the oracle that the compiled one must equal bit for bit.

The loop takes what comes first, in the order of `order`, and lets it change the replicas, the links and the
requests. How a replica works is in `reference_replica`, how a decode replica takes over in `reference_decode_side`,
how KV caches get there in `reference_hand_off`, how transfers share links in `reference_links`. Nothing here is
fast; everything is meant to be read. Seconds, tokens, bytes.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from planner.simulation.arrays import Floats, Ints
from planner.simulation.cluster import reference_fetch as fetch
from planner.simulation.cluster import reference_hand_off as hand_off
from planner.simulation.cluster.deployment import (
    AFTER_PREFILL,
    PUSH_CHUNKS,
    Deployment,
    Loss,
    QueueLimit,
    RequestClass,
)
from planner.simulation.cluster.order import (
    ARRIVAL,
    COMPUTED,
    ENDS,
    FINISHED,
    HANDED_OVER,
    JOINS,
    LEASE_ENDS,
    LOST,
    NEVER_FITS,
    NO_REPLICA,
    PREALLOCATED,
    PREFILLED,
    QUEUE_FULL,
    SCHEDULE,
    SERVED,
    TOO_LATE,
)
from planner.simulation.cluster.outcome import ClusterOutcome
from planner.simulation.cluster.reference_admission import predicted_ttft_s
from planner.simulation.cluster.reference_pool import book, close, is_scheduled, prefill_is_done
from planner.simulation.cluster.reference_replica import Drive, Leg, ReferenceReplica, Turn
from planner.simulation.cluster.reference_results import raw_of
from planner.simulation.cluster.reference_run import Event, Run, Way, build
from planner.simulation.cluster.results import finish
from planner.simulation.cluster.rules import rules_of
from planner.simulation.cluster.workload import Requests, prepare
from planner.simulation.gaps import GAP_BINS
from planner.simulation.prefix import PrefixBlocks


def simulate(
    arrival_s: Floats,
    prompt_tokens: Ints,
    output_tokens: Ints,
    priority: Ints | None,
    deployment: Deployment,
    *,
    concurrency: int = 0,
    think_s: float = 0.0,
    queue_limit: QueueLimit | None = None,
    losses: Sequence[Loss] = (),
    warm_up_requests: int = 0,
    max_tokens: Ints | None = None,
    prefix: PrefixBlocks | None = None,
    assumed_hit_share: float = 0.0,
    request_class: Ints | None = None,
    classes: Sequence[RequestClass] = (),
    ttft_limit_s: float | None = None,
    record_steps: bool = False,
    bin_s: float = 0.0,
    drive: Drive | None = None,
) -> ClusterOutcome:
    """Run the requests to their end. Arrays have one entry per request, sorted by arrival.

    concurrency > 0 closes the loop: the arrivals are not used, so many clients send a request at time 0, and each
    sends the next one, in the order of the arrays, think_s after its last was finished or turned away. The first
    `warm_up_requests` do not count as measured, nor do gaps of steps scheduled before the next one arrives.
    `max_tokens` is what the clients allowed, for engines that reserve or estimate by it; None: just the outputs.
    `prefix` names the blocks that prompts share, for the replicas that cache prefixes, or `assumed_hit_share` of all
    prompt tokens is taken to be cached wherever a prompt is computed first. `request_class` int64[N] are positions in
    `classes`, which give priorities and limits; without `classes` they are passed through. A request is turned away at
    its arrival when its TTFT, as predicted then, is above `ttft_limit_s` or its class's limit (`reference_admission`).
    `bin_s` > 0 keeps each replica's time series, in bins at first so wide (see time_bins). `drive` really runs the
    steps and hand-offs (planner.verification): then their times are its, and the deployment's are not asked for.
    ValueError for an unusable workload (see `workload.prepare`) or setting.
    """
    rules = rules_of(
        deployment, concurrency, think_s, queue_limit, losses, warm_up_requests, classes, ttft_limit_s
    )
    requests = prepare(
        arrival_s,
        prompt_tokens,
        output_tokens,
        priority,
        max_tokens,
        rules,
        prefix,
        assumed_hit_share,
        request_class,
    )
    run = build(requests, rules, bin_s, drive)
    _begin(run, requests)
    while run.over < len(run.ways):
        _next(run, requests)
    return finish(raw_of(run, record_steps=record_steps), requests, rules)


def _begin(run: Run, requests: Requests) -> None:
    for loss in run.rules.losses:
        run.at(loss.time_s, LOST, len(run.prefill.replicas) + loss.replica)
    if run.rules.closed_loop:
        for _ in range(run.rules.concurrency):
            run.next_client(0.0)
    else:
        for i, time_s in enumerate(requests.arrival_s.tolist()):
            run.at(time_s, ARRIVAL, i)


def _next(run: Run, requests: Requests) -> None:
    """Let happen what comes first."""
    replica = min(run.replicas, key=lambda replica: replica.next_s)
    transfer = run.links.next_end()
    times = [
        (run.events[0].time_s, run.events[0].kind) if run.events else (math.inf, SCHEDULE),
        (transfer.ends_s if transfer is not None else math.inf, ENDS),
        (replica.next_s, SCHEDULE),
    ]
    now, kind = min(times)
    if now == math.inf:
        raise RuntimeError("the simulation came to a stop with requests left: this is a defect")
    if kind == SCHEDULE:
        _turn(run, replica, now)
    elif kind == ENDS and transfer is not None:
        hand_off.ends(run, transfer, now)
    else:
        _happen(run, requests, heapq.heappop(run.events))


def _happen(run: Run, requests: Requests, event: Event) -> None:
    now, kind = event.time_s, event.kind
    if kind == PREFILLED:
        _prefilled(run, run.ways[event.subject], by_prefill_pool=event.again)
        return
    if kind == LOST:
        hand_off.lost(run, run.replicas[event.subject], now, last_step_is_over=event.again)
        return
    way = run.ways[event.subject]
    if kind == ARRIVAL:
        _arrive(run, way, now, fits=bool(requests.fits[event.subject]))
    elif kind == FINISHED:
        _finished(run, way, now)
    elif kind == JOINS:
        hand_off.joins(run, way, event.transfer, now)
    elif kind == COMPUTED:
        hand_off.computed(run, way, event, now)
    elif kind == HANDED_OVER and event.again:
        hand_off.handed_over_again(run, way, now, remote=event.remote)
    elif kind == HANDED_OVER:
        hand_off.handed_over(run, way, now)
    elif kind == PREALLOCATED:
        hand_off.preallocated(run, way, event, now)
    elif kind == LEASE_ENDS:
        hand_off.lease_ends(run, way, now)


def _arrive(run: Run, way: Way, now: float, *, fits: bool) -> None:
    way.arrival_s = now
    if way.decode.index == run.rules.warm_up_requests:
        for replica in run.replicas:
            replica.gaps = [0] * GAP_BINS
    pool, leg = (run.decode, way.decode) if way.prefill is None else (run.prefill, way.prefill)
    chosen = pool.choose(leg)
    way.refusal = _refusal(run, chosen, way, leg, now, fits=fits)
    if way.refusal or chosen is None:
        run.is_over(now)
        return
    pushed = way.prefill is not None and run.rules.hand_off.mode == PUSH_CHUNKS
    if pushed and not hand_off.preallocate(run, way, now):
        return
    _count_in(chosen, leg, way)
    if run.rules.keeps_accounts:
        first, end = fetch.to_fetch(run, chosen, leg)
        book(chosen, leg, (end - first) * chosen.engine.profile.block_size, remote=False)
    if not pushed:
        fetch.begin(run, way, leg, chosen, now)


def _refusal(
    run: Run, replica: ReferenceReplica | None, way: Way, leg: Leg, now: float, *, fits: bool
) -> int:
    if not fits:
        return NEVER_FITS
    if replica is None:
        return NO_REPLICA
    too_many = replica.queued >= run.rules.queue_requests
    too_long = replica.queued_tokens + way.prompt > run.rules.queue_tokens
    if too_many or too_long:
        return QUEUE_FULL
    if way.ttft_limit_s < math.inf and predicted_ttft_s(run, way, replica, leg, now) > way.ttft_limit_s:
        return TOO_LATE
    return SERVED


def _prefilled(run: Run, way: Way, *, by_prefill_pool: bool) -> None:
    leg = way.sender if by_prefill_pool else way.decode
    replica = run.replicas[leg.replica]
    if not by_prefill_pool:
        prefill_is_done(replica, leg)
    if run.store is not None and replica.engine.cache is not None:
        run.store.store(leg.index, way.prompt // replica.engine.profile.block_size)


def _count_in(replica: ReferenceReplica, leg: Leg, way: Way) -> None:
    """On the accounts of the router and of the queue limit until it is over, or has its first step."""
    leg.replica = replica.number
    leg.queued = True
    replica.queued += 1
    replica.queued_tokens += way.prompt
    replica.outstanding_tokens += way.prompt if leg.prefill_side else way.prompt + way.output


def _turn(run: Run, replica: ReferenceReplica, now: float) -> None:
    turn = replica.turn(now)
    if turn is None:
        return
    for row in turn.rows:
        leg = row.request
        assert isinstance(leg, Leg)  # noqa: S101  for the type checker
        is_scheduled(replica, leg, row)
        if row.emits and leg.tells:
            leg.tells = False
            if run.rules.tells_prefills:
                run.at(turn.end_s, PREFILLED, leg.index, again=leg.prefill_side)
    if replica.number < len(run.prefill.replicas):
        _tell_of_prefills(run, turn)
        return
    for row in turn.rows:
        if row.emits and row.request.generated + row.request.in_flight == row.request.output:
            run.at(turn.end_s, FINISHED, row.request.index)
    hand_off.staged(run, replica.side, turn.start_s)


def _tell_of_prefills(run: Run, turn: Turn) -> None:
    rules = run.rules.hand_off
    for row in turn.rows:
        i, tokens = row.request.index, row.cached + row.tokens
        if rules.mode == PUSH_CHUNKS:
            run.at(turn.end_s, COMPUTED, i, tokens=tokens, mark=row.request.preemptions)
        elif row.emits and rules.mode == AFTER_PREFILL and run.ways[i].output == 1:
            run.at(turn.end_s, FINISHED, i)
        elif row.emits:
            run.at(turn.end_s + rules.message_s, HANDED_OVER, i)


def _finished(run: Run, way: Way, now: float) -> None:
    leg = way.decode
    if leg.replica < 0:  # its only token came from the prefill side
        if not way.sender.finished:
            return  # preempted after its last chunk: it will be computed again
        hand_off.prefill_is_over(run, way)
        leg.first_token_s = leg.last_token_s = way.sender.first_token_s
    else:
        run.replicas[leg.replica].outstanding_tokens -= way.prompt + way.output
        close(run.replicas[leg.replica], leg)
    run.is_over(now)
