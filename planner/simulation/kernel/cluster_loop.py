"""A cluster's loop of events, compiled: `cluster.reference` over flat arrays.

What comes first happens, in the order of `planner.simulation.cluster.order`: the first of the heap, the next arrival
of an open loop, the transfer that ends first, or the replica whose schedule is due first.
"""

from __future__ import annotations

from planner.simulation.arrays import Ints
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
    TOO_LATE,
)
from planner.simulation.kernel.cluster_admission import predicted_ttft_s
from planner.simulation.kernel.cluster_loss import lose
from planner.simulation.kernel.cluster_pool import blocks_to_fetch, enter_or_fetch, store
from planner.simulation.kernel.cluster_records import PUSH_MODE
from planner.simulation.kernel.cluster_replicas import (
    NEVER,
    NOBODY,
    choose_decode,
    choose_prefill,
    is_over,
)
from planner.simulation.kernel.cluster_router import book, close, prefill_is_done
from planner.simulation.kernel.cluster_state import Between, between_at, replica_state
from planner.simulation.kernel.cluster_turn import turn
from planner.simulation.kernel.compiled import compiled, merged
from planner.simulation.kernel.events import drop_first
from planner.simulation.kernel.hand_off import (
    computed,
    handed_over,
    handed_over_again,
    joins,
    lease_ends,
    preallocated,
    prefill_is_over,
    take_first_token,
    to_decode_side,
    transfer_ends,
)
from planner.simulation.kernel.loop import FINISHED as ALL_DONE
from planner.simulation.kernel.loop import PAUSED, RECORD_FULL, STUCK
from planner.simulation.kernel.record import record_room
from planner.simulation.kernel.records import DONE
from planner.simulation.kernel.state import State


def advance_cluster(row: Ints, most_events: int) -> int:
    """Go on until all is done (ALL_DONE), a record's arrays are full, or so much has happened (PAUSED).

    Compiled once for each pair of assemblers (`cluster_entries`).
    STUCK cannot happen with requests that fit; it is there so that a mistake ends.
    """
    between = between_at(row, 0)
    run = between.run[0]
    for _ in range(most_events):
        r = _next_replica(between)
        time_s, kind = between.next_s[r], SCHEDULE
        if run.closed_loop == 0 and run.arrived < run.count:
            arrival_s = between.ways[run.arrived].arrival_s
            if arrival_s <= time_s:
                time_s, kind = arrival_s, ARRIVAL
        if run.events > 0:
            event = between.events[0]
            if event.time_s < time_s or (event.time_s == time_s and event.kind < kind):
                time_s, kind = event.time_s, event.kind
        if run.next_end_s < time_s or (run.next_end_s == time_s and kind > ENDS):
            time_s, kind = run.next_end_s, ENDS
        if run.over == run.count and time_s >= run.over_s:
            return ALL_DONE
        if time_s == NEVER:
            return STUCK
        if kind == SCHEDULE:
            if run.record != 0 and not record_room(replica_state(between, r)):
                return RECORD_FULL
            turn(between, r, time_s)
        elif kind == ENDS:
            transfer_ends(between, time_s)
        elif kind == ARRIVAL and run.closed_loop == 0:
            run.arrived += 1
            _arrive(between, run.arrived - 1, time_s)
        else:
            _happen(between, time_s, kind)
    return PAUSED


@merged
def _next_replica(between: Between) -> int:
    next_s = between.next_s
    first = 0
    for r in range(1, len(next_s)):
        if next_s[r] < next_s[first]:
            first = r
    return first


@merged
def _happen(between: Between, now_s: float, kind: int) -> None:
    """The first event of the heap."""
    event = between.events[0]
    subject, tokens, mark, again = event.subject, event.tokens, event.mark, event.again
    drop_first(between)
    if kind == JOINS:
        joins(between, subject, mark, now_s)
    elif kind == HANDED_OVER and again == 0:
        handed_over(between, subject, now_s)
    elif kind == HANDED_OVER:
        handed_over_again(between, subject, now_s, mark != 0)
    elif kind == COMPUTED:
        computed(between, subject, tokens, mark, now_s)
    elif kind == PREFILLED:
        _prefilled(between, subject, again != 0)
    elif kind == FINISHED:
        _finished(between, subject, now_s)
    elif kind == PREALLOCATED:
        preallocated(between, subject, mark, now_s)
    elif kind == ARRIVAL:
        _arrive(between, subject, now_s)
    elif kind == LEASE_ENDS:
        lease_ends(between, subject, now_s)
    elif kind == LOST:
        lose(between, subject, now_s, again != 0)


@compiled
def _arrive(between: Between, i: int, now_s: float) -> None:
    run, way = between.run[0], between.ways[i]
    way.arrival_s = now_s
    if i == run.warm_up_requests:
        for each in range(len(between.replicas)):
            _forget_gaps(replica_state(between, each))
    via = way.handed_over != 0
    leg = run.count + i if via else i
    r = choose_prefill(between, leg) if via else choose_decode(between, leg)
    _refuse(between, i, r, leg, now_s)
    if way.refusal != 0:
        is_over(between, now_s)
        return
    if via:
        way.sender = r
    else:
        way.receiver = r - run.prefill
    pushed = via and run.mode == PUSH_MODE
    if pushed and not to_decode_side(between, i, now_s, True):
        return
    between.legs[leg].replica = r
    between.legs[leg].queued = 1
    replica = between.replicas[r]
    replica.queued += 1
    replica.queued_tokens += way.prompt
    replica.outstanding_tokens += way.prompt if via else way.prompt + way.output
    if run.keeps_accounts != 0:
        book(between, r, leg, blocks_to_fetch(between, r, leg) * between.knobs[r].block_size, False)
    if not pushed:
        enter_or_fetch(between, r, leg, now_s)


@compiled
def _forget_gaps(state: State) -> None:
    for at in range(len(state.gap_counts)):
        state.gap_counts[at] = 0


@merged
def _refuse(between: Between, i: int, r: int, leg: int, now_s: float) -> None:
    run, way = between.run[0], between.ways[i]
    if way.fits == 0:
        way.refusal = NEVER_FITS
    elif r == NOBODY:
        way.refusal = NO_REPLICA
    else:
        replica = between.replicas[r]
        if replica.queued >= run.queue_requests or replica.queued_tokens + way.prompt > run.queue_tokens:
            way.refusal = QUEUE_FULL
        elif way.ttft_limit_s < NEVER and predicted_ttft_s(between, i, r, leg, now_s) > way.ttft_limit_s:
            way.refusal = TOO_LATE


@merged
def _prefilled(between: Between, i: int, by_prefill_pool: bool) -> None:
    leg = between.run[0].count + i if by_prefill_pool else i
    r = between.legs[leg].replica
    if not by_prefill_pool:
        prefill_is_done(between, r, leg)
    if between.run[0].pooled != 0 and between.knobs[r].caching != 0:
        store(between, leg, between.ways[i].prompt // between.knobs[r].block_size)


@merged
def _finished(between: Between, i: int, now_s: float) -> None:
    run, way = between.run[0], between.ways[i]
    if between.legs[i].replica < 0:  # its only token came from the prefill side
        if between.requests[run.count + i].state != DONE:
            return  # preempted after its last chunk: it will be computed again
        prefill_is_over(between, i)
        take_first_token(between, i)
    else:
        between.replicas[between.legs[i].replica].outstanding_tokens -= way.prompt + way.output
        close(between, between.legs[i].replica, i)
    is_over(between, now_s)
