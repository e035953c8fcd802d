"""Assembler A in order, compiled: the rules of `reference_mixed` over flat arrays.

Two ways through the running requests. When all decodes get their token and the blocks suffice, nobody is preempted
and the order of the list changes nothing: only the loose requests are looked at (`_brief_pass`). Otherwise, or
when the budget cuts somebody short who is not at the end of the list, the list is walked request by request in its
order, with preemption (`_full_pass`). Both leave the batch in the same form: every request still in the steady
set has its one token, everybody else who got tokens has a row. Other assemblers fill the same form.
"""

from __future__ import annotations

from planner.simulation.kernel.blocks import blocks_for, context_of
from planner.simulation.kernel.compiled import compiled, inlined
from planner.simulation.kernel.decode_side import may_take_blocks, seat_ready, take_blocks
from planner.simulation.kernel.preempt import preempt, victim
from planner.simulation.kernel.prefix import learn, look_up, take_hits
from planner.simulation.kernel.queue import append_running, pop_queue, queue_head
from planner.simulation.kernel.records import EXHAUSTED, LOOSE, NO_CAP, REMOTE, STEADY
from planner.simulation.kernel.rows import add_row, collect_loose
from planner.simulation.kernel.speculation import first_row, is_unaware, missing_blocks
from planner.simulation.kernel.state import State


@compiled
def assemble_mixed(state: State) -> None:
    """Make one schedule: rows, blocks and queues of the next step."""
    now, knobs = state.now[0], state.knobs[0]
    cap = _chunk_cap(state)
    defer = (
        knobs.interval > 1
        and now.capacity_bound == 0
        and now.executed + 1 - now.last_prefill_step < knobs.interval
        and now.running > now.mid_prefill
    )
    now.rows = 0
    now.learned = 0
    now.preempted = 0
    continued = _brief_pass(state, cap, defer) if knobs.drafts == 0 else -1
    if continued < 0:
        continued = _full_pass(state, cap, defer)
    now.admitted = now.rows
    if knobs.caching != 0:
        learn(state)
    admitted_prefill = False
    if now.preempted == 0:
        waits = False
        if now.ready > 0:
            waits = seat_ready(state, cap, continued)
            if knobs.caching != 0:
                learn(state)
        if now.waiting > 0 and not waits:
            admitted_prefill = _waiting_pass(state, cap, defer, continued)
        if not defer:
            now.capacity_bound = 1 if now.waiting > 0 else 0
    if now.rows + now.steady > 0:
        now.executed += 1
    if knobs.interval > 1 and (admitted_prefill or continued > 0):
        now.last_prefill_step = now.executed


