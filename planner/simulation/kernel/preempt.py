"""Taking everything from a running request: blocks, progress, seat, and its tokens of this schedule."""

from __future__ import annotations

from planner.simulation.kernel.blocks import held_blocks
from planner.simulation.kernel.compiled import compiled
from planner.simulation.kernel.prefix import give_back
from planner.simulation.kernel.queue import enqueue_preempted, remove_running
from planner.simulation.kernel.record import record_preempted
from planner.simulation.kernel.records import STEADY, WAITING
from planner.simulation.kernel.rows import drop_row, forget_loose
from planner.simulation.kernel.speculation import forget_drafts
from planner.simulation.kernel.state import State
from planner.simulation.kernel.steady import leave_steady


@compiled
def victim(state: State) -> int:
    """First come, first served: the last admitted. Priority: the worst (priority, arrival, victim_tie), of equals the
    first."""
    now, requests, ranks = state.now[0], state.requests, state.victim_rank
    if state.knobs[0].priority == 0:
        return int(now.tail)
    worst = now.head
    position = requests[worst].next
    while position >= 0:
        if ranks[position] > ranks[worst]:
            worst = position
        position = requests[position].next
    return int(worst)


@compiled
def preempt(state: State, position: int) -> int:
    """Returns the tokens it had got in the schedule being made, for the caller's account."""
    now, knobs, request = state.now[0], state.knobs[0], state.requests[position]
    taken = 0
    if request.stamp == now.schedules:
        taken = request.take
    elif request.state == STEADY and now.all_served != 0:
        taken = 1
    if knobs.drafts != 0:
        held = state.drafts[position].held
    else:
        held = held_blocks(request, now.tick, taken, knobs.block_size, knobs.whole_prompt != 0)
    if knobs.caching != 0:
        give_back(state, position, held)
    else:
        now.free += held
    if knobs.drafts != 0:
        forget_drafts(state, position)
    if request.state == STEADY:
        leave_steady(state, position)
    else:
        forget_loose(state, position)
        if taken > 0:
            drop_row(state, position)
    now.mid_prefill -= request.mid_prefill
    request.mid_prefill = 0
    request.stamp = -1
    request.computed = 0
    request.state = WAITING
    request.preemptions += 1
    remove_running(state, position)
    enqueue_preempted(state, position)
    record_preempted(state, position)
    now.preempted += 1
    return int(taken)
