"""Assembler A with decodes and prompts apart, compiled: the rules of `reference_mixed` over flat arrays.

Decodes up to their quota, prompts with what the budget has left (begun ones, then the queue), then the decodes that
are left. In the common case all decodes are served at once and only the loose requests and the queue are looked at.
"""

from __future__ import annotations

from planner.simulation.kernel.blocks import blocks_for
from planner.simulation.kernel.compiled import compiled, inlined
from planner.simulation.kernel.decode_side import may_take_blocks
from planner.simulation.kernel.decodes import count_decodes, make_room, serve_decodes, unserved_blocks
from planner.simulation.kernel.queue import append_running, pop_queue, queue_head, take_from_queue
from planner.simulation.kernel.records import LOOSE, REMOTE
from planner.simulation.kernel.rows import add_row, collect_loose
from planner.simulation.kernel.state import State


@compiled
def assemble_apart(state: State) -> None:
    """Make one schedule: rows, blocks and queues of the next step."""
    now, knobs = state.now[0], state.knobs[0]
    now.rows = 0
    now.preempted = 0
    now.tokens = 0
    now.all_served = 0
    now.walked = 0
    now.paused = 0
    may = _prompts_may(state)
    serve_decodes(state, min(knobs.decode_quota, knobs.decode_limit))
    now.admitted = now.rows
    if may:
        if knobs.reserves == 0:
            _begun(state)
            now.admitted = now.rows
            if now.preempted == 0:
                _admit(state)
        elif knobs.equal_progress != 0:
            _in_rounds(state)
        else:
            _in_turn(state)
        serve_decodes(state, knobs.decode_limit)
    if now.walked != 0:
        collect_loose(state)
        now.admitted = now.rows  # they are in the list of the loose already
    elif now.all_served == 0 and now.steady > 0:
        now.paused = 1


@inlined
def _prompts_may(state: State) -> bool:
    """Shares of time: prompts are computed while they had no more than theirs since both sides have had work."""
    now, knobs = state.now[0], state.knobs[0]
    if knobs.time_share >= 1.0:
        return True
    if count_decodes(state) == 0 or now.mid_prefill + now.waiting == 0:
        now.sharing = 0
        now.shared_s = 0.0
        now.prefill_s = 0.0
        return True
    now.sharing = 1
    return bool(now.prefill_s <= knobs.time_share * now.shared_s)


@inlined
def queue_is_shut(state: State) -> bool:
    """While only decodes run and nobody leaves: can the head of the queue not be admitted, now or later?"""
    now, knobs = state.now[0], state.knobs[0]
    if knobs.time_share < 1.0:
        return False  # passing time opens it
    if state.requests[queue_head(state)].state == REMOTE:
        return not may_take_blocks(state, queue_head(state), 0)
    left = knobs.budget - min(now.steady, knobs.decode_quota)
    if now.running >= knobs.seats or left <= 0:
        return True
    request = state.requests[queue_head(state)]
    known = request.prompt + request.emitted
    if knobs.chunked == 0 and known > left:
        return True
    if knobs.reserves != 0:
        future = blocks_for(request.prompt + request.limit, knobs.block_size)
        return bool(future > knobs.num_blocks - now.reserved)
    return bool(blocks_for(known, knobs.block_size) + knobs.watermark_blocks > now.free)


@inlined
def _missing(state: State, position: int, take: int) -> int:
    """Blocks to take from the pool before `take` more tokens of a prompt are computed."""
    knobs, request = state.knobs[0], state.requests[position]
    if knobs.whole_prompt != 0:
        known = request.prompt + request.emitted
        return blocks_for(known, knobs.block_size) if request.computed == 0 else 0
    held = blocks_for(request.computed, knobs.block_size)
    return int(blocks_for(request.computed + take, knobs.block_size) - held)


@compiled
def _begun(state: State) -> None:
    """Prompts that were begun, in order; whoever loses his place for them comes later in it."""
    now, knobs = state.now[0], state.knobs[0]
    at = 0
    while at < now.loose:
        position = state.loose[at]
        request = state.requests[position]
        at += 1
        if request.mid_prefill == 0:
            continue
        take = min(request.prompt + request.emitted - request.computed, knobs.budget - now.tokens)
        if take <= 0 or make_room(state, position, _missing(state, position, take)):
            return
        _give(state, position, take)


@inlined
def _give(state: State, position: int, take: int) -> None:
    now = state.now[0]
    now.free -= _missing(state, position, take)
    now.tokens += take
    add_row(state, position, take)


