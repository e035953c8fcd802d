"""What a step leaves behind: tokens' times and gaps, and, when asked for, the step itself.

A token is emitted at the end of its step. The steady requests all emitted in the step before too, so they share
one gap: one insertion into the histogram, weighted with their number. Loose rows are accounted one by one.
"""

from __future__ import annotations

import numpy as np

from planner.simulation.gaps import FIRST_BIN, GAP_BINS, MANTISSA_SHIFT
from planner.simulation.kernel.blocks import context_of
from planner.simulation.kernel.compiled import compiled, inlined
from planner.simulation.kernel.records import EXHAUSTED, STEADY
from planner.simulation.kernel.state import State
from planner.simulation.kernel.steady import join_steady, leave_steady, note_peak


@inlined
def count_gap(state: State, gap_s: float, times: int) -> None:
    """The bin of gaps.gap_bin, off the float's bits."""
    position = (int(np.float64(gap_s).view(np.int64)) >> MANTISSA_SHIFT) - FIRST_BIN
    state.gap_counts[min(max(position, 0), GAP_BINS - 1)] += times


@inlined
def advance_steady(state: State) -> None:
    """Every steady request has emitted one token at `end_s`."""
    now = state.now[0]
    if now.steady > 0:
        gap_s = now.end_s - now.steady_end_s
        count_gap(state, gap_s, now.steady)
        note_peak(state, gap_s)
    now.steady_end_s = now.end_s
    now.tick += 1
    now.phase += 1
    if now.phase == state.knobs[0].block_size:
        now.phase = 0
    now.steady_context += now.steady


@inlined
def finish_steady(state: State) -> None:
    """Those whose last token this was keep seat and blocks until the result is applied."""
    now = state.now[0]
    bucket = now.tick & (len(state.wheel) - 1)
    while state.wheel[bucket] >= 0:
        position = state.wheel[bucket]
        leave_steady(state, position)
        exhaust(state, position)
        if state.knobs[0].caching != 0:
            state.prefix[position].unknown = state.knobs[0].lag


@inlined
def exhaust(state: State, position: int) -> None:
    state.requests[position].state = EXHAUSTED
    pending = state.pending[state.now[0].schedules & 1]
    pending[0] += 1
    pending[pending[0]] = position


@compiled
def settle_rows(state: State, seconds: float) -> None:
    """Progress and tokens of the rows outside the steady set; who emitted joins it, or is exhausted."""
    now = state.now[0]
    for at in range(now.rows):
        row = state.rows[at]
        request = state.requests[row.request]
        if request.first_scheduled_s < 0.0:
            request.first_scheduled_s = now.start_s
        if row.decode == 0 and request.first_token_s < 0.0:
            request.chunks_s += seconds
        request.computed += row.take
        unfinished = 1 if request.computed < request.prompt + request.emitted else 0
        now.mid_prefill += unfinished - request.mid_prefill
        request.mid_prefill = unfinished
        if unfinished == 0:
            _emit(state, row.request)


@inlined
def _emit(state: State, position: int) -> None:
    now, request = state.now[0], state.requests[position]
    request.emitted += 1
    if request.first_token_s < 0.0:
        request.first_token_s = now.end_s
    else:
        gap_s = now.end_s - request.last_token_s
        count_gap(state, gap_s, 1)
        request.max_gap_s = max(request.max_gap_s, gap_s)
    request.last_token_s = now.end_s
    if request.emitted == request.output:
        exhaust(state, position)
    elif now.paused == 0:
        join_steady(state, position)


@inlined
def record_preempted(state: State, position: int) -> None:
    now = state.now[0]
    if state.knobs[0].record != 0:
        state.recorded_preempted[now.recorded_preempted] = position
        now.recorded_preempted += 1


@inlined
def record_room(state: State) -> bool:
    """Is there room to record one more schedule, whatever it does?"""
    now, seats = state.now[0], len(state.loose)
    return bool(
        now.recorded_steps < len(state.recorded_steps)
        and now.recorded_rows + seats <= len(state.recorded_rows)
        and now.recorded_preempted + seats <= len(state.recorded_preempted)
    )


@compiled
def record_step(state: State) -> None:
    """Write the step down, rows in running order; called before progress is settled, times known."""
    now = state.now[0]
    position = now.head
    while position >= 0:
        request = state.requests[position]
        steady = request.state == STEADY and now.paused == 0
        if steady or request.stamp == now.schedules:
            row = state.recorded_rows[now.recorded_rows]
            row.request = position
            row.take = 1 if steady else request.take
            row.cached = context_of(request, now.tick) if steady else request.computed
            known = request.prompt + request.emitted
            row.decode = (
                1 if steady or (request.computed + 1 == known and request.computed >= request.prompt) else 0
            )
            now.recorded_rows += 1
        position = request.next
    step = state.recorded_steps[now.recorded_steps]
    step.scheduled_s = now.scheduled_s
    step.start_s = now.start_s
    step.end_s = now.end_s
    step.rows = now.recorded_rows
    step.preempted = now.recorded_preempted
    step.free_blocks = now.free
    step.running = now.running
    step.waiting = now.waiting
    now.recorded_steps += 1
