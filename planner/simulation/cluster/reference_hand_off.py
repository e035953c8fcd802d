"""How a KV cache gets from the prefill to the decode side, in plain Python: one function for every kind of event.

  pull, after prefill:  HANDED_OVER -> the decode replica's queue -> it takes blocks (staged) -> JOINS -> ENDS: ready
  push chunks:          the decode replica's queue -> it takes blocks (staged) -> PREALLOCATED -> the prefill
                        replica's queue -> COMPUTED after each step -> JOINS -> ENDS, chunk by chunk -> ready

A request's chunks are sent one after the other. The prefill side keeps its blocks until everything has been moved.
"""

from __future__ import annotations

import math

from planner.simulation.cluster import reference_fetch as fetch
from planner.simulation.cluster.deployment import AFTER_PREFILL, PULL, PUSH_CHUNKS
from planner.simulation.cluster.order import (
    HANDED_OVER,
    JOINS,
    LEASE_ENDS,
    LOST,
    NO_REPLICA,
    PREALLOCATED,
    SERVED,
)
from planner.simulation.cluster.reference_decode_side import ReferenceDecodeSide
from planner.simulation.cluster.reference_links import Transfer
from planner.simulation.cluster.reference_pool import book, close, prefill_is_done, strike
from planner.simulation.cluster.reference_replica import Leg, ReferenceReplica, deliver
from planner.simulation.cluster.reference_run import Event, Run, Way
from planner.simulation.kernel.step_time import transfer_parts
from planner.simulation.profile import RESERVES
from planner.simulation.reference_requests import release, whole_future


def preallocate(run: Run, way: Way, now: float) -> bool:
    """Push: a request has come, and waits for blocks on the decode side first. False: there is no such side."""
    return _to_decode_side(run, way, now, remote=True)


def handed_over(run: Run, way: Way, now: float) -> None:
    """Pull, after prefill: its prefill over, a request comes to the decode pool."""
    rules, sender = run.rules.hand_off, way.sender
    if not sender.finished:
        return  # preempted after its last chunk: it will be computed again
    prefill_is_over(run, way)
    if rules.mode == AFTER_PREFILL:
        way.decode.first_token_s = way.decode.last_token_s = sender.first_token_s
    if rules.lease_ends:
        run.at(sender.first_token_s + rules.lease_s, LEASE_ENDS, way.decode.index)
    _to_decode_side(run, way, now, remote=True)


def handed_over_again(run: Run, way: Way, now: float, *, remote: bool) -> None:
    """Its decode replica was lost. The prefill side may have given its blocks up by now."""
    if remote and run.rules.hand_off.mode != PUSH_CHUNKS:
        remote = way.sender.keeps
    if not remote:
        _compute_locally(way)
    _to_decode_side(run, way, now, remote=remote)


def _compute_locally(way: Way) -> None:
    """From now on the decode leg is like any other request, without the one token that it was to have known."""
    leg = way.decode
    if leg.prompt < way.prompt:  # pull: the prompt's last
        leg.prompt += 1
        leg.output -= 1
        leg.limit -= 1
        leg.generated -= 1
    elif leg.first_token_s < 0:  # push: the first output, which nobody has seen
        leg.generated = 0


def prefill_is_over(run: Run, way: Way) -> None:
    """The router hears of it."""
    if not way.prefill_over:
        way.prefill_over = True
        replica = run.replicas[way.sender.replica]
        replica.outstanding_tokens -= way.prompt
        close(replica, way.sender)


def _to_decode_side(run: Run, way: Way, now: float, *, remote: bool) -> bool:
    replica = run.decode.choose(way.decode)
    if replica is None or not (remote or _can_compute(replica, way.decode)):
        way.refusal = NO_REPLICA
        _free_prefill_blocks(run, way, now)
        run.is_over(now)
        return False
    way.decode.replica = replica.number
    replica.outstanding_tokens += way.prompt + way.output
    if run.rules.keeps_accounts:
        book(replica, way.decode, 0, remote=remote)
    replica.enter(way.decode, now, next(run.entries), remote=remote)
    return True


