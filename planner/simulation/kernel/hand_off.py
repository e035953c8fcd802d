"""How KV caches get from the prefill to the decode side, compiled: the handlers of `cluster.reference_hand_off`."""

from __future__ import annotations

from planner.simulation.cluster.order import (
    JOINS,
    LEASE_ENDS,
    NO_REPLICA,
    PREALLOCATED,
)
from planner.simulation.kernel.blocks import blocks_for
from planner.simulation.kernel.cluster_pool import enter_or_fetch, fetch_is_over
from planner.simulation.kernel.cluster_records import (
    AFTER_PREFILL_MODE,
    IN_LATENCY,
    NO_TRANSFER,
    PULL_MODE,
    PUSH_MODE,
)
from planner.simulation.kernel.cluster_replicas import (
    NOBODY,
    choose_decode,
    enter,
    is_over,
    wake,
)
from planner.simulation.kernel.cluster_router import book, close, prefill_is_done
from planner.simulation.kernel.cluster_state import Between, replica_state, transfer_table
from planner.simulation.kernel.compiled import compiled, inlined, merged
from planner.simulation.kernel.decode_side import append_ready
from planner.simulation.kernel.events import add_event
from planner.simulation.kernel.held import give_up_held
from planner.simulation.kernel.links import join_links, leave_links
from planner.simulation.kernel.prefix import give_back, learn_up_to
from planner.simulation.kernel.records import DONE, REMOTE, WAITING
from planner.simulation.kernel.speculation import forget_drafts
from planner.simulation.kernel.step_time import transfer_parts


@compiled
def to_decode_side(between: Between, i: int, now_s: float, remote: bool) -> bool:
    """The router of the decode pool sends request i on. False: nobody is left."""
    run, way = between.run[0], between.ways[i]
    r = choose_decode(between, i)
    if r == NOBODY or not (remote or _can_compute(between, r, i)):
        way.refusal = NO_REPLICA
        free_prefill_blocks(between, i, now_s)
        is_over(between, now_s)
        return False
    way.receiver = r - run.prefill
    between.replicas[r].outstanding_tokens += way.prompt + way.output
    if run.keeps_accounts != 0:
        book(between, r, i, 0, remote)
    enter(between, r, i, now_s, remote)
    return True


@inlined
def _can_compute(between: Between, r: int, i: int) -> bool:
    """Without chunked prefill, prompt and outputs so far may be more than a step can hold."""
    request, knobs = between.requests[i], between.knobs[r]
    return bool(knobs.chunked != 0 or request.prompt + request.emitted <= knobs.budget)


@inlined
def prefill_is_over(between: Between, i: int) -> None:
    """The router hears of it."""
    way = between.ways[i]
    if way.prefill_over == 0:
        way.prefill_over = 1
        between.replicas[way.sender].outstanding_tokens -= way.prompt
        close(between, way.sender, between.run[0].count + i)


@inlined
def take_first_token(between: Between, i: int) -> None:
    """The first token came from the prefill side, at the end of the prefill."""
    first_token_s = between.requests[between.run[0].count + i].first_token_s
    between.requests[i].first_token_s = first_token_s
    between.requests[i].last_token_s = first_token_s


@merged
def handed_over(between: Between, i: int, now_s: float) -> None:
    """Pull, after prefill: its prefill over, a request comes to the decode pool."""
    run = between.run[0]
    sender = between.requests[run.count + i]
    if sender.state != DONE:
        return  # preempted after its last chunk: it will be computed again
    prefill_is_over(between, i)
    if run.mode == AFTER_PREFILL_MODE:
        take_first_token(between, i)
    if run.lease_ends != 0:
        add_event(between, sender.first_token_s + run.lease_s, LEASE_ENDS, i, 0, 0, 0)
    to_decode_side(between, i, now_s, True)


