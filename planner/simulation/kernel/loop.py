"""The loop of events: one schedule after another until every request is done.

Order at one instant: results of the step that has ended, arrivals, the schedule. A schedule's tokens are timed at
once (their step's end is known), but their requests give seats and blocks back only when the result is applied:
right after the step when scheduling is synchronous, one schedule later when it is asynchronous. See `reference`
for the rules of time; this is the same loop, and `decode_run` a shorter way through the same steps.
"""

from __future__ import annotations

from calibration.steptime.scalar import StepTimeArrays
from planner.simulation.arrays import Ints
from planner.simulation.kernel.assemble import assemble
from planner.simulation.kernel.blocks import blocks_for
from planner.simulation.kernel.compiled import compiled, inlined
from planner.simulation.kernel.decode_run import decode_run, only_decodes
from planner.simulation.kernel.held import hold, settle_held
from planner.simulation.kernel.prefix import give_back, in_running_order
from planner.simulation.kernel.queue import enqueue_new, forget_waiting, remove_running
from planner.simulation.kernel.record import (
    advance_steady,
    finish_steady,
    record_room,
    record_step,
    settle_rows,
)
from planner.simulation.kernel.records import DONE, EXHAUSTED, LOOSE
from planner.simulation.kernel.speculation import forget_drafts, settle_drafting_rows
from planner.simulation.kernel.state import State, state_at
from planner.simulation.kernel.step_time import model_at
from planner.simulation.kernel.timing import time_step

FINISHED, RECORD_FULL, STUCK, PAUSED = 0, 1, 2, 3


def advance(states: Ints, models: Ints, most_schedules: int) -> int:
    """Make schedules until all is done (FINISHED), the record's arrays are full, or so many were made (PAUSED).

    `states`, `models`: rows of addresses, one of each. Compiled once for each assembler (`entries`).

    STUCK cannot happen with requests that fit the pool; it is there so that a mistake ends.
    """
    state, model = state_at(states, 0), model_at(models, 0)
    now, knobs = state.now[0], state.knobs[0]
    total = len(state.requests)
    stop_at = now.schedules + most_schedules
    while now.schedules < stop_at:
        if now.finished == total:
            return FINISHED
        if knobs.record != 0 and not record_room(state):
            return RECORD_FULL
        set_schedule_time(state)
        _arrive(state)
        if now.running + now.waiting == 0 and knobs.count_steps == 0:
            _jump(state)
            _arrive(state)
        if (
            only_decodes(state)
            and decode_run(state, model, stop_at - now.schedules, _next_arrival_s(state)) > 0
        ):
            continue
        assemble(state)
        if now.running > now.peak_running:
            now.peak_running = now.running
        if now.free < now.least_free:
            now.least_free = now.free
        settle_held(state, now.scheduled_s)
        hold(state)
        if now.rows == 0 and (now.steady == 0 or now.paused != 0):
            if _is_stuck(state):
                return STUCK
            empty_step(state)
        else:
            make_step(state, model)
        _apply_results(state)
        now.schedules += 1
    return FINISHED if now.finished == total else PAUSED


@inlined
def set_schedule_time(state: State) -> None:
    now, knobs = state.now[0], state.knobs[0]
    if knobs.count_steps != 0:
        now.scheduled_s = float(now.schedules)
    else:
        now.scheduled_s = max(now.scheduled_s, now.end_s if knobs.lag == 0 else now.end_before_s)


@inlined
def _arrive(state: State) -> None:
    now, requests = state.now[0], state.requests
    while now.arrived < len(requests) and requests[now.arrived].arrival_s <= now.scheduled_s:
        enqueue_new(state, now.arrived)
        quarter = 4 * now.arrived // len(requests)
        now.arrived += 1
        state.in_queue[quarter] += now.waiting


@inlined
def _next_arrival_s(state: State) -> float:
    now, requests = state.now[0], state.requests
    return float(requests[now.arrived].arrival_s) if now.arrived < len(requests) else float("inf")


@compiled
def _jump(state: State) -> None:
    """Nothing to do: on to the next arrival."""
    now, requests = state.now[0], state.requests
    settle_held(state, now.scheduled_s)
    hold(state)
    arrival_s = requests[now.arrived].arrival_s
    if now.arrived > len(requests) // 2:
        now.idle_late_s += arrival_s - max(now.scheduled_s, now.end_s)
    now.scheduled_s = arrival_s


@compiled
def empty_step(state: State) -> None:
    now, knobs = state.now[0], state.knobs[0]
    end_s = now.scheduled_s if knobs.count_steps != 0 else max(now.scheduled_s, now.end_s)
    now.end_before_s = now.end_s
    now.start_s = end_s
    now.end_s = end_s
    now.empty_schedules += 1
    if knobs.record != 0:
        record_step(state)


@compiled
def _is_stuck(state: State) -> bool:
    """Empty although somebody waits, with no result outstanding that could free anything."""
    now = state.now[0]
    outstanding = state.pending[0, 0] + state.pending[1, 0]
    waits = now.running + now.waiting > 0 and now.in_gap == 0
    return bool(waits and outstanding == 0 and now.preempted == 0)


@inlined
def make_step(state: State, model: StepTimeArrays) -> None:
    now = state.now[0]
    seconds = time_step(state, model)
    if state.knobs[0].record != 0:
        record_step(state)
    if now.paused == 0:
        advance_steady(state)
        finish_steady(state)
    if now.rows > 0 and state.knobs[0].drafts == 0:
        settle_rows(state, seconds)
    elif now.rows > 0:
        settle_drafting_rows(state, seconds)
    if now.loose > 0 or now.rows > now.admitted:
        _keep_loose(state)


@inlined
def _keep_loose(state: State) -> None:
    """The loose list after a step: those still loose, in running order, the admitted last."""
    now, requests = state.now[0], state.requests
    kept = 0
    for at in range(now.loose):
        position = state.loose[at]
        if requests[position].state == LOOSE:
            state.loose[kept] = position
            kept += 1
    for at in range(now.admitted, now.rows):
        position = state.rows[at].request
        if requests[position].state == LOOSE:
            state.loose[kept] = position
            kept += 1
    now.loose = kept


@inlined
def _apply_results(state: State) -> None:
    """Finished requests of schedule k - lag give their seats and blocks back."""
    now, knobs = state.now[0], state.knobs[0]
    due = state.pending[(now.schedules - knobs.lag) & 1]
    if knobs.caching != 0 and due[0] > 1:
        in_running_order(state, due)
    for at in range(1, due[0] + 1):
        _release(state, due[at])
    due[0] = 0


@inlined
def _release(state: State, position: int) -> None:
    now, knobs, request = state.now[0], state.knobs[0], state.requests[position]
    now.finished += 1
    now.shut = 0
    if request.state == EXHAUSTED:
        request.state = DONE
        remove_running(state, position)
        held = blocks_for(request.prompt + request.output - 1, knobs.block_size)
        if knobs.drafts != 0:
            held = forget_drafts(state, position)
        if knobs.caching != 0:
            give_back(state, position, held)
        else:
            now.free += held
        if knobs.reserves != 0:
            now.reserved -= blocks_for(request.prompt + request.limit, knobs.block_size)
    else:  # preempted meanwhile: it finishes in the queue
        request.state = DONE
        forget_waiting(state, position)
