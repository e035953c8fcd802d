"""How a decode replica takes over prefilled requests: the rules of `cluster.reference_decode_side`, compiled.

A hand-off waits in the queue (REMOTE), takes blocks at its head but no seat (STAGED, while its KV cache is on the
way), and when that is there (READY) takes a seat before anybody who waits. `now.newly_staged` and `now.first_ready`
begin lists that are linked by `next`; the cluster's loop empties the first after each schedule and fills the second.
A staged or ready request holds the blocks of all its known tokens: `computed` of them are there, and at the end all
but one. `committed`: blocks for the prompt and all
outputs of the hand-offs that are here and not finished. Tokens, blocks.
"""

from __future__ import annotations

from planner.simulation.kernel.blocks import blocks_for
from planner.simulation.kernel.compiled import compiled, inlined
from planner.simulation.kernel.prefix import take_hits
from planner.simulation.kernel.queue import append_running, pop_queue, queue_head
from planner.simulation.kernel.records import LOOSE, READY, REMOTE, STAGED
from planner.simulation.kernel.rows import add_row
from planner.simulation.kernel.speculation import first_row, missing_blocks
from planner.simulation.kernel.state import State


@inlined
def _future(state: State, position: int) -> int:
    request = state.requests[position]
    return blocks_for(request.prompt + request.limit, state.knobs[0].block_size)


@inlined
def may_take_blocks(state: State, position: int, live_hits: int) -> bool:
    """May the head of the queue, a hand-off, have its blocks now? If not, then not before somebody leaves.

    `live_hits`: leading blocks that others hold already (or may, when the question is whether it can wait).
    """
    now, knobs, request = state.now[0], state.knobs[0], state.requests[position]
    if knobs.most_staged > 0 and now.staged + now.ready >= knobs.most_staged:
        return False
    needed = blocks_for(request.prompt + request.emitted, knobs.block_size) - live_hits
    if now.running > 0:
        needed += knobs.watermark_blocks
    others = now.staged + now.ready + now.running
    if others > 0:
        needed += (others + 1) * knobs.reserved_blocks
        needed += (now.staged + now.ready + 1) * knobs.first_row_blocks
    if needed > now.free or others == 0:
        return bool(needed <= now.free)
    if knobs.reserves != 0:
        return bool(now.reserved + _future(state, position) <= knobs.num_blocks)
    return bool(knobs.reserve_outputs == 0 or now.committed + _future(state, position) <= knobs.num_blocks)


@compiled
def take_blocks(state: State, position: int) -> None:
    """The head of the queue is staged; with a prefix cache it holds what `look_up` found, which is not sent again."""
    now, knobs, requests = state.now[0], state.knobs[0], state.requests
    request = requests[position]
    pop_queue(state)
    request.state = STAGED
    held = take_hits(state, position) if knobs.caching != 0 else 0
    blocks = blocks_for(request.prompt + request.emitted, knobs.block_size)
    now.free -= blocks - held
    if knobs.drafts != 0:
        state.drafts[position].held = blocks
    now.committed += _future(state, position)
    if knobs.reserves != 0:
        now.reserved += _future(state, position)
    now.staged += 1
    request.next = -1
    if now.newly_staged >= 0:
        requests[now.last_staged].next = position
    else:
        now.newly_staged = position
    now.last_staged = position


@inlined
def append_ready(state: State, position: int) -> None:
    """The KV cache of a staged request is there."""
    now, requests = state.now[0], state.requests
    request = requests[position]
    request.state = READY
    request.computed = request.prompt + request.emitted - 1
    request.next = -1
    now.staged -= 1
    now.ready += 1
    if now.first_ready >= 0:
        requests[now.last_ready].next = position
    else:
        now.first_ready = position
    now.last_ready = position


@inlined
def _seat(state: State) -> int:
    """The first of the ready takes a seat."""
    now, position = state.now[0], state.now[0].first_ready
    now.first_ready = state.requests[position].next
    now.ready -= 1
    append_running(state, position)
    state.requests[position].state = LOOSE
    if state.knobs[0].caching != 0:
        state.prefix[position].turn = now.turns
        now.turns += 1
    return int(position)


@compiled
def seat_ready(state: State, cap: int, continued: int) -> bool:
    """In order: seats and rows for ready requests while seats and budget last; their blocks are there, but for those
    of drafts. True: the next one waits for room for them. `continued`: see `speculation.first_row`."""
    now, knobs = state.now[0], state.knobs[0]
    take = 1
    while now.ready > 0 and now.budget > 0 and now.running < knobs.seats:
        if knobs.drafts != 0:
            position = now.first_ready
            take = first_row(state, 1, True, cap, continued)
            need = missing_blocks(state, position, take)
            if take > now.budget or need > now.free:
                return True
            now.free -= need
            state.drafts[position].held += need
        add_row(state, _seat(state), take)
        now.budget -= take
    return False


@compiled
def take_over(state: State) -> None:
    """The other assemblers: before the schedule is made, ready requests take seats, as decodes whose next block is
    theirs no more than others', and then hand-offs at the head of the queue are staged."""
    now, block_size = state.now[0], state.knobs[0].block_size
    while now.ready > 0 and now.running < state.knobs[0].seats:
        position = _seat(state)
        tokens = state.requests[position].computed
        now.free += blocks_for(tokens + 1, block_size) - blocks_for(tokens, block_size)
        state.loose[now.loose] = position
        now.loose += 1
    while now.waiting > 0:
        position = queue_head(state)
        if state.requests[position].state != REMOTE or not may_take_blocks(state, position, 0):
            return
        take_blocks(state, position)