@merged
def handed_over_again(between: Between, i: int, now_s: float, remote: bool) -> None:
    """Its decode replica was lost. The prefill side may have given its blocks up by now."""
    run = between.run[0]
    if remote and run.mode != PUSH_MODE:
        remote = between.legs[run.count + i].held > 0
    if not remote:
        _compute_locally(between, i)
    to_decode_side(between, i, now_s, remote)


@inlined
def _compute_locally(between: Between, i: int) -> None:
    """From now on the decode leg is like any other request, without the one token that it was to have known."""
    way, request = between.ways[i], between.requests[i]
    if request.prompt < way.prompt:  # pull: the prompt's last
        request.prompt += 1
        request.output -= 1
        request.limit -= 1
        request.emitted -= 1
    elif request.first_token_s < 0.0:  # push: the first output, which nobody has seen
        request.emitted = 0


@merged
def tell_of_staged(between: Between, r: int) -> None:
    """The decode side took blocks in the schedule that replica r has just made."""
    run, now = between.run[0], between.now[r]
    i = now.newly_staged
    while i >= 0:
        way = between.ways[i]
        way.staged = 1
        way.stagings += 1
        between.legs[i].took_over = 1
        way.present_tokens = between.requests[i].computed
        if run.mode == PUSH_MODE:
            way.moved_tokens = way.present_tokens
            add_event(between, now.start_s + run.message_s, PREALLOCATED, i, 0, way.stagings, 0)
        else:
            tokens = way.prompt - 1 if run.mode == PULL_MODE else way.prompt
            _send(between, i, tokens - way.present_tokens, now.start_s)
        i = between.requests[i].next
    now.newly_staged = -1


@merged
def preallocated(between: Between, i: int, staging: int, now_s: float) -> None:
    """Push: the prefill replica knows that there is room."""
    way = between.ways[i]
    if way.staged == 0 or way.stagings != staging:
        return  # that decode replica is lost
    way.prefill_sent = 1
    enter_or_fetch(between, way.sender, between.run[0].count + i, now_s)


@merged
def computed(between: Between, i: int, tokens: int, preemptions: int, now_s: float) -> None:
    """Push: a step has ended that computed the prompt up to `tokens`."""
    way = between.ways[i]
    if between.requests[between.run[0].count + i].preemptions != preemptions:
        return  # its blocks were taken away while the step ran
    way.computed_tokens = max(way.computed_tokens, tokens)
    if tokens == way.prompt:
        prefill_is_over(between, i)
    _send_on(between, i, now_s)


@compiled
def _send_on(between: Between, i: int, now_s: float) -> None:
    """Push: send what is computed, in whole transfer chunks, unless something is on its way."""
    way = between.ways[i]
    if way.staged == 0 or way.on_its_way != NO_TRANSFER:
        return
    tokens = way.computed_tokens
    if tokens < way.prompt:
        tokens -= tokens % between.run[0].chunk_tokens
    if tokens > way.moved_tokens or tokens == way.prompt:
        _send(between, i, tokens - way.moved_tokens, now_s)


@compiled
def _send(between: Between, i: int, tokens: int, start_s: float) -> None:
    """Of no tokens at all nothing but word is sent."""
    way = between.ways[i]
    size = tokens * between.run[0].bytes_per_token
    latency_s, alone = transfer_parts(transfer_table(between), size)
    if tokens == 0:
        latency_s = 0.0
    way.transfer_bytes = size
    way.path = way.sender * between.run[0].decode + way.receiver
    way.alone_bytes_per_s = alone
    way.transfer_tokens = tokens
    way.transfer_start_s = start_s
    way.transfers += 1
    way.on_its_way = IN_LATENCY
    add_event(between, start_s + latency_s, JOINS, i, 0, way.transfers, 0)


@merged
def joins(between: Between, i: int, transfer: int, now_s: float) -> None:
    way = between.ways[i]
    if way.on_its_way != IN_LATENCY or way.transfers != transfer:
        return  # given up in the meantime
    if way.transfer_tokens > 0:
        join_links(between, i, now_s)
    else:
        way.on_its_way = NO_TRANSFER
        _arrived(between, i, now_s)


