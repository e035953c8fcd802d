"""A run of steps in which only decodes happen and nothing else can: the same steps, with less to look at.

Between two events (an arrival that becomes visible, a last token, a block that is not there) the steady set makes
step after step. Nobody can be admitted meanwhile: the queue is empty, or its head has no seat, no budget or no
blocks, and none of these come free without an event. Each step still is priced, counted and, when asked for,
recorded by itself, in the same order of additions as in the long way, so the results are the same to the last bit.
"""

from __future__ import annotations

from calibration.steptime.scalar import StepTimeArrays
from planner.simulation.kernel.assemble import queue_is_shut
from planner.simulation.kernel.compiled import compiled, inlined
from planner.simulation.kernel.held import note_step, settle_held
from planner.simulation.kernel.record import count_gap, record_room, record_step
from planner.simulation.kernel.state import State
from planner.simulation.kernel.steady import longest_context, note_peak
from planner.simulation.kernel.step_time import step_seconds
from planner.simulation.outcome import DECODE


def only_decodes(state: State) -> bool:
    """May the schedule that is about to be made start a run? Its time is set and its arrivals are in.

    Compiled once for each assembler (`entries`).
    """
    now, knobs = state.now[0], state.knobs[0]
    if now.steady == 0 or now.steady != now.running or now.steady > knobs.decode_limit:
        return False
    if state.pending[0, 0] + state.pending[1, 0] > 0 or now.gap_left > 0:
        return False
    if now.ready > 0 and now.running < knobs.seats:
        return False
    return now.waiting == 0 or queue_is_shut(state)


@compiled
def decode_run(state: State, model: StepTimeArrays, most: int, next_arrival_s: float) -> int:
    """Make up to `most` decode-only schedules, all but the first before `next_arrival_s`, and return how many: 0 when
    the next one needs the long way."""
    now, knobs = state.now[0], state.knobs[0]
    wheel, crossings = state.wheel, state.crossings
    # compiled code cannot know that no array overlaps another, so what a step needs is read once, and written back
    rows, steady, running = float(now.steady), now.steady, now.running
    host_gap_s, spare, lag, block_size = knobs.host_gap_s, knobs.spare, knobs.lag, knobs.block_size
    counts_steps, records, bins = knobs.count_steps != 0, knobs.record != 0, now.bin_s > 0.0
    decay, least_ratio, ratio = knobs.ratio_decay, knobs.least_ratio, now.ratio
    mask, num_blocks = len(wheel) - 1, knobs.num_blocks
    longest = longest_context(state) if now.longest_stale != 0 else now.longest
    scheduled_s, end_s, end_before_s = now.scheduled_s, now.end_s, now.end_before_s
    start_s, emitted_s = now.start_s, now.steady_end_s
    busy_s, decode_s = now.busy_s, state.step_busy_s[DECODE]
    free, tick, phase, context = now.free, now.tick, now.phase, now.steady_context
    kv_block_s, held_blocks, held_since_s = now.kv_block_s, now.held_blocks, now.held_since_s
    made = 0
    now.paused = 0
    while made < most:
        need = crossings[phase]
        if need + spare > free or wheel[(tick + 1) & mask] >= 0:
            break
        if made > 0:
            if counts_steps:
                scheduled_s += 1.0
            else:
                scheduled_s = max(scheduled_s, end_s if lag == 0 else end_before_s)
            if next_arrival_s <= scheduled_s or (records and not record_room(state)):
                break
        free -= need
        if bins:
            settle_held(state, scheduled_s)
        kv_block_s += held_blocks * (scheduled_s - held_since_s)
        held_since_s = scheduled_s
        held_blocks = num_blocks - free
        end_before_s = end_s
        if counts_steps:
            start_s = scheduled_s
            end_s = scheduled_s
        else:
            seconds, covered = step_seconds(
                model, rows, rows, rows, float(context), float(longest + tick), 0.0, 0.0
            )
            seconds += host_gap_s
            start_s = max(scheduled_s, end_s)
            end_s = start_s + seconds
            busy_s += seconds
            decode_s += seconds
            if not covered:
                now.uncovered_s += seconds
                now.uncovered_steps += 1
        if bins or records:
            now.scheduled_s, now.start_s, now.end_s, now.free = scheduled_s, start_s, end_s, free
            now.held_blocks, now.held_seats = held_blocks, running
            note_step(state, steady, steady)
            if records:
                record_step(state)
        gap_s = end_s - emitted_s
        count_gap(state, gap_s, steady)
        note_peak(state, gap_s)
        emitted_s = end_s
        tick += 1
        now.tick = tick
        phase = phase + 1 if phase + 1 < block_size else 0
        context += steady
        if decay > 0.0:
            ratio = max(ratio - decay, least_ratio)
        made += 1
    if made > 0:
        now.scheduled_s = (
            held_since_s  # of the last schedule made: `scheduled_s` may be the next one's already
        )
        now.start_s, now.end_s, now.end_before_s = start_s, end_s, end_before_s
        now.held_blocks, now.held_seats, now.held_since_s = held_blocks, running, held_since_s
        now.kv_block_s, now.ratio, now.steady_end_s = kv_block_s, ratio, emitted_s
        now.free, now.phase, now.steady_context = free, phase, context
        now.busy_s = busy_s
        state.step_busy_s[DECODE] = decode_s
        _count(state, made)
    return made


@inlined
def _count(state: State, made: int) -> None:
    """What a schedule adds to the counters, for all of the run at once."""
    now = state.now[0]
    now.schedules += made
    now.executed += made
    now.capacity_bound = 1 if now.waiting > 0 else 0
    now.sharing = 0
    now.shared_s = 0.0
    now.prefill_s = 0.0
    now.least_free = min(now.least_free, now.free)
    state.step_counts[DECODE] += made
    now.computed_tokens += made * now.steady
    now.decode_rows += made * now.steady
    now.all_rows += made * now.steady
