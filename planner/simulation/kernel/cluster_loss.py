"""A decode (or aggregated) replica is lost, what it had goes elsewhere: `cluster.reference_hand_off.lost`, compiled."""

from __future__ import annotations

from planner.simulation.cluster.order import HANDED_OVER, LOST, SERVED
from planner.simulation.kernel.cluster_records import NO_TRANSFER, ON_LINKS
from planner.simulation.kernel.cluster_replicas import NEVER
from planner.simulation.kernel.cluster_router import strike
from planner.simulation.kernel.cluster_state import Between, replica_state
from planner.simulation.kernel.compiled import merged
from planner.simulation.kernel.events import add_event
from planner.simulation.kernel.hand_off import free_prefill_blocks
from planner.simulation.kernel.held import give_up_held
from planner.simulation.kernel.links import leave_links
from planner.simulation.kernel.records import DONE, EXHAUSTED, LOOSE, READY, REMOTE, STAGED, STEADY, WAITING
from planner.simulation.kernel.speculation import forget_drafts
from planner.simulation.kernel.steady import leave_steady


@merged
def lose(between: Between, r: int, now_s: float, last_step_is_over: bool) -> None:
    """A decode replica schedules no more; when its last step is over, its requests go elsewhere."""
    run = between.run[0]
    between.replicas[r].lost = 1
    between.replicas[r].asleep = 1
    between.next_s[r] = NEVER
    if not last_step_is_over and between.now[r].end_s > now_s:
        add_event(between, between.now[r].end_s, LOST, r, 0, 0, 1)
        return
    give_up_held(replica_state(between, r), now_s, between.now[r].held_blocks)
    between.now[r].held_seats = 0
    for i in range(run.count):
        way, request = between.ways[i], between.requests[i]
        if between.legs[i].replica != r or way.refusal != SERVED:
            continue
        if request.state == DONE or request.state == EXHAUSTED or _has_all_tokens(between, i):
            continue
        remote = 1 if _give_up(between, r, i, now_s) else 0
        add_event(between, now_s + run.message_s, HANDED_OVER, i, 0, remote, 1)


@merged
def _has_all_tokens(between: Between, i: int) -> bool:
    """Preempted with its last token in flight, which is out now."""
    request = between.requests[i]
    return bool(request.state == WAITING and request.emitted == request.output)


@merged
def _give_up(between: Between, r: int, i: int, now_s: float) -> bool:
    """Take a request from a lost replica; True if its KV cache is, or will be, on the prefill side."""
    way, request = between.ways[i], between.requests[i]
    remote = request.state == REMOTE or (request.state == STAGED and way.prefill_sent == 0)
    if request.state == STAGED and way.prefill_sent != 0:
        way.abandoned = 1
        free_prefill_blocks(between, i, now_s)
    if way.fetching == 0 or way.handed_over == 0:
        if way.on_its_way == ON_LINKS:
            leave_links(between, i, now_s)
        way.on_its_way = NO_TRANSFER
        way.fetching = 0
    if request.state == STEADY:
        leave_steady(replica_state(between, r), i)
        request.state = LOOSE
    if request.state == LOOSE or request.state == READY or way.abandoned != 0:
        way.lost_kv += 1
    if between.knobs[r].caching != 0:
        between.prefix[i].held = 0
        between.prefix[i].own = 0
        between.prefix[i].fetched_from = 0
        between.prefix[i].fetched_to = 0
    way.staged = 0
    request.computed = 0
    if between.knobs[r].drafts != 0:
        forget_drafts(replica_state(between, r), i)
    request.mid_prefill = 0
    request.stamp = -1
    request.state = WAITING
    between.legs[i].queued = 0
    between.legs[i].took_over = 0
    strike(between, i)
    between.legs[i].replica = -1
    return bool(remote)