def _can_compute(replica: ReferenceReplica, leg: Leg) -> bool:
    """Without chunked prefill, prompt and outputs so far may be more than a step can hold."""
    profile = replica.of.knobs.profile
    return profile.chunked or leg.known <= profile.budget


def staged(run: Run, side: ReferenceDecodeSide, start_s: float) -> None:
    """The decode side took blocks in the schedule whose work starts at start_s."""
    rules = run.rules.hand_off
    for leg in side.newly_staged:
        way = run.ways[leg.index]
        way.staged = True
        way.stagings += 1
        way.present_tokens = leg.computed
        if rules.mode == PUSH_CHUNKS:
            way.moved_tokens = way.present_tokens
            run.at(start_s + rules.message_s, PREALLOCATED, leg.index, mark=way.stagings)
        else:
            tokens = way.prompt - 1 if rules.mode == PULL else way.prompt
            _send(run, way, tokens - way.present_tokens, start_s)
    side.newly_staged.clear()


def preallocated(run: Run, way: Way, event: Event, now: float) -> None:
    """Push: the prefill replica knows that there is room."""
    if not way.staged or way.stagings != event.mark:
        return  # that decode replica is lost
    way.prefill_sent = True
    fetch.begin(run, way, way.sender, run.replicas[way.sender.replica], now)


def computed(run: Run, way: Way, event: Event, now: float) -> None:
    """Push: a step has ended that computed the prompt up to `event.tokens`."""
    if way.sender.preemptions != event.mark:
        return  # its blocks were taken away while the step ran
    way.computed_tokens = max(way.computed_tokens, event.tokens)
    if event.tokens == way.prompt:
        prefill_is_over(run, way)
    _send_on(run, way, now)


def _send_on(run: Run, way: Way, now: float) -> None:
    """Push: send what is computed, in whole transfer chunks, unless something is on its way."""
    if not way.staged or way.transfer is not None:
        return
    tokens = way.computed_tokens
    if tokens < way.prompt:
        tokens -= tokens % run.rules.hand_off.chunk_tokens
    if tokens > way.moved_tokens or tokens == way.prompt:
        _send(run, way, tokens - way.moved_tokens, now)


def _send(run: Run, way: Way, tokens: int, start_s: float) -> None:
    """Of no tokens at all nothing but word is sent."""
    size = tokens * run.rules.hand_off.bytes_per_token
    if run.drive is not None and tokens > 0:
        first = way.moved_tokens if run.rules.hand_off.mode == PUSH_CHUNKS else way.present_tokens
        latency_s, alone = run.drive.transfer(way.sender, way.decode, first, tokens)
    else:
        latency_s, alone = transfer_parts(run.table, size)
    if tokens == 0:
        latency_s = 0.0
    decode = way.decode.replica - len(run.prefill.replicas)
    way.transfer = Transfer(way.decode.index, size, alone, run.links.paths[way.sender.replica][decode])
    way.transfer_tokens = tokens
    way.transfer_start_s = start_s
    run.at(start_s + latency_s, JOINS, way.decode.index, transfer=way.transfer)


def joins(run: Run, way: Way, transfer: Transfer | None, now: float) -> None:
    if transfer is None or way.transfer is not transfer:
        return  # given up in the meantime
    if way.transfer_tokens > 0:
        run.links.join(transfer, now)
    else:
        _arrived(run, transfer, now)


def ends(run: Run, transfer: Transfer, now: float) -> None:
    run.links.leave(transfer, now)
    if run.ways[transfer.request].fetching:
        fetch.is_over(run, run.ways[transfer.request], now)
    else:
        _arrived(run, transfer, now)


def _arrived(run: Run, transfer: Transfer, now: float) -> None:
    """What was sent of a KV cache is on the decode side."""
    way = run.ways[transfer.request]
    way.transfer = None
    way.moved_bytes += transfer.bytes
    if run.rules.hand_off.mode == PUSH_CHUNKS:
        way.moved_tokens += way.transfer_tokens
        if way.moved_tokens < way.prompt:
            _send_on(run, way, now)
            return
        if way.decode.first_token_s < 0:
            way.decode.first_token_s = way.decode.last_token_s = now
    _is_ready(run, way, now)


