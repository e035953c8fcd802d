"""The prefix cache, compiled: `reference_prefix` without a record for every block.

Only what can still be told apart is kept. Free blocks without a name are all alike and lie in front of the queue:
they are a number, `fresh`. Of the named ones only those whose name several prompts share need a node each. The
rest of a request's blocks are its own: while it runs they are a number that follows from its progress, and in the
queue they are one node that counts them (a *run*), since they lie there side by side with the tail in front, and
are taken from that end. A run is of use only to a request that waits to be resumed, its `owner`; the runs of
finished requests have none and grow together. A run's block that is computed anew although it was hit becomes fresh.

Taking blocks is not done at once. Steps only lower `now.free`; what that is less than what lies in the queue was
taken from the front of it since, and is removed (`settle`) before anybody looks into the queue or adds to it. So a
step that decodes costs no more with the cache than without.
"""

from __future__ import annotations

from planner.simulation.arrays import Ints
from planner.simulation.kernel.blocks import context_of
from planner.simulation.kernel.compiled import compiled, inlined
from planner.simulation.kernel.records import DONE, EXHAUSTED, STEADY
from planner.simulation.kernel.speculation import unnamed_tokens
from planner.simulation.kernel.state import State


@compiled
def settle(state: State) -> None:
    """Remove from the queue what was taken; the names of those blocks are forgotten."""
    now, nodes = state.now[0], state.nodes
    due = now.fresh + now.listed - now.free
    fresh = min(due, now.fresh)
    now.fresh -= fresh
    due -= fresh
    now.listed -= due
    while due > 0:
        at = now.first_free
        node = nodes[at]
        taken = min(due, node.count)
        due -= taken
        node.count -= taken
        if node.name >= 0:
            _forget_copy(state, at)
        elif node.owner >= 0:
            state.prefix[node.owner].own -= taken
        if node.count == 0:
            _unlink(state, at)
            node.next = now.spare
            now.spare = at


@compiled
def look_up(state: State, position: int) -> None:
    """What the cache has of a waiting request.

    `now.shared_hits` and `now.own_hits` blocks, `now.live_hits` of them held by others; and `now.hit_tokens` that
    need not be computed (assumed ones are no hits: they take blocks of their own).
    """
    settle(state)
    now, request, prefix = state.now[0], state.requests[position], state.prefix[position]
    block = state.knobs[0].block_size
    now.live_hits = 0
    now.shared_hits = 0
    now.own_hits = 0
    now.own_dropped = 0
    if prefix.assumed > 0 and request.preemptions == 0:
        now.hit_tokens = prefix.assumed * block
        return
    most = (request.prompt + request.emitted - 1) // block
    hits = 0
    while hits < min(most, prefix.shared):
        at = state.names[state.places[prefix.shared_at + hits].name].first
        if at < 0:
            break
        if state.nodes[at].holders > 0:
            now.live_hits += 1
        hits += 1
    if hits == prefix.shared:
        now.own_hits = min(prefix.own, most - hits)
    if state.knobs[0].dropped_hits != 0:
        if now.own_hits > 0:
            now.own_hits -= 1
            now.own_dropped = 1
        elif hits > 0:
            hits -= 1
            last = state.names[state.places[prefix.shared_at + hits].name].first
            if state.nodes[last].holders > 0:
                now.live_hits -= 1
    now.shared_hits = hits
    now.hit_tokens = (hits + now.own_hits) * block
    if request.preemptions == 0 and prefix.fetched_from <= hits and hits < prefix.fetched_to:
        now.hit_tokens = prefix.fetched_to * block


@compiled
def take_hits(state: State, position: int) -> int:
    """Admit a request with what `look_up` found; returns the blocks it holds by that."""
    now, nodes = state.now[0], state.nodes
    request, prefix = state.requests[position], state.prefix[position]
    for hit in range(now.shared_hits):
        at = int(state.names[state.places[prefix.shared_at + hit].name].first)
        if nodes[at].holders == 0:
            _unlink(state, at)
            now.listed -= 1
            now.free -= 1
        nodes[at].holders += 1
        state.places[prefix.shared_at + hit].node = at
    prefix.held = now.shared_hits
    own, dropped = now.own_hits, now.own_dropped
    if own + dropped > 0:  # all of the run: nothing computed lies behind the last known token
        _unlink(state, prefix.run)
        nodes[prefix.run].next = now.spare
        now.spare = prefix.run
        prefix.own = 0
        now.listed -= own + dropped
        now.fresh += dropped
        now.free -= own
    prefix.turn = now.turns
    now.turns += 1
    request.computed = now.hit_tokens
    if request.preemptions == 0:
        fetched = now.hit_tokens - now.shared_hits * state.knobs[0].block_size if prefix.fetched_to > 0 else 0
        prefix.pool_hit_tokens = fetched
        prefix.hit_tokens = now.hit_tokens - fetched
    else:
        prefix.rehit_tokens += now.hit_tokens
    return int(now.shared_hits + own)


