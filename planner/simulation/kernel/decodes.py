"""Serving decodes apart from prompts: all at once, or one by one in running order when tokens or blocks run short.

All at once costs nothing for the steady set, so it is tried first. One by one, a decode that finds too few blocks
preempts the last admitted; who gets nothing is loose from then on. When no decode gets a token the set is paused.
"""

from __future__ import annotations

from planner.simulation.kernel.blocks import blocks_for, context_of
from planner.simulation.kernel.compiled import compiled, inlined
from planner.simulation.kernel.preempt import preempt, victim
from planner.simulation.kernel.records import LOOSE, STEADY
from planner.simulation.kernel.rows import add_row
from planner.simulation.kernel.state import State


@inlined
def count_decodes(state: State) -> int:
    """Running requests with their prompt computed and a token to come."""
    now = state.now[0]
    return int(now.steady + now.loose - now.mid_prefill)


@compiled
def new_blocks(state: State) -> int:
    """Blocks that all decodes together need for their next token."""
    now, knobs, requests = state.now[0], state.knobs[0], state.requests
    need = state.crossings[now.phase]
    for at in range(now.loose):
        request = requests[state.loose[at]]
        if request.mid_prefill == 0:
            need += blocks_for(request.computed + 1, knobs.block_size)
            need -= blocks_for(request.computed, knobs.block_size)
    return int(need)


@compiled
def unserved_blocks(state: State) -> int:
    """Blocks that the decodes without a token in this schedule need for their next one."""
    now, knobs, requests = state.now[0], state.knobs[0], state.requests
    if now.all_served != 0:
        return 0
    if now.walked == 0:
        return new_blocks(state)
    need = 0
    position = now.head
    while position >= 0:
        request = requests[position]
        steady = request.state == STEADY
        if request.stamp != now.schedules and (
            steady or (request.state == LOOSE and request.mid_prefill == 0)
        ):
            cached = context_of(request, now.tick) if steady else request.computed
            need += blocks_for(cached + 1, knobs.block_size) - blocks_for(cached, knobs.block_size)
        position = request.next
    return int(need)


@compiled
def serve_all(state: State, need: int) -> None:
    """One token for every decode; `need` are the blocks for them, and they are there."""
    now, requests = state.now[0], state.requests
    now.free -= need
    now.tokens += now.steady
    now.all_served = 1
    for at in range(now.loose):
        position = state.loose[at]
        if requests[position].mid_prefill == 0:
            add_row(state, position, 1)
            now.tokens += 1


@compiled
def serve_decodes(state: State, limit: int) -> None:
    """Tokens for decodes until the batch holds `limit`; those that have theirs are passed over."""
    now, knobs = state.now[0], state.knobs[0]
    if now.all_served != 0 or now.tokens >= limit:
        return
    if now.walked == 0 and now.tokens + count_decodes(state) <= limit:
        need = new_blocks(state)
        if need + knobs.spare <= now.free:
            serve_all(state, need)
            return
    _walk(state, limit)


@compiled
def _walk(state: State, limit: int) -> None:
    now, knobs, requests = state.now[0], state.knobs[0], state.requests
    now.walked = 1
    position = now.head
    while position >= 0 and now.tokens < limit:
        request = requests[position]
        steady = request.state == STEADY
        waits = steady or (request.state == LOOSE and request.mid_prefill == 0 and request.computed > 0)
        if not waits or request.stamp == now.schedules:
            position = request.next
            continue
        cached = context_of(request, now.tick) if steady else request.computed
        need = blocks_for(cached + 1, knobs.block_size) - blocks_for(cached, knobs.block_size)
        lost = make_room(state, position, max(need, knobs.spare))
        if lost:
            return
        now.free -= need
        now.tokens += 1
        if steady:
            request.stamp = now.schedules
            request.take = 1
        else:
            add_row(state, position, 1)
        position = request.next


@compiled
def make_room(state: State, position: int, need: int) -> bool:
    """Preempt until `need` blocks are free. True when the request itself had to go."""
    now = state.now[0]
    while need > now.free:
        worst = victim(state)
        now.tokens -= preempt(state, worst)
        if worst == position:
            return True
    return False
