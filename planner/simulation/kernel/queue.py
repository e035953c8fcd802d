"""The two lists of requests: running, in order of admission, and waiting.

Both are linked through the requests, which stand in one of them at a time, so that one leaves without moving others.
By priority the queue is instead a binary heap of ranks in the order (priority, arrival, tie), known before the run.
"""

from __future__ import annotations

from planner.simulation.kernel.compiled import compiled, inlined
from planner.simulation.kernel.records import DONE
from planner.simulation.kernel.state import State


@inlined
def append_running(state: State, position: int) -> None:
    now, requests = state.now[0], state.requests
    request = requests[position]
    request.next = -1
    request.previous = now.tail
    if now.tail >= 0:
        requests[now.tail].next = position
    else:
        now.head = position
    now.tail = position
    now.running += 1


@inlined
def remove_running(state: State, position: int) -> None:
    now, requests = state.now[0], state.requests
    request = requests[position]
    if request.previous >= 0:
        requests[request.previous].next = request.next
    else:
        now.head = request.next
    if request.next >= 0:
        requests[request.next].previous = request.previous
    else:
        now.tail = request.previous
    now.running -= 1


@inlined
def enqueue_new(state: State, position: int) -> None:
    """The next arrival joins the queue."""
    state.now[0].waiting += 1
    if state.knobs[0].priority != 0:
        _push(state, state.requests[position].queue_rank)
    else:
        _put_last(state, position)


@inlined
def enqueue_preempted(state: State, position: int) -> None:
    now, knobs, request = state.now[0], state.knobs[0], state.requests[position]
    now.waiting += 1
    if knobs.priority != 0:
        _push(state, request.queue_rank)
    elif knobs.fewest_outputs != 0:
        _put_last(state, position)
    else:
        request.previous = -1
        request.next = now.first
        if now.first >= 0:
            state.requests[now.first].previous = position
        else:
            now.last = position
        now.first = position


@inlined
def _put_last(state: State, position: int) -> None:
    now, request = state.now[0], state.requests[position]
    request.next = -1
    request.previous = now.last
    if now.last >= 0:
        state.requests[now.last].next = position
    else:
        now.first = position
    now.last = position


@inlined
def queue_head(state: State) -> int:
    """The request next in line; only when `waiting` > 0."""
    now = state.now[0]
    if state.knobs[0].priority == 0:
        return int(now.first)
    position = state.by_rank[state.heap[0]]
    while state.requests[position].state == DONE:  # finished while waiting
        _pop(state)
        position = state.by_rank[state.heap[0]]
    return int(position)


@inlined
def pop_queue(state: State) -> None:
    """Take away what `queue_head` returned."""
    if state.knobs[0].priority != 0:
        state.now[0].waiting -= 1
        _pop(state)
    else:
        take_from_queue(state, state.now[0].first)


@inlined
def take_from_queue(state: State, position: int) -> None:
    """First come, first served: anybody in the queue leaves it."""
    now, requests = state.now[0], state.requests
    request = requests[position]
    now.waiting -= 1
    if request.previous >= 0:
        requests[request.previous].next = request.next
    else:
        now.first = request.next
    if request.next >= 0:
        requests[request.next].previous = request.previous
    else:
        now.last = request.previous


@compiled
def forget_waiting(state: State, position: int) -> None:
    """A preempted request whose last token was in flight has finished in the queue; its state is DONE."""
    if state.knobs[0].priority != 0:
        state.now[0].waiting -= 1  # queue_head skips it
    else:
        take_from_queue(state, position)


@compiled
def _push(state: State, rank: int) -> None:
    now, heap = state.now[0], state.heap
    hole = now.queued
    now.queued += 1
    while hole > 0:
        parent = (hole - 1) >> 1
        if heap[parent] <= rank:
            break
        heap[hole] = heap[parent]
        hole = parent
    heap[hole] = rank


@compiled
def _pop(state: State) -> None:
    now, heap = state.now[0], state.heap
    now.queued -= 1
    count = now.queued
    rank = heap[count]
    hole = 0
    while 2 * hole + 1 < count:
        child = 2 * hole + 1
        if child + 1 < count and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= rank:
            break
        heap[hole] = heap[child]
        hole = child
    heap[hole] = rank
