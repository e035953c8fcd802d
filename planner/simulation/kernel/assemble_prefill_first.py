"""Assembler B, compiled: the rules of `reference_prefill_first` over flat arrays.

While a prefill batch runs the steady set is paused as a whole, so switching between the two kinds of steps costs
nothing per decode. What the running requests are estimated to need is kept as a sum.
"""

from __future__ import annotations

from planner.simulation.kernel.blocks import blocks_for
from planner.simulation.kernel.compiled import compiled, inlined
from planner.simulation.kernel.decode_side import may_take_blocks
from planner.simulation.kernel.decodes import count_decodes, new_blocks, serve_all, serve_decodes
from planner.simulation.kernel.preempt import preempt
from planner.simulation.kernel.queue import append_running, pop_queue, queue_head
from planner.simulation.kernel.records import LOOSE, REMOTE, STEADY
from planner.simulation.kernel.rows import add_row, collect_loose
from planner.simulation.kernel.state import State
from planner.simulation.kernel.steady import emitted_of
from planner.simulation.profile import MOST_ESTIMATED, STEPS_AHEAD


@compiled
def assemble_prefill_first(state: State) -> None:
    """Make one schedule: rows, blocks and queues of the next step."""
    now, knobs = state.now[0], state.knobs[0]
    now.rows = 0
    now.admitted = 0
    now.preempted = 0
    now.tokens = 0
    now.all_served = 0
    now.walked = 0
    now.paused = 0
    now.in_gap = 0
    if now.gap_left > 0 and count_decodes(state) >= knobs.gap_least_decodes:
        now.gap_left -= 1
        now.in_gap = 1
    else:
        now.gap_left = 0
        if knobs.estimates != 0:
            _estimated_prompts(state)
        else:
            _whole_prompts(state)
    if now.rows == 0:
        _decode(state)
    else:
        now.gap_left = knobs.gap
        if knobs.mixed != 0:
            need = new_blocks(state)
            if need <= now.free:
                serve_all(state, need)
    if now.walked != 0:
        collect_loose(state)
    elif now.all_served == 0 and now.steady > 0:
        now.paused = 1


@inlined
def queue_is_shut(state: State) -> bool:
    """While only decodes run and nobody leaves: can the head of the queue not be admitted, now or later?"""
    now, knobs = state.now[0], state.knobs[0]
    if state.requests[queue_head(state)].state == REMOTE:
        return not may_take_blocks(state, queue_head(state), 0)
    if knobs.estimates != 0:
        return bool(now.shut != 0)
    if now.running >= knobs.seats:
        return True
    request = state.requests[queue_head(state)]
    known = request.prompt + request.emitted
    return bool(
        known > knobs.budget or blocks_for(known, knobs.block_size) + knobs.watermark_blocks > now.free
    )


# Whole prompts --------------------------------------------------------------------------------------------------


@compiled
def _whole_prompts(state: State) -> None:
    now, knobs = state.now[0], state.knobs[0]
    while now.waiting > 0 and now.running < knobs.seats:
        request = state.requests[queue_head(state)]
        if request.state == REMOTE:
            return
        known = request.prompt + request.emitted
        watermark = knobs.watermark_blocks if now.running > 0 else 0
        if blocks_for(known, knobs.block_size) + watermark > now.free or known > knobs.budget - now.tokens:
            return
        _admit(state, known)


@inlined
def _admit(state: State, take: int) -> None:
    """The head of the queue, with its first tokens."""
    now = state.now[0]
    position = queue_head(state)
    pop_queue(state)
    append_running(state, position)
    state.requests[position].state = LOOSE
    now.free -= blocks_for(take, state.knobs[0].block_size)
    now.tokens += take
    add_row(state, position, take)


# Chunks and an estimate -----------------------------------------------------------------------------------------


@inlined
def _cut(state: State) -> int:
    """The unfinished prompt, -1 without one. It is loose, as few others are."""
    now = state.now[0]
    if now.mid_prefill > 0:
        for at in range(now.loose):
            if state.requests[state.loose[at]].mid_prefill != 0:
                return int(state.loose[at])
    return -1


@compiled
def _to_come(state: State) -> int:
    """Tokens still to come of all decodes."""
    now, requests = state.now[0], state.requests
    total = now.steady_to_come - now.steady * now.tick
    if state.knobs[0].clips != 0:
        total = 0
        position = now.head
        while position >= 0:
            request = requests[position]
            if request.state == STEADY:
                total += min(request.limit - emitted_of(request, now.tick), MOST_ESTIMATED)
            position = request.next
    for at in range(now.loose):
        request = requests[state.loose[at]]
        if request.mid_prefill == 0:
            total += min(request.limit - request.emitted, MOST_ESTIMATED)
    return int(total)