@inlined
def _chunk_cap(state: State) -> int:
    """Most tokens of one request in this schedule; NO_CAP without a threshold."""
    now, knobs = state.now[0], state.knobs[0]
    if knobs.threshold == 0 and knobs.adaptive == 0:
        return NO_CAP
    requests = now.running + now.waiting
    cap = knobs.threshold if requests > 1 else 0
    if knobs.adaptive != 0 and requests > 0:
        cap = max(cap, knobs.budget // requests)
    return cap if cap > 0 else NO_CAP


@compiled
def _brief_pass(state: State, cap: int, defer: bool) -> int:
    """Serve the running requests if their order does not matter: returns how many mid-prefill requests got
    tokens, or -1 when the full pass must decide (nothing has changed then)."""
    now, knobs = state.now[0], state.knobs[0]
    need = state.crossings[now.phase]
    budget = knobs.budget - now.steady
    if budget < 0 or need > now.free:
        return -1
    continued = 0
    cut = False
    for at in range(now.loose):
        position = state.loose[at]
        request = state.requests[position]
        if defer and request.mid_prefill != 0:
            continue
        want = request.prompt + request.emitted - request.computed
        limit = min(want, cap)
        take = min(limit, budget)
        cut = cut or take < limit
        if take == 0:
            continue
        held = blocks_for(request.computed, knobs.block_size)
        need += blocks_for(request.computed + take, knobs.block_size) - held
        add_row(state, position, take)
        continued += request.mid_prefill
        budget -= take
    if need > now.free or (cut and not _loose_are_last(state)):
        for row in range(now.rows):
            state.requests[state.rows[row].request].stamp = -1
        now.rows = 0
        return -1
    now.free -= need
    now.budget = budget
    return continued


@compiled
def _loose_are_last(state: State) -> bool:
    """Does every steady request come before every loose one in the running list?"""
    seen = 0
    position = state.now[0].tail
    while position >= 0 and state.requests[position].state != STEADY:
        if state.requests[position].state == LOOSE:
            seen += 1
        position = state.requests[position].previous
    return bool(seen == state.now[0].loose)


@compiled
def _full_pass(state: State, cap: int, defer: bool) -> int:
    """Walk the running list in order, preempting while blocks are short. Returns as `_brief_pass`, never -1."""
    now, knobs, requests = state.now[0], state.knobs[0], state.requests
    now.budget = knobs.budget
    position = now.head
    while position >= 0 and now.budget > 0:
        request = requests[position]
        following = request.next
        idle = (request.state == EXHAUSTED and not is_unaware(state, position)) or (
            defer and request.state == LOOSE and request.mid_prefill != 0
        )
        if idle:
            position = following
            continue
        steady = request.state == STEADY
        cached = context_of(request, now.tick) if steady else request.computed
        want = 1 if steady else request.prompt + request.emitted - cached
        if knobs.drafts != 0:
            want += state.drafts[position].drafts
        take = min(want, cap, now.budget)
        if knobs.drafts != 0:
            need = missing_blocks(state, position, take)
        else:
            need = blocks_for(cached + take, knobs.block_size) - blocks_for(cached, knobs.block_size)
        lost = False
        while need > now.free and not lost:
            worst = victim(state)
            following = request.next
            now.budget += preempt(state, worst)
            lost = worst == position
        if lost and knobs.priority == 0:
            break
        if lost:
            position = following
            continue
        now.free -= need
        now.budget -= take
        if knobs.drafts != 0:
            state.drafts[position].held += need
        if steady:
            request.stamp = now.schedules
            request.take = take
        else:
            add_row(state, position, take)
        position = request.next
    collect_loose(state)
    continued = 0
    for row in range(now.rows):
        continued += requests[state.rows[row].request].mid_prefill
    return continued


@inlined
def queue_is_shut(state: State) -> bool:
    """While only decodes run and nobody leaves: can the head of the queue not be admitted, now or later?"""
    now, knobs = state.now[0], state.knobs[0]
    if knobs.interval > 1:
        return False  # the cadence opens and shuts it
    if now.running >= knobs.seats or now.steady == knobs.budget:
        return True
    request = state.requests[queue_head(state)]
    # others may hold its shared blocks: they are not asked of the pool
    most_hits = state.prefix[queue_head(state)].shared if knobs.caching != 0 else 0
    if request.state == REMOTE:
        return not may_take_blocks(state, queue_head(state), most_hits)
    needed = blocks_for(request.prompt + request.emitted, knobs.block_size) + knobs.watermark_blocks
    return bool(needed - most_hits > now.free)


@compiled
def _waiting_pass(state: State, cap: int, defer: bool, continued: int) -> bool:
    """Admit from the head of the queue, no overtaking. True when a prompt (or recompute) of more than one token
    was admitted. `continued`: running requests in the middle of one that got tokens."""
    now, knobs = state.now[0], state.knobs[0]
    admitted_prefill = False
    while now.waiting > 0 and now.budget > 0 and now.running < knobs.seats:
        position = queue_head(state)
        request = state.requests[position]
        cached = live = 0
        if knobs.caching != 0:
            look_up(state, position)
            cached, live = now.hit_tokens, now.live_hits
        if request.state == REMOTE:
            if not may_take_blocks(state, position, live):
                break
            take_blocks(state, position)
            continue
        known = request.prompt + request.emitted
        want = known - cached
        if defer and want > 1:
            break
        watermark = knobs.watermark_blocks if now.running > 0 else 0
        take = min(want, cap, now.budget)
        reach = cached + take
        if knobs.drafts != 0:
            take = first_row(state, want, now.admitted > 0 or cached > 0, cap, continued)
            if take > now.budget:
                break
            reach = cached + take + knobs.lookahead
        if blocks_for(max(known, reach), knobs.block_size) - live + watermark > now.free:
            break
        pop_queue(state)
        append_running(state, position)
        request.state = LOOSE
        held = take_hits(state, position) if knobs.caching != 0 else 0
        blocks = blocks_for(reach, knobs.block_size)
        now.free -= blocks - held
        if knobs.drafts != 0:
            state.drafts[position].held = blocks
        now.budget -= take
        add_row(state, position, take)
        if knobs.caching != 0:
            learn(state)
        admitted_prefill = admitted_prefill or want > 1
    return admitted_prefill
