"""Replicas as the cluster sees them: who gets the next request, who wakes, who is asleep.

Rules of `cluster.reference_pool` and of the first half of `cluster.reference_replica`.
"""

from __future__ import annotations

from planner.simulation.cluster.order import ARRIVAL
from planner.simulation.kernel.cluster_router import least_cost
from planner.simulation.kernel.cluster_state import Between, replica_state
from planner.simulation.kernel.compiled import compiled, inlined
from planner.simulation.kernel.events import add_event
from planner.simulation.kernel.queue import enqueue_new
from planner.simulation.kernel.records import REMOTE, WAITING

NEVER = float("inf")
NOBODY = -1
IN_TURN, BY_TOKENS, BY_PREFIX = 0, 1, 2  # routers


@compiled
def choose_prefill(between: Between, leg: int) -> int:
    """The prefill replica for the next request."""
    run = between.run[0]
    if run.prefill_router == BY_TOKENS:
        return _fewest_tokens(between, 0, run.prefill)
    if run.prefill_router == BY_PREFIX:
        return least_cost(between, leg, 0, run.prefill)
    run.prefill_turn += 1
    return int((run.prefill_turn - 1) % run.prefill)


@compiled
def choose_decode(between: Between, leg: int) -> int:
    """The decode (or aggregated) replica for the next request, or NOBODY."""
    run = between.run[0]
    first, end = run.prefill, run.prefill + run.decode
    if run.decode_router == BY_TOKENS:
        return _fewest_tokens(between, first, end)
    if run.decode_router == BY_PREFIX:
        return least_cost(between, leg, first, end)
    for _ in range(run.decode):
        r = first + run.decode_turn % run.decode
        run.decode_turn += 1
        if between.replicas[r].lost == 0:
            return int(r)
    return NOBODY


@inlined
def _fewest_tokens(between: Between, first: int, end: int) -> int:
    best = NOBODY
    for r in range(first, end):
        if between.replicas[r].lost == 0 and (
            best == NOBODY
            or between.replicas[r].outstanding_tokens < between.replicas[best].outstanding_tokens
        ):
            best = r
    return best


@inlined
def due_s(between: Between, r: int) -> float:
    """When the next schedule can be made, by the rules of time."""
    now = between.now[r]
    return float(max(now.scheduled_s, now.end_s if between.knobs[r].lag == 0 else now.end_before_s))


@compiled
def enter(between: Between, r: int, leg: int, now_s: float, remote: bool) -> None:
    """A request joins a replica's queue, which wakes if it was asleep."""
    run, record = between.run[0], between.legs[leg]
    between.requests[leg].state = REMOTE if remote else WAITING
    record.tells = 0 if remote else run.tells_prefills
    record.replica = r
    record.entry = run.entries
    run.entries += 1
    record.entered_s = now_s
    record.rest_s = 0.0
    enqueue_new(replica_state(between, r), leg)
    record.seen_waiting = between.now[r].waiting
    between.replicas[r].sent += 1
    wake(between, r, leg, now_s)


@compiled
def wake(between: Between, r: int, leg: int, now_s: float) -> None:
    """Something may let a sleeping replica go on; `leg` is noted to have ended its rest."""
    replica = between.replicas[r]
    if replica.asleep == 0 or replica.lost != 0:
        return
    if replica.resting != 0:
        now = between.now[r]
        between.legs[leg].rest_s += now_s - max(now.scheduled_s, now.end_s)
    replica.asleep = 0
    replica.resting = 0
    between.next_s[r] = max(now_s, due_s(between, r))


@inlined
def sleep(between: Between, r: int, resting: bool) -> None:
    between.replicas[r].asleep = 1
    if resting:
        between.replicas[r].resting = 1
    between.next_s[r] = NEVER


@inlined
def is_over(between: Between, now_s: float) -> None:
    """A request is finished or turned away: in a closed loop its client goes on."""
    run = between.run[0]
    run.over += 1
    run.over_s = max(run.over_s, now_s)
    next_client(between, now_s + run.think_s)


@compiled
def next_client(between: Between, time_s: float) -> None:
    run = between.run[0]
    if run.closed_loop != 0 and run.sent < run.count:
        add_event(between, time_s, ARRIVAL, run.sent, 0, 0, 0)
        run.sent += 1
