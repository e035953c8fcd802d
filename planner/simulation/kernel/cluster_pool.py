"""The prefix pool that replicas share, and fetches from it: rules of `cluster.reference_prefix_pool`, compiled.

`pool_entries` are a list from the oldest to the newest: one entry for each shared block, by its name, and behind those
one for each prompt's own blocks.
"""

from __future__ import annotations

from planner.simulation.cluster.order import JOINS
from planner.simulation.kernel.cluster_records import IN_LATENCY, NO_TRANSFER
from planner.simulation.kernel.cluster_replicas import enter
from planner.simulation.kernel.cluster_router import known_tokens, overlap
from planner.simulation.kernel.cluster_state import Between, pool_table
from planner.simulation.kernel.compiled import compiled, inlined, merged
from planner.simulation.kernel.events import add_event
from planner.simulation.kernel.step_time import transfer_parts


@compiled
def blocks_to_fetch(between: Between, r: int, leg: int) -> int:
    """How many blocks of its prompt it would fetch, behind those that replica r has (`now.hit_tokens`)."""
    if between.run[0].pooled == 0 or between.knobs[r].caching == 0:
        return 0
    block = between.knobs[r].block_size
    first = overlap(between, r, leg) // block
    most = min((known_tokens(between, leg) - 1) // block, between.prefix[leg].shared)
    end = first
    while end < most and between.pool_entries[_name(between, leg, end)].count > 0:
        end += 1
    return int(end - first)


@inlined
def _name(between: Between, leg: int, block: int) -> int:
    return int(between.places[between.prefix[leg].shared_at + block].name)


@compiled
def enter_or_fetch(between: Between, r: int, leg: int, now_s: float) -> None:
    """A request joins the queue where its prompt is computed, now or when a fetch is over."""
    run = between.run[0]
    blocks = blocks_to_fetch(between, r, leg)
    if blocks == 0:
        enter(between, r, leg, now_s, False)
        return
    block = between.knobs[r].block_size
    first = between.now[r].hit_tokens // block
    for position in range(first + blocks - 1, first - 1, -1):
        _unlink(between, _name(between, leg, position))
        _append(between, _name(between, leg, position))
    between.prefix[leg].fetched_from = first
    between.prefix[leg].fetched_to = first + blocks
    i = leg if leg < run.count else leg - run.count
    way = between.ways[i]
    tokens = blocks * block
    size = tokens * run.pool_bytes_per_token
    latency_s, alone = transfer_parts(pool_table(between), size)
    way.fetching = 1
    way.fetch_start_s = now_s
    way.path = len(between.paths) - 1
    way.transfer_bytes = size
    way.alone_bytes_per_s = alone
    way.transfer_tokens = tokens
    way.transfers += 1
    way.on_its_way = IN_LATENCY
    add_event(between, now_s + latency_s, JOINS, i, 0, way.transfers, 0)


@merged
def fetch_is_over(between: Between, i: int, now_s: float) -> None:
    way = between.ways[i]
    leg = between.run[0].count + i if way.handed_over != 0 else i
    way.fetching = 0
    way.on_its_way = NO_TRANSFER
    way.fetch_s = now_s - way.fetch_start_s
    enter(between, between.legs[leg].replica, leg, now_s, False)


@compiled
def store(between: Between, leg: int, full_blocks: int) -> None:
    """A prompt's full blocks are in the pool from now on; the least recently used make room."""
    pool, entries, run = between.pool[0], between.pool_entries, between.run[0]
    shared = min(full_blocks, between.prefix[leg].shared)
    i = leg if leg < run.count else leg - run.count
    _put(between, len(entries) - run.count + i, full_blocks - shared)
    for position in range(shared - 1, -1, -1):
        _put(between, _name(between, leg, position), 1)
    while pool.size > pool.most:
        oldest = pool.oldest
        less = min(pool.size - pool.most, entries[oldest].count)
        entries[oldest].count -= less
        pool.size -= less
        pool.evicted += less
        if entries[oldest].count == 0:
            _unlink(between, oldest)


@inlined
def _put(between: Between, at: int, count: int) -> None:
    if count > 0:
        pool, entry = between.pool[0], between.pool_entries[at]
        if entry.count > 0:
            _unlink(between, at)
        pool.size += count - entry.count
        pool.stored += count - entry.count
        entry.count = count
        _append(between, at)


@compiled
def _unlink(between: Between, at: int) -> None:
    pool, entries = between.pool[0], between.pool_entries
    older, newer = entries[at].older, entries[at].newer
    if older >= 0:
        entries[older].newer = newer
    else:
        pool.oldest = newer
    if newer >= 0:
        entries[newer].older = older
    else:
        pool.newest = older


@compiled
def _append(between: Between, at: int) -> None:
    pool, entries = between.pool[0], between.pool_entries
    entries[at].older = pool.newest
    entries[at].newer = -1
    if pool.newest >= 0:
        entries[pool.newest].newer = at
    else:
        pool.oldest = at
    pool.newest = at
