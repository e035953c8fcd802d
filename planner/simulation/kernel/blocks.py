"""KV blocks: who holds how many, and how many the steady set needs next.

A request holds exactly the blocks that its computed tokens fill (or those of its whole prompt, while that is being
computed and the engine allocates it at once), so holdings are never stored. A steady request
needs a new block every `block_size` ticks, always at the same phase; `crossings` counts the requests of each phase,
and a decode-only step takes `crossings[phase]` blocks from the pool without looking at any request.
"""

from __future__ import annotations

from planner.simulation.kernel.compiled import inlined
from planner.simulation.kernel.records import EXHAUSTED, LOOSE, STEADY, Record


@inlined
def blocks_for(tokens: int, block_size: int) -> int:
    return (tokens + block_size - 1) // block_size


@inlined
def context_of(request: Record, tick: int) -> int:
    """Tokens in a steady request's KV cache at `tick`, before the step."""
    return int(request.prompt + request.output - 1 - (request.finish_tick - tick))


@inlined
def crossing_phase(request: Record, block_size: int) -> int:
    return int((request.finish_tick + 1 - request.prompt - request.output) % block_size)


@inlined
def held_blocks(request: Record, tick: int, taken: int, block_size: int, whole_prompt: bool) -> int:
    """Blocks of a running request that got `taken` tokens in the schedule being made."""
    if whole_prompt and request.state == LOOSE and (request.mid_prefill != 0 or request.computed == 0):
        return blocks_for(request.prompt + request.emitted, block_size)
    if request.state == EXHAUSTED:
        return blocks_for(request.prompt + request.output - 1, block_size)
    if request.state == STEADY:
        return blocks_for(context_of(request, tick) + taken, block_size)
    return blocks_for(request.computed + taken, block_size)