@compiled
def learn(state: State) -> None:
    """The shared blocks of the prompts in the rows that are new since can be hit as far as they are scheduled.

    The steady set has no row and no prompt left to compute.
    """
    now = state.now[0]
    for row in range(now.learned, now.rows):
        learn_up_to(state, state.rows[row].request, state.rows[row].cached + state.rows[row].take)
    now.learned = now.rows


@compiled
def learn_up_to(state: State, position: int, tokens: int) -> None:
    """The first so many tokens of a request are known and scheduled, or there: their shared blocks can be hit."""
    prefix = state.prefix[position]
    full = min(tokens // state.knobs[0].block_size, prefix.shared)
    if prefix.held >= full:
        return
    settle(state)
    nodes = state.nodes
    for place in range(prefix.shared_at + prefix.held, prefix.shared_at + full):
        name = state.names[state.places[place].name]
        at = _new(state)
        nodes[at].name = state.places[place].name
        nodes[at].holders = 1
        nodes[at].count = 1
        nodes[at].twin = -1
        if name.first < 0:
            name.first = at
        else:
            nodes[name.last].twin = at
        name.last = at
        state.places[place].node = at
    prefix.held = full


@inlined
def in_running_order(state: State, positions: Ints) -> None:
    """Sort the requests that finish in one step (entry 0 counts them): the first to run frees its blocks first."""
    for at in range(2, positions[0] + 1):
        position = positions[at]
        hole = at
        while hole > 1 and state.prefix[positions[hole - 1]].turn > state.prefix[position].turn:
            positions[hole] = positions[hole - 1]
            hole -= 1
        positions[hole] = position


@compiled
def give_back(state: State, position: int, held: int) -> None:
    """A request that held so many blocks is DONE, or is being preempted.

    Its full blocks with known tokens can still be hit: the shared ones by anybody, its own by itself. Asynchronously
    the token that a decode emitted in the schedule before is not known, so nor is the block that it completes,
    unless the request has had its turn in this schedule (with drafts: see `speculation.unnamed_tokens`).
    """
    settle(state)
    now, nodes = state.now[0], state.nodes
    request, prefix = state.requests[position], state.prefix[position]
    owner = -1 if request.state == DONE else position
    known = request.computed
    if request.state == DONE:
        known = request.prompt + request.output - 1
    elif state.knobs[0].drafts != 0:
        known = request.computed - unnamed_tokens(state, position)
    elif request.state == EXHAUSTED:
        known = request.computed - prefix.unknown
    elif request.state == STEADY:
        known = context_of(request, now.tick)
        if state.knobs[0].lag != 0 and request.stamp != now.schedules and request.join_tick != now.tick:
            known -= 1
    own = max(known // state.knobs[0].block_size - prefix.shared, 0)
    fresh = held - prefix.held - own
    now.fresh += fresh
    now.free += fresh + own
    now.listed += own
    last = now.last_free
    if own > 0 and owner < 0 and last >= 0 and nodes[last].name < 0 and nodes[last].owner < 0:
        nodes[last].count += own
        own = 0
    nodes_back = prefix.held + (1 if own > 0 else 0)
    for back in range(nodes_back):  # its run lies in front of its shared blocks, the last of them first
        if own > 0 and back == 0:
            at = _new(state)
            nodes[at].name = -1
            nodes[at].owner = owner
            nodes[at].count = own
            if owner >= 0:
                prefix.own = own
                prefix.run = at
        else:
            at = int(state.places[prefix.shared_at + nodes_back - 1 - back].node)
            nodes[at].holders -= 1
            if nodes[at].holders > 0:
                continue
            now.listed += 1
            now.free += 1
        nodes[at].next = -1
        nodes[at].previous = now.last_free
        if now.last_free >= 0:
            nodes[now.last_free].next = at
        else:
            now.first_free = at
        now.last_free = at
    prefix.held = 0


@inlined
def _forget_copy(state: State, at: int) -> None:
    """No hit finds this copy any more; those of the same name stay in the order in which they came."""
    nodes = state.nodes
    name = state.names[nodes[at].name]
    if name.first == at:
        name.first = nodes[at].twin
        return
    before = name.first
    while nodes[before].twin != at:
        before = nodes[before].twin
    nodes[before].twin = nodes[at].twin
    if name.last == at:
        name.last = before


@compiled
def _unlink(state: State, at: int) -> None:
    now, nodes = state.now[0], state.nodes
    before, after = nodes[at].previous, nodes[at].next
    if before >= 0:
        nodes[before].next = after
    else:
        now.first_free = after
    if after >= 0:
        nodes[after].previous = before
    else:
        now.last_free = before


@inlined
def _new(state: State) -> int:
    """A node that is not in use: one given back, or the next that never was."""
    now = state.now[0]
    at = now.spare
    if at >= 0:
        now.spare = state.nodes[at].next
        return int(at)
    now.nodes += 1
    return int(now.nodes - 1)
