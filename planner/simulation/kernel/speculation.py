"""Speculative decoding, compiled: rows of a known token and drafts, and what of them is accepted.

How far a request gets in a step depends on its luck, so none that drafts is ever in the steady set: all are loose, and
the running list is walked in every step. What the scheduler knows lags behind what is true: with asynchronous
scheduling it takes the drafts in flight to be accepted (`ahead` of them will not be) and does not know that their
acceptance may have finished a request (`unaware`). Rules: `reference_requests.advance`, `knobs.speculation`, `luck`.
"""

from __future__ import annotations

import numpy as np

from planner.simulation.kernel.blocks import blocks_for
from planner.simulation.kernel.compiled import compiled, inlined
from planner.simulation.kernel.held import note_more_tokens
from planner.simulation.kernel.record import count_gap, exhaust
from planner.simulation.kernel.records import EXHAUSTED, NOT_YET
from planner.simulation.kernel.state import State
from planner.simulation.luck import COIN_BITS, FIRST_FACTOR, SECOND_FACTOR, STRIDE

_STRIDE = np.uint64(STRIDE)
_FIRST, _SECOND = np.uint64(FIRST_FACTOR), np.uint64(SECOND_FACTOR)
_30, _27, _31, _REST = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(64 - COIN_BITS)


@inlined
def _is_accepted(key: np.uint64, token: int, threshold: int) -> bool:
    """`luck.is_accepted`, in unsigned 64-bit arithmetic."""
    value = key + _STRIDE * np.uint64(token)
    value = (value ^ (value >> _30)) * _FIRST
    value = (value ^ (value >> _27)) * _SECOND
    value = value ^ (value >> _31)
    return bool((value >> _REST) < np.uint64(threshold))


@inlined
def _was_in_the_last_step(state: State, position: int) -> bool:
    return bool(state.requests[position].stamp == state.now[0].schedules - 1)


@inlined
def is_unaware(state: State, position: int) -> bool:
    return bool(state.knobs[0].drafts != 0 and state.drafts[position].unaware != 0)


@inlined
def missing_blocks(state: State, position: int, take: int) -> int:
    """Blocks that a running request takes from the pool before `take` more tokens of it are computed."""
    knobs, draft = state.knobs[0], state.drafts[position]
    tokens = state.requests[position].computed + take + knobs.lookahead
    if knobs.lag != 0 and _was_in_the_last_step(state, position):
        tokens += draft.ahead
    return int(max(0, blocks_for(tokens, knobs.block_size) - draft.held))


@inlined
def first_row(state: State, want: int, more: bool, cap: int, continued: int) -> int:
    """Tokens for a newcomer that has `want` to compute, with the drafts that its row is padded with (see
    `reference_mixed`); more than the budget has left: it waits. `more`: others are in the step, or some of its tokens
    were cached; `continued`: running requests in the middle of a prompt that are."""
    knobs, now = state.knobs[0], state.now[0]
    padded = 1 + knobs.drafts
    if want == 1 and more and continued == 0 and padded <= min(cap, knobs.budget):
        return int(padded)
    return int(min(want, cap, now.budget))


@inlined
def unnamed_tokens(state: State, position: int) -> int:
    """Of the tokens that a running request has computed, those at the end that are not known, or in blocks without a
    name yet: asynchronously, while the result of its last row is in flight."""
    now, draft = state.now[0], state.drafts[position]
    if state.knobs[0].lag == 0 or draft.settled != now.schedules - 1:
        return 0
    has_turn = state.requests[position].stamp == now.schedules
    late = state.knobs[0].named_ahead if has_turn else max(state.knobs[0].named_ahead, draft.known_late)
    return int(draft.accepted + late)


@inlined
def forget_drafts(state: State, position: int) -> int:
    """The request leaves or is preempted: the blocks it held."""
    draft = state.drafts[position]
    held = int(draft.held)
    draft.held = 0
    draft.drafts = 0
    draft.ahead = 0
    draft.unaware = 0
    draft.settled = NOT_YET
    return held


@compiled
def settle_drafting_rows(state: State, seconds: float) -> None:
    """Progress and tokens of the rows: `record.settle_rows` where rows may hold drafts."""
    now = state.now[0]
    more = 0
    for at in range(now.rows):
        row = state.rows[at]
        request, draft = state.requests[row.request], state.drafts[row.request]
        if request.first_scheduled_s < 0.0:
            request.first_scheduled_s = now.start_s
        if row.decode == 0 and request.first_token_s < 0.0:
            request.chunks_s += seconds
        logits = max(0, request.computed + row.take + 1 - request.prompt - request.emitted)
        if request.state == EXHAUSTED:
            draft.unaware = 0
            more -= logits
            continue
        drafts = max(0, logits - 1)
        request.computed += row.take - drafts
        unfinished = 1 if request.computed < request.prompt + request.emitted else 0
        now.mid_prefill += unfinished - request.mid_prefill
        request.mid_prefill = unfinished
        draft.drafts = 0
        draft.ahead = 0
        if unfinished == 0:
            padded = at >= now.admitted
            more += _emit(state, row.request, drafts, padded) - logits
    note_more_tokens(state, more)


@inlined
def _emit(state: State, position: int, drafts: int, padded: bool) -> int:
    """One token, and the drafts before the first rejected one, at once. Returns how many. `padded`: the drafts are
    nobody's, to be rejected."""
    now, knobs = state.now[0], state.knobs[0]
    request, draft = state.requests[position], state.drafts[position]
    most = 0 if padded else min(drafts, request.output - request.emitted - 1)
    accepted = 0
    while accepted < most and _is_accepted(draft.luck, request.emitted + accepted, knobs.accepted_below):
        accepted += 1
    if drafts > 0 and not padded:
        now.verifications += 1
        now.draft_tokens += drafts
        now.accepted_tokens += accepted
    request.emitted += 1 + accepted
    request.computed += accepted
    draft.ahead = drafts - accepted
    draft.drafts = knobs.drafts
    draft.known_late = 1 if draft.settled == now.schedules - 1 else 0
    draft.accepted = accepted
    draft.settled = now.schedules
    if request.first_token_s < 0.0:
        request.first_token_s = now.end_s
    else:
        gap_s = now.end_s - request.last_token_s
        count_gap(state, gap_s, 1)
        request.max_gap_s = max(request.max_gap_s, gap_s)
    request.last_token_s = now.end_s
    if request.emitted == request.output:
        exhaust(state, position)
        draft.unaware = 1 if knobs.lag != 0 and accepted > 0 else 0
    return 1 + accepted
