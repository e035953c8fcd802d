"""One replica's turn in a cluster: a schedule (or a run of decode-only ones), and what it will bring about.

Rules of `cluster.reference_replica` and `cluster.reference._turn`. A run of decode-only schedules stops before
anything can happen that touches the replica (`horizon_s`), so it is the same as making them one by one.
"""

from __future__ import annotations

from planner.simulation.cluster.order import COMPUTED, FINISHED, HANDED_OVER, PREFILLED
from planner.simulation.kernel.assemble import assemble
from planner.simulation.kernel.blocks import blocks_for
from planner.simulation.kernel.cluster_records import AFTER_PREFILL_MODE, PUSH_MODE
from planner.simulation.kernel.cluster_replicas import due_s, is_over, sleep
from planner.simulation.kernel.cluster_router import is_scheduled
from planner.simulation.kernel.cluster_state import Between, replica_model, replica_state
from planner.simulation.kernel.compiled import inlined, merged
from planner.simulation.kernel.decode_run import decode_run, only_decodes
from planner.simulation.kernel.decode_side import take_over
from planner.simulation.kernel.events import add_event
from planner.simulation.kernel.hand_off import tell_of_staged
from planner.simulation.kernel.held import hold, settle_held
from planner.simulation.kernel.loop import empty_step, make_step
from planner.simulation.kernel.prefix import give_back, in_running_order
from planner.simulation.kernel.queue import forget_waiting, remove_running
from planner.simulation.kernel.records import DONE, EXHAUSTED
from planner.simulation.kernel.speculation import forget_drafts
from planner.simulation.kernel.state import State

ANY_NUMBER = 1 << 62


def assemble_prefill(state: State) -> None:
    """The assembler of the prefill pool."""
    raise NotImplementedError


def turn(between: Between, r: int, now_s: float) -> None:
    """Replica r makes the schedule that is due now, or goes to sleep.

    Compiled once for each pair of assemblers (`cluster_entries`).
    """
    state = replica_state(between, r)
    now = state.now[0]
    now.scheduled_s = now_s
    if now.running + now.waiting + now.ready == 0:
        settle_held(state, now_s)
        hold(state)
        sleep(between, r, True)
        return
    model = replica_model(between, r)
    prefills = r < between.run[0].prefill
    may_run = not prefills and only_decodes(state)
    if may_run and decode_run(state, model, ANY_NUMBER, _horizon_s(between, r)) > 0:
        between.next_s[r] = due_s(between, r)
        return
    outstanding = state.pending[0, 0] + state.pending[1, 0]
    if prefills:
        assemble_prefill(state)
    else:
        take_over(state)
        assemble(state)
    now.peak_running = max(now.peak_running, now.running)
    now.least_free = min(now.least_free, now.free)
    settle_held(state, now_s)
    hold(state)
    empty = now.rows == 0 and (now.steady == 0 or now.paused != 0)
    if empty:
        empty_step(state)
    else:
        make_step(state, model)
    if between.run[0].queue_limited != 0:
        _leave_queue(between, state, r)
    if between.run[0].tells_prefills != 0:
        _tell_of_first_tokens(between, state, r)
    if prefills:
        _tell_of_prefills(between, state)
    else:
        _tell_of_finished(between, state)
        if now.newly_staged >= 0:
            tell_of_staged(between, r)
    _apply_results(between, state, prefills)
    now.schedules += 1
    between.next_s[r] = due_s(between, r)
    if empty and now.preempted == 0 and outstanding == 0 and now.in_gap == 0:
        sleep(between, r, False)


@merged
def _horizon_s(between: Between, r: int) -> float:
    """Before this time nothing happens that could touch decode replica r.

    Touching it are events, ends of transfers, arrivals where they can come to it, and what may bring such about: the
    schedules of prefill replicas (so arrivals too while one of these sleeps), those of decode replicas that may stage
    somebody (whose transfer can let a prefill replica go on), and in a closed loop all.
    """
    run = between.run[0]
    horizon_s = run.next_end_s
    if run.events > 0:
        horizon_s = min(horizon_s, between.events[0].time_s)
    arrivals_count = run.arrivals_count != 0
    for other in range(run.prefill):
        horizon_s = min(horizon_s, between.next_s[other])
        arrivals_count = arrivals_count or between.replicas[other].asleep != 0
    if arrivals_count and run.closed_loop == 0 and run.arrived < run.count:
        horizon_s = min(horizon_s, between.ways[run.arrived].arrival_s)
    if run.prefill > 0 or run.closed_loop != 0:
        for other in range(run.prefill, run.prefill + run.decode):
            if other != r and (run.closed_loop != 0 or between.now[other].waiting > 0):
                horizon_s = min(horizon_s, between.next_s[other])
    return float(horizon_s)


