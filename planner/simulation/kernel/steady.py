"""The steady set: requests that emit a token in every step, advanced together by one counter.

What a step needs of them is kept as sums: how many, their contexts' sum and maximum, the blocks they need at
each phase. Who finishes next is read from a wheel (for each tick, the list of requests that finish there). The
largest gap between two tokens of each is found when it leaves: `peaks` holds the gaps of past ticks that no later
gap exceeds, so the largest since a tick is the first entry after it.

A schedule that gives tokens to none of them pauses the set: no tick passes, so all numbers stay true. Who catches up
in such a schedule has emitted later than the set and may not join it before a schedule in which the set advances.
"""

from __future__ import annotations

from planner.simulation.kernel.blocks import context_of, crossing_phase
from planner.simulation.kernel.compiled import compiled, inlined
from planner.simulation.kernel.records import LOOSE, STEADY, Record
from planner.simulation.kernel.state import State


@inlined
def emitted_of(request: Record, tick: int) -> int:
    """Tokens that a steady request has emitted at `tick`, before the step."""
    return int(request.output - (request.finish_tick - tick))


@inlined
def join_steady(state: State, position: int) -> None:
    """A request that has just emitted a token, with more to come; `tick` already counts this step."""
    now, requests = state.now[0], state.requests
    request = requests[position]
    request.state = STEADY
    request.join_tick = now.tick
    request.finish_tick = now.tick + request.output - request.emitted
    bucket = request.finish_tick & (len(state.wheel) - 1)
    first = state.wheel[bucket]
    request.wheel_next = first
    request.wheel_previous = -1
    if first >= 0:
        requests[first].wheel_previous = position
    state.wheel[bucket] = position
    state.crossings[crossing_phase(request, state.knobs[0].block_size)] += 1
    context = context_of(request, now.tick)
    if now.steady == 0 or context - now.tick > now.longest:
        now.longest = context - now.tick
        now.longest_stale = 0
    now.steady += 1
    now.steady_context += context
    now.steady_to_come += request.limit - request.emitted + now.tick


@inlined
def leave_steady(state: State, position: int) -> None:
    """Out of the sums and the wheel, its own numbers stored; the caller gives it its new state."""
    now, requests = state.now[0], state.requests
    request = requests[position]
    if request.wheel_previous >= 0:
        requests[request.wheel_previous].wheel_next = request.wheel_next
    else:
        state.wheel[request.finish_tick & (len(state.wheel) - 1)] = request.wheel_next
    if request.wheel_next >= 0:
        requests[request.wheel_next].wheel_previous = request.wheel_previous
    state.crossings[crossing_phase(request, state.knobs[0].block_size)] -= 1
    context = context_of(request, now.tick)
    now.steady -= 1
    now.steady_context -= context
    if context - now.tick >= now.longest:
        now.longest_stale = 1
    request.emitted = emitted_of(request, now.tick)
    now.steady_to_come -= request.limit - request.emitted + now.tick
    request.computed = request.prompt + request.emitted - 1
    request.last_token_s = now.steady_end_s
    request.max_gap_s = max(request.max_gap_s, _largest_gap_since(state, request.join_tick))


@compiled
def stall(state: State, position: int) -> None:
    """A steady request got no token in this schedule: it is loose until it gets one."""
    leave_steady(state, position)
    state.requests[position].state = LOOSE


@compiled
def longest_context(state: State) -> int:
    """Largest context of the steady set, looked up anew when the one that had it has left."""
    now, requests = state.now[0], state.requests
    longest = -(1 << 60)
    position = now.head
    while position >= 0:
        request = requests[position]
        if request.state == STEADY:
            longest = max(longest, context_of(request, now.tick) - now.tick)
        position = request.next
    now.longest = longest
    now.longest_stale = 0
    return longest


@inlined
def note_peak(state: State, gap_s: float) -> None:
    """The steady set's gap that ends with the step of `tick` (the count before this step's)."""
    now, peaks = state.now[0], state.peaks
    mask = len(peaks) - 1
    last = now.peaks_last
    while last > now.peaks_first and peaks[(last - 1) & mask].gap_s <= gap_s:
        last -= 1
    peaks[last & mask].tick = now.tick
    peaks[last & mask].gap_s = gap_s
    now.peaks_last = last + 1
    if last + 1 - now.peaks_first > mask:  # older than any request in the set can be
        now.peaks_first += 1


@inlined
def _largest_gap_since(state: State, tick: int) -> float:
    now, peaks = state.now[0], state.peaks
    mask = len(peaks) - 1
    low, high = now.peaks_first, now.peaks_last
    while low < high:
        middle = (low + high) >> 1
        if peaks[middle & mask].tick >= tick:
            high = middle
        else:
            low = middle + 1
    if low == now.peaks_last:
        return 0.0
    return float(peaks[low & mask].gap_s)
