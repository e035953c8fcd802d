"""One schedule of an engine, whichever way it assembles its steps."""

from __future__ import annotations

from planner.simulation.profile import IN_ORDER, PREFILL_FIRST
from planner.simulation.reference_mixed import assemble_mixed
from planner.simulation.reference_prefill_first import assemble_prefill_first
from planner.simulation.reference_requests import Batch, Engine, advance


def schedule(engine: Engine) -> Batch:
    """Assemble one step: take blocks, move `computed` on, count emitted tokens as in flight."""
    if engine.decode_side is not None and engine.profile.assembler != IN_ORDER:
        engine.decode_side.take_over(engine)
    prefill_first = engine.profile.assembler == PREFILL_FIRST
    batch = assemble_prefill_first(engine) if prefill_first else assemble_mixed(engine)
    advance(engine, batch)
    return batch
