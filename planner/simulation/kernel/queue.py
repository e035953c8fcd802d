"""The two lists of requests: running, in order of admission, and waiting, with only its head ever looked at.

Running is a linked list, so a request leaves it without moving others. First come, first served: requests that
were never admitted are a range of the arrivals, and preempted ones lie in a stack in front of it. Priority: waiting
is a binary heap of ranks in the order (priority, arrival, tie), which is known before the run.
"""

from __future__ import annotations

from planner.simulation.kernel.compiled import compiled, inlined
from planner.simulation.kernel.state import DONE, State


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
    """The next arrival joins the queue (fcfs: the range of arrivals grows by itself)."""
    state.now[0].waiting += 1
    if state.knobs[0].priority != 0:
        _push(state, state.requests[position].queue_rank)


@inlined
def enqueue_preempted(state: State, position: int) -> None:
    now = state.now[0]
    now.waiting += 1
    if state.knobs[0].priority != 0:
        _push(state, state.requests[position].queue_rank)
    else:
        state.queue[now.queued] = position
        now.queued += 1


@inlined
def queue_head(state: State) -> int:
    """The request next in line; only when `waiting` > 0."""
    now = state.now[0]
    if state.knobs[0].priority != 0:
        position = state.by_rank[state.queue[0]]
        while state.requests[position].state == DONE:  # finished while waiting
            _pop(state)
            position = state.by_rank[state.queue[0]]
        return int(position)
    if now.queued > 0:
        return int(state.queue[now.queued - 1])
    return int(now.next_new)


@inlined
def pop_queue(state: State) -> None:
    """Take away what `queue_head` returned."""
    now = state.now[0]
    now.waiting -= 1
    if state.knobs[0].priority != 0:
        _pop(state)
    elif now.queued > 0:
        now.queued -= 1
    else:
        now.next_new += 1


@compiled
def forget_waiting(state: State, position: int) -> None:
    """A preempted request whose last token was in flight has finished in the queue; its state is DONE."""
    now = state.now[0]
    now.waiting -= 1
    if state.knobs[0].priority != 0:
        return  # queue_head skips it
    at = now.queued - 1
    while state.queue[at] != position:
        at -= 1
    for later in range(at + 1, now.queued):
        state.queue[later - 1] = state.queue[later]
    now.queued -= 1


@compiled
def _push(state: State, rank: int) -> None:
    now, heap = state.now[0], state.queue
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
    now, heap = state.now[0], state.queue
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
