"""The router that is aware of prefixes, and the accounts of what was sent where: `cluster.reference_pool`, compiled."""

from __future__ import annotations

from planner.simulation.kernel.blocks import blocks_for
from planner.simulation.kernel.cluster_state import Between, replica_state
from planner.simulation.kernel.compiled import compiled, inlined
from planner.simulation.kernel.prefix import look_up


@inlined
def overlap(between: Between, r: int, leg: int) -> int:
    """Tokens of a request that replica r has cached now."""
    if between.knobs[r].caching == 0:
        return 0
    look_up(replica_state(between, r), leg)
    return int(between.now[r].hit_tokens)


@inlined
def known_tokens(between: Between, leg: int) -> int:
    return int(between.requests[leg].prompt + between.requests[leg].emitted)


@compiled
def least_cost(between: Between, leg: int, first: int, end: int) -> int:
    """The replica from `first` up to `end` where the request costs least, of equals the first; -1: all are lost."""
    best, least = -1, 0.0
    for r in range(first, end):
        if between.replicas[r].lost != 0:
            continue
        replica, block = between.replicas[r], between.knobs[r].block_size
        cached, known = overlap(between, r, leg), known_tokens(between, leg)
        prefill_blocks = (replica.prefill_tokens + known - cached) / block
        decode_blocks = replica.active_blocks + blocks_for(known, block) - cached // block
        cost = between.run[0].overlap_weight * prefill_blocks + decode_blocks
        if best < 0 or cost < least:
            best, least = r, cost
    return best


@compiled
def book(between: Between, r: int, leg: int, fetched_tokens: int, remote: bool) -> None:
    """A request is sent to replica r."""
    record, replica, block = between.legs[leg], between.replicas[r], between.knobs[r].block_size
    cached, known = overlap(between, r, leg), known_tokens(between, leg)
    record.booked_tokens = known - cached
    record.booked_blocks = blocks_for(known, block) - cached // block
    if not remote:
        own = known - cached - fetched_tokens
        record.ahead_tokens = own
        record.ahead_pairs = own * (cached + fetched_tokens) + own * (own + 1) // 2
    replica.prefill_tokens += record.booked_tokens
    replica.active_blocks += record.booked_blocks
    replica.ahead_tokens += record.ahead_tokens
    replica.ahead_pairs += record.ahead_pairs


@compiled
def is_scheduled(between: Between, r: int, leg: int, take: int, cached: int, emits: bool) -> None:
    """A step computes these tokens."""
    record, replica = between.legs[leg], between.replicas[r]
    tokens, pairs = record.ahead_tokens, record.ahead_pairs
    if not emits:
        tokens = min(tokens, take)
        pairs = min(pairs, take * cached + take * (take + 1) // 2)
    record.ahead_tokens -= tokens
    record.ahead_pairs -= pairs
    replica.ahead_tokens -= tokens
    replica.ahead_pairs -= pairs


@inlined
def prefill_is_done(between: Between, r: int, leg: int) -> None:
    between.replicas[r].prefill_tokens -= between.legs[leg].booked_tokens
    between.legs[leg].booked_tokens = 0


@inlined
def close(between: Between, r: int, leg: int) -> None:
    """It is over there."""
    prefill_is_done(between, r, leg)
    between.replicas[r].active_blocks -= between.legs[leg].booked_blocks
    between.legs[leg].booked_blocks = 0


@inlined
def strike(between: Between, leg: int) -> None:
    """Its replica is lost, and the accounts with it."""
    record = between.legs[leg]
    record.booked_tokens = 0
    record.booked_blocks = 0
    record.ahead_tokens = 0
    record.ahead_pairs = 0
