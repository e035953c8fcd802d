"""The account of what a replica holds: KV blocks and seats, integrated over time.

What a schedule has left held is held until the next schedule is made, when results have been applied, or until
something outside a schedule gives blocks back. `settle_held` puts the time since the last change on the account;
`hold` notes what is held from now on. The plain-Python simulator does both at the same times. Block-seconds.
"""

from __future__ import annotations

from planner.simulation import time_bins
from planner.simulation.kernel.assemble import bound
from planner.simulation.kernel.compiled import compiled, inlined
from planner.simulation.kernel.state import State

_widened = compiled(time_bins.widened)
_add_held = compiled(bound(time_bins.add_held, "add_held", widened=_widened))
_add_step = compiled(bound(time_bins.add_step, "add_step", widened=_widened))


@inlined
def settle_held(state: State, now_s: float) -> None:
    now = state.now[0]
    now.kv_block_s += now.held_blocks * (now_s - now.held_since_s)
    if now.bin_s > 0.0:
        now.bin_s = _add_held(
            state.bins, now.bin_s, now.held_since_s, now_s, float(now.held_blocks), float(now.held_seats)
        )
    now.held_since_s = now_s


@inlined
def hold(state: State) -> None:
    now = state.now[0]
    now.held_blocks = state.knobs[0].num_blocks - now.free
    now.held_seats = now.running


@inlined
def give_up_held(state: State, now_s: float, blocks: int) -> None:
    """So many blocks come free at a time that is no schedule's."""
    settle_held(state, now_s)
    state.now[0].held_blocks -= blocks


@inlined
def note_step(state: State, tokens: int, emitted: int) -> None:
    """A step's start and end are known."""
    now = state.now[0]
    if now.bin_s > 0.0:
        now.bin_s = _add_step(state.bins, now.bin_s, now.start_s, now.end_s, float(tokens), float(emitted))


@inlined
def note_more_tokens(state: State, more: int) -> None:
    """The step that was noted has emitted so many more tokens (or fewer) than it had logits."""
    now = state.now[0]
    if now.bin_s > 0.0:
        last = min(int(now.end_s / now.bin_s), len(state.bins) - 1)
        state.bins[last, time_bins.GENERATED_TOKENS] += float(more)