@compiled
def _estimated_prompts(state: State) -> None:
    now, knobs, page = state.now[0], state.knobs[0], state.knobs[0].block_size
    cut = _cut(state)
    if cut >= 0 or now.running == 0:
        now.shut = 0
    if cut < 0 and (now.shut != 0 or now.waiting == 0):
        return
    joining = count_decodes(state) if knobs.mixed != 0 else 0
    budget = knobs.budget - joining
    available = now.free * page
    estimate = joining + _to_come(state) * now.ratio
    taken = joining
    if cut >= 0:
        take, finishes = _go_on(state, cut, budget, int(available - estimate))
        if take <= 0:
            return
        budget -= blocks_for(take, page) * page
        promised = min(state.requests[cut].limit, MOST_ESTIMATED) if finishes else 0
        estimate += blocks_for(take, page) * page + page + promised
        taken += blocks_for(take, page) * page + page
        now.admitted = now.rows
    while now.waiting > 0 and now.shut == 0 and budget > 0:
        request = state.requests[queue_head(state)]
        if request.state == REMOTE:
            return
        if now.running >= knobs.seats:
            now.shut = 1
            return
        take = request.prompt + request.emitted
        to_come = min(request.limit - request.emitted, MOST_ESTIMATED)
        if take + to_come + page >= available - estimate:
            now.shut = 1 if now.running > 0 else 0
            return
        promised = min(request.limit, MOST_ESTIMATED)
        pages = blocks_for(take, page) * page
        if knobs.chunked == 0 and now.rows > 0 and pages >= budget:
            return
        is_cut = knobs.chunked != 0 and pages > budget
        if is_cut:
            take = budget // page * page
            promised = 0
            if take <= 0:
                return
        _admit(state, take)
        budget -= blocks_for(take, page) * page
        estimate += blocks_for(take, page) * page + page + promised
        taken += blocks_for(take, page) * page + page
        if available - estimate <= 0 or available - taken <= 0:
            now.shut = 1
        if is_cut:
            return


@inlined
def _go_on(state: State, position: int, budget: int, estimated_room: int) -> tuple[int, bool]:
    """The prompt that was cut comes first. Its tokens, 0 without room for it, and whether that was all."""
    now, request, page = state.now[0], state.requests[position], state.knobs[0].block_size
    left = request.prompt + request.emitted - request.computed
    most = min(budget, estimated_room)
    if most <= 0:
        most = budget
    held = blocks_for(request.computed, page)
    take = min(left, most, (held + now.free) * page - request.computed)
    if take <= 0:
        return 0, False
    now.free -= blocks_for(request.computed + take, page) - held
    now.tokens += take
    add_row(state, position, take)
    return take, take == left


# Decodes --------------------------------------------------------------------------------------------------------


@compiled
def _decode(state: State) -> None:
    now, knobs = state.now[0], state.knobs[0]
    if knobs.fewest_outputs == 0:
        serve_decodes(state, knobs.decode_limit)
        return
    if count_decodes(state) == 0:
        return
    need = new_blocks(state)
    if need > now.free:
        need = _send_back(state)
    else:
        now.ratio = max(now.ratio - knobs.ratio_decay, knobs.least_ratio)
    if need <= now.free:
        serve_all(state, need)


@compiled
def _send_back(state: State) -> int:
    """Decodes with the fewest outputs leave, at least one, never the last (unless it is short of what requests taken
    over hold); then the ratio is set anew. Returns the blocks that those who stay need."""
    now = state.now[0]
    decodes = count_decodes(state)
    cut = _cut(state)
    need = new_blocks(state)
    while decodes > 1:
        preempt(state, _fewest_outputs(state))
        decodes -= 1
        need = new_blocks(state)
        if need <= now.free:
            break
    if cut >= 0 and need > now.free:
        preempt(state, cut)
    if need > now.free and now.staged + now.ready > 0:
        preempt(state, _fewest_outputs(state))  # those taken over have what it needs
        decodes = 0
        need = 0
    now.shut = 0
    emitted = 0
    limits = 0
    position = now.head
    while position >= 0:
        request = state.requests[position]
        if request.state == STEADY:
            emitted += emitted_of(request, now.tick)
            limits += request.limit
        elif request.state == LOOSE and request.mid_prefill == 0:
            emitted += request.emitted
            limits += request.limit
        position = request.next
    now.ratio = min(1.0, (emitted + STEPS_AHEAD * decodes) / (limits + 1))
    return need


@compiled
def _fewest_outputs(state: State) -> int:
    """The decode with the fewest outputs, of equals the longest prompt, of equals the last in running order."""
    now, requests = state.now[0], state.requests
    worst = -1
    fewest, longest = 0, 0
    position = now.head
    while position >= 0:
        request = requests[position]
        steady = request.state == STEADY
        if steady or (request.state == LOOSE and request.mid_prefill == 0):
            emitted = emitted_of(request, now.tick) if steady else request.emitted
            if worst < 0 or emitted < fewest or (emitted == fewest and request.prompt >= longest):
                worst, fewest, longest = position, emitted, request.prompt
        position = request.next
    return int(worst)