@merged
def _leave_queue(between: Between, state: State, r: int) -> None:
    """Who has a first step no longer counts for the queue's limit."""
    replica = between.replicas[r]
    for at in range(state.now[0].rows):
        position = state.rows[at].request
        if between.legs[position].queued != 0:
            between.legs[position].queued = 0
            replica.queued -= 1
            replica.queued_tokens -= state.requests[position].prompt


@merged
def _tell_of_first_tokens(between: Between, state: State, r: int) -> None:
    """And of what is ahead of others no more."""
    run, now = between.run[0], state.now[0]
    for at in range(now.rows):
        position = state.rows[at].request
        emits = state.requests[position].mid_prefill == 0
        if between.legs[position].ahead_tokens + between.legs[position].ahead_pairs > 0:
            is_scheduled(between, r, position, state.rows[at].take, state.rows[at].cached, emits)
        if between.legs[position].tells != 0 and emits:
            between.legs[position].tells = 0
            by_prefill_pool = 1 if position >= run.count else 0
            add_event(between, now.end_s, PREFILLED, position % run.count, 0, 0, by_prefill_pool)


@merged
def _tell_of_prefills(between: Between, state: State) -> None:
    """In running order: how far each prompt with tokens in this schedule will be at the end of the step."""
    run, now = between.run[0], state.now[0]
    position = now.head
    while position >= 0:
        request = state.requests[position]
        i = position - run.count
        if request.stamp == now.schedules:
            if run.mode == PUSH_MODE:
                add_event(between, now.end_s, COMPUTED, i, request.computed, request.preemptions, 0)
            elif (
                request.state == EXHAUSTED and run.mode == AFTER_PREFILL_MODE and between.ways[i].output == 1
            ):
                add_event(between, now.end_s, FINISHED, i, 0, 0, 0)
            elif request.state == EXHAUSTED:
                add_event(between, now.end_s + run.message_s, HANDED_OVER, i, 0, 0, 0)
        position = request.next


@merged
def _tell_of_finished(between: Between, state: State) -> None:
    run, now = between.run[0], state.now[0]
    done = state.pending[now.schedules & 1]
    for at in range(1, done[0] + 1):
        if run.tell_finished != 0:
            add_event(between, now.end_s, FINISHED, done[at], 0, 0, 0)
        else:
            is_over(between, now.end_s)


@merged
def _apply_results(between: Between, state: State, prefills: bool) -> None:
    """Finished requests of schedule k - lag give their seats and blocks back; on the prefill side they may keep the
    blocks."""
    now, knobs = state.now[0], state.knobs[0]
    due = state.pending[(now.schedules - knobs.lag) & 1]
    if knobs.caching != 0 and due[0] > 1:
        in_running_order(state, due)
    for at in range(1, due[0] + 1):
        if prefills:
            _end_prefill(between, state, due[at])
        else:
            _release(between, state, due[at])
    due[0] = 0


@merged
def _release(between: Between, state: State, position: int) -> None:
    now, knobs, request = state.now[0], state.knobs[0], state.requests[position]
    future = blocks_for(request.prompt + request.limit, knobs.block_size)
    now.shut = 0
    if request.state == EXHAUSTED:
        remove_running(state, position)
        request.state = DONE
        _free(state, position, blocks_for(request.prompt + request.output - 1, knobs.block_size))
        if knobs.reserves != 0:
            now.reserved -= future
    else:  # preempted meanwhile: it finishes in the queue
        request.state = DONE
        forget_waiting(state, position)
    if between.legs[position].took_over != 0:
        now.committed -= future


@inlined
def _free(state: State, position: int, held: int) -> None:
    """A request that is DONE gives its blocks back."""
    if state.knobs[0].drafts != 0:
        held = forget_drafts(state, position)
    if state.knobs[0].caching != 0:
        give_back(state, position, held)
    else:
        state.now[0].free += held


@merged
def _end_prefill(between: Between, state: State, position: int) -> None:
    run, now, request = between.run[0], state.now[0], state.requests[position]
    knobs, way = state.knobs[0], between.ways[position - run.count]
    if (
        request.state != EXHAUSTED
    ):  # preempted after its last chunk: its KV cache is gone, it is computed again
        request.emitted = 0
        request.first_token_s = -1.0
        return
    request.state = DONE
    remove_running(state, position)
    now.shut = 0
    blocks = blocks_for(request.prompt, knobs.block_size)
    keeps = way.abandoned == 0 and not (run.mode == AFTER_PREFILL_MODE and way.output == 1)
    if keeps:
        between.legs[position].held = blocks
    else:
        _free(state, position, blocks)
    if knobs.reserves != 0:
        now.reserved -= blocks_for(request.prompt + request.limit, knobs.block_size)
        if keeps:
            now.reserved += blocks
