"""The batch outside the steady set: `rows`, and the list of loose requests that it leaves behind."""

from __future__ import annotations

from planner.simulation.kernel.compiled import compiled, inlined
from planner.simulation.kernel.records import LOOSE, STEADY
from planner.simulation.kernel.state import State
from planner.simulation.kernel.steady import stall


@inlined
def add_row(state: State, position: int, take: int) -> None:
    """Tokens for a request outside the steady set; before its blocks or progress change."""
    now, request, row = state.now[0], state.requests[position], state.rows[state.now[0].rows]
    request.stamp = now.schedules
    request.take = take
    row.request = position
    row.take = take
    row.cached = request.computed
    last = request.computed + 1 == request.prompt + request.emitted
    row.decode = 1 if last and request.computed >= request.prompt else 0
    now.rows += 1


@compiled
def drop_row(state: State, position: int) -> None:
    now, rows = state.now[0], state.rows
    at = 0
    while rows[at].request != position:
        at += 1
    for later in range(at + 1, now.rows):
        rows[later - 1] = rows[later]
    now.rows -= 1


@compiled
def forget_loose(state: State, position: int) -> None:
    """Whoever was admitted in this schedule is not in the list yet."""
    now, loose = state.now[0], state.loose
    at = 0
    while at < now.loose and loose[at] != position:
        at += 1
    if at < now.loose:
        for later in range(at + 1, now.loose):
            loose[later - 1] = loose[later]
        now.loose -= 1


@compiled
def collect_loose(state: State) -> None:
    """After the running list was walked: who is steady without a token is loose now, and the loose are listed in
    running order."""
    now, requests = state.now[0], state.requests
    now.loose = 0
    position = now.head
    while position >= 0:
        if requests[position].state == STEADY and requests[position].stamp != now.schedules:
            stall(state, position)
        if requests[position].state == LOOSE:
            state.loose[now.loose] = position
            now.loose += 1
        position = requests[position].next
