"""What is still to happen in a cluster: a binary heap of records, ordered by time, kind, and number.

Kinds and their order at one instant: `planner.simulation.cluster.order`. Transfers' ends, the replicas' schedules and
the arrivals of an open loop are not kept here: they are read where they are.
"""

from __future__ import annotations

from planner.simulation.kernel.cluster_state import Between
from planner.simulation.kernel.compiled import compiled, inlined
from planner.simulation.kernel.records import Record


@inlined
def _before(one: Record, other: Record) -> bool:
    if one.time_s != other.time_s:
        return bool(one.time_s < other.time_s)
    if one.kind != other.kind:
        return bool(one.kind < other.kind)
    return bool(one.number < other.number)


@compiled
def add_event(
    between: Between, time_s: float, kind: int, subject: int, tokens: int, mark: int, again: int
) -> None:
    """`tokens`, `mark` and `again` are for the kind's handler."""
    events, run = between.events, between.run[0]
    hole = run.events
    run.events += 1
    number = run.numbered
    run.numbered += 1
    while hole > 0:
        parent = (hole - 1) >> 1
        above = events[parent]
        if above.time_s < time_s or (above.time_s == time_s and above.kind <= kind):
            break  # of equals the one that came up first is first
        events[hole] = above
        hole = parent
    event = events[hole]
    event.time_s = time_s
    event.number = number
    event.kind = kind
    event.subject = subject
    event.tokens = tokens
    event.mark = mark
    event.again = again


@compiled
def drop_first(between: Between) -> None:
    """Take away events[0]."""
    events, run = between.events, between.run[0]
    run.events -= 1
    count = run.events
    last = events[count]
    hole = 0
    while 2 * hole + 1 < count:
        child = 2 * hole + 1
        if child + 1 < count and _before(events[child + 1], events[child]):
            child += 1
        if not _before(events[child], last):
            break
        events[hole] = events[child]
        hole = child
    events[hole] = last