@compiled
def _admit(state: State) -> None:
    """Admit from the head of the queue, no overtaking, leaving the blocks that decodes still need."""
    now, knobs = state.now[0], state.knobs[0]
    kept_free = unserved_blocks(state) if now.waiting > 0 else 0
    while now.waiting > 0 and now.tokens < knobs.budget and now.running < knobs.seats:
        position = queue_head(state)
        request = state.requests[position]
        if request.state == REMOTE:
            return
        known = request.prompt + request.emitted
        left = knobs.budget - now.tokens
        needed = blocks_for(known, knobs.block_size) + kept_free
        if now.running > 0:
            needed += knobs.watermark_blocks
        if needed > now.free or (knobs.chunked == 0 and known > left):
            return
        pop_queue(state)
        append_running(state, position)
        request.state = LOOSE
        _give(state, position, min(known, left))


# With the whole future reserved ---------------------------------------------------------------------------------


@inlined
def _future(state: State, position: int) -> int:
    request = state.requests[position]
    return blocks_for(request.prompt + request.limit, state.knobs[0].block_size)


@inlined
def _left(state: State, position: int) -> int:
    request = state.requests[position]
    return int(request.prompt + request.emitted - request.computed)


@inlined
def _start(state: State, position: int) -> None:
    """From anywhere in the queue."""
    take_from_queue(state, position)
    append_running(state, position)
    state.requests[position].state = LOOSE
    state.now[0].reserved += _future(state, position)


@compiled
def _in_turn(state: State) -> None:
    """First come, first served: begun prompts, then the queue while seats and reservations last."""
    now, knobs, requests = state.now[0], state.knobs[0], state.requests
    for at in range(now.loose):
        position = state.loose[at]
        if requests[position].mid_prefill != 0:
            take = _share_in_turn(state, position)
            if take > 0:
                _give(state, position, take)
    now.admitted = now.rows
    unreserved = knobs.num_blocks - now.reserved
    seats = knobs.seats - now.running
    position = now.first
    while position >= 0 and seats > 0 and now.tokens < knobs.budget and requests[position].state != REMOTE:
        following = requests[position].next
        unreserved -= _future(state, position)
        if unreserved < 0:
            return
        seats -= 1
        take = _share_in_turn(state, position)
        if take > 0:
            _start(state, position)
            _give(state, position, take)
        elif knobs.chunked == 0:
            return
        position = following


@inlined
def _share_in_turn(state: State, position: int) -> int:
    now, knobs = state.now[0], state.knobs[0]
    budget = knobs.budget - now.tokens
    left = _left(state, position)
    if left <= budget:
        return left
    return int(budget // knobs.unit * knobs.unit) if knobs.chunked != 0 else 0


@compiled
def _in_rounds(state: State) -> None:
    """Equal progress: one unit for each prompt and round, until the budget is used. Rows beyond `now.rows` list the
    prompts and their tokens so far; those that get some become rows."""
    now, knobs, requests, rows = state.now[0], state.knobs[0], state.requests, state.rows
    first = now.rows
    count = first
    wanted = 0
    for at in range(now.loose):
        position = state.loose[at]
        if requests[position].mid_prefill != 0:
            rows[count].request = position
            rows[count].take = 0
            wanted += _left(state, position)
            count += 1
    begun = count
    unreserved = knobs.num_blocks - now.reserved
    seats = knobs.seats - now.running
    position = now.first
    while position >= 0 and count - begun < seats and requests[position].state != REMOTE:
        unreserved -= _future(state, position)
        if unreserved < 0:
            break
        rows[count].request = position
        rows[count].take = 0
        wanted += _left(state, position)
        count += 1
        position = requests[position].next
    budget = knobs.budget - now.tokens
    _deal(state, first, count, budget, knobs.unit if wanted > budget else wanted)
    for at in range(first, count):
        position, take = rows[at].request, rows[at].take
        if at == begun:
            now.admitted = now.rows
        if take > 0:
            if at >= begun:
                _start(state, position)
            _give(state, position, take)
    if begun == count:
        now.admitted = now.rows


@compiled
def _deal(state: State, first: int, count: int, budget: int, unit: int) -> None:
    rows = state.rows
    gave = budget > 0
    while gave:
        gave = False
        for at in range(first, count):
            more = min(unit, _left(state, rows[at].request) - rows[at].take)
            if 0 < more <= budget:
                rows[at].take += more
                budget -= more
                gave = True