@merged
def transfer_ends(between: Between, now_s: float) -> None:
    """The transfer that is due ends."""
    run = between.run[0]
    i = between.active[run.next_end]
    leave_links(between, i, now_s)
    if between.ways[i].fetching != 0:
        fetch_is_over(between, i, now_s)
    else:
        _arrived(between, i, now_s)


@compiled
def _arrived(between: Between, i: int, now_s: float) -> None:
    """What was sent of a KV cache is on the decode side."""
    run, way = between.run[0], between.ways[i]
    way.moved_bytes += way.transfer_bytes
    if run.mode == PUSH_MODE:
        way.moved_tokens += way.transfer_tokens
        if way.moved_tokens < way.prompt:
            _send_on(between, i, now_s)
            return
        if between.requests[i].first_token_s < 0.0:
            between.requests[i].first_token_s = now_s
            between.requests[i].last_token_s = now_s
    _is_ready(between, i, now_s)


@merged
def _is_ready(between: Between, i: int, now_s: float) -> None:
    """The KV cache is on the decode side: the request can join the next step there."""
    run, way, request = between.run[0], between.ways[i], between.requests[i]
    r = run.prefill + way.receiver
    way.kv_ready_s = now_s
    way.staged = 0
    free_prefill_blocks(between, i, now_s)
    if request.emitted == request.output:  # push: its only token came with the KV cache
        now, knobs = between.now[r], between.knobs[r]
        future = blocks_for(request.prompt + request.limit, knobs.block_size)
        request.state = DONE
        now.staged -= 1
        if knobs.caching != 0:
            learn_up_to(replica_state(between, r), i, way.prompt)
        held = blocks_for(request.prompt + request.emitted, knobs.block_size)
        _give_back(between, r, i, held, now_s)
        now.shut = 0
        now.committed -= future
        if knobs.reserves != 0:
            now.reserved -= future
        between.replicas[r].outstanding_tokens -= way.prompt + way.output
        close(between, r, i)
        is_over(between, now_s)
    else:
        prefill_is_done(between, r, i)
        append_ready(replica_state(between, r), i)
    wake(between, r, i, now_s)


@compiled
def free_prefill_blocks(between: Between, i: int, now_s: float) -> None:
    if between.ways[i].handed_over == 0:
        return
    leg = between.run[0].count + i
    if between.legs[leg].held > 0:
        r = between.ways[i].sender
        _give_back(between, r, leg, between.legs[leg].held, now_s)
        between.now[r].shut = 0
        if between.knobs[r].reserves != 0:
            between.now[r].reserved -= between.legs[leg].held
        between.legs[leg].held = 0
        wake(between, r, leg, now_s)


@inlined
def _give_back(between: Between, r: int, leg: int, held: int, now_s: float) -> None:
    """The blocks of a leg that is DONE."""
    before = between.now[r].free
    if between.knobs[r].drafts != 0:
        held = forget_drafts(replica_state(between, r), leg)
    if between.knobs[r].caching != 0:
        give_back(replica_state(between, r), leg, held)
    else:
        between.now[r].free += held
    give_up_held(replica_state(between, r), now_s, between.now[r].free - before)


@merged
def lease_ends(between: Between, i: int, now_s: float) -> None:
    """Pull: unless somebody is pulling them, the blocks on the prefill side are given to others."""
    way = between.ways[i]
    if between.legs[between.run[0].count + i].held == 0 or way.staged != 0:
        return
    free_prefill_blocks(between, i, now_s)
    way.lost_kv += 1
    if between.requests[i].state == REMOTE:  # in a queue: from now on like any other request there
        between.requests[i].state = WAITING
        between.legs[i].tells = between.run[0].tells_prefills
        _compute_locally(between, i)
        wake(between, between.legs[i].replica, i, now_s)