def _is_ready(run: Run, way: Way, now: float) -> None:
    """The KV cache is on the decode side: the request can join the next step there."""
    way.kv_ready_s = now
    way.staged = False
    _free_prefill_blocks(run, way, now)
    leg, replica = way.decode, run.replicas[way.decode.replica]
    side = replica.side
    side.staged.remove(leg)
    leg.computed = leg.known - 1
    if leg.generated == leg.output:  # push: its only token came with the KV cache
        leg.finished = True
        if replica.engine.cache:
            replica.engine.cache.learn(leg.index, leg.computed)
        _release(replica, leg, now)
        replica.engine.shut = False
        if replica.engine.profile.admission == RESERVES:
            replica.engine.set_aside -= whole_future(replica.engine, leg)
        del side.committed[leg.index]
        replica.outstanding_tokens -= way.prompt + way.output
        close(replica, leg)
        run.is_over(now)
    else:
        prefill_is_done(replica, leg)
        side.ready.append(leg)
    replica.wake(now, leg)


def _free_prefill_blocks(run: Run, way: Way, now: float) -> None:
    if way.prefill is not None and way.prefill.keeps:
        replica = run.replicas[way.prefill.replica]
        replica.engine.shut = False
        if replica.engine.profile.admission == RESERVES:
            replica.engine.set_aside -= way.prefill.blocks
        _release(replica, way.prefill, now)
        way.prefill.keeps = False
        replica.wake(now, way.prefill)


def _release(replica: ReferenceReplica, leg: Leg, now: float) -> None:
    """A leg's blocks come free at a time that is no schedule's."""
    before = replica.engine.free
    release(replica.engine, leg)
    replica.held.give_up(now, replica.engine.free - before)


def lease_ends(run: Run, way: Way, now: float) -> None:
    """Pull: unless somebody is pulling them, the blocks on the prefill side are given to others."""
    if not way.sender.keeps or way.staged:
        return
    _free_prefill_blocks(run, way, now)
    way.lost_kv += 1
    if way.decode.remote:  # in a queue: from now on like any other request there
        way.decode.remote = False
        way.decode.tells = True
        _compute_locally(way)
        run.replicas[way.decode.replica].wake(now, way.decode)


def lost(run: Run, replica: ReferenceReplica, now: float, *, last_step_is_over: bool) -> None:
    """A decode replica schedules no more; when its last step is over, its requests go elsewhere."""
    replica.lost, replica.asleep, replica.next_s = True, True, math.inf
    if not last_step_is_over and replica.end_s > now:
        run.at(replica.end_s, LOST, replica.number, again=True)
        return
    replica.held.hold(now, 0, 0)
    for step in replica.steps[len(replica.steps) - replica.lag :]:
        deliver(replica.engine, replica.side, step.batch)
    message_s = run.rules.hand_off.message_s
    for way in run.ways:
        leg = way.decode
        if leg.replica == replica.number and not leg.finished and way.refusal == SERVED:
            remote = _give_up(run, replica, way, now)
            run.at(now + message_s, HANDED_OVER, leg.index, again=True, remote=remote)


def _give_up(run: Run, replica: ReferenceReplica, way: Way, now: float) -> bool:
    """Take a request from a lost replica; True if its KV cache is, or will be, on the prefill side."""
    leg = way.decode
    remote = leg.remote or (way.staged and not way.prefill_sent)
    if way.staged and way.prefill_sent:
        way.abandoned = True
        way.sender.keeps_blocks = False
        _free_prefill_blocks(run, way, now)
    if way.transfer is not None and not (way.fetching and way.prefill is not None):
        if way.transfer in run.links.active:
            run.links.leave(way.transfer, now)
        way.transfer, way.fetching = None, False
    if leg in replica.engine.running or leg in replica.side.ready or way.abandoned:
        way.lost_kv += 1
    way.staged = leg.remote = leg.queued = leg.mid_prefill = False
    leg.computed = leg.blocks = leg.drafts = leg.ahead = 0
    leg.fetched_from = leg.fetched_to = 0
    strike(leg)
    leg.replica = -1
    return remote
