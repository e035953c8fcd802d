"""A request joins the queue where its prompt is computed, after a fetch from the prefix pool if that has of it what the
replica lacks. The rules are in `reference_prefix_pool`."""

from __future__ import annotations

from planner.simulation.cluster.order import JOINS
from planner.simulation.cluster.reference_links import Transfer
from planner.simulation.cluster.reference_pool import overlap
from planner.simulation.cluster.reference_replica import Leg, ReferenceReplica
from planner.simulation.cluster.reference_run import Run, Way
from planner.simulation.kernel.step_time import transfer_parts


def to_fetch(run: Run, replica: ReferenceReplica, leg: Leg) -> tuple[int, int]:
    """The blocks of its prompt that it would fetch: from the first up to the second."""
    if run.store is None or replica.engine.cache is None:
        return 0, 0
    block = replica.engine.profile.block_size
    first = overlap(replica, leg) // block
    return first, run.store.found(leg.index, first, (leg.known - 1) // block)


def begin(run: Run, way: Way, leg: Leg, replica: ReferenceReplica, now: float) -> None:
    first, end = to_fetch(run, replica, leg)
    if run.store is None or end == first:
        replica.enter(leg, now, next(run.entries), remote=False)
        return
    run.store.touch(leg.index, first, end)
    leg.fetched_from, leg.fetched_to = first, end
    tokens = (end - first) * replica.engine.profile.block_size
    size = tokens * run.store.pool.bytes_per_token
    latency_s, alone = transfer_parts(run.store.table, size)
    way.fetching, way.fetch_start_s = True, now
    way.transfer = Transfer(leg.index, size, alone, run.links.from_prefix_pool)
    way.transfer_tokens = tokens
    run.at(now + latency_s, JOINS, leg.index, transfer=way.transfer)


def is_over(run: Run, way: Way, now: float) -> None:
    leg = way.decode if way.prefill is None else way.prefill
    way.fetching, way.transfer = False, None
    way.fetch_s = now - way.fetch_start_s
    run.replicas[leg.replica].enter(leg, now, next(run.entries), remote=False)
